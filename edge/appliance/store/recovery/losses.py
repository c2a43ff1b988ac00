"""Losses of a repaired store: gaps in its logs, and the messages that each consumer group has lost in them.

A damaged segment may still name the messages of a gap. Otherwise they are the sequences missing between those that are
kept of an address, the most certain ranges first. These ranges cover all lost messages; they are larger where only
their bounds are known, and `Loss.messages` has the number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edge.broker.model.ranges import Ranges
from edge.broker.model.topics import matches
from edge.broker.store.damage import DAMAGED, UNNAMED, Damage
from edge.broker.store.losses import Claim
from edge.broker.store.records import Loss

Entered = Callable[[str, str, int, int], bool]
"""Returns True when the ledger has these sequences for a group already: (group, address, first, last)."""


@dataclass(slots=True)
class MissingMessages:
    """Missing messages of one log."""

    name: str
    holders: Sequence[Claim]
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Missing positions that no earlier repair has accounted for."""
    damages: list[Damage] = field(default_factory=list)
    """Damaged segments that still name their messages."""

    def count(self) -> int:
        """Return the number of positions that a group had not acknowledged; all of them without a group."""
        return sum(self._open(first, last) for first, last in self.gaps)

    def losses(
        self,
        kept: Mapping[str, Ranges],
        begins: Mapping[str, int],
        counters: Mapping[str, int],
        entered: Entered,
        now_ns: int,
    ) -> list[Loss]:
        """Return the losses of each group.

        `kept`: sequences of each address of this log that are kept, or named by a damaged segment. `begins`: position
        of the first of them. `counters`: next sequence of each address that may belong to this log.
        """
        left = {holder.name: self._unnamed(holder) for holder in self.holders}
        found = [loss for damage in self.damages for loss in damage.losses(self.holders, now_ns)]
        if any(left.values()):
            for address, first, last in self._holes(kept, begins, counters):
                for holder in self.holders:
                    messages = min(last + 1 - first, left[holder.name])
                    left[holder.name] -= messages
                    if messages > 0 and not entered(holder.name, address, first, last):
                        found.append(Loss(holder.name, address, first, last, messages, 0, DAMAGED, now_ns))
        for name, messages in left.items():
            if messages > 0:
                first, last = self.gaps[0][0], self.gaps[-1][1]
                found.append(Loss(name, UNNAMED + self.name, first, last, messages, 0, DAMAGED, now_ns))
        return list(_merge_adjacent(found))

    def _open(self, first: int, last: int) -> int:
        if not self.holders:
            return last + 1 - first
        waited = Ranges()
        for holder in self.holders:
            for low, high in holder.progress.outside(first, last):
                waited.add(low, high)
        return waited.count

    def _unnamed(self, holder: Claim) -> int:
        """Return how many positions a group may have lost that no damaged segment names."""
        named = sum(_open(holder, damage.first, damage.last) for damage in self.damages)
        return sum(_open(holder, first, last) for first, last in self.gaps) - named

    def _holes(
        self, kept: Mapping[str, Ranges], begins: Mapping[str, int], counters: Mapping[str, int]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield (address, first, last) of sequences in no segment, the most certain first."""
        most = sum(last + 1 - first for first, last in self.gaps)
        heads = []
        for address, seen in kept.items():
            pairs = list(seen)
            starts = [first for first, _ in pairs[1:]] + [counters.get(address, 0)]
            for (_, ended), after in zip(pairs, starts, strict=True):
                if ended + 1 < after:  # a counter beyond all missing positions is wrong itself
                    yield address, ended + 1, min(after - 1, ended + most)
            before = sum(last + 1 - first for first, last in self.gaps if first < begins[address])
            if seen.first and before:
                heads.append((address, max(0, seen.first - before), seen.first - 1))
        yield from heads
        kind, _, pattern = self.name.partition(" ")
        for address, end in counters.items():  # addresses without kept messages
            mine = address == pattern if kind == "queue" else kind == "topic" and matches(pattern, address)
            if mine and end and address not in kept:
                yield address, max(0, end - most), end - 1


def _open(holder: Claim, first: int, last: int) -> int:
    """Return how many of these positions a group has not acknowledged."""
    return sum(high + 1 - low for low, high in holder.progress.outside(first, last))


def _merge_adjacent(losses: Sequence[Loss]) -> Iterator[Loss]:
    """Merge adjacent losses."""
    open_: Loss | None = None
    for loss in sorted(losses, key=lambda loss: (loss.subscription, loss.address, loss.first)):
        follows = open_ is not None and open_[:2] == loss[:2] and open_.last + 1 == loss.first
        if open_ is not None and follows:
            open_ = open_._replace(
                last=loss.last, messages=open_.messages + loss.messages, bytes=open_.bytes + loss.bytes
            )
            continue
        if open_ is not None:
            yield open_
        open_ = loss
    if open_ is not None:
        yield open_
