"""Batches into Arrow columns: the rows of `telemetry`, `ledger` and `gateway_status`.

Column by column, never row by row, because a row at a time costs ten times as much: what is constant over a range
or a run is repeated by NumPy, and only messages that carry properties or are AMQP are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bridge.batch import Batch
from bridge.message import AMQP, CLOCK_GOOD
from cloud.lake.contract import contract
from cloud.lake.faults import ContentError
from cloud.lake.properties import NOTHING, Described, describe_amqp, describe_mqtt, malformed
from cloud.lake.sequences import Span, Stream
from edge.broker.message.translation import payload_of
from edge.output.logs import said

Ints = npt.NDArray[np.int64]

US_PER_DAY = 86_400_000_000
MEMO_MAX = 4_096
"""Different property byte strings remembered while one table is built: runs of a device share theirs."""


class ReceivedBatch(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A batch as it came, with who sent it. `eq=False`: one is itself, whatever it holds."""

    tenant: str
    gateway: str
    batch: Batch
    store_epoch: str = ""
    """The epoch the gateway's store is in, which need not be the one of these messages; empty when it did not say."""
    ends: Mapping[int, int] = msgspec.field(default_factory=dict)
    """By log of that store, where the messages end: the store is known to reach so far."""

    @property
    def streams(self) -> set[Stream]:
        """The streams it has messages of."""
        return {Stream(self.tenant, self.gateway, self.batch.epoch, part.address) for part in self.batch.ranges}

    @property
    def one_by_one(self) -> bool:
        """Some of its messages are looked at one by one, and not as columns."""
        return any(self.batch.properties) or any(map(AMQP.__and__, self.batch.flags))


class BatchSlice(NamedTuple):
    """Messages ``start <= i < stop`` of a batch's bodies: dense sequences of one address, from `sequence` on."""

    received: ReceivedBatch
    address: str
    sequence: int
    start: int
    stop: int


def slices_of(received: ReceivedBatch, wanted: Sequence[Sequence[Span]]) -> list[BatchSlice]:
    """The slices of a batch that cover `wanted`: for each of its ranges, sequence spans within that range."""
    ranges = received.batch.ranges
    starts = accumulate((r.count for r in ranges), initial=0)
    return [
        BatchSlice(received, r.address, first, start + first - r.first, start + last + 1 - r.first)
        for r, start, spans in zip(ranges, starts, wanted, strict=False)
        for first, last in spans
    ]


def telemetry(slices: Sequence[BatchSlice], ingested_at_us: int) -> pa.Table:
    """The rows of `telemetry` for these slices, in their order; those of one batch stand together.

    Raises `ContentError` when their values fit no row. Memory that is lacking is no matter of content.
    """
    try:
        return _telemetry(slices, ingested_at_us)
    except (MemoryError, OSError):  # some of Arrow's errors are these as well
        raise
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ContentError(f"no rows can be made of it: {said(error)}") from error


