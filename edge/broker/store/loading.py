"""Loads the state of a store from its file when it is opened: O(logs + cursors), and a few segments."""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path
from typing import Final

from edge.broker.store.consistency import check_cursor, check_logs, check_tables
from edge.broker.store.cursors import cursor_states
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.faults import ADVICE
from edge.broker.store.group import CursorRow
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, QUEUE_CURSOR, StoreLimits
from edge.broker.store.logs import FREE, LogState
from edge.broker.store.queries import SideQueries
from edge.broker.store.reader import SCAN
from edge.broker.store.reservation import SPILLS, unpack_count
from edge.broker.store.segment import SegmentDamaged, SegmentRow, SegmentRunName, run_names
from edge.broker.store.tables import StoreTables
from edge.broker.store.writer import BootRow

_UNCOUNTED: Final = f"""
SELECT log FROM log WHERE EXISTS (
    SELECT 1 FROM segment
    WHERE key >= log.log << {POSITION_BITS} | log.next AND key <= log.log << {POSITION_BITS} | {POSITION_MAX})
"""  # noqa: S608 - two constants of ours
"""Logs with segments beyond the end in table ``log``. One query, as there may be very many logs."""

_TOTALS: Final = "SELECT count(*), coalesce(sum(next - first), 0), coalesce(sum(bytes), 0) FROM log"
_DOUBTFUL: Final = f"""
SELECT {", ".join(f"cursor.{each}" for each in CursorRow._fields)} FROM cursor LEFT JOIN log USING (log)
WHERE acknowledged <> x'' OR log.log IS NULL OR position > next
"""  # noqa: S608 - names of our own
"""Cursors that may be beyond the end of their logs, because table ``log`` may lag behind."""
_OTHERS: Final = f"SELECT log, count(*), min(position) FROM cursor WHERE name <> '{QUEUE_CURSOR}' GROUP BY log"  # noqa: S608
"""Logs with cursors other than that of a queue."""
_UNWANTED: Final = """
SELECT log.log FROM log LEFT JOIN (SELECT log, min(position) AS lowest FROM cursor GROUP BY log) AS reached USING (log)
WHERE first < min(next, coalesce(lowest, next))
"""
"""Logs with messages that no cursor wants."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def load(tables: StoreTables, side: sqlite3.Connection, queries: SideQueries, limits: StoreLimits) -> None:
    """Fill empty tables. Raises StoreError, or sqlite3.Error, TypeError or ValueError for damaged data."""
    check_tables(side)
    tables.ledger.load(queries.newest_ledger(limits.ledger_growing_max), queries.ledger_rows())
    logs, counters = tables.logs, tables.counters
    counters.spills = max((unpack_count(value) for _, value in queries.items(SPILLS)), default=0)
    free = [log for (log,) in side.execute(f"SELECT log FROM log WHERE name = '{FREE}' || log ORDER BY log")]  # noqa: S608
    count, messages, size = side.execute(_TOTALS).fetchone()
    logs.set_totals(count, messages, size, free)
    for (number,) in side.execute(_UNCOUNTED).fetchall():
        _recount(tables, side, logs[number])
    for address, end in queries.sequences_of(counters.uncounted).items():  # reserved further by another log
        counters.uncounted[address] = max(counters.uncounted[address], end)
    counters.sequences.update(counters.uncounted)
    check_logs(side, logs, lambda names: {**queries.sequences_of(names), **counters.uncounted})
    for cursor in cursor_states(map(CursorRow._make, side.execute(_DOUBTFUL)), logs):
        check_cursor(cursor)
    tables.cursors.set_last_number(side.execute("SELECT coalesce(max(cursor), 0) FROM cursor").fetchone()[0])
    for log, count, lowest in side.execute(_OTHERS).fetchall():
        tables.cursors.add_idle(logs[log], count, lowest)
    logs.to_reclaim.update((log, None) for (log,) in side.execute(_UNWANTED))  # not deleted because of a crash
    for state in logs.in_use.values():
        if tables.cursors.lowest(state, state.next) > state.first:
            logs.to_reclaim[state.log] = None


def boot_of(side: sqlite3.Connection) -> tuple[int, BootRow | None]:
    """Return the number of this boot, and its row if the store does not have it yet. Raises sqlite3.Error."""
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot_id = uuid.uuid4().hex  # not Linux: monotonic stamps are valid only within this process
    row = side.execute("SELECT boot, boot_id FROM boot ORDER BY boot DESC LIMIT 1").fetchone()
    if row is not None and row[1] == boot_id:
        return int(row[0]), None
    boot = 1 if row is None else row[0] + 1
    return boot, BootRow(boot, boot_id, time.time_ns())


def _recount(tables: StoreTables, side: sqlite3.Connection, state: LogState) -> None:
    """Count the segments committed since table ``log`` was written."""
    counters, base = tables.counters, state.log << POSITION_BITS
    for row in map(SegmentRow._make, side.execute(SCAN, (base | state.next, base | POSITION_MAX))):
        found = _run_names(state.name, row)
        if row.key & POSITION_MAX != state.next:
            raise StoreDamaged(f"log {state.name!r}: positions from {state.next} on are missing: {ADVICE}")
        tables.logs.move(state, end=(row.key & POSITION_MAX) + row.messages, size=row.body_bytes)
        counters.uncounted_logs.add(state.log)
        counters.uncounted_bytes += row.body_bytes
        for address, sequence, count in found:
            counters.uncounted[address] = max(counters.uncounted.get(address, 0), sequence + count)
            counters.uncounted_bytes += len(address)


def _run_names(log: str, row: SegmentRow) -> list[SegmentRunName]:
    try:
        return run_names(row)
    except SegmentDamaged as error:
        position = row.key & POSITION_MAX
        raise StoreDamaged(
            f"log {log!r}: the newest messages, from position {position} on, are damaged ({error}), so the sequences "
            "given last are not known: run `waypost store repair`, which continues with a new epoch"
        ) from error
