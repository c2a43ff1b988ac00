"""Landed sequences of each stream as ranges, and those landed more than once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cloud.lake.sequences import SequenceSet, SequenceStream, Span

COLUMNS = ("tenant", "gateway", "epoch", "address", "sequence", "lane")
NAMES = ("tenant", "gateway", "epoch", "address")


class LandedSequences:
    """Landed sequences of one stream."""

    __slots__ = ("rows", "there", "twice")

    def __init__(self) -> None:
        self.there = SequenceSet()
        self.twice: list[Span] = []
        """Surplus copies of sequences."""
        self.rows = 0

    def add(self, first: int, last: int) -> None:
        """Add landed rows."""
        self.rows += last + 1 - first
        at = first
        for low, high in self.there.missing(first, last):
            if at < low:
                self.twice.append((at, low - 1))
            at = high + 1
        if at <= last:
            self.twice.append((at, last))
        self.there.add(first, last)


class LandedStreams:
    """Landed sequences of all streams that were read."""

    def __init__(self) -> None:
        self.streams: dict[SequenceStream, LandedSequences] = {}
        self.backlogs: set[tuple[str, str]] = set()
        """(tenant, gateway) with messages in the backlog lane."""

    @property
    def spans(self) -> int:
        """Number of spans in memory."""
        return sum(len(one.there.spans) + len(one.twice) for one in self.streams.values())

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of `telemetry` with `COLUMNS`."""
        for stream, first, last in runs_of(batch):
            landed = self.streams.get(stream)
            if landed is None:
                landed = self.streams[stream] = LandedSequences()
            landed.add(first, last)
        lanes = batch.column("lane")
        if "backlog" in lanes.unique().to_pylist():
            behind = pa.table(batch).filter(pa.compute.equal(lanes, "backlog")).select(["tenant", "gateway"])
            pairs = behind.group_by(["tenant", "gateway"]).aggregate([]).to_pylist()
            self.backlogs.update((pair["tenant"], pair["gateway"]) for pair in pairs)


def runs_of(batch: pa.RecordBatch) -> Iterator[tuple[SequenceStream, int, int]]:
    """Yield (stream, first, last) of dense sequences; a repeated sequence is in two of them."""
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    dictionaries: list[list[str]] = []
    for name in NAMES:
        encoded = batch.column(name).dictionary_encode()
        dictionaries.append(encoded.dictionary.to_pylist())
        codes = codes * len(dictionaries[-1]) + encoded.indices.to_numpy(zero_copy_only=False)
    sequences = batch.column("sequence").to_numpy(zero_copy_only=False)
    order = np.lexsort((sequences, codes))
    codes, sequences = codes[order], sequences[order]
    starts = np.flatnonzero(np.concatenate(([True], (codes[1:] != codes[:-1]) | (sequences[1:] != sequences[:-1] + 1))))
    ends = np.append(starts[1:], len(codes)) - 1
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield _stream(int(codes[start]), dictionaries), int(sequences[start]), int(sequences[end])


def _stream(code: int, dictionaries: list[list[str]]) -> SequenceStream:
    names: list[str] = []
    for words in reversed(dictionaries):
        code, index = divmod(code, len(words))
        names.append(words[index])
    return SequenceStream(*reversed(names))
