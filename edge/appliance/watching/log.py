"""`waypost log`: the log of a running gateway or hub."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from edge.appliance.nodes import node_address_option, node_client, node_data_option
from edge.broker.http.limits import LOG_LINES, LOG_LINES_MAX
from edge.broker.http.log_api import EVENT_KINDS, LEVELS, LogLineDocument, LogPage
from edge.output.listing import JsonOutput, json_option
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import ConsoleClient

POLL_S: Final = 1.0
"""Time between two requests while following."""
_STYLES: Final = {"warning": "yellow", "error": "red"}


@click.command()
@node_data_option
@node_address_option
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option(
    "--level", type=click.Choice(LEVELS), default=LEVELS[0], show_default=True, help="Lines of this level and above."
)
@click.option("--query", "-q", "text", metavar="TEXT", help="Only lines with this text, such as a client.")
@click.option("--events", is_flag=True, help="Only events: changes with their users, sign-ins, problems, the link.")
@click.option("--kind", type=click.Choice(EVENT_KINDS[1:]), help="Only events of this kind; implies --events.")
@click.option(
    "--limit",
    type=click.IntRange(1, LOG_LINES_MAX),
    default=LOG_LINES,
    show_default=True,
    help="Most lines to show at first.",
)
@json_option("log-line", streams=True)
def log(
    data: Path | None,
    http: str | None,
    follow: bool,
    level: str,
    text: str | None,
    events: bool,
    kind: str | None,
    limit: int,
    as_json: JsonOutput | None,
) -> None:
    """Show the log of a gateway or hub. The latest lines come last; the node keeps them in memory.

    \b
      waypost log -f --data ./gw1
      waypost log --events --http https://10.0.0.17:8444
      waypost log -f --level warning --hub https://hub.example:8443
      waypost log -f --query pump8 --json | jq .
    """
    route = "journal" if events or kind else "log"
    query = {"q": text, "kind": kind} if route == "journal" else {"q": text, "level": level}
    client = node_client(data, http)
    page = client.read(LogPage, route, limit=limit, **query)
    _show(page, as_json, level)
    with contextlib.suppress(KeyboardInterrupt):
        while follow:
            time.sleep(POLL_S)
            page = _following(client, route, page.next, query)
            _show(page, as_json, level)


def _following(client: ConsoleClient, route: str, after: int, query: dict[str, str | None]) -> LogPage:
    page = client.read(LogPage, route, after=after, limit=LOG_LINES_MAX, **query)
    if page.missed:
        say(f"{page.missed:,} lines not shown: more than the node keeps", style="dim", err=True)
    return page


def _show(page: LogPage, as_json: JsonOutput | None, level: str) -> None:
    for each in page.lines:
        if LEVELS.index(each.level) < LEVELS.index(level):
            continue
        if as_json:
            as_json.stream(msgspec.to_builtins(each))
        else:
            say(_line(each), style=_STYLES.get(each.level))
    sys.stdout.flush()


def _line(each: LogLineDocument) -> str:
    """Return a line as journald shows it, in local time; further lines of an exception are indented."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.at))
    first, *more = each.text.split("\n")
    event = f" [{each.event}]" if each.event else ""
    head = f"{at} {each.level:7} {line(each.logger)}:{event} {line(first)}"
    return "\n".join([head, *(f"  {line(one)}" for one in more)])
