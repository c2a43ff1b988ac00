"""Figures of `waypost store info`: content of a store, how fast it fills, and the time until it is full."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from edge.appliance.store.recovery.inspection import Inspection, LogFacts, key_of, received_at
from edge.appliance.store.room import LogUsage, StoreBounds, StoreRoom, room_of
from edge.appliance.wear import Outlook, outlook
from edge.broker.store.limits import POSITION_MAX
from edge.broker.store.progress import CursorProgress
from edge.broker.store.wear import BlockDevice

RATE_SEGMENTS_MAX: Final = 512
"""Newest segments of a log from which the rate is computed; their bodies are not read."""
RATE_WINDOW_S: Final = 3600.0
"""Window of the rate of arriving messages."""
RATE_SPAN_S_MIN: Final = 1.0
"""Shortest time between first and last stamp for a rate: anything shorter is a burst."""
ADDRESSES_MAX: Final = 20
"""Addresses listed by name, those with the most messages ever."""
ROW_BYTES: Final = 40
"""Overhead of a segment in the file: columns, cell header, its share of the page."""
STAYS_S: Final = 60.0
"""Age from which a message counts as backlog; a younger one is being delivered."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class LogFigures(msgspec.Struct):
    """Figures of a log. `oldest_age_s` is None when it is empty, or its first segment is damaged."""

    name: str
    messages: int
    bytes: int
    oldest_age_s: float | None
    bytes_per_hour: float | None
    """Rate of arriving bytes; None when there are too few messages."""


class CursorFigures(msgspec.Struct):
    """Backlog of a consumer group."""

    name: str
    log: str
    backlog_messages: int
    backlog_bytes: int
    """Bytes of bodies; a partly acknowledged segment counts in proportion."""


class AddressFigures(msgspec.Struct):
    """Figures of an address. `messages`: sequences ever given, as last counted."""

    name: str
    messages: int


class StateFigures(msgspec.Struct):
    """Size of the small state of one kind."""

    kind: str
    entries: int
    bytes: int


class LedgerFigures(msgspec.Struct):
    """Messages dropped for one reason."""

    reason: str
    entries: int
    messages: int
    bytes: int


class StoreFigures(msgspec.Struct):
    """All figures of `info`."""

    path: str
    epoch: str
    schema: int
    running: bool
    """True when a gateway holds the store."""
    messages: int
    bytes: int
    file_bytes: int
    wal_bytes: int
    page_bytes: int
    pages: int
    free_pages: int
    logs: list[LogFigures]
    cursors: list[CursorFigures]
    addresses: int
    largest_addresses: list[AddressFigures]
    state: list[StateFigures]
    ledger: list[LedgerFigures]
    room: StoreRoom
    wear: Outlook | None
    """Wear of the card as last recorded; None for a new store, or one of an older schema."""


def figures_of(
    path: Path,
    *,
    running: bool = False,
    now: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    free_bytes: int | None = None,
    endurance_bytes: float | None = None,
    root: Path = Path("/"),
    bounds: StoreBounds | None = None,
) -> StoreFigures:
    """Return the figures of the store at `path`. Raises StoreError.

    `now`: UTC seconds. `endurance_bytes`: rated endurance of its medium. `root`: folder of ``sys``. `bounds`: limits of
    the gateway's configuration, None if unknown.
    """
    now = time.time() if now is None else now
    with Inspection.open(path) as inspection, inspection.snapshot():
        free = shutil.disk_usage(path.parent).free if free_bytes is None else free_bytes
        facts = inspection.logs()
        logs = [_log(inspection, log, now, monotonic()) for log in facts]
        pages, free_pages, page = (inspection.number(name) for name in ("page_count", "freelist_count", "page_size"))
        return StoreFigures(
            path=str(path),
            epoch=inspection.meta("epoch") or "",
            schema=inspection.number("user_version"),
            running=running,
            messages=sum(log.messages for log in logs),
            bytes=sum(log.bytes for log in logs),
            file_bytes=_size(path),
            wal_bytes=_size(path.with_name(path.name + "-wal")),
            page_bytes=page,
            pages=pages,
            free_pages=free_pages,
            logs=logs,
            cursors=_cursors(inspection, facts),
            addresses=_count(inspection),
            largest_addresses=_addresses(inspection),
            state=_state(inspection),
            ledger=[LedgerFigures(e.reason, e.entries, e.messages, e.bytes) for e in inspection.ledger()],
            room=_room(logs, free, free_pages * page, bounds or StoreBounds()),
            wear=_wear(inspection, endurance_bytes, BlockDevice.of(path, root)),
        )


