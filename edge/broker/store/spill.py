"""What a group writes of a log that is kept in memory: messages nobody took in time, and numbers reserved anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bridge.message import Stored
from edge.broker.store.reservation import pack_range, range_key


class Spill(NamedTuple):
    """Of one log."""

    log: int
    runs: Sequence[Stored]
    """What is written of its buffer."""
    size: int
    """Bytes of their bodies."""
    start: int
    """The position from which this group's segments have to cover the log, so that none is missing."""
    buffer_end: int
    """Where the buffer ends; what the group appends to the log besides comes after."""
    upto: int
    """Every position below is on the medium after it, or nobody's."""
    following: int
    """The next position to be given out."""
    writes: bool
    """The group has messages of this log."""
    first: int | None
    """The first position kept from now on, when there is no other segment; None: as it was."""
    end: int
    """Where the positions reserved end."""
    ends: Mapping[str, int]
    """Where the reservation of an address ends that has one from now on."""
    counters: Mapping[str, int]
    """The next sequence of each address touched, and of those that give back their reservation."""
    bases: Mapping[str, int]
    """For each of `ends`: below it, every sequence is on the medium after it, or nobody's."""
    returned: Sequence[str]
    """Addresses that give back their reservation."""
    at_s: float
    releases: bool = False
    """It gives back everything that was reserved."""
    extends: bool = False
    """It reserves more and does nothing else."""

    def state(self) -> Iterator[tuple[str, bytes | None]]:
        """(key, value) of its rows of small state; None: the row goes."""
        yield range_key(self.log, None), pack_range(self.upto, self.end)
        for address, end in self.ends.items():
            yield range_key(self.log, address), pack_range(self.bases[address], end)
        for address in self.returned:
            yield range_key(self.log, address), None
