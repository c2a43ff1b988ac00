"""`waypost top`, `waypost watch` and `waypost events`: live views of a running gateway, or of a fleet."""

from __future__ import annotations

import contextlib
import datetime
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from edge.appliance.nodes import node_address_option, node_client, node_data_option
from edge.appliance.program import program_name
from edge.appliance.running import data_option, gateway_client, http_option
from edge.output.errors import CommandError, Exit
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import ConsoleClient

INTERVAL_S: Final = 2.0
LAST, LAST_MAX = 10, 500
"""Earlier events that `waypost events` shows, and as many as it may."""
SILENCE_S: Final = 60.0
"""Longest pause in a stream of events; the node sends a comment every 15 s."""
VIEWS: Final = frozenset(
    {
        "browse", "describe", "diff", "get", "history", "info", "list", "plan", "refusals", "selectors", "show",
        "status", "trace",
    }
)  # fmt: skip
"""Words of commands that show something and end."""
TOPICS: Final = ("status",)
"""Topics of `/api/v1/events` at a gateway."""
_CLEAR: Final = "\x1b[H\x1b[2J"
_MARK: Final = "\x1b[7m"

interval_option = click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.5, 3600),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)


@click.command()
@data_option
@http_option
@interval_option
def top(data: Path | None, http: str | None, interval_s: float) -> None:
    """Show the gateway live, on the full screen. The header follows a reading: devices, store, uplink, hub.

    \b
    Keys:
      1 2 3 4, Tab  clients, addresses, forwarders, problems
      s             next order: most messages in, out, waiting …
      j k, arrows   move
      q             end
    """
    from edge.appliance.watching.terminal import full_screen
    from edge.appliance.watching.top import TopView

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "in a script use: waypost status --json, waypost client list --json"
        raise CommandError("this needs a terminal", hint=hint, code=Exit.USAGE, error="no-terminal")
    view, fault = TopView(), ""
    view.read(gateway_client(data, http), time.monotonic())
    with contextlib.suppress(KeyboardInterrupt), full_screen() as screen:
        while True:
            screen.draw(view.draw(screen.size, fault))
            key = screen.key(interval_s)
            if key in ("q", "\x1b", "end"):
                return
            view.press(key)
            try:
                view.read(gateway_client(data, http), time.monotonic())  # it may have another port after a restart
                fault = ""
            except CommandError as error:
                fault = error.message


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@interval_option
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def watch(interval_s: float, count: int | None, words: tuple[str, ...]) -> None:
    """Repeat a command, and mark changes. Ctrl-C ends. COMMAND is one that shows something, with its options.

    \b
      waypost watch status --data ./gw1
      waypost watch --interval 10 client list --state silent
      waypost watch gateway list --hub https://hub.example:8443
    """
    _require_view(words)
    before: list[str] | None = None
    looks = 0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            lines = _lines_of(words)
            _print_marked(lines, before)
            before, looks = lines, looks + 1
            if looks == count:
                return
            time.sleep(interval_s)


def _require_view(words: Sequence[str]) -> None:
    """Raise CommandError for a command that changes something or does not end."""
    from edge.appliance.commands import COMMANDS

    command = [each for each in words if not each.startswith("-")][:2]
    if not command or command[0] not in COMMANDS or not VIEWS & set(command):
        hint = f"a command with one of these words: {', '.join(sorted(VIEWS))}"
        raise CommandError(f"`{' '.join(command)}` cannot be repeated", hint, error="wrong-usage", code=Exit.USAGE)


def _lines_of(words: Sequence[str]) -> list[str]:
    """Return the lines that a command prints. Raises what it raises."""
    from edge.appliance.main import root

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        root.main(args=list(words), prog_name=program_name(), standalone_mode=False)
    return text.getvalue().rstrip().splitlines()


def _print_marked(lines: list[str], before: list[str] | None) -> None:
    """Print lines; those that are new have a mark, which a terminal shows in reverse too."""
    terminal = sys.stdout.isatty()
    if terminal:
        click.echo(_CLEAR, nl=False)
    for text in lines:
        new = before is not None and text not in before
        say(f"{'*' if new else ' '} ", nl=False)
        click.echo(f"{_MARK}{text}\x1b[0m" if new and terminal else text)
    if not terminal:
        click.echo("")


