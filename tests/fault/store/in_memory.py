"""What a store owes of a log that is kept in memory (``durability: memory``) after a kill or a power cut.

*Owed*, of each message the store named (took, or told as committed):

- it is there, under its name and at its position; or each cursor that had not acknowledged it has it in the ledger with
  reason ``memory``, and then it is one of the last of its log: nothing that is there comes after it;
- it is there for certain when it was committed as a message of any log is, or a later commit of its log, or one sealed
  `WINDOW_S` after it was taken while somebody still waited for it, or the closing of the store, has succeeded;
- no position and no sequence is given twice. While the store is open they are dense; what a crash skips (at most
  `RESERVE_MAX` of each) is in the ledger for each cursor of the log, and every cursor has passed it;
- a cursor is done with what it acknowledged, what is in the ledger for it, and nothing else; and it waits for nothing
  that is not there, unless that was gone before the cursor was made.

*Allowed*: the ledger may name more than was lost. Reason ``memory``, each message once for a cursor, and only

- messages that everybody acknowledged since the last commit that spilled their log (`SPILL_S` at most), and numbers
  that were never given;
- never a message that is there, nor one that was there for certain, nor one that is in the ledger for another reason;
  and nothing after the store was closed in order.

Of an address that another log has as well (`SHARED`) only the first half is held: which log a number was reserved for
and which one used it may differ.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from edge.broker.store.limits import MEMORY_LOOK_S
from edge.broker.store.reservation import MEMORY
from tests.fault.store.ledger import Ledger, Row
from tests.fault.store.limits import LIMITS

if TYPE_CHECKING:
    from tests.fault.store.history import Candidate, Group, Model, Observed, Sealed

ADDRESSES: Final = {"queue memory": ("memory/0", "memory/1", "memory/2"), "topic ring/#": ("ring/0", "ring/1")}
"""Of each log in memory, those no other log has."""
SHARED: Final = ("plant/0", "plant/1")
"""Addresses any log has."""
LOG_OF: Final = {address: log for log, addresses in ADDRESSES.items() for address in addresses}
WINDOW_S: Final = LIMITS.memory_window_s + MEMORY_LOOK_S
SPILL_S: Final = LIMITS.memory_spill_s + MEMORY_LOOK_S
RESERVE_MAX: Final = LIMITS.memory_reserve_max

Name = tuple[str, str, int]
"""Subscription, address, sequence."""


class Tails:
    """What of the logs in memory need not be on the medium."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[int, float]] = {log: {} for log in ADDRESSES}
        """When each message was taken that may be in memory only, by log and position."""
        self.addresses: set[str] = set()
        """Those that numbers may be reserved for."""
        self.reserving = True
        """The store was not closed in order."""

    def copy(self) -> Tails:
        twin = copy.copy(self)
        twin.taken = {log: dict(taken) for log, taken in self.taken.items()}
        twin.addresses = set(self.addresses)
        return twin

    def take(self, log: str, position: int, count: int, address: str, at_s: float) -> None:
        self.reserving = True
        self.addresses.add(address)
        self.taken[log].update(dict.fromkeys(range(position, position + count), at_s))

    def commit(self, sealed: Sealed, model: Model) -> None:
        """A group is going to be committed, and spills what is due; `model` is what is there before."""
        group, asked, ends = sealed
        self.reserving = True
        self.refuse(group)
        touched = {*group.evicted, *group.thinned, *(append.log for append in group.appends)}
        for log, taken in self.taken.items():
            cursors = [key for key in model.cursors if key[1] == log and key not in group.dropped]
            end = ends.get(log, 0) if log in touched else 0
            for position, at_s in taken.items():
                waits = any(model.owes(key, position) and position not in asked[key] for key in cursors)
                if position >= end and _due(group.at_s - at_s, waits=waits):
                    end = position + 1
            self.taken[log] = {position: at_s for position, at_s in taken.items() if position >= end}

    def refuse(self, group: Group) -> None:
        """Numbers may be reserved for what a group holds, whether it is committed or refused."""
        self.addresses |= {append.address for append in group.appends if append.log in ADDRESSES}

    def close(self) -> None:
        """It was closed in order: all is on the medium, and nothing is reserved."""
        self.taken = {log: {} for log in ADDRESSES}
        self.addresses = set()
        self.reserving = False

    def ahead(self, log: str) -> int:
        """How far the end of a log may be reserved beyond what was given."""
        return RESERVE_MAX if self.reserving and log in ADDRESSES else 0

    def ahead_of(self, address: str) -> int:
        """The same of an address."""
        return RESERVE_MAX if self.reserving and address in self.addresses else 0


def named(rows: Sequence[Row]) -> Counter[Name]:
    """What the ledger names as lost with the memory, and how often."""
    names: Counter[Name] = Counter()
    for _, subscription, address, first, last, _, _, reason in rows:
        if reason == MEMORY:
            names.update((subscription, address, sequence) for sequence in range(first, last + 1))
    return names


def ledger_differences(candidate: Candidate, observed: Observed) -> Iterator[str]:
    """What the ledger says was lost with the memory, held against what may be said."""
    model, names = candidate.model, named(observed.ledger)
    for name, count in names.items():
        if count > 1:
            yield f"ledger: {name} is named {count} times"
    if forgotten := model.named - names.keys():
        yield f"ledger: {sorted(forgotten)[:5]} are named no longer"
    for name in sorted((names.keys() - model.named) & Ledger.of(observed.ledger).messages.keys()):
        yield f"ledger: {name} is named for another reason, too"
    holders = {(name, log) for name, log, *_ in observed.cursors}
    places = {
        message[:2]: (log, position) for log in ADDRESSES for position, message in model.messages.get(log, {}).items()
    }
    for subscription, address, sequence in sorted(names.keys() - model.named):
        log = LOG_OF.get(address)
        _, position = places.get((address, sequence), ("", None))
        wanted = candidate.model.wants(subscription, address)
        if not (wanted and any(subscription == name and log in {None, its} for name, its in holders)):
            yield f"ledger: {subscription} is not owed {address}"
        elif sequence >= observed.sequences.get(address, 0):
            yield f"ledger: {address} {sequence} is named and may be given yet"
        elif log is None:
            continue
        elif position is None and sequence < model.sequences.get(address, 0):
            yield f"ledger: {address} {sequence} is named and was spilled long ago"
        elif position is not None and position not in model.tails.taken[log]:
            yield f"ledger: {address} {sequence} is named and was on the medium at {position}"
        elif position is not None and any(position == at for at, *_ in observed.messages[log]):
            yield f"ledger: {address} {sequence} is named and is there at {position}"
    yield from _unexplained(candidate, observed, names)


def _unexplained(candidate: Candidate, observed: Observed, names: Counter[Name]) -> Iterator[str]:
    """Sequences that were skipped, and that some cursor of the log could still wait for."""
    for name, log, *_ in observed.cursors:
        for address in filter(partial(candidate.model.wants, name), ADDRESSES.get(log, ())):
            skipped = range(candidate.model.sequences.get(address, 0), observed.sequences.get(address, 0))
            if silent := [sequence for sequence in skipped if (name, address, sequence) not in names]:
                yield f"{address}: {silent[:5]} were skipped, and nothing tells {name} so"


def _due(age_s: float, *, waits: bool) -> bool:
    """A message taken so long before a group is on the medium with it, if somebody `waits` for it then."""
    return age_s >= SPILL_S or (age_s >= WINDOW_S and waits)
