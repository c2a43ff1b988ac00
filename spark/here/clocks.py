"""Stamps of gateways whose clocks were wrong, put right in this process, column by column: as
`spark.transforms.clocks`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark.decoding import sparkplug
from spark.here.groups import Groups, Numbers, alike, dictionary, key, numbers, numbers_or
from spark.here.times import TIME
from spark.transforms.clocks import BOUNDED, HELD_HOURS_MAX, MEASURED, NEAR_SECONDS, NOT_GOOD

_GATEWAY: Final = ("tenant", "gateway")
_STREAM: Final = (*_GATEWAY, "epoch", "address")
STAMP: Final = (*_STREAM, "sequence", "received_at", "ingested_at", "clock_quality")
"""Columns of messages that say whether their stamps are right."""
_RANGE: Final = ("first_sequence", "last_sequence", "stamped_after", "stamped_until")
_OFFSET: Final = ("offset_low_us", "offset_high_us")
OFFSET: Final = (*_STREAM, "boot", "stretch", "known", *_OFFSET, "whole", *_RANGE, "told_at", "heard_at")
"""Columns of table `clock_offsets` that say how to put them right."""
ROWS_MAX: Final = 1_000_000
"""Rows of `clock_offsets` that are held in this process: while they are sorted they take 400 MB, and to look for each
of them among a million messages takes 4 s. A gateway tells one for each address and boot, about."""
_NEAR_US: Final = NEAR_SECONDS * 1_000_000
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_HELD: Final = timedelta(hours=HELD_HOURS_MAX)

Mask = NDArray[np.bool_]


class Ranges(NamedTuple):
    """Messages of which something is known: those of a stream between two sequences, stamped after and until.

    Of several that have a message the first one says what is known of it. `off`: how far the clock was off, or by what
    a stamp is moved into the bounds of that, in microseconds; `measured`: whether it is known, or within bounds only.
    """

    stream: pa.Table
    first: Numbers
    last: Numbers
    after: Numbers
    until: Numbers
    off: Numbers
    measured: Mask


class Told(NamedTuple):
    """What gateways have told. `wrong`: those of which a clock is known to be wrong, and not of all messages how far it
    was off."""

    ranges: Ranges
    wrong: pa.Table


def told(offsets: pa.Table) -> Told:
    """Of these rows (`OFFSET`), some of which may be there twice."""
    return Told(_ranges(offsets), _wrong(offsets))


def judged(messages: pa.Table, known: Told, now: datetime) -> pa.Table:
    """Messages with `received_at`, `event_time` and `clock_quality` as they are known now, and `held`; without that
    where nobody was unsure of the time. See `spark.transforms.clocks.judged`."""
    unsure = _is(messages["clock_quality"], NOT_GOOD) & ~_is_sparkplug(messages["address"])
    if not unsure.any():
        return messages
    found = _put_right(messages, known, unsure)
    waits = numbers(messages["ingested_at"]) > _micros(now - _HELD)
    times = {"received_at": found.received_at, "event_time": _of_event(messages, found)}
    columns = {name: pa.array(column).cast(TIME) for name, column in times.items()}
    return _with(
        messages, columns | {"clock_quality": _quality(messages, found), "held": pa.array(found.wrong & waits)}
    )


def delivered(messages: pa.Table, known: Told) -> pa.Table:
    """Messages with `received_at`, and `event_time` if that is a column of them, null where nobody knows the time. See
    `spark.transforms.clocks.delivered`."""
    unsure, bounded = (_is(messages["clock_quality"], quality) for quality in (NOT_GOOD, BOUNDED))
    if not (unsure | bounded).any():
        return messages
    found = _put_right(messages, known, unsure)
    unknown = found.wrong | (found.known & ~found.measured) | bounded
    columns = {"received_at": pa.array(found.received_at, mask=unknown).cast(TIME)}
    if "event_time" in messages.column_names:
        at = _of_event(messages, found)
        columns["event_time"] = pa.array(at, mask=unknown & (at == found.received_at)).cast(TIME)
    return _with(messages, columns)


class _Stamps(NamedTuple):
    """Of all messages. `received_at`: as it is known now; `known`: something is known of its clock; `measured`: how far
    it was off; `wrong`: the stamp is not to be believed."""

    received_at: Numbers
    known: Mask
    measured: Mask
    wrong: Mask


def _put_right(messages: pa.Table, known: Told, unsure: Mask) -> _Stamps:
    received, ingested = numbers(messages["received_at"]), numbers(messages["ingested_at"])
    looked_at, late = messages.filter(pa.array(unsure)), np.abs(ingested - received) > _NEAR_US
    place = np.full(len(messages), -1)
    place[unsure] = _found(looked_at, known.ranges)
    wrong = np.zeros(len(messages), bool)
    wrong[unsure] = np.isin(*alike(looked_at, known.wrong, _GATEWAY))
    is_known = place >= 0
    off, measured = np.append(known.ranges.off, 0), np.append(known.ranges.measured, False)  # of none: the last ones
    return _Stamps(received + off[place], is_known, measured[place], wrong & ~is_known & late)


def _of_event(messages: pa.Table, found: _Stamps) -> Numbers:
    """`event_time`, which is the stamp where nothing else was said."""
    at = numbers(messages["event_time"])
    return np.where(at == numbers(messages["received_at"]), found.received_at, at)


def _quality(messages: pa.Table, found: _Stamps) -> pa.Array:
    quality = messages["clock_quality"].cast(pa.string()).combine_chunks()
    known = pc.if_else(pa.array(found.measured), MEASURED, BOUNDED)
    return pc.if_else(pa.array(found.known), known, quality).dictionary_encode()


def _found(messages: pa.Table, ranges: Ranges) -> Numbers:
    """The number of the range that has each message; -1: none has."""
    found = np.full(len(messages), -1)
    stream, of = alike(messages, ranges.stream, _STREAM)
    rows = np.flatnonzero(np.isin(stream, of))
    sequence, stamp = (numbers(messages[name])[rows] for name in ("sequence", "received_at"))
    # A whole number for each stream and sequence: those of a range are next to each other.
    streams, sequences = np.unique(of), np.sort(sequence)
    width = len(sequences) + 1
    places = np.searchsorted(streams, stream[rows]) * width + np.searchsorted(sequences, sequence)
    order = np.argsort(places, kind="stable")
    places, begin = places[order], np.searchsorted(streams, of) * width
    begins = np.searchsorted(places, begin + np.searchsorted(sequences, ranges.first))
    ends = np.searchsorted(places, begin + np.searchsorted(sequences, ranges.last, "right"))
    for number in np.flatnonzero(begins < ends)[::-1]:  # the first one has the last word
        some = order[begins[number] : ends[number]]
        stamped = (stamp[some] > ranges.after[number]) & (stamp[some] <= ranges.until[number])
        found[rows[some[stamped]]] = number
    return found


def _ranges(offsets: pa.Table) -> Ranges:
    """Rows that name messages, in the order in which they are looked at."""
    names = (*_STREAM, "first_sequence", "last_sequence")
    is_named = np.logical_and.reduce([pc.is_valid(offsets[name]).to_numpy() for name in names])
    rows = offsets.filter(pa.array(is_named & ~_is(offsets["known"], "not yet")))
    # As an array of structs is sorted: what is null comes first, "measured" before "never".
    columns = [~_is(rows["known"], MEASURED), *(numbers_or(rows[name], _LEAST) for name in (*_RANGE, *_OFFSET)[::-1])]
    rows = rows.take(pa.array(np.lexsort(columns)))
    low, high = numbers_or(rows["offset_low_us"], _LEAST), numbers_or(rows["offset_high_us"], _GREATEST)
    return Ranges(
        rows.select(_STREAM),
        numbers(rows["first_sequence"]),
        numbers(rows["last_sequence"]),
        numbers_or(rows["stamped_after"], _LEAST),
        numbers_or(rows["stamped_until"], _GREATEST),
        np.maximum(np.minimum(0, high), low),
        _is(rows["known"], MEASURED),
    )


def _wrong(offsets: pa.Table) -> pa.Table:
    low, high = (numbers_or(offsets[name], 0) for name in _OFFSET)
    is_bounded = pc.or_(*(pc.is_valid(offsets[name]) for name in _OFFSET)).to_numpy()
    was = ~is_bounded | (np.maximum(np.abs(low), np.abs(high)) > _NEAR_US)
    shows = np.abs(numbers(offsets["heard_at"]) - numbers(offsets["told_at"])) > _NEAR_US
    off = np.where(_is(offsets["known"], "not yet"), shows, was)
    stretches = Groups(key(offsets, (*_GATEWAY, "boot"), numbers(offsets["stretch"])))
    found = stretches.greatest(off) & ~stretches.greatest(numbers(offsets["whole"]))
    return offsets.select(_GATEWAY).take(pa.array(stretches.first[found]))


def _is_sparkplug(addresses: pa.ChunkedArray) -> Mask:
    one = dictionary(addresses)
    is_one = pc.starts_with(one.dictionary, f"{sparkplug.NAMESPACE}/").to_numpy(zero_copy_only=False)
    found: Mask = is_one[one.indices.to_numpy()]
    return found


def _is(column: pa.ChunkedArray, text: str) -> Mask:
    found: Mask = pc.equal(column, text).to_numpy()
    return found


def _micros(at: datetime) -> int:
    found: int = pa.scalar(at, TIME).value
    return found


def _with(messages: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    return pa.table({name: messages[name] for name in messages.column_names} | dict(columns))
