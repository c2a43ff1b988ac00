"""`waypost message`: messages of a running gateway."""

from __future__ import annotations

import base64
import functools
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import msgspec

from edge.appliance.messages.documents import (
    DeadLetterList,
    DeadLetterOutcome,
    MessageDocument,
    MessagePage,
    PublishOutcome,
    ScheduledDeletion,
    ScheduledMessageList,
)
from edge.appliance.messages.limits import STEP_S_MAX
from edge.appliance.running import data_option, gateway_client, http_option
from edge.broker.http.limits import PAGE, PAGE_MAX
from edge.output.amounts import counted
from edge.output.listing import JsonOutput, Listing, json_option, output_option, print_listing
from edge.output.password import read_password
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import as_document

DEAD_LETTERS: Final = Listing(
    "dead-letter-group", "queue", ("queue", "reason", "from", "messages"), ("first_at", "last_at"), "no dead letters"
)
MESSAGES: Final = Listing(
    "message",
    "address",
    ("received_at", "address", "device", "body"),
    ("position", "qos", "content_type", "size"),
    "no message",
)
SCHEDULED: Final = Listing(
    "scheduled-message",
    "number",
    ("number", "address", "user", "due_in_s", "size", "refused"),
    ("device", "client", "received_at"),
    "no scheduled message",
)
SILENT_S_MAX: Final = 60.0
"""Longest silence of a stream: the gateway sends a comment every 15 s."""
DONE: Final = {"retry": "retried", "move": "moved", "delete": "deleted"}
"""Past participles of the actions on dead letters."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def message() -> None:
    """Send and browse messages."""


@message.group()
def scheduled() -> None:
    """List or delete scheduled messages.

    A sender of AMQP may request a delivery time. Until then its message is on disk, outside of its address.
    """


def _selecting(function: Any) -> Any:
    """Add the options that select scheduled messages."""
    address = click.option("--address", metavar="ADDRESS", help="Only messages for this address.")
    return address(click.option("--user", metavar="NAME", help="Only messages of this user.")(function))


@scheduled.command("list")
@_selecting
@click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=PAGE, show_default=True, help="Most messages to show."
)
@click.option("--after", metavar="NEXT", help="Continue after an earlier page: its `next`.")
@data_option
@http_option
@output_option("scheduled-message")
def list_scheduled(
    address: str | None,
    user: str | None,
    limit: int,
    after: str | None,
    data: Path | None,
    http: str | None,
    form: str,
) -> None:
    """List messages that wait for their time.

    \b
      waypost message scheduled list --data ./gw1
    """
    wanted = {"address": address, "user": user, "limit": limit, "after": after}
    page = gateway_client(data, http).read(ScheduledMessageList, "messages/scheduled", **wanted)
    more = {"next": page.next, "total": page.total, "bytes": page.bytes}
    print_listing(SCHEDULED, msgspec.to_builtins(page.messages), form, **more)


@scheduled.command("delete")
@click.argument("number", required=False)
@_selecting
@data_option
@http_option
@json_option("scheduled-deletion")
def delete_scheduled(
    number: str | None,
    address: str | None,
    user: str | None,
    data: Path | None,
    http: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Delete scheduled messages.

    The loss ledger has an entry for each. NUMBER: from the list; without it all messages of an address or user.

    \b
      waypost message scheduled delete 1764486000123456 --data ./gw1
      waypost message scheduled delete --user press7 --data ./gw1
    """
    client = gateway_client(data, http)
    if (number is None) == (address is None and user is None):
        raise click.UsageError("name either a NUMBER, or --address, --user or both")
    if number is not None:
        done = client.read(ScheduledDeletion, f"messages/scheduled/{quote(number, safe='')}", method="DELETE")
    else:
        done = client.read(ScheduledDeletion, "messages/scheduled", method="DELETE", address=address, user=user)
    if as_json:
        as_json.show([done])
        return
    say(f"{counted(done.messages, 'message')} deleted")


@message.group()
def dead() -> None:
    """Retry, move or delete dead letters.

    Messages that were rejected, tried too often or expired are dead letters if their address has `deadletter` or
    `expiry`.
    """


def _selection_options(function: Any) -> Any:
    """Add the options that select dead letters, and give the function their `selection`."""

    @functools.wraps(function)
    def selecting(
        queue: str, reason: str | None, origin: str | None, dry_run: bool, **more: Any
    ) -> None:  # one document for all actions
        function(selection={"queue": queue, "reason": reason, "from": origin, "dry_run": dry_run}, **more)

    for option in reversed(
        (
            click.argument("queue"),
            click.option("--reason", metavar="TEXT", help="Only messages with this reason."),
            click.option(
                "--from", "origin", metavar="ADDRESS", help="Only messages that were dropped at this address."
            ),
            click.option("--dry-run", is_flag=True, help="Count the messages, and change nothing."),
            data_option,
            http_option,
            json_option("dead-letter-outcome"),
        )
    ):
        selecting = option(selecting)
    return selecting


