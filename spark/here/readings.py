"""Readings and rejects of messages, made in this process, column by column: what `spark.transforms.readings` makes of
rows.

The decoder is the same, and takes 5 us a message. Around it a row in Spark takes ten times as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark import schemas
from spark.decoding import reasons
from spark.decoding.limits import BODY_BYTES_MAX
from spark.decoding.schema import PayloadSchema
from spark.here import births, workers
from spark.here.groups import Numbers, numbers, numbers_or
from spark.here.times import DAY_US, TIME, dates, is_believable, kept_under, latest, or_unknown
from spark.transforms.clocks import BOUNDED
from spark.transforms.readings import FIELDS, LAST_LEVEL, REJECT_BODY_BYTES_MAX, decode

MESSAGE: Final = (
    *("tenant", "gateway", "epoch", "address", "sequence", "device", "event_time", "received_at", "ingested_at"),
    *("clock_quality", "lane", "content_type", "body"),
)
"""Columns of messages that readings are made of; `held` of `spark.here.clocks.judged` may be there, too."""
PROOF: Final = ("address",)
"""Columns of messages that say whether they are Sparkplug's."""
MESSAGES_AT_ONCE: Final = 2_000
"""Messages decoded at once: each may have `VALUES_MAX` values, which are Python's objects for that moment, 300 MB of
them."""
MESSAGES_A_TASK: Final = 10_000
"""Messages that another process is handed: a tenth of a second of decoding."""
MESSAGES_A_PROCESS: Final = 100_000
"""Messages from which on another process is begun to decode them: 1 s of decoding."""
REJECTS_AT_ONCE: Final = 10_000
"""Rejects handed over at once: each shows up to 4 KiB of its message."""
_LAST_LEVEL: Final = re.compile(LAST_LEVEL.replace(r"\z", r"\Z"))
_SOURCES: Final = pa.array(["device", "gateway", "message"])
_DEVICE, _GATEWAY, _MESSAGE_ITSELF = range(3)


class Decoded(NamedTuple):
    """Rows of tables `readings` and `reject`."""

    readings: pa.Table
    rejects: pa.Table


def decoded(messages: pa.Table, registered: Sequence[PayloadSchema] = (), born: bytes = b"") -> Iterator[Decoded]:
    """What messages (`MESSAGE`) say, some messages at once, and of many rejects some at once.

    `born`: the births that name what Sparkplug's data leaves nameless (`births.known`).
    """
    encoded = msgspec.json.encode(list(registered))
    for some in _slices(messages):
        yield from _decoded(some, encoded, born)


def decoded_births(
    messages: pa.Table, registered: Sequence[PayloadSchema] = ()
) -> Iterator[tuple[pa.Table, Iterator[Decoded]]]:
    """The same of Sparkplug's births: rows of table `sparkplug_births`, and the others, some messages at once."""
    encoded = msgspec.json.encode(list(registered))
    for some in _slices(messages):
        values = _values(some, encoded)
        yield births.births(values), _divided(values, some["body"])


def all_decoded(
    parts: Iterable[pa.Table], registered: Sequence[PayloadSchema] = (), processes: int = 1, born: bytes = b""
) -> Iterator[Decoded]:
    """The same of parts of messages, by so many processes: decoding is Python's, and takes most of the time."""
    if processes == 1:
        for part in parts:
            yield from decoded(part, registered, born)
        return
    encoded = msgspec.json.encode(list(registered))
    tasks = (
        (workers.packed(part.slice(first, MESSAGES_A_TASK)), encoded, born)
        for part in parts
        for first in range(0, len(part), MESSAGES_A_TASK)
    )
    for done in workers.spread(_task, tasks, processes):
        for rows in done:
            yield Decoded(*map(workers.unpacked, rows))