def _wear(inspection: Inspection, endurance_bytes: float | None, device: BlockDevice | None) -> Outlook | None:
    rows = inspection.wear()
    if not rows:
        return None
    name, life = (device.name, device.life_used()) if device is not None else (None, None)
    return outlook(rows[-1], rows, endurance_bytes=endurance_bytes, life_used=life, device=name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _log(inspection: Inspection, log: LogFacts, now: float, monotonic_s: float) -> LogFigures:
    age = None
    if log.reached > log.first:
        oldest = next(inspection.segments_inside(log.log), None)
        at = None if oldest is None else received_at(oldest)
        age = None if at is None or not at else max(0.0, now - at / 1e9)
    rate = _rate(inspection, log.log, monotonic_s)
    return LogFigures(log.name, max(0, log.reached - log.first), log.bytes, age, rate)


def _rate(inspection: Inspection, log: int, monotonic_s: float) -> float | None:
    """Return bytes an hour from the stamps of the newest segments of one boot, as stamps of different boots cannot be
    compared."""
    rows = [
        (int(str(stamp)) / 1e9, int(str(size)) + ROW_BYTES, str(boot_id))
        for stamp, size, boot_id in inspection.query(
            "SELECT monotonic_ns, length(data), boot_id FROM segment LEFT JOIN boot USING (boot) "
            "WHERE key >= ? AND key <= ? ORDER BY key DESC LIMIT ?",
            (key_of(log, 0), key_of(log, POSITION_MAX), RATE_SEGMENTS_MAX),
        )
    ]
    if not rows:
        return None
    boot = rows[0][2]
    until = monotonic_s if boot == _this_boot() and monotonic_s >= rows[0][0] else rows[0][0]
    lately = [(stamp, size) for stamp, size, boot_id in rows if boot_id == boot and until - stamp <= RATE_WINDOW_S]
    if not lately:
        return 0.0
    span = until - lately[-1][0]
    return sum(size for _, size in lately) / span * 3600 if span >= RATE_SPAN_S_MIN else None


def _this_boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _cursors(inspection: Inspection, logs: Sequence[LogFacts]) -> list[CursorFigures]:
    by_number = {log.log: log for log in logs}
    found = []
    for cursor in inspection.cursors():
        log = by_number.get(cursor.log)
        if log is None:
            continue  # `verify` reports it
        try:
            progress = CursorProgress(cursor.position, cursor.acknowledged)
        except ValueError:
            progress = CursorProgress(cursor.position)
        progress.add(-1, log.first - 1)
        backlog = progress.backlog(log.reached)
        found.append(CursorFigures(cursor.name, log.name, backlog, _bytes(inspection, log, progress, backlog)))
    return found


def _bytes(inspection: Inspection, log: LogFacts, progress: CursorProgress, backlog: int) -> int:
    """Return the bytes of bodies that a cursor has not acknowledged, in proportion to its messages in the segments from
    its position on."""
    if not backlog:
        return 0
    if progress.position <= log.first:
        size, messages = log.bytes, log.reached - log.first
    else:
        rows = inspection.query(
            "SELECT coalesce(sum(body_bytes), 0), coalesce(sum(messages), 0) FROM segment WHERE key > "
            "coalesce((SELECT max(key) FROM segment WHERE key >= ? AND key <= ?), ?) AND key <= ?",
            (
                key_of(log.log, 0),
                key_of(log.log, progress.position),
                key_of(log.log, progress.position),
                key_of(log.log, POSITION_MAX),
            ),
        )
        size, messages = int(str(rows[0][0])), int(str(rows[0][1]))
        head = next(inspection.segments_inside(log.log, progress.position), None)
        if head is not None:
            size, messages = size + head.body_bytes, messages + head.messages
    return round(size * min(1.0, backlog / messages)) if messages else 0


def _count(inspection: Inspection) -> int:
    return int(str(inspection.query("SELECT count(*) FROM address")[0][0]))


def _addresses(inspection: Inspection) -> list[AddressFigures]:
    rows = inspection.query("SELECT name, next FROM address ORDER BY next DESC, name LIMIT ?", (ADDRESSES_MAX,))
    return [AddressFigures(str(name), int(str(following))) for name, following in rows]


def _state(inspection: Inspection) -> list[StateFigures]:
    rows = inspection.query("SELECT kind, count(*), sum(length(value)) FROM state GROUP BY kind ORDER BY kind")
    return [StateFigures(str(kind), int(str(count)), int(str(size))) for kind, count, size in rows]


def _room(logs: Sequence[LogFigures], free: int, reusable: int, bounds: StoreBounds) -> StoreRoom:
    usage = [
        # Growth of the backlog: one that is an hour old has grown for an hour. Messages in delivery do not count.
        LogUsage(
            log.name,
            log.bytes,
            log.bytes_per_hour or 0.0,
            log.bytes / (log.oldest_age_s / 3600)
            if log.oldest_age_s is not None and log.oldest_age_s >= STAYS_S
            else 0,
        )
        for log in logs
    ]
    return room_of(usage, free, reusable, bounds, known=any(log.bytes_per_hour is not None for log in logs))
