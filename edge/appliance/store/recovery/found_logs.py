"""Logs of a damaged store, from their table, its index, and the messages."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Final

from edge.appliance.store.recovery.losses import MissingMessages
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.rows import OF_LOG, bounds
from edge.appliance.store.recovery.salvage import Salvage
from edge.broker.model.topics import matches
from edge.broker.store import segment
from edge.broker.store.limits import POSITION_BITS
from edge.broker.store.segment import SegmentRow

QUEUE: Final = "queue"
"""Name of a queue's cursor, and prefix of the name of its log."""
TOPIC: Final = "topic"
"""Prefix of the name of a topic's log."""
RECOVERED: Final = "recovered"
"""Cursor of a log that has lost its cursors: it keeps the messages until they are exported or purged."""


@dataclass(slots=True)
class FoundLog:
    """Log to be written to the new file."""

    number: int
    name: str
    first: int | None
    """First position kept; None: not known yet."""
    counted: int
    end: int = 0
    bytes: int = 0
    ends: bool = True
    """True when its row has the end of the log."""
    without_cursors: bool = False
    """True when its cursors are lost, with their names."""
    missing: MissingMessages = field(default_factory=lambda: MissingMessages("", ()))


class LogSearch:
    """Search logs. If table and index differ, a log gets the name that fits its messages."""

    def __init__(self, salvage: Salvage, report: RepairReport) -> None:
        self._salvage = salvage
        self._report = report

    def logs(self, out: sqlite3.Connection) -> dict[int, FoundLog]:
        """Return the logs by number. `out` has the segments already."""
        rows, complete = self.rows()
        logs = {number: FoundLog(number, name, first, end) for number, name, first, end in rows}
        if not complete:
            self._report.note("the table of logs is damaged", unknown=True)
        self._rename(out, logs)
        filled = {number for (number,) in out.execute(f"SELECT DISTINCT key >> {POSITION_BITS} FROM segment")}  # noqa: S608
        for number in range(1, max([*logs, *filled], default=0) + 1):  # logs are numbered without a gap
            if number not in logs:
                name = f"{RECOVERED} {number}"
                logs[number] = FoundLog(number, name, None, 0, ends=False)
                text = f"the name of log {number} is lost: it is now {name!r}; export its messages from there"
                self._report.note(text, unknown=True)
        return dict(sorted(logs.items()))

    def rows(self) -> tuple[list[tuple[int, str, int, int]], bool]:
        """Return (number, name, first, next) of each log in the table, and whether the table is complete."""
        return self._salvage.rows("log", {"log": int, "name": str, "first": int, "next": int})

    def _rename(self, out: sqlite3.Connection, logs: dict[int, FoundLog]) -> None:
        """Rename logs with different names in table and index to the name that fits their messages."""
        for number, name in self._salvage.indexed("log", ("log", "name")):
            log = logs.get(number)
            if not isinstance(name, str) or (log is not None and log.name == name):
                continue
            other = next((found for found in logs.values() if found.name == name), None)
            if log is None and other is not None:
                del logs[other.number]
                logs[number] = FoundLog(number, name, other.first, other.counted)
                self._report.note(f"log {name!r} had another number in its table: it is now {number}")
            elif log is None:
                logs[number] = FoundLog(number, name, None, 0, ends=False)
                self._report.note(f"log {name!r} is only in the index: it ends with its newest segment", unknown=True)
            elif other is None and _fits(out, number, name) and not _fits(out, number, log.name):
                self._report.note(f"log {log.name!r} is now {name!r}, which fits its messages")
                log.name = name


def _fits(out: sqlite3.Connection, log: int, name: str) -> bool:
    """Return True when the first message of a log fits this name of the log."""
    kind, _, pattern = name.partition(" ")
    row = out.execute(f"{segment.SELECT} {OF_LOG} LIMIT 1", bounds(log)).fetchone()
    if row is None or kind not in (QUEUE, TOPIC):
        return kind in (QUEUE, TOPIC)
    addresses = [head.address for head in segment.run_names(SegmentRow._make(row))]
    return all(address == pattern if kind == QUEUE else matches(pattern, address) for address in addresses)
