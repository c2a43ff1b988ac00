"""What a repaired store lacks: gaps in its logs, and the losses of each consumer group that waited for what was there.

Whose messages stood in a gap is known for certain where a rotten segment still says so. Otherwise it is what lies
between the sequences that are kept of an address, the most certain first: such ranges hold all that was lost, and more
where only their bounds are known, as `Loss.messages` says.
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
"""True when the ledger has these sequences of an address for a group already: (group, address, first, last)."""


@dataclass(slots=True)
class MissingMessages:
    """What is missing of one log."""

    name: str
    holders: Sequence[Claim]
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Positions no repair before has accounted for."""
    damages: list[Damage] = field(default_factory=list)
    """Rotten segments that still say whose messages they held."""

    def count(self) -> int:
        """Positions that some group had not acknowledged; all where there is no group."""
        return sum(self._open(first, last) for first, last in self.gaps)

    def losses(
        self,
        kept: Mapping[str, Ranges],
        begins: Mapping[str, int],
        counters: Mapping[str, int],
        entered: Entered,
        now_ns: int,
    ) -> list[Loss]:
        """What each group lost. `kept`: sequences of each address of this log that are there, or lost by name;
        `begins`: the position of the first of them; `counters`: next sequence of every address that may be of this log.
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
        return list(_joined(found))

    def _open(self, first: int, last: int) -> int:
        if not self.holders:
            return last + 1 - first
        waited = Ranges()
        for holder in self.holders:
            for low, high in holder.progress.outside(first, last):
                waited.add(low, high)
        return waited.count

    def _unnamed(self, holder: Claim) -> int:
        """How many positions a group may have lost that no rotten segment names."""
        named = sum(_open(holder, damage.first, damage.last) for damage in self.damages)
        return sum(_open(holder, first, last) for first, last in self.gaps) - named

    def _holes(
        self, kept: Mapping[str, Ranges], begins: Mapping[str, int], counters: Mapping[str, int]
    ) -> Iterator[tuple[str, int, int]]:
        """(address, first, last) of sequences that are in no segment, the most certain first."""
        most = sum(last + 1 - first for first, last in self.gaps)
        heads = []
        for address, seen in kept.items():
            pairs = list(seen)
            starts = [first for first, _ in pairs[1:]] + [counters.get(address, 0)]
            for (_, ended), after in zip(pairs, starts, strict=True):
                if ended + 1 < after:  # a counter that says more than is missing at all is wrong itself
                    yield address, ended + 1, min(after - 1, ended + most)
            before = sum(last + 1 - first for first, last in self.gaps if first < begins[address])
            if seen.first and before:
                heads.append((address, max(0, seen.first - before), seen.first - 1))
        yield from heads
        kind, _, pattern = self.name.partition(" ")
        for address, end in counters.items():  # those of which nothing is kept
            mine = address == pattern if kind == "queue" else kind == "topic" and matches(pattern, address)
            if mine and end and address not in kept:
                yield address, max(0, end - most), end - 1


def _open(holder: Claim, first: int, last: int) -> int:
    """How many of these positions a group has not acknowledged."""
    return sum(high + 1 - low for low, high in holder.progress.outside(first, last))


def _joined(losses: Sequence[Loss]) -> Iterator[Loss]:
    """Losses that follow on from one another, as one."""
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