@click.command()
@node_data_option
@node_address_option
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--last", type=click.IntRange(0, LAST_MAX), help="Earlier events, first.  [default: 10; with --json 0]")
@click.option("--topic", "topics", multiple=True, type=click.Choice(TOPICS), help="Topic of the feed of a gateway.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="At a hub: only this type, or noun; repeatable.")
@click.option("--gateway", "gateways", multiple=True, metavar="NAME", help="At a hub: only this gateway; repeatable.")
@click.option("--tenant", help="At a hub: only this tenant.")
@click.option("--after", type=click.IntRange(0), metavar="NUMBER", help="At a hub: all events after this one.")
@json_option("status", streams=True)
def events(
    data: Path | None,
    http: str | None,
    follow: bool,
    last: int | None,
    topics: tuple[str, ...],
    types: tuple[str, ...],
    gateways: tuple[str, ...],
    tenant: str | None,
    after: int | None,
    as_json: JsonOutput | None,
) -> None:
    """Show what happens at a gateway or fleet.

    At a gateway: problems that begin and end, the uplink, clients, refused messages. First come the last events that
    it keeps, also over restarts; without --follow then the problems of now. With --json each line is
    `{"schema": 1, "kind": EVENT, "items": [DOCUMENT]}`: with --last first `log-line` with those events, then `status`
    with the whole status, and `status-patch` with what changed (RFC 7396).

    At a hub: gateways that connect, enrol or are revoked, problems, alerts, roll-outs, receipts of commands, and
    configurations, of your tenant or with `view:$fleet` of all. A connection that breaks goes on where it was. With
    --json each line has the kind `event`.

    \b
      waypost events -f
      waypost events -f --json | jq .
      waypost events -f --hub https://hub.example:8443 --type gateway --type alert.fired
    """
    from edge.appliance.watching.hub_events import WantedEvents, show_hub_events

    client = node_client(data, http)
    of_hub = bool(types or gateways or tenant or after is not None)
    earlier = (0 if as_json else LAST) if last is None else last
    with contextlib.suppress(KeyboardInterrupt):
        if "tenant" in client.ask("status"):
            if topics:
                raise _wrong("--topic is for a gateway; a hub has --type")
            show_hub_events(client, WantedEvents(types, gateways, tenant, after, earlier), as_json, follow=follow)
        elif of_hub:
            raise _wrong("--type, --gateway, --tenant and --after are for a hub")
        else:
            _show_gateway(client, topics or TOPICS, earlier, as_json, follow=follow)


def _wrong(what: str) -> CommandError:
    return CommandError(what, "name the other one with --http or --data", error="wrong-usage", code=Exit.USAGE)


def _show_gateway(
    client: ConsoleClient, topics: Sequence[str], earlier: int, as_json: JsonOutput | None, *, follow: bool
) -> None:
    """Print the events of a gateway. Raises CommandError."""
    from edge.appliance.watching.changes import merge, sentences

    known: dict[str, Any] = {}
    if earlier:
        _show_journal(client.ask("journal", limit=earlier)["lines"], as_json)
    for event in client.events("events", SILENCE_S, topics=",".join(topics)):
        if as_json:
            as_json.stream(event.data, event.name)
        now = event.data if event.name in TOPICS else merge(known, event.data)
        if not as_json:
            for text in sentences(known if known else {"uplink": now.get("uplink", {})}, now):
                say(f"{datetime.datetime.now().astimezone():%H:%M:%S}  {text}")
        sys.stdout.flush()
        known = now
        if not follow:
            if not as_json and not now.get("problems"):
                say("no problems; --follow shows what happens from now on")
            return


def _show_journal(lines: list[dict[str, Any]], as_json: JsonOutput | None) -> None:
    """Print earlier events."""
    for each in lines:
        if as_json:
            as_json.stream(each, "log-line")
            continue
        at = datetime.datetime.fromtimestamp(each["at"]).astimezone()
        text = str(each["text"]).partition("\n")[0]
        say(f"{at:%Y-%m-%d %H:%M:%S}  {each['event']}: {line(text)}", style="dim")
