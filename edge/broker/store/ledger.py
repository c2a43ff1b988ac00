"""Open end of the loss ledger: recent entries that may still grow.

A loss that continues an entry of the same kind (subscription, address, reason) replaces it with a longer entry under a
new number. So an address that drops ten messages a second for a month has one row, not 26 million. Entries that were
read for the hub may be on their way, so they no longer grow. When the ledger is full, ranges of a kind are merged
across gaps, and `Loss.messages` has the true number of losses. At twice that size the oldest entries are deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import LedgerEntry, Loss

Kind = tuple[str, str, str]


class Entries(NamedTuple):
    """Changes of one group to the ledger."""

    added: Sequence[LedgerEntry] = ()
    replaced: Sequence[int] = ()
    """Numbers of entries that an added one includes."""
    oldest_dropped: int = 0
    """Number of oldest entries to delete."""


class OpenLedger:
    """Recent ledger entries. `entries` may run on the committing thread, all other methods on the loop's thread."""

    def __init__(self, limits: StoreLimits) -> None:
        self.rows = 0
        """Number of entries on the medium."""
        self.entered: dict[str, int] = {}
        """Number of entries since the start, by reason."""
        self._last = 0
        self._limits = limits
        self._growing: OrderedDict[Kind, LedgerEntry] = OrderedDict()
        self._read: dict[str, int] = {}

    def load(self, newest: Iterable[LedgerEntry], rows: int) -> None:
        """Load the newest entries of the medium, oldest first, and their total number."""
        self.rows = rows
        for entry in newest:
            self._grow(entry)

    def read_up_to(self, entry: int, subscriptions: str) -> None:
        """Note that entries up to this number, of subscriptions with this prefix, were read and must not change."""
        self._read[subscriptions] = max(self._read.get(subscriptions, 0), entry)

    def entries(self, losses: Iterable[Loss]) -> Entries:
        """Return the entries for a group with these losses. The state changes only in `committed`."""
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
        """Apply the entries of a committed group."""
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
