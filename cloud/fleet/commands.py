"""`waypost command`: send commands to devices through the hub's registry, and show their outcomes."""

from __future__ import annotations

import base64
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from bridge.limits import COMMAND_PAYLOAD_BYTES_MAX
from cloud.fleet.audited import audited
from cloud.fleet.place import (
    FleetError,
    config_option,
    current_user,
    data_option,
    json_option,
    open_commands,
    parse_duration,
    tenant_option,
)
from edge.output.text import word

if TYPE_CHECKING:
    from cloud.hub.registry.commands import CommandOutlook, CommandRecord, Commands

POLL_INTERVAL_S = 0.2
"""Interval of polling for the outcome of a command: one row by its key."""
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
@data_option
@config_option
@tenant_option
@click.argument("device", metavar="DEVICE@GATEWAY")
@click.argument("name")
@click.argument("payload", required=False, default="")
@click.option("--payload-file", type=click.File("rb"), help="Read the payload from a file; - is standard input.")
@click.option("--content-type", help="Content type of the payload, for example application/json.")
@click.option("--ttl", default="1h", show_default=True, metavar="TIME", help="Time to live: 30s, 10m, 24h, 7d.")
@click.option("--response", is_flag=True, help="Ask the device for a response.")
@click.option("--correlation-id", help="Identifier of your own, returned with the outcome.")
@click.option(
    "--dry-run", is_flag=True, help="Send nothing: show whether the gateway would get it now, later or never."
)
@click.option("--idempotency-key", help="Commands with the same key are sent once; for scripts that retry.")
@wait_option
@json_option
@audited("command.send", "device", "name")
def send(
    data: Path,
    config: Path | None,
    tenant: str,
    device: str,
    name: str,
    payload: str,
    payload_file: BinaryIO | None,
    content_type: str | None,
    ttl: str,
    response: bool,
    correlation_id: str | None,
    dry_run: bool,
    idempotency_key: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Send a command to a device.

    \b
      waypost command send pump7@hall speed '{"rpm": 900}' --data DIR --ttl 10m --response --wait 1m
    """
    from cloud.hub.commands.documents import CommandDocument, InvalidCommand, check_command
    from cloud.hub.commands.limits import GATEWAY_COMMANDS_MAX
    from cloud.hub.registry.commands import CommandRefused

    own, at, gateway = device.rpartition("@")
    if not at:
        raise FleetError(
            f"{device} does not name a gateway", f"write {device}@GATEWAY, for example {device}@hall", code=2
        )
    wait_s = parse_duration(wait) if wait is not None else None
    document = CommandDocument(
        gateway=gateway,
        device=own,
        name=name,
        payload=payload,
        payload_base64=_base64(payload_file) if payload_file is not None else None,
        content_type=content_type,
        ttl_s=parse_duration(ttl),
        response=response,
        correlation_id=correlation_id,
    )
    try:
        made = check_command(document, tenant, sent_by="", key=idempotency_key)
    except InvalidCommand as error:
        raise FleetError(str(error), code=2) from None
    with open_commands(data, config) as (commands, quotas):
        if dry_run:
            bounds = {"gateway_max": GATEWAY_COMMANDS_MAX, "tenant_max": quotas.of(tenant).commands}
            [outlook], _ = commands.rehearse(tenant, (gateway,), **bounds, most=1)
            _print_outlook(outlook, ttl, as_json=as_json)
            return
        new, bound = made.record(time.time_ns() // 1_000), quotas.of(tenant).commands
        try:
            sent = commands.add(new, gateway_max=GATEWAY_COMMANDS_MAX, tenant_max=bound, key=made.key)
        except CommandRefused as refused:
            raise FleetError(str(refused)) from None
        _print_outcome(commands, sent, wait_s, as_json=as_json)


@command.command("list")
@data_option
@config_option
@click.option("--tenant", help="Only of this tenant.")
@click.option("--gateway", help="Only to this gateway.")
@click.option("--device", help="Only to this device.")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1_000), help="Number of commands.")
@json_option
def list_commands(
    data: Path,
    config: Path | None,
    tenant: str | None,
    gateway: str | None,
    device: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List commands, the newest first."""
    from cloud.hub.commands.documents import command_document
    from cloud.hub.registry.commands import CommandFilter
    from edge.output.terminal import say, say_json

    with open_commands(data, config) as (commands, _):
        found = commands.page(CommandFilter(tenant, gateway, device, state), limit)
    if as_json:
        say_json([command_document(each) for each in found])
        return
    for each in found:
        say(_line(each))
    if not found:
        say("no commands")


@command.command()
@data_option
@config_option
@click.argument("identifier", metavar="ID")
@wait_option
@json_option
def status(data: Path, config: Path | None, identifier: str, wait: str | None, as_json: bool) -> None:
    """Show the outcome of a command. ID: as in `send` and `list`."""
    wait_s = parse_duration(wait) if wait is not None else None
    with open_commands(data, config) as (commands, _):
        found = commands.get(identifier)
        if found is None:
            raise FleetError(f"no command {identifier}", f"list them: waypost command list --data {word(data)}")
        _print_outcome(commands, found, wait_s, as_json=as_json)


@command.command()
@data_option
@config_option
@click.argument("identifier", metavar="ID")
@json_option
@audited("command.cancel", "identifier")
def cancel(data: Path, config: Path | None, identifier: str, as_json: bool) -> None:
    """Cancel a command that was not sent yet.

    Exit code 1 when it is too late: the gateway may have it (`sent`, `queued`), or it is completed. ID: as in `send`
    and `list`. A running hub notifies a waiting application within a second.
    """
    from cloud.hub.registry.commands import CancelTooLate

    with open_commands(data, config) as (commands, _):
        try:
            found = commands.cancel(identifier, current_user(), time.time_ns() // 1_000)
        except CancelTooLate as late:
            raise FleetError(str(late), "a command at its gateway expires with its time to live") from None
        if found is None:
            raise FleetError(f"no command {identifier}", f"list them: waypost command list --data {word(data)}")
        _print_outcome(commands, found, None, as_json=as_json)


def _base64(file: BinaryIO) -> str:
    """Encode a payload; of a too large one only as much as shows that."""
    return base64.b64encode(file.read(COMMAND_PAYLOAD_BYTES_MAX + 1)).decode()


def _print_outcome(commands: Commands, command: CommandRecord, wait_s: float | None, *, as_json: bool) -> None:
    """Print a command, after waiting for its outcome if asked to. Exit with 1 if it was waited for and not
    delivered."""
    from cloud.hub.commands.documents import command_document
    from cloud.hub.commands.service import is_completed
    from edge.output.terminal import say, say_json

    deadline = time.monotonic() + (wait_s or 0.0)
    while wait_s is not None and not is_completed(command) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
        command = commands.get(command.id) or command
    if as_json:
        say_json(command_document(command))
    else:
        say(_line(command))
        if command.reason:
            say(f"  {command.reason}")
        if command.response is not None:
            status = "" if command.response_status is None else f" {command.response_status}"
            say(f"  response{status}: {command.response.decode('utf-8', 'backslashreplace')}")
    if wait_s is not None and not (command.state == "delivered" and is_completed(command)):
        sys.exit(1)


def _print_outlook(outlook: CommandOutlook, ttl: str, *, as_json: bool) -> None:
    """Print what would happen to a command. Exit with 1 if it would be refused."""
    from cloud.hub.commands.documents import outlook_document
    from edge.output.terminal import say, say_json

    shown = outlook_document(outlook)
    if as_json:
        say_json(shown)
    elif outlook.why_not:
        say(f"{outlook.gateway}  never: {outlook.why_not}")
    elif outlook.connected:
        say(f"{outlook.gateway}  now: it is connected, and hands it to the device when that is connected")
    else:
        say(f"{outlook.gateway}  when it connects within {ttl}, else never; last seen {shown['last_seen'] or 'never'}")
    if outlook.why_not:
        sys.exit(1)


def _line(command: CommandRecord) -> str:
    from cloud.hub.commands.documents import format_time

    device = f"{command.device}@{command.gateway}"
    return "  ".join((command.id, command.tenant, device, command.name, command.state, format_time(command.changed_at)))