def _task(task: tuple[bytes, bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """In one of the processes."""
    data, registered, born = task
    return [
        (workers.packed(rows.readings), workers.packed(rows.rejects))
        for some in _slices(workers.unpacked(data))
        for rows in _decoded(some, registered, born)
    ]


def _slices(messages: pa.Table) -> Iterator[pa.Table]:
    return (messages.slice(first, MESSAGES_AT_ONCE) for first in range(0, len(messages), MESSAGES_AT_ONCE))


def _decoded(messages: pa.Table, registered: bytes, born: bytes) -> Iterator[Decoded]:
    values = _values(messages, registered)
    return _divided(births.named(values, births.opened(born)) if born else values, messages["body"])


def _values(messages: pa.Table, registered: bytes) -> pa.Table:
    """Each message once per value in its body, without that: what a message may be large by would be there once a
    value. `message` is the number of it; the rest is as `spark.transforms.readings.decoded` has it."""
    body = messages["body"].combine_chunks()
    readable = pc.if_else(pc.less_equal(pc.binary_length(body), BODY_BYTES_MAX), body, pa.scalar(None, body.type))
    held = numbers(messages["held"]) if "held" in messages.column_names else np.zeros(len(messages), bool)
    # Times relative to a stamp that is not believed are none.
    received = pa.array(np.where(held, 0, numbers(messages["received_at"])))
    lists = decode(registered, [readable, messages["address"], messages["content_type"], received, messages["tenant"]])
    parents = pc.list_parent_indices(lists).cast(pa.int64())
    leaves = dict(zip((name for name, _, _ in FIELDS), lists.flatten().flatten(), strict=True))
    if held.any():
        parents, leaves = _without_waiting(messages, held, parents, leaves)
    message = messages.drop_columns(["body"]).take(parents)
    shown = {"message": parents, **_times(message, leaves)}
    shown |= {"device": _device(message, leaves), "metric": _metric(message, leaves)}
    return pa.table({name: message[name] for name in message.column_names} | leaves | shown)


def _divided(values: pa.Table, body: pa.ChunkedArray) -> Iterator[Decoded]:
    """`body`: of the messages they are of."""
    is_reject = pc.is_valid(values["reason"])
    rejected = np.flatnonzero(is_reject.to_numpy())
    good = values.filter(pc.invert(is_reject)) if len(rejected) else values
    yield Decoded(_readings(good), schemas.REJECT.arrow.empty_table())
    shown = pc.binary_slice(body, 0, REJECT_BODY_BYTES_MAX)
    for first in range(0, len(rejected), REJECTS_AT_ONCE):
        some = values.take(pa.array(rejected[first : first + REJECTS_AT_ONCE]))
        yield Decoded(schemas.READINGS.arrow.empty_table(), _rejects(some, shown.take(some["message"])))


def _without_waiting(
    messages: pa.Table, held: Numbers, parents: pa.Array, leaves: Mapping[str, pa.Array]
) -> tuple[pa.Array, dict[str, pa.Array]]:
    """In place of the values of each message that is held, and has one of which nothing but the gateway's stamp says
    when it was, why there are none yet."""
    at, received, ingested = (numbers(messages[name]) for name in ("event_time", "received_at", "ingested_at"))
    of = parents.to_numpy()
    is_timed = is_believable(or_unknown(leaves["time_us"]), ingested[of])
    is_good = pc.is_null(leaves["reason"]).to_numpy(zero_copy_only=False)
    waits = np.zeros(len(messages), bool)
    waits[of[is_good & ~is_timed]] = True
    waits &= held & ((at == received) | ~is_believable(at, ingested))
    is_first = np.diff(of, prepend=-1) > 0
    kept, is_waiting = pa.array(is_first | ~waits[of]), pa.array(waits[of])
    said = {"metric": "", "reason": reasons.CLOCK}
    found = {
        name: pc.if_else(is_waiting, pa.scalar(said.get(name), column.type), column).filter(kept)
        for name, column in leaves.items()
    }
    return parents.filter(kept), found


def _readings(values: pa.Table) -> pa.Table:
    """As table `readings` has those without a reason."""
    at = numbers(values["event_time"])
    # A text is what it is, however often it is said: who gathers rows goes by what they take.
    said = {"unit": _texts(values["unit"]), "replay": pa.nulls(len(values), pa.int64()), "event_date": kept_under(at)}
    return pa.table({name: said[name] if name in said else values[name] for name in schemas.READINGS.columns.names})


def _rejects(values: pa.Table, body: pa.ChunkedArray) -> pa.Table:
    """As table `reject` has those with a reason."""
    days = dates(numbers(values["ingested_at"]) // DAY_US)
    said = {"reason": _texts(values["reason"]), "ingest_date": days, "body": body}
    return pa.table({name: said[name] if name in said else values[name] for name in schemas.REJECT.columns.names})


def _times(message: pa.Table, leaves: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """`event_time`, `suspect`, `time_source`, as `spark.transforms.times.with_measured_times` has them."""
    at, received, ingested = (numbers(message[name]) for name in ("event_time", "received_at", "ingested_at"))
    is_told = pc.is_valid(leaves["time_us"]).to_numpy(zero_copy_only=False)
    told = numbers_or(leaves["time_us"], 0)
    is_believed = is_told & is_believable(told, ingested)
    source = np.where(is_believed, _DEVICE, np.where(at == received, _GATEWAY, _MESSAGE_ITSELF)).astype(np.int32)
    is_bounded = pc.equal(message["clock_quality"], BOUNDED).to_numpy()
    suspect = np.where(is_told, ~is_believed, ~is_believable(at, ingested)) | (is_bounded & (source == _GATEWAY))
    return {
        "event_time": pa.array(np.where(is_believed, told, np.minimum(at, latest(ingested)))).cast(TIME),
        "suspect": pa.array(suspect),
        "time_source": pa.DictionaryArray.from_arrays(source, _SOURCES),
    }


def _device(message: pa.Table, leaves: Mapping[str, pa.Array]) -> pa.ChunkedArray | pa.Array:
    """Whom a value speaks of, where that is not who sent it."""
    if leaves["device"].null_count == len(message):
        return message["device"]
    return _texts(pc.coalesce(leaves["device"], message["device"].combine_chunks().cast(pa.string())))


def _metric(message: pa.Table, leaves: Mapping[str, pa.Array]) -> pa.Array:
    """Of a bare value the last level of its address that has a name; the address where none has one."""
    metric, is_good = leaves["metric"], pc.is_null(leaves["reason"])
    is_bare = pc.and_(pc.equal(metric, ""), pc.and_(is_good, pc.is_null(leaves["alias"])))
    if not pc.any(is_bare).as_py():
        return _texts(metric)
    # The addresses of these messages, and not all of the part they are of.
    address = message["address"].combine_chunks().cast(pa.string()).dictionary_encode()
    names = pa.array([_last_level(each) for each in address.dictionary.to_pylist()], pa.string())
    return _texts(pc.if_else(is_bare, names.take(address.indices), metric))


def _last_level(address: str) -> str:
    found = _LAST_LEVEL.search(address)
    return found[1] if found is not None else address


def _texts(column: pa.Array) -> pa.Array:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
