"""What a store keeps in memory of its medium."""

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
    """Reads the rows of what is no object."""


@dataclass(frozen=True, slots=True)
class StoreTables:
    """Loaded from there when the store is opened; nothing of it grows with the backlog."""

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
