"""Selection of messages for a tool: by log, address, device, time, or backlog of a consumer group."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bridge.message import Run, Stored
from bridge.publisher import device_of
from edge.appliance.store.recovery.inspection import Inspection, LogFacts, log_of
from edge.broker.model.topics import matches
from edge.broker.store import segment
from edge.broker.store.errors import StoreError
from edge.broker.store.progress import CursorProgress

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class StoreSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that all have to hold. `since` (inclusive) and `until` (exclusive) are UTC nanoseconds."""

    logs: tuple[str, ...] = ()
    address: str | None = None
    """Name, or filter with ``+`` and ``#``."""
    device: str | None = None
    since: int | None = None
    until: int | None = None
    cursor: str | None = None
    """Only messages that this consumer group has not acknowledged."""

    @property
    def is_unlimited(self) -> bool:
        """True without any condition."""
        return self == StoreSelection()

    def wants(self, run: Run) -> bool:
        """Return True when the messages of a run, which are alike, meet the conditions."""
        return (
            (self.address is None or matches(self.address, run.address))
            and (self.device is None or device_of(run.device) == self.device)
            and (self.since is None or run.received_at >= self.since)
            and (self.until is None or run.received_at < self.until)
        )


class SkippedSegments:
    """Counts of segments and messages that could not be read."""

    def __init__(self) -> None:
        self.segments = 0
        self.messages = 0


def moment(text: str, now: float) -> int:
    """Return UTC nanoseconds of an age (``90m``, ``7d``) or of an ISO 8601 time, UTC by default. Raises ValueError."""
    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return int((now - float(age[1]) * _SECONDS[age[2]]) * 1e9)
    try:
        at = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is neither an age (90s, 15m, 2h, 7d) nor a time (2026-11-21T08:00)") from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.UTC)
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000


def chosen_logs(inspection: Inspection, selection: StoreSelection) -> list[LogFacts]:
    """Return the logs of a selection. Raises StoreError, with the existing names, for an unknown log or cursor."""
    logs = inspection.logs()
    names = {log.name for log in logs}
    for name in selection.logs:
        if name not in names:
            raise StoreError(f"log {name!r} not found; {_list_names(sorted(names))}")
    if selection.cursor is not None:
        held = {cursor.name for cursor in inspection.cursors()}
        if selection.cursor not in held:
            raise StoreError(f"cursor {selection.cursor!r} not found; {_list_names(sorted(held))}")
    return [log for log in logs if not selection.logs or log.name in selection.logs]


def _list_names(names: Sequence[str]) -> str:
    if not names:
        return "there is none"
    shown = ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"existing: {shown}"


def select(
    inspection: Inspection, selection: StoreSelection, skipped: SkippedSegments
) -> Iterator[tuple[LogFacts, Stored]]:
    """Yield the selected runs, log by log in the order of their positions, with a few MiB in memory.

    Segments that fail their checks are skipped and counted in `skipped`. Raises StoreError.
    """
    for log in chosen_logs(inspection, selection):
        progress = None
        if selection.cursor is not None:
            progress = _progress(inspection, selection.cursor, log)
            if progress is None:
                continue
        start = log.first if progress is None else max(log.first, progress.position)
        for row in inspection.segments(log.log, start):
            position = log_of(row.key)[1]
            try:
                runs = segment.decode(row, position)
            except segment.SegmentDamaged:
                skipped.segments += 1
                skipped.messages += segment.extent(row)
                continue
            for stored in runs:
                if selection.wants(stored.run):
                    yield from ((log, part) for part in waiting_parts(stored, progress))


def _progress(inspection: Inspection, name: str, log: LogFacts) -> CursorProgress | None:
    """Return the progress of a group in this log; None when it has no cursor there."""
    for cursor in inspection.cursors():
        if cursor.name == name and cursor.log == log.log:
            try:
                return CursorProgress(cursor.position, cursor.acknowledged)
            except ValueError as error:
                raise StoreError(f"cursor {name!r}: {error}: run `waypost store repair`") from error
    return None


def waiting_parts(stored: Stored, progress: CursorProgress | None) -> Iterator[Stored]:
    """Yield the parts of a run that are not acknowledged; the whole run without a `progress`."""
    if progress is None:
        yield stored
        return
    first, end = stored.position, stored.position + len(stored.run.bodies)
    at = first
    for low, high in [*progress.within(first, end - 1), (end, end)]:
        if at < low:
            yield Stored(at, stored.sequence + at - first, stored.run.part(at - first, low - first))
        at = high + 1