def _telemetry(slices: Sequence[BatchSlice], ingested_at_us: int) -> pa.Table:
    counts = np.array([part.stop - part.start for part in slices], dtype=np.int64)
    total = int(counts.sum())
    runs = _Runs(slices)
    bodies = list(chain.from_iterable([part.received.batch.bodies[part.start : part.stop] for part in slices]))
    received_at = runs.received_at // 1_000
    described, event_ms = _describe(runs, bodies)
    event_time = np.where(event_ms > 0, event_ms * 1_000, received_at) if event_ms is not None else received_at
    values: Mapping[str, Any] = {
        "tenant": _repeat([part.received.tenant for part in slices], counts),
        "gateway": _repeat([part.received.gateway for part in slices], counts),
        "epoch": _repeat([part.received.batch.epoch for part in slices], counts),
        "address": _repeat([part.address for part in slices], counts),
        "sequence": pa.array(_sequences(slices, counts)),
        "device": runs.device,
        "event_time": _timestamps(event_time),
        "received_at": _timestamps(received_at),
        "ingested_at": _timestamps(np.full(total, ingested_at_us, dtype=np.int64)),
        "clock_quality": pa.array(["unknown", "good"]).take(pa.array((runs.flags & CLOCK_GOOD) // CLOCK_GOOD)),
        "lane": _repeat([part.received.batch.lane.name.lower() for part in slices], counts),
        "content_type": _texts(described, lambda one: one.content_type, total),
        "properties": _texts(described, lambda one: one.properties, total),
        "body": pa.array(bodies, pa.binary()),
        "ingest_date": _dates(total, ingested_at_us),
    }
    return _table("telemetry", values)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of one table that were made one after the other."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def records(table: str, rows: Sequence[Mapping[str, Any]], ingested_at_us: int) -> pa.Table:
    """Rows given one by one (ledger ranges, manifests, states: there are few); timestamps are microseconds.

    A column a row does not have is null; `ingested_at` and `ingest_date` are set here.
    """
    schema = contract().tables[table].arrow_schema
    values: dict[str, Any] = {field.name: [row.get(field.name) for row in rows] for field in schema}
    values["ingested_at"] = [ingested_at_us] * len(rows)
    for field in schema:
        if pa.types.is_timestamp(field.type):
            values[field.name] = pa.array(values[field.name], pa.int64()).cast(field.type)
    values["ingest_date"] = _dates(len(rows), ingested_at_us)
    return _table(table, values)


class _Runs:
    """The columns that are kept a run, as columns with one entry a message."""

    def __init__(self, slices: Sequence[BatchSlice]) -> None:
        self.properties: list[bytes] = []
        devices: list[str] = []
        received_at: list[int] = []
        flags: list[int] = []
        indexes: list[Ints] = []
        here: ReceivedBatch | None = None
        expanded = np.empty(0, dtype=np.int64)
        for part in slices:
            if part.received is not here:
                here = part.received
                batch = here.batch
                numbers = np.arange(len(devices), len(devices) + len(batch.run_lengths), dtype=np.int64)
                expanded = np.repeat(numbers, np.asarray(batch.run_lengths, dtype=np.int64))
                devices += batch.devices
                received_at += batch.received_at
                flags += batch.flags
                self.properties += batch.properties
            indexes.append(expanded[part.start : part.stop])
        self.index: Ints = np.concatenate(indexes)
        self.run_flags = flags
        self.device = pa.array(devices, pa.string()).take(pa.array(self.index))
        self.received_at: Ints = np.array(received_at, dtype=np.int64)[self.index]
        self.flags: Ints = np.array(flags, dtype=np.int64)[self.index]


def _describe(runs: _Runs, bodies: list[bytes]) -> tuple[list[Described] | None, Ints | None]:
    """What each message says about itself, None when none says anything; AMQP bodies are unwrapped in stream."""
    amqp = [flags & AMQP for flags in runs.run_flags]
    if not any(amqp) and not any(runs.properties):
        return None, None
    memo: dict[bytes, Described] = {}
    described: list[Described] = []
    for row, run in enumerate(runs.index.tolist()):
        if amqp[run]:
            one, bodies[row] = _unwrap(bodies[row])
        elif not (properties := runs.properties[run]):
            one = NOTHING
        elif properties in memo:
            one = memo[properties]
        else:
            if len(memo) >= MEMO_MAX:
                memo.clear()
            one = memo[properties] = describe_mqtt(properties)
        described.append(one)
    times = np.array([one.event_time_ms or 0 for one in described], dtype=np.int64)
    return described, times


def _unwrap(bare_message: bytes) -> tuple[Described, bytes]:
    """An AMQP bare message as (description, payload); one that cannot be read stays as it came."""
    try:
        content_type, properties, payload = payload_of(bare_message)
        return describe_amqp(content_type, properties), payload
    except Exception as error:  # whatever a device sent must land: raw, and saying why
        return malformed(f"AMQP message: {error}"), bare_message


def _sequences(slices: Sequence[BatchSlice], counts: Ints) -> Ints:
    """Each part's sequences: its first, then one more for each message."""
    ends = np.cumsum(counts)
    firsts = np.array([part.sequence for part in slices], dtype=np.int64)
    return np.repeat(firsts - (ends - counts), counts) + np.arange(int(ends[-1]), dtype=np.int64)


def _repeat(values: Sequence[str], counts: Ints) -> pa.Array:
    index = np.repeat(np.arange(len(values), dtype=np.int64), counts)
    return pa.array(values, pa.string()).take(pa.array(index))


def _texts(described: list[Described] | None, text: Callable[[Described], str | None], total: int) -> pa.Array:
    if described is None:
        return pa.nulls(total, pa.string())
    return pa.array(list(map(text, described)), pa.string())


def _timestamps(microseconds: Ints) -> pa.Array:
    return pa.array(microseconds).cast(pa.timestamp("us", tz="UTC"))


def _dates(total: int, ingested_at_us: int) -> pa.Array:
    return pa.array(np.full(total, ingested_at_us // US_PER_DAY, dtype=np.int32)).cast(pa.date32())


def _table(name: str, values: Mapping[str, Any]) -> pa.Table:
    schema = contract().tables[name].arrow_schema
    return pa.table([values[field.name] for field in schema], schema=schema)
