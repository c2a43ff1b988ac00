"""`waypost events` at a hub: what happens in the fleet, over HTTP."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from edge.output.errors import CommandError
from edge.output.listing import JsonOutput
from edge.output.terminal import say
from edge.output.text import line
from edge.remote.client import ConsoleClient

SILENCE_S: Final = 60.0
"""Longest pause in a stream of events; the hub sends a comment every 15 s."""
_RETRY_S: Final = 5.0
"""Pause before a stream that has ended goes on."""
_GAP: Final = "gap"
"""Message of the stream that says that events are missing."""
_GONE_ON: Final = frozenset(("connection-lost", "unreachable", "unavailable", "busy"))
"""Errors after which a stream that has started is tried again."""


class WantedEvents(NamedTuple):
    """Events that a command shows."""

    types: Sequence[str]
    gateways: Sequence[str]
    tenant: str | None
    after: int | None
    """Only events with later numbers; None: the latest ones."""
    last: int
    """Earlier events to show first."""

    @property
    def query(self) -> dict[str, Any]:
        """Parameters of the requests."""
        types, gateways = ",".join(self.types), ",".join(self.gateways)
        return {"type": types or None, "gateway": gateways or None, "tenant": self.tenant}


def show_hub_events(client: ConsoleClient, wanted: WantedEvents, as_json: JsonOutput | None, *, follow: bool) -> None:
    """Print events of a hub: earlier ones, then with `follow` those that come. Raises CommandError."""
    after = _show_earlier(client, wanted, as_json, all_of_them=not follow)
    while follow:
        after = _follow(client, wanted, after, as_json)
        time.sleep(_RETRY_S)


def _show_earlier(client: ConsoleClient, wanted: WantedEvents, as_json: JsonOutput | None, *, all_of_them: bool) -> int:
    """Print earlier events; return the number to go on from."""
    after, more = wanted.after, True
    limit = None if after is not None else max(1, wanted.last)
    while more:
        page = client.ask("events", after=after, limit=limit, **wanted.query)
        if page["missed_to"] is not None and wanted.after is not None:
            _show_gap(page["missed_to"], as_json)
        rows = page["events"] if wanted.last or wanted.after is not None else []
        for each in rows:
            _show(each, as_json)
        after, more = page["next"], page["more"] and all_of_them
    return after or 0


def _follow(client: ConsoleClient, wanted: WantedEvents, after: int, as_json: JsonOutput | None) -> int:
    """Print events as they come until the stream ends; return the number to go on from. Raises CommandError."""
    started = False
    try:
        for event in client.events("events", SILENCE_S, last=str(after), **wanted.query):
            started = True
            if event.name == _GAP:
                _show_gap(event.data["missed_to"], as_json)
            else:
                _show(event.data, as_json)
            after = int(event.id or after)
            sys.stdout.flush()
    except CommandError as error:
        if error.error not in _GONE_ON and not started:
            raise
    return after


def _show(event: dict[str, Any], as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.stream(event, "event")
        return
    at = datetime.datetime.fromtimestamp(event["at"] / 1_000).astimezone()
    data, about = event["data"], event["gateway"]
    if event["tenant"] not in ("", "default"):
        about = f"{event['tenant']}/{about}"
    words = [str(data[name]) for name in ("what", "why", "state", "reason", "outcome", "remote") if data.get(name)]
    parts = [about, event["subject"], ": ".join(words)]
    say(f"{at:%Y-%m-%d %H:%M:%S}  {event['type']:<24} {line('  '.join(each for each in parts if each))}")


def _show_gap(missed_to: int, as_json: JsonOutput | None) -> None:
    if as_json:
        as_json.stream({"missed_to": missed_to}, "event-gap")
    else:
        say("earlier events are not kept any more: look at the present state (waypost gateway list)", style="yellow")
