"""Documents of gateways: status, ledger, manifest and clock. JSON, one object in each message.

Field names are the columns of the lake contract. Times are UTC nanoseconds as numbers (as in `bridge.message`) or RFC
3339 text. Unknown fields of a status are ignored, because gateways are newer or older than hubs. An invalid ledger
document or manifest is never guessed at: it explains a loss or proves that there was none, and a wrong one is worse
than a missing one.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from bridge.clock_offset import ClockDocument, OffsetState, StampedRange
from bridge.manifest import ManifestStatement
from cloud.hub.groups import GatewayLineage, GatewaySession
from cloud.hub.limits import LEDGER_RANGES_MAX, OPENINGS_MAX, STATEMENTS_MAX
from cloud.lake.landing import LedgerRange

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Hours = Annotated[float, msgspec.Meta(ge=0)]
SEQUENCE_MAX = (1 << 63) - 2
"""Largest sequence, as in batches: the number of sequences from 0 up to it has 63 bits too."""
SequenceNumber = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]
WORD_MAX = 255
"""Maximum characters of a name or reason."""
Word = Annotated[str, msgspec.Meta(max_length=WORD_MAX)]
T = TypeVar("T")

Time = int | datetime.datetime | None
TIME_US_MAX = ((1 << 63) - 1) // 1_000
"""Last microsecond that UTC nanoseconds can express, in 2262. Times at the end of the calendar (the year 9999) make
programs raise when they calculate with them."""
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_NOT_IN_THE_LAKE = frozenset(
    ("room_hours", "errors", "errors_muted", "certificate_problems", "manifest_waiting", "problems")
)
"""Fields of a status that only the hub uses."""

CONNECTED, DISCONNECTED = "connected", "disconnected"
"""States that the hub reports for a gateway; gateways report their own, such as `running`."""


class DocumentError(Exception):
    """The document is invalid; the message says which field and why."""


class ProblemInStatus(msgspec.Struct, frozen=True):
    """Problem that a gateway reports; its next step is on its own pages."""

    name: Word
    severity: Word = "error"
    what: Annotated[str, msgspec.Meta(max_length=2_000)] = ""
    since: Word = ""
    """ISO 8601, UTC."""


class StatusDocument(msgspec.Struct, frozen=True):
    """Status that a gateway reports."""

    state: Word = "running"
    epoch: Word | None = None
    reported_at: Time = None
    version: Word | None = None
    backlog_messages: Count | None = None
    backlog_bytes: Count | None = None
    backlog_oldest_at: Time = None
    devices_connected: Count | None = None
    messages_accepted: Count | None = None
    clock_quality: Word | None = None
    room_hours: Hours | None = None
    """Hours until its card is full if nothing is sent; 0: it is full. Not in the lake, as the fields below."""
    errors: Count | None = None
    """Problems that it reports as errors, without muted ones."""
    errors_muted: Count | None = None
    """Errors that are muted at the gateway."""
    certificate_problems: Count | None = None
    """Problems with its certificates."""
    manifest_waiting: Count | None = None
    """Statements of its manifest that the hub has not accepted."""
    problems: Annotated[list[ProblemInStatus], msgspec.Meta(max_length=100)] | None = None
    """Its most serious problems, without muted ones; None: as before, or from an earlier version."""


class RangeDocument(msgspec.Struct, frozen=True):
    """Range of sequences that a gateway discarded."""

    epoch: Word
    address: str
    first_sequence: SequenceNumber
    last_sequence: SequenceNumber
    reason: Word
    bytes: Count = 0
    decided_at: Time = None


class RangesDocument(msgspec.Struct, frozen=True):
    """Document with several ranges."""

    ranges: Annotated[list[RangeDocument], msgspec.Meta(max_length=LEDGER_RANGES_MAX)]


class LineageDocument(msgspec.Struct, frozen=True):
    """Epoch of a gateway's store, and the openings that it knows, the newest last."""

    epoch: Word
    openings: Annotated[list[Word], msgspec.Meta(max_length=OPENINGS_MAX)]
    ends: Annotated[list[list[Count] | None], msgspec.Meta(max_length=OPENINGS_MAX)] = []
    """Ends of the logs at the newest openings, the newest last, as log, end, log, end, ...; null where the store does
    not know."""


class SignedStatement(ManifestStatement, frozen=True, kw_only=True):
    """Statement with the signature of its digest by the document's key."""

    signature: Word


class ManifestDocument(msgspec.Struct, frozen=True):
    """Statements of one gateway, with the public key of their signatures: ``ed25519:`` and base64."""

    public_key: Word
    statements: Annotated[list[SignedStatement], msgspec.Meta(max_length=STATEMENTS_MAX)]


def parse_lineage(document: Mapping[str, Any]) -> GatewayLineage:
    """Parse a document with the single field ``parse_lineage``. Raises `DocumentError`."""
    found = _convert(document["lineage"], LineageDocument)
    if any(pairs is not None and len(pairs) % 2 for pairs in found.ends) or len(found.ends) > len(found.openings):
        raise DocumentError("the ends of the logs are not pairs, or are more than the openings")
    ends = [pairs if pairs is None else dict(zip(pairs[::2], pairs[1::2], strict=True)) for pairs in found.ends]
    return GatewayLineage(found.epoch, found.openings, ends)


