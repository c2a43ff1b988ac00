"""Guarantees for a log in memory (``durability: memory``) after a kill or a power cut.

*Required*, for each message that the store named (as taken, or as committed):

- While the store is open, the message is there, with its name and position, or a full ring dropped it.
- After reopening, no message that was taken in memory is there. Each cursor that had to get it and had not
  acknowledged it has it in the ledger, with reason ``memory`` or ``evicted``.
- A message that was reported as committed while its log used the medium is there as in any log.
- No position and no sequence is given twice. While the store is open they are dense. A crash may skip numbers (at most
  `RESERVE_MAX` of each); they are in the ledger for each cursor of the log, and every cursor has passed them.
- A cursor has passed the messages that it acknowledged, those in the ledger for it, and no others. It never waits for a
  missing message, unless the message was gone before the cursor was made.

*Allowed*: the ledger may name more messages than were lost, with reason ``memory``, each once for a cursor:

- only messages taken since the store was opened, and numbers that were never given;
- never a message that is there, nor one that is in the ledger for another reason.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from edge.broker.store.reservation import MEMORY
from tests.fault.store.ledger import Ledger, Row, is_of_ring
from tests.fault.store.limits import LIMITS

if TYPE_CHECKING:
    from tests.fault.store.history import Candidate, Observed

ADDRESSES: Final = {"queue memory": ("memory/0", "memory/1", "memory/2"), "topic ring/#": ("ring/0", "ring/1")}
"""Addresses of each log in memory; no other log has them."""
LOG_OF: Final = {address: log for log, addresses in ADDRESSES.items() for address in addresses}
RESERVE_MAX: Final = 2 * LIMITS.memory_reserve_max
"""Limit of numbers reserved at once, beyond those of waiting messages."""

Name = tuple[str, str, int]
"""Subscription, address, sequence."""


class Tails:
    """Content of the logs in memory that is not on the medium."""

    def __init__(self) -> None:
        self.taken: dict[str, set[int]] = {log: set() for log in ADDRESSES}
        """Positions taken in memory since the store was opened, by log."""
        self.reserving = True
        """The store was not closed in order."""

    def copy(self) -> Tails:
        twin = copy.copy(self)
        twin.taken = {log: set(taken) for log, taken in self.taken.items()}
        return twin

    def take(self, log: str, position: int, count: int) -> None:
        self.taken[log].update(range(position, position + count))

    def close(self) -> None:
        """Close in order: nothing remains reserved."""
        self.reserving = False

    def ahead(self, log: str) -> int:
        """Return how far the end of a log may be reserved beyond the given numbers."""
        return RESERVE_MAX if self.reserving and log in ADDRESSES else 0

    def ahead_of(self, address: str) -> int:
        """Return the same limit for an address."""
        return RESERVE_MAX if self.reserving and address in LOG_OF else 0


def named(rows: Sequence[Row], *, reason: str | None = None) -> Counter[Name]:
    """Count the names that the ledger reports as lost with the memory or dropped by a ring."""
    names: Counter[Name] = Counter()
    for _, subscription, address, first, last, _, _, why in rows:
        if is_of_ring(address, why) and reason in {None, why}:
            names.update((subscription, address, sequence) for sequence in range(first, last + 1))
    return names


def log_differences(log: str, candidate: Candidate, observed: Observed) -> Iterator[str]:
    """Compare one log in memory: each missing message is in the ledger or has no cursor that has to get it."""
    model, names = candidate.model, named(observed.ledger)
    taken, shown = model.tails.taken[log], {position for position, *_ in observed.messages[log]}
    if observed.running:
        return  # messages dropped by a ring go into the ledger some seconds later
    if still := taken & shown:
        yield f"{log}: {sorted(still)[:5]} were in memory, and are on the medium"
    told = Ledger.of(observed.ledger).messages
    evicted = log in candidate.evicted
    for position, (address, sequence, _) in model.messages[log].items():
        if position in shown:
            continue
        for name, its in model.cursors:
            if its != log or position in candidate.asked[name, log] or not model.owes((name, log), position):
                continue
            if (name, address, sequence) not in names and not told[name, address, sequence]:
                yield f"{log}: {position} is gone, and nothing tells {name} so"
            elif position not in taken and not evicted and not told[name, address, sequence]:
                yield f"{log}: {position} is gone, and was on the medium"


def ledger_differences(candidate: Candidate, observed: Observed) -> Iterator[str]:
    """Compare the ledger's entries for messages lost with the memory with the allowed ones."""
    model, names = candidate.model, named(observed.ledger)
    for name, count in names.items():
        if count > 1:
            yield f"ledger: {name} is named {count} times"
    if forgotten := model.named - names.keys():
        yield f"ledger: {sorted(forgotten)[:5]} are named no longer"
    lost = named(observed.ledger, reason=MEMORY).keys() - model.named
    for name in sorted(lost & Ledger.of(observed.ledger).messages.keys()):
        yield f"ledger: {name} is named for another reason, too"
    holders = {(name, log) for name, log, *_ in observed.cursors}
    places = {
        message[:2]: (log, position) for log in ADDRESSES for position, message in model.messages.get(log, {}).items()
    }
    for subscription, address, sequence in sorted(names.keys() - model.named):
        log = LOG_OF[address]
        _, position = places.get((address, sequence), ("", None))
        held = position is not None or (subscription, log) in holders  # else a message that may have been given
        if not (model.wants(subscription, address) and held):
            yield f"ledger: {subscription} is not owed {address}"
        elif sequence >= observed.sequences.get(address, 0):
            yield f"ledger: {address} {sequence} is named and may be given yet"
        elif position is None and ((subscription, address, sequence) in lost) == (
            sequence < model.sequences.get(address, 0)
        ):  # evicted messages are unknown, and numbers that were never given cannot be evicted
            yield f"ledger: {address} {sequence} is named and was settled long ago, or never given"
        elif position is not None and any(position == at for at, *_ in observed.messages[log]):
            yield f"ledger: {address} {sequence} is named and is there at {position}"
        elif (subscription, address, sequence) in lost and position not in {None, *model.tails.taken[log]}:
            yield f"ledger: {address} {sequence} is named and was on the medium at {position}"
    yield from _unexplained(candidate, observed, names)


def _unexplained(candidate: Candidate, observed: Observed, names: Counter[Name]) -> Iterator[str]:
    """Yield sequences that were skipped while a cursor of the log could wait for them."""
    for name, log, *_ in observed.cursors:
        for address in filter(partial(candidate.model.wants, name), ADDRESSES.get(log, ())):
            skipped = range(candidate.model.sequences.get(address, 0), observed.sequences.get(address, 0))
            if silent := [sequence for sequence in skipped if (name, address, sequence) not in names]:
                yield f"{address}: {silent[:5]} were skipped, and nothing tells {name} so"
