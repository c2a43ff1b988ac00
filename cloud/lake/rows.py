"""Conversion of batches to Arrow columns: rows of `telemetry_rows`, `ledger` and `gateway_status`.

It works column by column, because one row at a time costs ten times as much. NumPy repeats what is constant over a
range or a run; only messages with properties and AMQP messages are read one by one.
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
from bridge.lane import BatchLane
from bridge.message import AMQP, CLOCK_GOOD
from bridge.message_origin import MessageOrigin, find_origin
from bridge.publisher import client_of, device_of, is_relay
from cloud.lake.contract import contract
from cloud.lake.faults import ContentError
from cloud.lake.properties import NOTHING, MessageDescription, describe_amqp, describe_mqtt, malformed
from cloud.lake.sequences import SequenceStream, Span
from edge.broker.message.translation import payload_of
from edge.output.logs import describe_error

Ints = npt.NDArray[np.int64]

US_PER_DAY = 86_400_000_000
LANES: Mapping[BatchLane, str] = {lane: lane.name.lower() for lane in BatchLane}
ORIGIN_TIME_FROM_US = 1_577_836_800_000_000
"""2020-01-01, as in `spark.transforms.times`: an earlier clock was never set."""
MEMO_MAX = 4_096
"""Property byte strings memoized while one table is built: runs of a device share theirs."""


class ReceivedBatch(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Received batch with its sender. `eq=False`: compared by identity."""

    tenant: str
    gateway: str
    batch: Batch
    store_epoch: str = ""
    """Current epoch of the gateway's store, which may differ from that of the messages; empty if not reported."""
    ends: Mapping[int, int] = msgspec.field(default_factory=dict)
    """End of the messages in each log of that store: a minimum for the store's logs."""

    @property
    def streams(self) -> set[SequenceStream]:
        """Streams of its messages."""
        return {SequenceStream(self.tenant, self.gateway, self.batch.epoch, part.address) for part in self.batch.ranges}

    @property
    def one_by_one(self) -> bool:
        """True if some messages are read one by one, not as columns."""
        return any(self.batch.properties) or any(flags & AMQP for flags in set(self.batch.flags))


class BatchSlice(NamedTuple):
    """Messages ``start <= i < stop`` of a batch: dense sequences of one address, beginning with `sequence`."""

    received: ReceivedBatch
    address: str
    sequence: int
    start: int
    stop: int


def slices_of(received: ReceivedBatch, wanted: Sequence[Sequence[Span]]) -> list[BatchSlice]:
    """Return the slices of a batch that cover `wanted`, the sequence spans of each of its ranges."""
    ranges = received.batch.ranges
    starts = accumulate((r.count for r in ranges), initial=0)
    return [
        BatchSlice(received, r.address, first, start + first - r.first, start + last + 1 - r.first)
        for r, start, spans in zip(ranges, starts, wanted, strict=False)
        for first, last in spans
    ]


def telemetry_rows(slices: Sequence[BatchSlice], ingested_at_us: int) -> pa.Table:
    """Make the rows of `telemetry_rows` of these slices, in order; slices of one batch are adjacent.

    Raises `ContentError` for values that do not fit a row. Lack of memory is not an error of the content.
    """
    try:
        return _telemetry(slices, ingested_at_us)
    except (MemoryError, OSError):  # some errors of Arrow are subclasses of these
        raise
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ContentError(f"no rows can be made of the content: {describe_error(error)}") from error


