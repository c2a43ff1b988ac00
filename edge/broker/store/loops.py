"""Loops over the messages of a commit, in C (`loops.c`).

Only this work is done for each message. All other work of a commit is done for each log, address or commit.
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
    """Number the runs from `start` on and add them to `appended`.

    A run gets the next position of its log (`ends`) and the next sequence of its address (`sequences`, otherwise
    `known`), and both advance by its messages. Return the index where it stopped: after the last run, or at a run with
    an unknown log or address.
    """
    return native.number_runs(runs, start, known, ends, sequences, appended, Stored)


def pack(runs: list[Stored], base: int) -> tuple[bytes, int, int]:
    """Return the data of a segment (`edge.broker.store.segment`), its messages, and its bytes of bodies.

    `base` is the position that the offsets of a sparse segment start from; -1: the positions are dense. Raises
    OverflowError or UnicodeError for values that do not fit.
    """
    try:
        return native.pack_runs(runs, base)
    except TypeError:  # a bytearray or a memoryview instead of bytes
        return native.pack_runs([stored._replace(run=_copy_as_bytes(stored.run)) for stored in runs], base)


def _copy_as_bytes(run: Run) -> Run:
    return replace(run, properties=bytes(run.properties), bodies=[bytes(body) for body in run.bodies])


def pass_over(appended: list[tuple[int, Stored]], start: int, log: int, place: int) -> tuple[int, int]:
    """Skip consecutive runs of `log` without properties, from index `start` and position `place` on.

    Return the index and the position after them.
    """
    return native.pass_over(appended, start, log, place)
