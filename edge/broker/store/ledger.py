"""The open end of the loss ledger: entries of the past that may still grow.

A loss that follows on from one of its kind (subscription, address, reason) becomes one entry with it, under a new
number: an address that gives up ten messages a second for a month has one row, not 26 million. What was given to a
reader may be on its way to the hub and grows no more. When the ledger holds as much as it should, ranges of a kind grow
over what lies between them (`Loss.messages` says how many were lost in truth); at twice as much the oldest entries go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import LedgerEntry, Loss

Kind = tuple[str, str, str]


class Entries(NamedTuple):
    """What one group does to the ledger."""

    added: Sequence[LedgerEntry] = ()
    replaced: Sequence[int] = ()
    """Numbers of entries that are part of an added one."""
    oldest_dropped: int = 0
    """How many of the oldest entries go."""


class OpenLedger:
    """See the module's docstring. `entries` may run on the committing thread; everything else on the loop's."""

    def __init__(self, limits: StoreLimits) -> None:
        self.rows = 0
        """Entries on the medium."""
        self.entered: dict[str, int] = {}
        """By reason: how often something was entered since the start."""
        self._last = 0
        self._limits = limits
        self._growing: OrderedDict[Kind, LedgerEntry] = OrderedDict()
        self._read: dict[str, int] = {}

    def load(self, newest: Iterable[LedgerEntry], rows: int) -> None:
        """Begin with what the medium has: its newest entries, oldest first, and how many it has in all."""
        self.rows = rows
        for entry in newest:
            self._grow(entry)

    def read_up_to(self, entry: int, subscriptions: str) -> None:
        """Entries up to this number, of subscriptions that begin so, were given to somebody, who may pass them on: they
        stay as they are."""
        self._read[subscriptions] = max(self._read.get(subscriptions, 0), entry)

    def entries(self, losses: Iterable[Loss]) -> Entries:
        """The entries of a group that gives up `losses`; it changes nothing here before `committed`."""
        full = self.rows >= self._limits.ledger_entries_max
        growing: dict[Kind, Loss] = {}
        ended: list[Loss] = []
        replaced: list[int] = []
        for loss in losses:
            kind = (loss.subscription, loss.address, loss.reason)
            before: Loss | None = growing.get(kind)
            if before is None:
                entry = self._growing.get(kind)
                if entry is not None and (entry.last + 1 == loss.first or full) and self._may_grow(entry):
                    before = Loss(*entry[1:])
                    replaced.append(entry.entry)
            elif before.last + 1 != loss.first and not full:
                ended.append(before)
                before = None
            growing[kind] = loss if before is None else _joined(before, loss)
        added = [LedgerEntry(number, *loss) for number, loss in enumerate((*ended, *growing.values()), self._last + 1)]
        surplus = self.rows - len(replaced) + len(added) - 2 * self._limits.ledger_entries_max
        return Entries(added, replaced, max(0, surplus))

    def committed(self, entries: Entries) -> None:
        """The group is on disk."""
        for entry in entries.added:
            self._grow(entry)
            self.entered[entry.reason] = self.entered.get(entry.reason, 0) + 1
        self.rows += len(entries.added) - len(entries.replaced) - entries.oldest_dropped

    def _may_grow(self, entry: LedgerEntry) -> bool:
        return not any(
            entry.entry <= upto and entry.subscription.startswith(prefix) for prefix, upto in self._read.items()
        )

    def _grow(self, entry: LedgerEntry) -> None:
        self._last = max(self._last, entry.entry)
        kind = (entry.subscription, entry.address, entry.reason)
        self._growing[kind] = entry
        self._growing.move_to_end(kind)
        if len(self._growing) > self._limits.ledger_growing_max:
            self._growing.popitem(last=False)


def _joined(before: Loss, after: Loss) -> Loss:
    return after._replace(
        first=min(before.first, after.first),
        last=max(before.last, after.last),
        messages=before.messages + after.messages,
        bytes=before.bytes + after.bytes,
    )
