"""Enters messages that a crash lost from memory into the ledger, once, after the store is opened again."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Set

from bridge.message import Run
from edge.broker.model.ranges import Ranges
from edge.broker.store.group import CommitGroup
from edge.broker.store.limits import StoreLimits
from edge.broker.store.medium import Medium
from edge.broker.store.records import Loss
from edge.broker.store.reservation import MEMORY, pack_range, range_key, unpack_range
from edge.broker.store.tables import StoreTables

logger = logging.getLogger(__name__)


class CrashLosses:
    """Reserved numbers that may belong to lost messages, and the state that records their entry into the ledger."""

    def __init__(self, limits: StoreLimits, tables: StoreTables, medium: Medium) -> None:
        """Read the reservations from the medium. Raises StoreError, or ValueError when they are damaged."""
        self._limits = limits
        self._gatherer, self._logs, self._cursors = tables.gatherer, tables.logs, tables.cursors
        self._medium = medium
        self._reserved = [unpack_range(key, value) for key, value in medium.items(MEMORY)]
        self._accounted: dict[str, bytes | None] = {}
        """Small state that marks the losses as entered."""
        self._filled: dict[int, tuple[int, int]] = {}
        """Positions ``first <= p < end`` without messages, by log. An empty segment must cover them."""

    @property
    def pending(self) -> bool:
        """True when a group still has to write the result."""
        return bool(self._accounted)

    @property
    def accounted(self) -> bool:
        """True when `account` has nothing left to find."""
        return not self._reserved

    def account(self) -> None:
        """Find the losses and add them to the open group. Raises StoreError, and may be called again then."""
        losses, now_ns = list[Loss](), time.time_ns()
        addresses = {address for _, address, base, end in self._reserved if address is not None and base < end}
        known = self._ledgered(addresses)
        ends = {log: self._medium.written_end(log, end) for log, address, _, end in self._reserved if address is None}
        for log, address, base, end in self._reserved:
            if address is None:
                self._accounted[range_key(log, None)] = pack_range(end, end)
                self._fill(log, base, end, ends[log])
            else:
                self._accounted[range_key(log, address)] = None
                losses += self._losses(log, address, base, end, known, now_ns)
        group = self._gatherer.open
        if losses:
            most = sum(loss.messages for loss in losses)
            logger.warning("not stopped cleanly: up to %d messages that were only in memory are lost", most)
            group.losses += losses
        group.urgent = group.urgent or bool(self._reserved)
        self._reserved = []

    def _fill(self, log: int, base: int, end: int, written: int) -> None:
        state = self._logs.get(log)
        if state is None or not base < end <= state.next:
            return
        self._filled[log] = max(written, state.first), end
        for cursor in self._cursors.of(state):
            self._cursors.acknowledge(cursor.cursor, base, end - 1)

    def _losses(
        self, log: int, address: str, base: int, end: int, known: dict[tuple[str, str], Ranges], now_ns: int
    ) -> list[Loss]:
        state = self._logs.get(log)
        if state is None or base == end:
            return []
        probe = Run(address, "", 1, b"", [b""], now_ns)
        return [
            Loss(cursor.name, address, first, last, last - first + 1, 0, MEMORY, now_ns)
            for cursor in self._cursors.of(state)
            if cursor.wants is None or cursor.wants(probe)
            for first, last in known[cursor.name, address].outside(base, end - 1)
        ]

    def _ledgered(self, addresses: Set[str]) -> dict[tuple[str, str], Ranges]:
        """Return the ranges that the ledger already has for another reason, by subscription and address."""
        known: dict[tuple[str, str], Ranges] = defaultdict(Ranges)
        entries = self._medium.ledger(0, 2 * self._limits.ledger_entries_max, "") if addresses else ()
        for entry in entries:
            if entry.address in addresses and entry.messages == entry.last - entry.first + 1:
                known[entry.subscription, entry.address].add(entry.first, entry.last)
        return known

    def join(self, group: CommitGroup) -> None:
        """Add the result to a group until it is on disk."""
        for key, value in self._accounted.items():
            group.state.setdefault((MEMORY, key), value)
        group.filled += [(log, first, end) for log, (first, end) in self._filled.items()]

    def committed(self, group: CommitGroup) -> None:
        if self._accounted and (MEMORY, next(iter(self._accounted))) in group.state:
            self._accounted.clear()
            self._filled.clear()