@dead.command("list")
@data_option
@http_option
@output_option("dead-letter-group")
def list_dead(data: Path | None, http: str | None, form: str) -> None:
    """List dead letters by reason and origin.

    \b
      waypost message dead list --data ./gw1
    """
    found = as_document(DeadLetterList, call(data, http, "dead-letters"))
    if form != "table":
        more = {"total": found.total, "messages": found.messages, "queues": found.queues, "complete": found.complete}
        print_listing(DEAD_LETTERS, msgspec.to_builtins(found.groups), form, **more)
        return
    if not found.groups:
        queues = ", ".join(map(line, found.queues)) or "no address has `deadletter` or `expiry`"
        say(f"no dead letters ({queues})")
    for each in found.groups:
        origin = f" at {line(each.origin)}" if each.origin else ""
        say(f"{line(each.queue)}: {counted(each.messages, 'message')} {line(each.reason) or 'sent directly'}{origin}")
    if not found.complete:
        say("not all messages are counted yet: run this again", err=True)


@dead.command()
@_selection_options
def retry(selection: dict[str, Any], data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Send dead letters back.

    \b
    Each goes to the address where it was dropped. It leaves the queue in the commit that stores it there, so
    none is lost and none comes twice, even if the power is cut. Subscribers of a topic all get it again.
    Messages stay if their address would not store them.

    \b
      waypost message dead retry dead --from jobs --dry-run --data ./gw1
      waypost message dead retry dead --from jobs --reason rejected --data ./gw1
    """
    _act("retry", selection, data, http, as_json)


@dead.command()
@click.option("--to", "target", metavar="ADDRESS", required=True, help="Address that gets them.")
@_selection_options
def move(
    selection: dict[str, Any], target: str, data: Path | None, http: str | None, as_json: JsonOutput | None
) -> None:
    """Send dead letters to another address.

    \b
      waypost message dead move dead --to inspection --data ./gw1
    """
    _act("move", {**selection, "to": target}, data, http, as_json)


@dead.command()
@_selection_options
def delete(selection: dict[str, Any], data: Path | None, http: str | None, as_json: JsonOutput | None) -> None:
    """Delete dead letters.

    The loss ledger has an entry for them.

    \b
      waypost message dead delete dead --reason expired --data ./gw1
    """
    _act("delete", selection, data, http, as_json)


def _act(
    action: str, selection: dict[str, Any], data: Path | None, http: str | None, as_json: JsonOutput | None
) -> None:
    """Do an action in steps, and print the outcome of all."""
    whole: DeadLetterOutcome | None = None
    reasons: dict[str, None] = {}
    while True:
        step = as_document(DeadLetterOutcome, call(data, http, f"dead-letters/{action}", selection))
        reasons |= dict.fromkeys(filter(None, step.why.split("; ")))
        if whole is None:
            whole = step
        else:
            whole.done, whole.kept = whole.done + step.done, whole.kept + step.kept
        if step.next is None:
            break
        selection["after"] = step.next
    whole.next, whole.why = None, "; ".join(reasons)
    if as_json:
        as_json.show([whole])
        return
    if selection["dry_run"]:
        say(f"{counted(whole.messages, 'message')} would be {DONE[action]}")
    else:
        say(f"{counted(whole.done, 'message')} {DONE[action]}")
    if whole.kept:
        say(f"{counted(whole.kept, 'message')} stay{'s' if whole.kept == 1 else ''} in {line(selection['queue'])}")
    if whole.why:
        say(f"note: {line(whole.why)}", err=True)


@message.command()
@click.argument("address")
@click.option(
    "--limit", type=click.IntRange(1, PAGE_MAX), default=PAGE, show_default=True, help="Most messages to show."
)
@click.option("--after", metavar="NEXT", help="Continue after an earlier page: its `next`.")
@click.option("--oldest", is_flag=True, help="The oldest first.  [default: the newest]")
@click.option("--since", metavar="WHEN", help="Only from this time or age on: 15m, 2h, 2026-11-21T08:00.")
@click.option("--until", metavar="WHEN", help="Only before this time or age.")
@click.option("--query", "-q", "text", metavar="TEXT", help="Only with this text in the body.")
@click.option("--where", metavar="SELECTOR", help="Only with these properties and fields (JMS selector).")
@click.option("--body-json", "body", metavar="CONDITION", help="Only with a JSON body like this: '$.t > 30'.")
@data_option
@http_option
@output_option("message")
def browse(
    address: str,
    limit: int,
    after: str | None,
    oldest: bool,
    since: str | None,
    until: str | None,
    text: str | None,
    where: str | None,
    body: str | None,
    data: Path | None,
    http: str | None,
    form: str,
) -> None:
    """Show the messages that an address keeps.

    \b
    They are not consumed. A queue shows the messages that no consumer has accepted, a topic or filter those
    that its log still has. For a gateway that is stopped: waypost store export.

    \b
      waypost message browse jobs --data ./gw1
      waypost message browse 'plant/#' --since 15m --query '"t": 9' --data ./gw1
      waypost message browse jobs --where "unit = 'K' AND message.size > 100" --data ./gw1

    \b
    Names of a selector: user and application properties, message.size, message.device, message.client,
    message.qos, message.retain, message.address, header.ttl, properties.content_type, properties.reply_to.
    """
    order = "oldest" if oldest else "newest"
    wanted = {
        "address": address,
        "limit": limit,
        "after": after,
        "order": order,
        "since": since,
        "until": until,
        "q": text,
        "where": where,
        "json": body,
    }
    page = gateway_client(data, http).read(MessagePage, "messages", answer_s=STEP_S_MAX + 5.0, **wanted)
    if form != "table":
        print_listing(MESSAGES, msgspec.to_builtins(page.messages), form, next=page.next)
        return
    for each in page.messages:
        show_message(each)
    if not page.messages:
        say("no message", err=True)
    if page.next is not None:
        say(f"more: --after {page.next}", style="dim", err=True)


def show_message(each: MessageDocument) -> None:
    """Print one message on a line."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.received_at))
    cut = f" … ({each.size} bytes)" if each.shown < each.size else ""
    say(f"{at}  {line(each.address)}  {line(each.body)}{cut}")


def _login_options(function: Any) -> Any:
    """Add the options of a user who sends or receives."""
    user = click.option("--user", metavar="NAME", help="Log in as this user.  [default: the operator of --data]")
    stdin = click.option("--password-stdin", is_flag=True, help="Read the password of --user from standard input.")
    return user(stdin(data_option(http_option(function))))


@message.command()
@click.argument("address")
@click.argument("body")
@click.option("--content-type", metavar="TYPE", help="Media type; application/json is checked.")
@click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="User property (repeatable).")
@click.option("--retain", is_flag=True, help="Keep it as the last message of a topic.")
@click.option("--ttl", "ttl_s", metavar="SECONDS", type=click.IntRange(0), help="Time to live.")
@_login_options
def pub(
    address: str,
    body: str,
    content_type: str | None,
    properties: tuple[str, ...],
    retain: bool,
    ttl_s: int | None,
    user: str | None,
    password_stdin: bool,
    data: Path | None,
    http: str | None,
) -> None:
    """Publish a message to ADDRESS.

    It is on disk when this ends. BODY: `-` reads standard input.

    \b
      waypost message pub plant/pump7/temp 21.5 --data ./gw1
      waypost message pub jobs '{"cut": 3}' --content-type application/json --data ./gw1
    """
    pairs = dict(each.partition("=")[::2] for each in properties)
    content = sys.stdin.buffer.read() if body == "-" else body.encode()
    document: dict[str, Any] = {"address": address, "base64": base64.b64encode(content).decode()}
    document |= {"content_type": content_type, "properties": pairs, "retain": retain, "ttl_s": ttl_s}
    answer = call(data, http, "messages", document, login=_login(user, stdin=password_stdin))
    if not as_document(PublishOutcome, answer).subscribers:
        say("note: no subscription of the topic matches, so it is not kept", err=True)


