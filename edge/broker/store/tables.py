"""State of a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from edge.broker.store.counters import SequenceCounters
from edge.broker.store.cursor_rows import CursorRows
from edge.broker.store.cursors import CursorTable
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.ledger import OpenLedger
from edge.broker.store.limits import StoreLimits
from edge.broker.store.log_rows import LogRows
from edge.broker.store.logs import LogTable


class StoreRows(LogRows, CursorRows, Protocol):
    """Reads rows of logs and cursors that are not in memory."""


@dataclass(frozen=True, slots=True)
class StoreTables:
    """Tables loaded from the medium when the store is opened. Their size does not depend on the backlog."""

    gatherer: Gatherer
    logs: LogTable
    cursors: CursorTable
    counters: SequenceCounters
    ledger: OpenLedger

    @classmethod
    def empty(cls, limits: StoreLimits, clock: Callable[[], float], rows: StoreRows) -> Self:
        gatherer, logs = Gatherer(limits, clock), LogTable(rows)
        return cls(
            gatherer, logs, CursorTable(logs, gatherer, rows), SequenceCounters(limits, logs), OpenLedger(limits)
        )