def _telemetry(slices: Sequence[BatchSlice], ingested_at_us: int) -> pa.Table:
    ranges = _Ranges(slices)
    batches = _SliceColumns(slices, ranges.counts)
    runs, bodies, total = batches.runs, batches.bodies, len(batches.bodies)
    received_at = runs.received_at // 1_000
    origins = _Origins(runs, bodies)
    accepted_at = origins.accepted_at(received_at)
    described, event_ms = _describe(runs, bodies)
    event_time = np.where(event_ms > 0, event_ms * 1_000, accepted_at) if event_ms is not None else accepted_at
    values: Mapping[str, Any] = {
        "tenant": batches.each(lambda one: one.tenant),
        "gateway": batches.each(lambda one: one.gateway),
        "epoch": batches.each(lambda one: one.batch.epoch),
        "address": _repeat(ranges.addresses, ranges.counts),
        "sequence": pa.array(_dense(ranges.firsts, ranges.counts)),
        "device": origins.replaced(runs.device, lambda one, device: one.device or device),
        "client_id": origins.replaced(runs.client, lambda one, client: one.client if one.device else client),
        "event_time": _timestamps(event_time),
        "received_at": _timestamps(received_at),
        "ingested_at": _timestamps(np.full(total, ingested_at_us, dtype=np.int64)),
        "clock_quality": pa.array(["unknown", "good"]).take(pa.array((runs.flags & CLOCK_GOOD) // CLOCK_GOOD)),
        "lane": batches.each(lambda one: LANES[one.batch.lane]),
        "content_type": _texts(described, lambda one: one.content_type, total),
        "properties": _texts(described, lambda one: one.properties, total),
        "body": pa.array(bodies, pa.binary()),
        "ingest_date": _dates(total, ingested_at_us),
        "origin_gateway": origins.column(lambda one: one.gateway, pa.string()),
        "origin_epoch": origins.column(lambda one: one.epoch, pa.string()),
        "origin_address": origins.column(lambda one: one.address, pa.string()),
        "origin_sequence": origins.column(lambda one: one.sequence, pa.int64()),
        "origin_received_at": origins.column(_received_at_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "relayed_by": origins.relays(runs.device),
    }
    return _table("telemetry", values)


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate rows of one table."""
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def record_rows(table: str, rows: Sequence[Mapping[str, Any]], ingested_at_us: int) -> pa.Table:
    """Make the rows of other tables (ledger, manifests, statuses), given one by one; timestamps are microseconds.

    Missing columns are null; `ingested_at` and `ingest_date` are set here.
    """
    schema = contract().tables[table].arrow_schema
    values: dict[str, Any] = {field.name: [row.get(field.name) for row in rows] for field in schema}
    values["ingested_at"] = [ingested_at_us] * len(rows)
    for field in schema:
        if pa.types.is_timestamp(field.type):
            values[field.name] = pa.array(values[field.name], pa.int64()).cast(field.type)
    values["ingest_date"] = _dates(len(rows), ingested_at_us)
    return _table(table, values)


class _Ranges:
    """Address, first sequence and length of slices, as columns."""

    def __init__(self, slices: Sequence[BatchSlice]) -> None:
        _, addresses, firsts, starts, stops = zip(*slices, strict=True)
        self.addresses: Sequence[str] = addresses
        self.firsts: Ints = np.array(firsts, dtype=np.int64)
        """First sequences."""
        self.counts: Ints = np.array(stops, dtype=np.int64) - np.array(starts, dtype=np.int64)


class _SliceColumns:
    """Columns of all messages of slices. Everything is done for all batches together: a fleet sends thousands of
    batches a second, with some ten messages each."""

    def __init__(self, slices: Sequence[BatchSlice], counts: Ints) -> None:
        """`counts`: messages of each slice."""
        self._received: list[ReceivedBatch] = []
        self._messages: list[int] = []
        """Messages wanted of each batch."""
        positions: list[int] = []
        """Position of each slice's first message among the messages of all batches."""
        behind = 0
        for received, _, _, start, stop in slices:
            if not self._received or received is not self._received[-1]:
                self._received.append(received)
                self._messages.append(0)
                base, behind = behind, behind + len(received.batch.bodies)
            self._messages[-1] += stop - start
            positions.append(base + start)
        self.bodies = list(chain.from_iterable([one.batch.bodies for one in self._received]))
        wanted = None if int(counts.sum()) == behind else _dense(np.array(positions, dtype=np.int64), counts)
        if wanted is not None:
            self.bodies = [self.bodies[position] for position in wanted.tolist()]
        self.runs = _Runs([one.batch for one in self._received], wanted)

    def each(self, text: Callable[[ReceivedBatch], str]) -> pa.Array:
        """Repeat a value of each batch for its messages."""
        return _repeat(list(map(text, self._received)), np.array(self._messages, dtype=np.int64))


class _Runs:
    """Columns that are stored for each run, expanded to messages."""

    def __init__(self, batches: Sequence[Batch], wanted: Ints | None) -> None:
        """`wanted`: positions of messages among those of all batches; None for all."""
        lengths = np.fromiter(chain.from_iterable([batch.run_lengths for batch in batches]), dtype=np.int64)
        index = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        self.index: Ints = index if wanted is None else index[wanted]
        self.properties = list(chain.from_iterable([batch.properties for batch in batches]))
        self.run_flags = list(chain.from_iterable([batch.flags for batch in batches]))
        devices = list(chain.from_iterable([batch.devices for batch in batches]))
        received_at = list(chain.from_iterable([batch.received_at for batch in batches]))
        self.device, self.client, self.relayed = _publishers(devices, self.index)
        """`relayed`: positions of messages of relays."""
        self.received_at: Ints = np.array(received_at, dtype=np.int64)[self.index]
        self.flags: Ints = np.array(self.run_flags, dtype=np.int64)[self.index]


def _publishers(publishers: Sequence[str], index: Ints) -> tuple[pa.Array, pa.Array, Ints]:
    """Return device and client of each message, and the positions of messages of relays.

    `index` maps each message to its publisher. Few publishers repeat often, so each is parsed once; the client is null
    if it equals the device.
    """
    places = {publisher: place for place, publisher in enumerate(dict.fromkeys(publishers))}
    devices = [device_of(publisher) for publisher in places]
    clients = [client if (client := client_of(publisher)) != device_of(publisher) else None for publisher in places]
    relays = np.array([is_relay(publisher) for publisher in places], dtype=np.bool_)
    each = np.fromiter(map(places.__getitem__, publishers), dtype=np.int64, count=len(publishers))[index]
    relayed = np.flatnonzero(relays[each]) if relays.any() else np.empty(0, dtype=np.int64)
    taken = pa.array(each)
    return pa.array(devices, pa.string()).take(taken), pa.array(clients, pa.string()).take(taken), relayed


class _Origins:
    """Origins named by messages of relays, by position; most tables have none."""

    def __init__(self, runs: _Runs, bodies: Sequence[bytes]) -> None:
        """`bodies`: received bodies with their annotations."""
        self._total = len(bodies)
        self._found: dict[int, MessageOrigin] = {}
        for row in runs.relayed.tolist():
            run = int(runs.index[row])
            origin = find_origin(runs.run_flags[run], runs.properties[run], bodies[row])
            if origin is not None:
                self._found[row] = origin

    def column(self, value: Callable[[MessageOrigin], str | int | None], kind: pa.DataType) -> pa.Array:
        """Return a column that is null where a message has no origin."""
        if not self._found:
            return pa.nulls(self._total, kind)
        values: list[str | int | None] = [None] * self._total
        for row, origin in self._found.items():
            values[row] = value(origin)
        return pa.array(values, kind)

    def replaced(self, column: pa.Array, value: Callable[[MessageOrigin, str | None], str | None]) -> pa.Array:
        """Return a column of texts with other values where a message has an origin."""
        if not self._found:
            return column
        values: list[str | None] = column.to_pylist()
        for row, origin in self._found.items():
            values[row] = value(origin, values[row])
        return pa.array(values, pa.string())

    def relays(self, device: pa.Array) -> pa.Array:
        """Return the user that sent each message of an origin: null where a connector fetched it."""
        users = device.to_pylist() if self._found else []
        values: list[str | None] = [None] * self._total
        for row, origin in self._found.items():
            values[row] = users[row] if users[row] != origin.device else None
        return pa.array(values, pa.string())

    def accepted_at(self, received_at: Ints) -> Ints:
        """Return when each message was accepted first, in microseconds.

        The clock of an origin is not trusted: its time is used only between `ORIGIN_TIME_FROM_US` and the reception
        here.
        """
        if not self._found:
            return received_at
        first = received_at.copy()
        for row, origin in self._found.items():
            at = _received_at_us(origin)
            if at is not None and ORIGIN_TIME_FROM_US <= at <= first[row]:
                first[row] = at
        return first


def _received_at_us(origin: MessageOrigin) -> int | None:
    return None if origin.received_at is None else origin.received_at // 1_000


def _describe(runs: _Runs, bodies: list[bytes]) -> tuple[list[MessageDescription] | None, Ints | None]:
    """Describe each message; None if no message has properties. Replaces AMQP bodies with their payloads."""
    amqp = [flags & AMQP for flags in runs.run_flags]
    if not any(amqp) and not any(runs.properties):
        return None, None
    memo: dict[bytes, MessageDescription] = {}
    described: list[MessageDescription] = []
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


def _unwrap(bare_message: bytes) -> tuple[MessageDescription, bytes]:
    """Return (description, payload) of an AMQP bare message; an unreadable one stays unchanged."""
    try:
        content_type, properties, payload = payload_of(bare_message)
        return describe_amqp(content_type, properties), payload
    except Exception as error:  # every message must land: this one raw, with the reason
        return malformed(f"AMQP message: {error}"), bare_message


def _dense(firsts: Ints, counts: Ints) -> Ints:
    """Return consecutive numbers from each of `firsts`, as many as in `counts`."""
    ends = np.cumsum(counts)
    return np.repeat(firsts - (ends - counts), counts) + np.arange(int(ends[-1]), dtype=np.int64)


def _repeat(values: Sequence[str], counts: Ints) -> pa.Array:
    index = np.repeat(np.arange(len(values), dtype=np.int64), counts)
    return pa.array(values, pa.string()).take(pa.array(index))


def _texts(
    described: list[MessageDescription] | None, text: Callable[[MessageDescription], str | None], total: int
) -> pa.Array:
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
