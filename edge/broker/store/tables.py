"""What a store keeps in memory of its medium."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from edge.broker.store.counters import Counters
from edge.broker.store.cursor_rows import CursorRows
from edge.broker.store.cursors import CursorTable
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.ledger import OpenLedger
from edge.broker.store.limits import Limits
from edge.broker.store.log_rows import LogRows
from edge.broker.store.logs import LogTable


class Rows(LogRows, CursorRows, Protocol):
    """Reads the rows of what is no object."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Loaded from there when the store is opened; nothing of it grows with the backlog."""

    gatherer: Gatherer
    logs: LogTable
    cursors: CursorTable
    counters: Counters
    ledger: OpenLedger

    @classmethod
    def empty(cls, limits: Limits, clock: Callable[[], float], rows: Rows) -> Self:
        gatherer, logs = Gatherer(limits, clock), LogTable(rows)
        return cls(gatherer, logs, CursorTable(logs, gatherer, rows), Counters(limits, logs), OpenLedger(limits))
