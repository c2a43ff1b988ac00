"""Comparison of the lake with the devices' journals: a pure function."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

COLUMNS = ("gateway", "epoch", "address", "sequence", "body")


def faults(table: pa.Table, journals: Mapping[tuple[str, str], tuple[Sequence[bytes], int]]) -> Iterable[str]:
    """Return all faults. `journals`: bodies acknowledged and number sent, by (gateway, address)."""
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    names = Counter(zip(*columns[:4], strict=True))
    yield from (f"{name} {count} times in the lake" for name, count in names.items() if count > 1)
    streams: defaultdict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
    epochs: defaultdict[str, set[str]] = defaultdict(set)
    for gateway, epoch, address, sequence, body in zip(*columns, strict=True):
        epochs[gateway].add(epoch)
        streams[gateway, address][sequence] = body
    yield from (f"{gateway} has {len(of)} epochs" for gateway, of in epochs.items() if len(of) > 1)
    yield from (f"{stream}: nobody published it" for stream in streams.keys() - journals.keys())
    for stream, (acked, sent) in journals.items():
        yield from (f"{stream}: {fault}" for fault in _stream_faults(streams[stream], acked, sent))


def _stream_faults(rows: Mapping[int, bytes], acked: Sequence[bytes], sent: int) -> Iterable[str]:
    bodies = Counter(rows.values())
    missing = [body for body in acked if body not in bodies]
    if missing:
        yield f"{len(missing)} of {len(acked)} acknowledged are missing, first {missing[:3]!r}"
    twice = [body for body, count in bodies.items() if count > 1]
    if twice:
        yield f"{len(twice)} are there twice, first {twice[:3]!r}"
    if sorted(rows) != list(range(len(rows))):
        yield "sequences are left out"
    numbers = [int(rows[sequence].rpartition(b":")[2]) for sequence in sorted(rows)]
    if numbers != sorted(numbers) or (numbers and numbers[-1] >= sent):
        yield "they are not in the order they were published in"
