"""`waypost command`: send commands to devices through the hub's registry, and show their outcomes."""

from __future__ import annotations

import base64
import functools
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote

import click

from bridge.limits import COMMAND_PAYLOAD_BYTES_MAX
from cloud.fleet.audited import audited, change_of
from cloud.fleet.place import (
    DEFAULT_TENANT,
    HubPlace,
    current_user,
    hub_options,
    open_commands,
    parse_duration,
    tenant_option,
)
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.terminal import say
from edge.output.text import word

if TYPE_CHECKING:
    from cloud.hub.commands.documents import CommandDocument
    from cloud.hub.commands.service import Draft
    from cloud.hub.registry.commands import CommandRefused, Commands
    from edge.remote.client import ConsoleClient

TTL_DEFAULT: Final = ("1h", "10s")
"""Default times to live: of commands that wait, and of online ones."""
KEY_BYTES: Final = 16
"""Random bytes of an idempotency key that the user does not give."""
POLL_INTERVAL_S = 0.2
"""Interval of polling for the outcome of a command: one row by its key."""
FINAL: Final = frozenset({"delivered", "expired", "rejected", "cancelled"})
"""States in which a command stays."""
COMMANDS: Final = Listing(
    "command",
    "id",
    ("id", "tenant", "gateway", "device", "name", "state", "changed_at"),
    ("delivery", "reason_code", "reason", "sent_by", "created_at", "expires_at"),
    "no commands",
)
STATES = ("waiting", "sent", "queued", "delivered", "expired", "rejected", "cancelling", "cancelled", "rejecting")

wait_option = click.option(
    "--wait",
    metavar="TIME",
    help="Wait at most this long for the outcome: 30s, 5m. Exit code 1 when it is not delivered.",
)


@click.group()
def command() -> None:
    """Send commands to devices. Their outcomes can be shown, and waiting ones cancelled.

    Commands are stored in the hub's registry. A running hub sends them within a second, a stopped one at its start.
    """


