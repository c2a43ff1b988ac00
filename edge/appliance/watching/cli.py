"""`waypost top`, `waypost watch` and `waypost events`: live views of a running gateway."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from pathlib import Path
from typing import Any, Final

import click

from edge.appliance.errors import CommandError, Exit
from edge.appliance.running import data_option, http_option
from edge.output.terminal import say, say_json
from edge.output.text import line

INTERVAL_S: Final = 2.0
LAST, LAST_MAX = 10, 500
"""Earlier events that `waypost events` shows, and as many as it may."""
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
    from edge.appliance.watching.connection import OperatorConnection
    from edge.appliance.watching.terminal import full_screen
    from edge.appliance.watching.top import TopView

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "in a script use: waypost status --json, waypost client list --json"
        raise CommandError("this needs a terminal", hint=hint, code=Exit.USAGE)
    connection, view, fault = OperatorConnection(data, http), TopView(), ""
    view.read(connection, time.monotonic())
    with contextlib.suppress(KeyboardInterrupt), full_screen() as screen:
        while True:
            screen.draw(view.draw(screen.size, fault))
            key = screen.key(interval_s)
            if key in ("q", "\x1b", "end"):
                return
            view.press(key)
            try:
                view.read(connection, time.monotonic())
                fault = ""
            except CommandError as error:
                fault = error.message


@click.group()
def watch() -> None:
    """Repeat a command, and mark changes. Ctrl-C ends."""


@watch.command("status")
@data_option
@http_option
@interval_option
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
def watch_status(data: Path | None, http: str | None, interval_s: float, count: int | None) -> None:
    """Repeat `waypost status`. Lines that changed since the last look are marked."""
    from edge.appliance.cli import status_lines
    from edge.appliance.watching.connection import OperatorConnection

    connection = OperatorConnection(data, http)
    before: list[str] | None = None
    looks = 0
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            lines = status_lines(connection.get("status"))
            _print_marked(lines, before)
            before, looks = lines, looks + 1
            if looks == count:
                return
            time.sleep(interval_s)


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
@data_option
@http_option
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--last", type=click.IntRange(0, LAST_MAX), help="Earlier events, first.  [default: 10; with --json 0]")
@click.option("--topic", "topics", multiple=True, type=click.Choice(TOPICS), default=TOPICS, help="Topic of the feed.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON (NDJSON).")
def events(
    data: Path | None, http: str | None, follow: bool, last: int | None, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show what happens at a gateway. Problems that begin and end, the uplink, clients, refused messages.

    First come the last events that the gateway keeps, also over restarts; without --follow then the problems of now.
    With --json each line is `{"schema": 1, "kind": EVENT, "items": [DOCUMENT]}`: with --last first `journal` with those
    events, then `status` with the whole status, and `status-patch` with what changed (RFC 7396).

    \b
      waypost events -f
      waypost events -f --json | jq .
    """
    from edge.appliance.watching.changes import merge, sentences
    from edge.appliance.watching.connection import OperatorConnection

    known: dict[str, Any] = {}
    connection = OperatorConnection(data, http)
    earlier = (0 if as_json else LAST) if last is None else last
    if earlier:
        _show_journal(connection.get("journal", limit=earlier)["lines"], as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        for event in connection.events(",".join(topics)):
            if as_json:
                say_json({"schema": 1, "kind": event.name, "items": [event.data]}, indent=0)
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


def _show_journal(lines: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print earlier events."""
    if as_json:
        say_json({"schema": 1, "kind": "journal", "items": lines}, indent=0)
        return
    for each in lines:
        at = datetime.datetime.fromtimestamp(each["at"]).astimezone()
        text = str(each["text"]).partition("\n")[0]
        say(f"{at:%Y-%m-%d %H:%M:%S}  {each['event']}: {line(text)}", style="dim")
