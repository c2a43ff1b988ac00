"""The loops over the messages of a commit, in C (`loops.c`).

What is done here is done once a message; everything else that a commit does is done once a log, an address or a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from msgspec.structs import replace

from bridge.message import Run, Stored
from bridge.native import functions as native

PLAIN, SPARSE = 1, 2
"""Versions of segments (`edge.broker.store.segment`)."""

PREAMBLE: Final = struct.Struct("<BBI")
RUN: Final = struct.Struct("<HHIHIqQ")
SPARSE_RUN: Final = struct.Struct("<HHIHIqQI")
WIDTHS: Final = {1: "B", 2: "H", 4: "I"}


def number(
    runs: Sequence[tuple[int, Run]],
    start: int,
    known: Mapping[str, int],
    ends: MutableMapping[int, int],
    sequences: MutableMapping[str, int],
    appended: list[tuple[int, Stored]],
) -> int:
    """Add runs to `appended`, from the one at `start` on, with the next position of their log and the next sequence
    of their address; both go on by as many messages. A sequence that is not in `sequences` is the one in `known`.

    Return where it stopped: behind the last run, or at one whose log is not in `ends` or whose address is new.
    """
    return native.number_runs(runs, start, known, ends, sequences, appended, Stored)


def pack(runs: list[Stored], base: int) -> tuple[bytes, int, int]:
    """Return the data of a segment (`edge.broker.store.segment`), and how many messages and bytes of bodies it holds.
    `base`: position that the offsets of a sparse one are counted from; -1: positions follow on from one another.

    Raises OverflowError or UnicodeError for what does not fit.
    """
    try:
        return native.pack_runs(runs, base)
    except TypeError:  # a bytearray or a memoryview in the place of bytes
        return native.pack_runs([stored._replace(run=_copy_as_bytes(stored.run)) for stored in runs], base)


def _copy_as_bytes(run: Run) -> Run:
    return replace(run, properties=bytes(run.properties), bodies=[bytes(body) for body in run.bodies])


def pass_over(appended: list[tuple[int, Stored]], start: int, log: int, place: int) -> tuple[int, int]:
    """Go on from `start`, and from position `place` of `log`, as long as runs of this log follow on from each other
    and have no properties. Return where that ends, in the list and in the log."""
    return native.pass_over(appended, start, log, place)