@command.command()
@hub_options
@tenant_option
@click.argument("device", metavar="DEVICE@GATEWAY")
@click.argument("name")
@click.argument("payload", required=False, default="")
@click.option("--payload-file", type=click.File("rb"), help="Read the payload from a file; - is standard input.")
@click.option("--content-type", help="Content type of the payload, for example application/json.")
@click.option("--online", is_flag=True, help="Only if the device takes it now, otherwise never.")
@click.option("--ttl", metavar="TIME", help="Time to live: 30s, 10m, 24h, 7d.  [default: 1h; with --online 10s]")
@click.option("--response", is_flag=True, help="Ask the device for a response.")
@click.option("--correlation-id", help="Identifier of your own, returned with the outcome.")
@click.option(
    "--dry-run", is_flag=True, help="Send nothing: show whether the gateway would get it now, later or never."
)
@click.option(
    "--idempotency-key",
    help="Commands with the same key are sent once; for scripts that retry.  [default over HTTP: a random one]",
)
@wait_option
@json_option("command")
@audited("command.send", "device", "name")
def send(
    hub: HubPlace,
    tenant: str,
    device: str,
    name: str,
    payload: str,
    payload_file: BinaryIO | None,
    content_type: str | None,
    online: bool,
    ttl: str | None,
    response: bool,
    correlation_id: str | None,
    dry_run: bool,
    idempotency_key: str | None,
    wait: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Send a command to a device.

    \b
      waypost command send pump7@hall speed '{"rpm": 900}' --data DIR --ttl 10m --response --wait 1m
      waypost command send pump7@hall stop --data DIR --online --wait 20s
    """
    from cloud.hub.commands.documents import (
        ONLINE,
        STORED,
        CommandDocument,
        command_document,
        outlook_document,
        outlook_for,
    )
    from cloud.hub.commands.limits import GATEWAY_COMMANDS_MAX
    from cloud.hub.registry.commands import CommandRefused

    own, gateway = _parts(device)
    ttl = ttl or TTL_DEFAULT[online]
    wait_s = parse_duration(wait) if wait is not None else None
    document = CommandDocument(
        gateway=gateway,
        device=own,
        name=name,
        payload=payload,
        payload_base64=_base64(payload_file) if payload_file is not None else None,
        content_type=content_type,
        delivery=ONLINE if online else STORED,
        ttl_s=parse_duration(ttl),
        response=response,
        correlation_id=correlation_id,
    )
    made = _checked(document, tenant, idempotency_key)
    if hub.client is not None:
        _send_over_http(hub.client, document, tenant, idempotency_key, wait_s, dry_run=dry_run, as_json=as_json)
        return
    with open_commands(hub) as (commands, quotas):
        if dry_run:
            bounds = {"gateway_max": GATEWAY_COMMANDS_MAX, "tenant_max": quotas.of(tenant).commands}
            [outlook], _ = commands.rehearse(tenant, (gateway,), **bounds, most=1)
            _print_outlook(outlook_document(outlook_for(document, outlook)), ttl, as_json=as_json)
            return
        new, bound = made.record(time.time_ns() // 1_000), quotas.of(tenant).commands
        try:
            sent = commands.add(new, gateway_max=GATEWAY_COMMANDS_MAX, tenant_max=bound, key=made.key)
        except CommandRefused as refused:
            raise _refused_error(refused) from None
        again = functools.partial(_of_registry, commands)
        _print_outcome(_waited(again, command_document(sent), wait_s), waited=wait_s is not None, as_json=as_json)


def _checked(document: CommandDocument, tenant: str, key: str | None) -> Draft:
    """Return a valid command. Raises CommandError."""
    from cloud.hub.commands.documents import InvalidCommand, check_command

    try:
        return check_command(document, tenant or DEFAULT_TENANT, sent_by="", key=key)
    except InvalidCommand as error:
        raise CommandError(str(error), code=Exit.USAGE, error="invalid-command") from None


def _refused_error(refused: CommandRefused) -> CommandError:
    from cloud.hub.registry.commands import CommandRefusal

    if refused.why is CommandRefusal.NOT_CONNECTED:
        step = "send it when the gateway is connected, or without --online"
        return CommandError(str(refused), step, error="gateway-not-connected")
    return CommandError(str(refused), error="command-refused")


def _parts(device: str) -> tuple[str, str]:
    """Return device and gateway of DEVICE@GATEWAY. Raises CommandError."""
    own, at, gateway = device.rpartition("@")
    if not at:
        raise CommandError(
            f"{device} does not name a gateway",
            f"write {device}@GATEWAY, for example {device}@hall",
            code=Exit.USAGE,
            error="gateway-not-named",
        )
    return own, gateway


def _send_over_http(
    client: ConsoleClient,
    document: CommandDocument,
    tenant: str,
    key: str | None,
    wait_s: float | None,
    *,
    dry_run: bool,
    as_json: JsonOutput | None,
) -> None:
    """Send a command, or rehearse it, at the console of a hub."""
    from cloud.hub.commands.documents import time_to_live

    if dry_run:
        [outlook] = client.ask("commands/rehearsal", method="POST", body=document, tenant=tenant or None)["gateways"]
        _print_outlook(outlook, f"{time_to_live(document):.0f} s", as_json=as_json)
        return
    key = key or secrets.token_hex(KEY_BYTES)
    headers = {"Idempotency-Key": key}
    try:
        sent = client.ask("commands", method="POST", body=document, headers=headers, tenant=tenant or None)
    except CommandError as error:
        if error.error == "outcome-unknown":
            error.hint = f"repeat it with --idempotency-key {word(key)}: it is then sent once"
        raise
    again = functools.partial(_of_console, client)
    _print_outcome(_waited(again, sent, wait_s), waited=wait_s is not None, as_json=as_json)


def _of_registry(commands: Commands, identifier: str) -> Mapping[str, Any] | None:
    from cloud.hub.commands.documents import command_document

    found = commands.describe(identifier, time.time_ns() // 1_000)
    return None if found is None else command_document(found)


def _of_console(client: ConsoleClient, identifier: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.ask(f"commands/{quote(identifier, safe='')}")
    return found


@command.command("list")
@hub_options
@click.option("--tenant", help="Only of this tenant.")
@click.option("--gateway", help="Only to this gateway.")
@click.option("--device", help="Only to this device.")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1_000), help="Number of commands.")
@output_option("command")
def list_commands(
    hub: HubPlace,
    tenant: str | None,
    gateway: str | None,
    device: str | None,
    state: str | None,
    limit: int,
    form: str,
) -> None:
    """List commands, the newest first."""
    from cloud.hub.commands.documents import command_document
    from cloud.hub.registry.commands import CommandFilter

    if hub.client is not None:
        query: dict[str, Any] = {"tenant": tenant, "gateway": gateway, "device": device, "state": state}
        rows = hub.client.find("commands", query, limit=limit)["commands"]
    else:
        with open_commands(hub) as (commands, _):
            rows = [
                command_document(each) for each in commands.page(CommandFilter(tenant, gateway, device, state), limit)
            ]
    print_listing(COMMANDS, rows, form)


@command.command()
@hub_options
@click.argument("identifier", metavar="ID")
@wait_option
@json_option("command")
def status(hub: HubPlace, identifier: str, wait: str | None, as_json: JsonOutput | None) -> None:
    """Show the outcome of a command. ID: as in `send` and `list`."""
    wait_s = parse_duration(wait) if wait is not None else None
    if hub.client is not None:
        again = functools.partial(_of_console, hub.client)
        shown = _waited(again, again(identifier), wait_s)
        _print_outcome(shown, waited=wait_s is not None, as_json=as_json)
        return
    with open_commands(hub) as (commands, _):
        found = _of_registry(commands, identifier)
        if found is None:
            raise CommandError(
                f"no command {identifier}",
                f"list them: waypost command list {hub.quoted()}",
                error="command-not-found",
            )
        shown = _waited(functools.partial(_of_registry, commands), found, wait_s)
        _print_outcome(shown, waited=wait_s is not None, as_json=as_json)


@command.command()
@hub_options
@click.argument("identifier", metavar="ID")
@json_option("command")
@audited("command.cancel", "identifier")
def cancel(hub: HubPlace, identifier: str, as_json: JsonOutput | None) -> None:
    """Cancel a command that was not sent yet.

    Exit code 1 when it is too late: the gateway may have it (`sent`, `queued`), or it is completed. ID: as in `send`
    and `list`. A running hub notifies a waiting application within a second.
    """
    from cloud.hub.commands.documents import command_document
    from cloud.hub.registry.commands import CancelTooLate

    if hub.client is not None:
        cancelled = hub.client.ask(f"commands/{quote(identifier, safe='')}", method="DELETE")
        _print_outcome(cancelled, waited=False, as_json=as_json)
        return
    with open_commands(hub) as (commands, _):
        try:
            found = commands.cancel(identifier, current_user(), time.time_ns() // 1_000)
        except CancelTooLate as late:
            raise CommandError(
                str(late), "a command at its gateway expires with its time to live", error="command-too-late"
            ) from None
        if found is None:
            raise CommandError(
                f"no command {identifier}",
                f"list them: waypost command list {hub.quoted()}",
                error="command-not-found",
            )
        change_of(found.tenant)
        _print_outcome(command_document(found), waited=False, as_json=as_json)


def _base64(file: BinaryIO) -> str:
    """Encode a payload; of a too large one only as much as shows that."""
    return base64.b64encode(file.read(COMMAND_PAYLOAD_BYTES_MAX + 1)).decode()


def _waited(
    again: Callable[[str], Mapping[str, Any] | None], command: Mapping[str, Any], wait_s: float | None
) -> Mapping[str, Any]:
    """Return a command after waiting for its outcome if asked to; `again` reads it."""
    deadline = time.monotonic() + (wait_s or 0.0)
    while wait_s is not None and not _is_completed(command) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
        command = again(command["id"]) or command
    return command


def _is_completed(command: Mapping[str, Any]) -> bool:
    """Return True for a command with its outcome, including a wanted response."""
    if command["response"] is not None:
        return True
    return command["state"] in FINAL and not (command["state"] == "delivered" and command["wants_response"])


def _print_outcome(command: Mapping[str, Any], *, waited: bool, as_json: JsonOutput | None) -> None:
    """Print a command. Exit with 1 if its outcome was waited for and it was not delivered."""
    if as_json:
        as_json.show([command])
    else:
        say(_line(command))
        if command["reason"]:
            code = f" ({command['reason_code']})" if command.get("reason_code") else ""
            say(f"  {command['reason']}{code}")
        if command["response"] is not None:
            response = command["response"]
            status = "" if response["status"] is None else f" {response['status']}"
            say(f"  response{status}: {response.get('payload', response.get('payload_base64'))}")
    if waited and not (command["state"] == "delivered" and _is_completed(command)):
        sys.exit(1)


def _print_outlook(shown: Mapping[str, Any], ttl: str, *, as_json: JsonOutput | None) -> None:
    """Print what would happen to a command. Exit with 1 if it would be refused."""
    if as_json:
        JsonOutput("command-outlook").show([shown])
    elif shown["when"] == "never":
        say(f"{shown['gateway']}  never: {shown['why']}")
    elif shown["when"] == "now":
        say(f"{shown['gateway']}  now: it is connected, and hands it to the device when that is connected")
    else:
        say(f"{shown['gateway']}  when it connects within {ttl}, else never; last seen {shown['last_seen'] or 'never'}")
    if shown["when"] == "never":
        sys.exit(1)


def _line(command: Mapping[str, Any]) -> str:
    device = f"{command['device']}@{command['gateway']}"
    return "  ".join(
        (command["id"], command["tenant"], device, command["name"], command["state"], command["changed_at"])
    )
