"""Events of a trace, and their lines for people.

`line_of` writes the lines of `waypost client trace` and of the log of ``-vv``. The gateway sends events as JSON, one in
each line. This module knows no connection and no protocol.
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence
from typing import Final

import msgspec

from bridge.hidden import hides
from edge.broker.tracing.limits import TRACE_TEXT_CHARACTERS_MAX
from edge.output.amounts import counted
from edge.output.text import line as one_line

IN: Final = "in"
OUT: Final = "out"
"""Directions: from the client to the gateway, and back."""

ARROWS: Final = {
    ("packet", IN): "<-",
    ("packet", OUT): "->",
    ("outcome", ""): "==",
    ("connection", ""): "--",
    ("request", ""): "<>",
    ("dropped", ""): "!!",
}
"""Sign by (kind, direction); arrows as seen from the gateway."""

LEGEND: Final = "<- from the client, -> to the client, == outcome, -- connection, <> HTTP"


@hides("payload")
class TraceEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One packet, frame, outcome or step of a connection. Fields without a value are left out of the JSON.

    `kind`      packet, outcome, connection, request, dropped, started (the first of each trace) or ended (the last,
                where the gateway ends it; `text` says why).
    `name`      packet, performative or HTTP method in the words of its standard; otherwise what happened.
    `id`        MQTT packet identifier, AMQP delivery-id; `last_id` in a line for several.
    `bytes`     of the whole packet or frame; `payload_bytes` of the message within.
    `payload`   begin of the message as text, only in a trace that requests it (`TraceWatch.shows_payload`).
    `code`      MQTT reason code or HTTP status; `reason` its name, or the AMQP error condition.
    `sequence`  first sequence of stored messages in (`epoch`, `address`); `last_sequence` the last one.
    `count`     number of messages of an outcome, or of dropped events.
    """

    time: str = ""
    kind: str
    direction: str = ""
    client: str = ""
    user: str = ""
    remote: str = ""
    protocol: str = ""
    name: str = ""
    id: int | None = None
    last_id: int | None = None
    channel: int | None = None
    address: str = ""
    flags: tuple[str, ...] = ()
    bytes: int | None = None
    payload_bytes: int | None = None
    payload: str = ""
    code: int | None = None
    reason: str = ""
    outcome: str = ""
    log: str = ""
    epoch: str = ""
    sequence: int | None = None
    last_sequence: int | None = None
    offered: int | None = None
    count: int | None = None
    text: str = ""


def utc(now_ns: int) -> str:
    """Format as ISO 8601 with microseconds."""
    seconds, nanoseconds = divmod(now_ns, 1_000_000_000)
    at = datetime.datetime.fromtimestamp(seconds, datetime.UTC).replace(microsecond=nanoseconds // 1000)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def line_of(event: TraceEvent) -> str:
    """Return the line of an event for people."""
    return " ".join(filter(None, (_clock(event), sign_of(event), client_of(event), details_of(event))))


def sign_of(event: TraceEvent) -> str:
    """Return the sign of an event: its direction or kind."""
    return ARROWS.get((event.kind, event.direction), "--")


def client_of(event: TraceEvent) -> str:
    """Return ``client@host:port`` of an event; empty for those that are about the trace itself."""
    if event.kind in ("dropped", "started", "ended"):
        return ""
    client = short(event.client or event.user or "-")
    return f"{client}@{event.remote}" if event.remote else client


def is_failure(event: TraceEvent) -> bool:
    """Return True for an event that says that something was refused or lost."""
    refused = event.outcome.startswith(("refused", "no subscriber"))
    failed = event.code is not None and event.code >= (400 if event.kind == "request" else 0x80)
    return refused or failed or event.name in ("TLS refused", "login refused")


def folded(event: TraceEvent, columns: int) -> str:
    """Return the line for a terminal: the rest of a long one is below, indented behind the time and the arrow."""
    wrapped = textwrap.wrap(
        line_of(event), max(columns, 40), subsequent_indent=" " * 17, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapped)


def _clock(event: TraceEvent) -> str:
    return f"{event.time[11:23]}Z" if len(event.time) > 23 else event.time


def short(text: str) -> str:
    """Return a text of a peer in one line, shortened."""
    shown = one_line(text)
    return shown if len(shown) <= TRACE_TEXT_CHARACTERS_MAX else shown[: TRACE_TEXT_CHARACTERS_MAX - 1] + "…"


def details_of(event: TraceEvent) -> str:
    """Return what happened, without time, sign and client."""
    if event.kind == "dropped":
        return f"{counted(event.count or 0, 'event')} not shown: more than the trace can keep"
    head = " ".join(filter(None, (event.name, _ids(event), short(event.address), *event.flags, _sizes(event))))
    reason, text = _reason(event), short(event.text)
    if event.kind == "outcome":
        return f"{head}: {_joined([_outcome(event) + (f' ({reason})' if reason else ''), text])}"
    if event.kind == "connection":
        return f"{head}: {text}" if text else head
    return _joined([head, reason, text])


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(filter(None, parts))


def _ids(event: TraceEvent) -> str:
    channel = "" if not event.channel else f"ch={event.channel} "
    if event.id is None:
        return channel.rstrip()
    last = event.last_id
    return f"{channel}#{event.id}" if last in (None, event.id) else f"{channel}#{event.id}-{last}"


def _sizes(event: TraceEvent) -> str:
    if event.bytes is None:
        return "" if event.payload_bytes is None else f"{event.payload_bytes} B"
    return f"{event.bytes} B" if event.payload_bytes is None else f"{event.payload_bytes} B in {event.bytes} B"


def _reason(event: TraceEvent) -> str:
    if event.code is None:
        return event.reason
    code = str(event.code) if event.kind == "request" else f"0x{event.code:02X}"
    return f"{code} {event.reason}".rstrip()


def _outcome(event: TraceEvent) -> str:
    parts = []
    if event.outcome:
        parts.append(event.outcome)
    if event.sequence is not None:
        last = event.last_sequence
        span = f"{event.sequence}" if last in (None, event.sequence) else f"{event.sequence}-{last}"
        parts[-1:] = [f"{event.outcome} as sequence {span}"]
        parts.append(f"log {short(event.log)}, epoch {event.epoch[:8]}")
    elif event.log:
        parts.append(f"log {short(event.log)}")
    if event.offered is not None:
        parts.append(f"offered to {counted(event.offered, 'subscriber')}")
    return ", ".join(parts)