@message.command()
@click.argument("wanted", metavar="FILTER")
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@_login_options
@json_option("message", streams=True)
def sub(
    wanted: str,
    count: int | None,
    user: str | None,
    password_stdin: bool,
    data: Path | None,
    http: str | None,
    as_json: JsonOutput | None,
) -> None:
    """Show messages as they arrive.

    \b
    It ends after 10 minutes. At most 50 messages a second are shown; the others are counted. With --json each
    is a document on a line. A queue is browsed instead, as a subscriber would take its messages.

    \b
      waypost message sub 'plant/#' --data ./gw1
    """
    client = gateway_client(data, http).as_user(_login(user, stdin=password_stdin))
    shown = 0
    for event, document, _ in client.events("messages/live", SILENT_S_MAX, filter=wanted):
        if event == "end":
            say(document.get("why", ""), err=True)
            return
        if event == "counts" and (skipped := document.get("skipped")):
            say(f"{counted(skipped, 'message')} not shown", style="dim", err=True)
        if event == "message":
            if as_json:
                as_json.stream(document)
            else:
                show_message(as_document(MessageDocument, document))
            sys.stdout.flush()
            shown += 1
            if shown == count:
                return


def _login(user: str | None, *, stdin: bool) -> tuple[str, str] | None:
    """Return name and password of the user who is logged in; None: the operator."""
    if user is None:
        if stdin:
            raise click.UsageError("--password-stdin needs --user")
        return None
    return user, read_password()


# --- requests --------------------------------------------------------------------------------------------------------


def call(
    data: Path | None, http: str | None, path: str, body: Any = None, *, login: tuple[str, str] | None = None
) -> Any:
    """Return the document of a route; with a `body` it is a POST. `login`: user and password. Raises CommandError."""
    client = gateway_client(data, http).as_user(login)
    return client.ask(path, method="GET" if body is None else "POST", body=body, answer_s=STEP_S_MAX + 5.0)
