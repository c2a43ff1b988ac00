"""Which messages a tool is asked for: a log, addresses, a device, a time, or what a consumer group still waits for."""

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


class MessageSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Every condition given has to hold. `since` and `until`: UTC nanoseconds, the first included, the second not."""

    logs: tuple[str, ...] = ()
    address: str | None = None
    """A name, or a filter with ``+`` and ``#``."""
    device: str | None = None
    since: int | None = None
    until: int | None = None
    cursor: str | None = None
    """Only what this consumer group has not acknowledged."""

    @property
    def everything(self) -> bool:
        """No condition is given."""
        return self == MessageSelection()

    def wants(self, run: Run) -> bool:
        """True when a run meets the conditions on messages: one of them meets them as all do."""
        return (
            (self.address is None or matches(self.address, run.address))
            and (self.device is None or device_of(run.device) == self.device)
            and (self.since is None or run.received_at >= self.since)
            and (self.until is None or run.received_at < self.until)
        )


class Passed:
    """What was left out on the way, as it could not be read."""

    def __init__(self) -> None:
        self.segments = 0
        self.messages = 0


def moment(text: str, now: float) -> int:
    """UTC nanoseconds of a point in time as people write it: an age (``90m``, ``7d``) or ISO 8601, UTC unless it says.

    Raises ValueError.
    """
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


def chosen_logs(inspection: Inspection, selection: MessageSelection) -> list[LogFacts]:
    """The logs a selection looks into. Raises StoreError naming the ones there are when it asks for another."""
    logs = inspection.logs()
    names = {log.name for log in logs}
    for name in selection.logs:
        if name not in names:
            raise StoreError(f"there is no log {name!r}; there {_listed(sorted(names))}")
    if selection.cursor is not None:
        held = {cursor.name for cursor in inspection.cursors()}
        if selection.cursor not in held:
            raise StoreError(f"there is no cursor {selection.cursor!r}; there {_listed(sorted(held))}")
    return [log for log in logs if not selection.logs or log.name in selection.logs]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "is none"
    shown = ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return ("is " if len(names) == 1 else "are ") + shown


def select(inspection: Inspection, selection: MessageSelection, passed: Passed) -> Iterator[tuple[LogFacts, Stored]]:
    """The runs a selection asks for, log by log in the order of their positions, a few MiB in memory at a time.

    Segments that fail their checks are left out and counted in `passed`. Raises StoreError.
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
                passed.segments += 1
                passed.messages += segment.extent(row)
                continue
            for stored in runs:
                if selection.wants(stored.run):
                    yield from ((log, part) for part in waiting_parts(stored, progress))


def _progress(inspection: Inspection, name: str, log: LogFacts) -> CursorProgress | None:
    """How far the group is in this log, None when it has no place in it."""
    for cursor in inspection.cursors():
        if cursor.name == name and cursor.log == log.log:
            try:
                return CursorProgress(cursor.position, cursor.acknowledged)
            except ValueError as error:
                raise StoreError(f"cursor {name!r}: {error}: run `waypost store repair`") from error
    return None


def waiting_parts(stored: Stored, progress: CursorProgress | None) -> Iterator[Stored]:
    """The parts of a run that are not acknowledged; all of it without a `progress`."""
    if progress is None:
        yield stored
        return
    first, end = stored.position, stored.position + len(stored.run.bodies)
    at = first
    for low, high in [*progress.within(first, end - 1), (end, end)]:
        if at < low:
            yield Stored(at, stored.sequence + at - first, stored.run.part(at - first, low - first))
        at = high + 1
