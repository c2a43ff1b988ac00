"""The loops over the messages of a commit, in Python and in C (`loops.c`): which form runs, and what each does.

What is done here is done once a message; everything else that a commit does is done once a log, an address or a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from bridge import libraries
from bridge.message import Run, Stored

SOURCE: Final = Path(__file__).with_name("loops.c")
ENTRY: Final = "waypost_store_loops"

PLAIN, SPARSE = 1, 2
"""Versions of segments (`edge.broker.store.segment`)."""

PREAMBLE: Final = struct.Struct("<BBI")
RUN: Final = struct.Struct("<HHIHIqQ")
SPARSE_RUN: Final = struct.Struct("<HHIHIqQI")
WIDTHS: Final = {1: "B", 2: "H", 4: "I"}


class Loops(Protocol):
    """What a form does."""

    def number(
        self,
        runs: Sequence[tuple[int, Run]],
        start: int,
        known: Mapping[str, int],
        ends: MutableMapping[int, int],
        sequences: MutableMapping[str, int],
        appended: list[tuple[int, Stored]],
    ) -> int:
        """Add runs to `appended`, from the one at `start` on, with the next position of their log and the next sequence
        of their address; both go on by as many messages. A sequence that is not in `sequences` is the one in `known`.

        Returns where it stopped: behind the last run, or at one whose log is not in `ends` or whose address is new.
        """
        ...

    def pack(self, runs: list[Stored], base: int) -> tuple[bytes, int, int]:
        """The data of a segment (`edge.broker.store.segment`), with how many messages and bytes of bodies it holds.
        `base`: position that the offsets of a sparse one are counted from; -1: positions follow on from one another.

        Raises struct.error, OverflowError or UnicodeError for what does not fit.
        """
        ...

    def pass_over(self, appended: list[tuple[int, Stored]], start: int, log: int, place: int) -> tuple[int, int]:
        """Go on from `start`, and from position `place` of `log`, as long as runs of this log follow on from each other
        and have no properties. Returns where that ends, in the list and in the log."""
        ...


class InterpretedLoops:
    """In Python; see `Loops`."""

    def number(
        self,
        runs: Sequence[tuple[int, Run]],
        start: int,
        known: Mapping[str, int],
        ends: MutableMapping[int, int],
        sequences: MutableMapping[str, int],
        appended: list[tuple[int, Stored]],
    ) -> int:
        note = appended.append
        for at in range(start, len(runs)):
            number, run = runs[at]
            address, count = run.address, len(run.bodies)
            position = ends.get(number)
            sequence = sequences.get(address)
            if sequence is None:
                sequence = known.get(address)
            if position is None or sequence is None:
                return at
            note((number, Stored(position, sequence, run)))
            ends[number] = position + count
            sequences[address] = sequence + count
        return len(runs)

    def pack(self, runs: list[Stored], base: int) -> tuple[bytes, int, int]:
        heads: list[bytes] = []
        names: list[bytes] = []
        bodies: list[bytes] = []
        for position, sequence, run in runs:
            address, device, properties = run.address.encode(), run.device.encode(), run.properties
            sizes = len(address), len(device), len(properties)
            if base < 0:
                heads.append(RUN.pack(*sizes, run.flags, len(run.bodies), run.received_at, sequence))
            else:
                offset = position - base
                heads.append(SPARSE_RUN.pack(*sizes, run.flags, len(run.bodies), run.received_at, sequence, offset))
            names += (address, device, properties)
            bodies += run.bodies
        lengths = list(map(len, bodies))
        longest = max(lengths, default=0)
        width = 1 if longest < 0x100 else 2 if longest < 0x1_0000 else 4
        packed = bytes(lengths) if width == 1 else struct.pack(f"<{len(lengths)}{WIDTHS[width]}", *lengths)
        preamble = PREAMBLE.pack(PLAIN if base < 0 else SPARSE, width, len(heads))
        return b"".join(chain((preamble,), heads, names, (packed,), bodies)), len(lengths), sum(lengths)

    def pass_over(self, appended: list[tuple[int, Stored]], start: int, log: int, place: int) -> tuple[int, int]:
        for at in range(start, len(appended)):
            its_log, (position, _, run) = appended[at]
            if run.properties or its_log != log or position != place:
                return at, place
            place += len(run.bodies)
        return len(appended), place


class CompiledLoops:
    """In C; see `Loops`."""

    def __init__(self, library: Path) -> None:
        """Raises OSError when it was not compiled, or is not what it should be."""
        entry = libraries.entry_of(library, ENTRY)
        self._number: Callable[..., int]
        self._pack: Callable[..., tuple[bytes, int, int]]
        self._number, self._pack, self.pass_over = entry()
        self._interpreted = InterpretedLoops()

    def number(
        self,
        runs: Sequence[tuple[int, Run]],
        start: int,
        known: Mapping[str, int],
        ends: MutableMapping[int, int],
        sequences: MutableMapping[str, int],
        appended: list[tuple[int, Stored]],
    ) -> int:
        return self._number(runs, start, known, ends, sequences, appended, Stored)

    def pack(self, runs: list[Stored], base: int) -> tuple[bytes, int, int]:
        try:
            return self._pack(runs, base)
        except TypeError:  # something that is like bytes
            return self._interpreted.pack(runs, base)

    pass_over: Callable[[list[tuple[int, Stored]], int, int, int], tuple[int, int]]


def library_path() -> Path:
    """Where the compiled `loops.c` has to be. Raises OSError when the source is not there."""
    return libraries.library_path(SOURCE)


@cache
def loops() -> Loops:
    """The form of this process."""
    without = "commits are put together in Python, at two thirds of the speed"
    return libraries.unless_python(lambda: CompiledLoops(library_path()), without) or InterpretedLoops()