def to_microseconds(time: Time, otherwise: int) -> int:
    """Convert a document's time to UTC microseconds; return `otherwise` for a missing or invalid time."""
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        time_us = (aware - _EPOCH) // datetime.timedelta(microseconds=1)
    else:
        time_us = -1 if time is None else time // 1_000
    return time_us if 0 <= time_us <= TIME_US_MAX else otherwise


def status_row(session: GatewaySession, document: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """Make a row of `gateway_status`. Raises `DocumentError`."""
    status = _convert(document, StatusDocument)
    row = msgspec.structs.asdict(status)
    row["problems"] = msgspec.to_builtins(status.problems)
    row["reported_at"] = to_microseconds(status.reported_at, now_us)
    if status.backlog_oldest_at is not None:
        row["backlog_oldest_at"] = to_microseconds(status.backlog_oldest_at, now_us)
    return {"tenant": session.tenant, "gateway": session.gateway, **row}


def lake_row(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a status that the lake keeps."""
    return {name: value for name, value in status.items() if name not in _NOT_IN_THE_LAKE}


def presence_row(session: GatewaySession, state: str, now_us: int) -> dict[str, Any]:
    """Make a row of `gateway_status` for a connect or disconnect."""
    return {"tenant": session.tenant, "gateway": session.gateway, "reported_at": now_us, "state": state}


def ledger_ranges(session: GatewaySession, document: Mapping[str, Any], now_us: int) -> Sequence[LedgerRange]:
    """Read the ranges of a ledger document: one range, or several in `ranges`. Raises `DocumentError`."""
    given = _convert(document, RangesDocument).ranges if "ranges" in document else [_convert(document, RangeDocument)]
    if any(entry.last_sequence < entry.first_sequence for entry in given):
        raise DocumentError("a range ends before it begins")
    return [
        LedgerRange(
            session.tenant,
            session.gateway,
            entry.epoch,
            entry.address,
            entry.first_sequence,
            entry.last_sequence,
            entry.bytes,
            entry.reason,
            to_microseconds(entry.decided_at, now_us),
        )
        for entry in given
    ]


def manifest_rows(session: GatewaySession, document: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """Make rows of `manifests`, unchanged; `waypost prove` checks them. Raises `DocumentError`."""
    manifest = _convert(document, ManifestDocument)
    rows = []
    for statement in manifest.statements:
        row = msgspec.structs.asdict(statement)
        numbers = [row[name] for name in ("count", "closing", "statements", *_MANIFEST_TIMES)]
        if any(not 0 <= number < 1 << 63 for number in numbers):
            raise DocumentError("a number is out of range")
        if not (0 <= statement.first_sequence <= SEQUENCE_MAX and -1 <= statement.last_sequence <= SEQUENCE_MAX):
            raise DocumentError("a sequence is out of range")
        row.update((name, row[name] // 1_000) for name in _MANIFEST_TIMES)
        row["given_up"] = msgspec.json.encode(statement.given_up, order="sorted").decode()
        rows.append({"tenant": session.tenant, "gateway": session.gateway, "public_key": manifest.public_key, **row})
    return rows


_MANIFEST_TIMES = ("hour", "until")


def clock_offset_rows(session: GatewaySession, document: Mapping[str, Any], now_us: int) -> Sequence[dict[str, Any]]:
    """Make rows of `clock_offsets`: for each stretch one row for each range of messages, or one row without ranges.
    Raises `DocumentError`."""
    clock = _convert(document, ClockDocument)
    rows = []
    for stretch in clock.stretches:
        about = {
            "tenant": session.tenant,
            "gateway": session.gateway,
            "boot": stretch.boot,
            "stretch": stretch.number,
            "began": stretch.began // 1_000,
            "known": stretch.known.value,
            "offset_low_us": _micros(stretch.low),
            "offset_high_us": _micros(stretch.high),
            "reason": stretch.reason or None,
            "whole": stretch.whole,
            "told_at": clock.told_at // 1_000,
            "heard_at": now_us,
        }
        if len(stretch.boot) > WORD_MAX or len(stretch.reason) > WORD_MAX or not 0 <= stretch.number < 1 << 63:
            raise DocumentError("a stretch's number, boot or reason is out of range")
        if stretch.known is OffsetState.MEASURED and (stretch.low is None or stretch.low != stretch.high):
            raise DocumentError("a measured offset is one number")
        rows += [about | _stamped(each) for each in stretch.messages] or [about]
    if len(rows) > STATEMENTS_MAX:
        raise DocumentError(f"{len(rows)} ranges are more than {STATEMENTS_MAX}")
    return rows


def _stamped(stamped: StampedRange) -> dict[str, Any]:
    if not 0 <= stamped.first_sequence <= stamped.last_sequence <= SEQUENCE_MAX or len(stamped.epoch) > WORD_MAX:
        raise DocumentError("a range of messages is invalid")
    return {
        "epoch": stamped.epoch,
        "address": stamped.address,
        "first_sequence": stamped.first_sequence,
        "last_sequence": stamped.last_sequence,
        "stamped_after": _micros(stamped.after),
        "stamped_until": _micros(stamped.until),
    }


def _micros(nanoseconds: int | None) -> int | None:
    return None if nanoseconds is None else nanoseconds // 1_000


def _convert(document: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise DocumentError(str(error)) from error
