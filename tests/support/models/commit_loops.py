"""Model of `edge.broker.store.loops` in Python."""

from __future__ import annotations

import struct
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain

from bridge.message import Run, Stored
from edge.broker.store.loops import PLAIN, PREAMBLE, RUN, SPARSE, SPARSE_RUN, WIDTHS


def number(
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


def pack(runs: list[Stored], base: int) -> tuple[bytes, int, int]:
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


def pass_over(appended: list[tuple[int, Stored]], start: int, log: int, place: int) -> tuple[int, int]:
    for at in range(start, len(appended)):
        its_log, (position, _, run) = appended[at]
        if run.properties or its_log != log or position != place:
            return at, place
        place += len(run.bodies)
    return len(appended), place
