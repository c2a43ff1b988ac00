"""Sparkplug: births name the metrics that data leaves nameless, column by column: as `spark.transforms.births`.

Births are held as a table with a row a metric, and looked up by whole numbers: that of a node or device and a time
gives the birth, that of a birth and a name, or an alias, the metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark import schemas
from spark.decoding import reasons, sparkplug
from spark.here import parts, workers
from spark.here.groups import Groups, Numbers, dictionary, key, numbers, numbers_or
from spark.here.times import is_believable

_GATEWAY: Final = ("tenant", "gateway")
_SUBJECT: Final = (*_GATEWAY, "device")
_BORN: Final = ("metric", "datatype", "unit")
"""What a birth says of a metric."""
BIRTH: Final = (*_SUBJECT, "received_at", "alias", *_BORN)
"""Columns of births that name what data leaves nameless."""
LAST: Final = (*BIRTH, "ingested_at")
"""Columns of births that say which are the last ones, too."""
_MESSAGE: Final = (*_GATEWAY, "epoch", "address", "sequence")
DATA: Final = (*_MESSAGE, "received_at")
"""Columns of messages that say which births they may need."""
METRICS_MAX: Final = 250_000
"""Metrics of births that are held: each process that decodes takes 110 MB for so many."""
_NONE: Final = -1
_NEVER: Final = 2**63 - 1
"""A time after all others."""
_ALWAYS: Final = -(2**63)
"""A time before all others."""

Mask: TypeAlias = NDArray[np.bool_]
Since: TypeAlias = Mapping[tuple[str, ...], int]
"""Of gateways with Sparkplug's data, by tenant and name: when the first of it was received, microseconds since 1970."""


class Kinds(NamedTuple):
    """Which of Sparkplug's messages there are."""

    births: bool
    data: bool


def kinds(messages: Iterable[pa.Table]) -> Kinds:
    """Of parts of messages with their addresses."""
    found = Kinds(births=False, data=False)
    for part in messages:
        addresses = pa.table({"address": pc.unique(part["address"]).cast(pa.string())})
        found = Kinds(found.births or bool(is_birth(addresses).any()), found.data or bool(is_data(addresses).any()))
    return found


def is_birth(rows: pa.Table) -> Mask:
    """Which are births, or of births, by their `address`."""
    return _is_of(rows["address"], sparkplug.BIRTHS)


def is_data(rows: pa.Table) -> Mask:
    """Which are Sparkplug's data, or of it, by their `address`."""
    return _is_of(rows["address"], sparkplug.DATA)


def _is_of(addresses: pa.ChunkedArray, kinds: Sequence[str]) -> Mask:
    one = dictionary(addresses)
    pattern = rf"^{sparkplug.NAMESPACE.replace('.', '[.]')}/[^/]*/(?:{'|'.join(kinds)})(?:/|\z)"
    is_one = pc.match_substring_regex(one.dictionary, pattern).to_numpy(zero_copy_only=False)
    found: Mask = is_one[one.indices.to_numpy()]
    return found


def births(decoded: pa.Table) -> pa.Table:
    """Of values those of births, as table `sparkplug_births` has them."""
    rows = decoded.filter(pa.array(is_birth(decoded) & _is_null(decoded["reason"])))
    return rows.select(schemas.SPARKPLUG_BIRTHS.columns.names)


def since(messages: Iterable[pa.Table]) -> Since | None:
    """Of parts of messages (`DATA`). None where one of Sparkplug's is there twice, which become one if they are
    rejects: Spark sees all of them at once."""
    data = pa.concat_tables(part.filter(pa.array(is_data(part))) for part in messages)
    if len(Groups(key(data, _MESSAGE[:-1], numbers(data["sequence"])))) < len(data):
        return None
    gateways = Groups(key(data, _GATEWAY))
    begin = gateways.least(numbers(data["received_at"])).tolist()
    return dict(zip(_tuples(data, gateways, _GATEWAY), begin, strict=True))


def last(births_: pa.Table) -> pa.Table:
    """Of births (`LAST`) those of each node and device that nearly all data goes by; see
    `spark.transforms.births.last`."""
    at, ingested = numbers(births_["received_at"]), numbers(births_["ingested_at"])
    subjects = Groups(key(births_, _SUBJECT))
    believed = subjects.greatest(np.where(is_believable(at, ingested), at, _ALWAYS))
    since = np.where(believed == _ALWAYS, subjects.greatest(at), believed)
    found = births_.filter(pa.array(at >= since[subjects.of_rows()]))
    texts = {name: found[name].cast(pa.string()) for name in (*_SUBJECT, "metric", "unit")}
    plain = pa.table({name: texts.get(name, found[name]) for name in LAST})
    return plain.group_by(LAST, use_threads=False).aggregate([])


def are_enough(last_births: pa.Table, since: Since) -> bool:
    """Whether data of these gateways needs no birth but these (`last`), and those that have landed since; see
    `spark.transforms.births.are_enough`."""
    subjects = Groups(key(last_births, _SUBJECT))
    first = subjects.least(numbers(last_births["received_at"])).tolist()
    gateways = _tuples(last_births, subjects, _GATEWAY)
    return all(at <= since.get(gateway, _NEVER) for gateway, at in zip(gateways, first, strict=True))


def known(there: Iterable[pa.Table], gateways: Since) -> bytes | None:
    """Of parts of births (`BIRTH`) what data of these gateways can go by, for `opened`; None where that is more than
    `METRICS_MAX`."""

    def needed(rows: pa.Table) -> pa.Table:
        return _needed(rows, gateways)

    found = parts.summed(there, needed, needed, METRICS_MAX)
    return None if found is None or len(found) > METRICS_MAX else workers.packed(found)


def _needed(rows: pa.Table, since: Since) -> pa.Table:
    """Those of these gateways from then on, and of each node and device the last one before that."""
    gateways = Groups(key(rows, _GATEWAY))
    begin = np.array([since.get(each, _NEVER) for each in _tuples(rows, gateways, _GATEWAY)], np.int64)
    begin = begin[gateways.of_rows()]
    rows, begin = rows.filter(pa.array(begin < _NEVER)), begin[begin < _NEVER]
    at, subjects = numbers(rows["received_at"]), Groups(key(rows, _SUBJECT))
    last_before = subjects.greatest(np.where(at <= begin, at, _ALWAYS))[subjects.of_rows()]
    return rows.filter(pa.array(at >= last_before))


def _tuples(rows: pa.Table, groups: Groups, names: Sequence[str]) -> list[tuple[str, ...]]:
    """These columns of texts of each group."""
    chosen = rows.select(names).take(pa.array(groups.first))
    return list(zip(*(column.to_pylist() for column in chosen.columns), strict=True))


class Births:
    """Births that are known (`BIRTH`), looked up by what data says."""

    def __init__(self, rows: pa.Table) -> None:
        texts = {name: rows[name].cast(pa.string()) for name in ("metric", "unit")}
        plain = pa.table({name: texts.get(name, rows[name]) for name in BIRTH})
        # Of several of one name, or alias, the first one counts: the least, as in Spark.
        plain = plain.take(pa.array(_order(plain, _BORN)))
        self.metrics = plain.select(_BORN)
        subjects, at = Groups(key(plain, _SUBJECT)), numbers(plain["received_at"])
        self._subjects = {each: number for number, each in enumerate(_tuples(plain, subjects, _SUBJECT))}
        self._times = np.unique(at)
        moments = subjects.of_rows() * len(self._times) + np.searchsorted(self._times, at)
        self._moments, birth = np.unique(moments, return_inverse=True)
        names = dictionary(plain["metric"])
        self._names = {name: number for number, name in enumerate(names.dictionary.to_pylist())}
        self._by_name = _Index(birth * len(self._names) + names.indices.to_numpy(), np.arange(len(plain)))
        numbered = np.flatnonzero(~_is_null(plain["alias"]))
        alias = numbers_or(plain["alias"], 0)[numbered]
        self._aliases = np.unique(alias)
        places = birth[numbered] * len(self._aliases) + np.searchsorted(self._aliases, alias)
        self._by_alias = _Index(places, numbered)

    def of(self, data: pa.Table) -> Numbers:
        """The number in `metrics` of each value of data (`_SUBJECT`, `received_at`, `metric`, `alias`); -1: of none."""
        birth = self._births(data)
        names = dictionary(data["metric"])
        of_names = [self._names.get(each, _NONE) for each in names.dictionary.to_pylist()]
        name = np.array(of_names, np.int64)[names.indices.to_numpy()]
        alias = np.where(_is_null(data["alias"]), _NONE, _place(self._aliases, numbers_or(data["alias"], 0)))
        by_name = self._by_name.of(_both(birth, name, len(self._names)))
        by_alias = self._by_alias.of(_both(birth, alias, len(self._aliases)))
        return np.where(_is_nameless(data), by_alias, by_name)

    def _births(self, data: pa.Table) -> Numbers:
        """The number of the last birth that was received before each value; -1: there is none."""
        subjects = Groups(key(data, _SUBJECT))
        of_groups = [self._subjects.get(each, _NONE) for each in _tuples(data, subjects, _SUBJECT)]
        subject = np.array(of_groups, np.int64)[subjects.of_rows()]
        time = np.searchsorted(self._times, numbers(data["received_at"]), "right") - 1
        first = subject * len(self._times)
        birth = np.searchsorted(self._moments, first + time, "right") - 1
        is_one = (subject >= 0) & (birth >= np.searchsorted(self._moments, first))
        return np.where(is_one, birth, _NONE)


class _Index:
    """Rows by whole numbers; of several of one number the first."""

    def __init__(self, places: Numbers, rows: Numbers) -> None:
        self._places, first = np.unique(places, return_index=True)
        self._rows = np.append(rows[first], _NONE)

    def of(self, places: Numbers) -> Numbers:
        """The row of each; -1: there is none."""
        found: Numbers = self._rows[_place(self._places, places)]
        return found


def _place(ordered: Numbers, looked_for: Numbers) -> Numbers:
    """Where each is among these; -1: it is not."""
    place = np.searchsorted(ordered, looked_for)
    is_there = place < len(ordered)
    is_there[is_there] = ordered[place[is_there]] == looked_for[is_there]
    return np.where(is_there, place, _NONE)


def _both(birth: Numbers, number: Numbers, count: int) -> Numbers:
    """Numbers of a birth and what it has so many of; -1 where one of them is that."""
    return np.where((birth < 0) | (number < 0), _NONE, birth * count + number)


@lru_cache(maxsize=1)
def opened(known: bytes) -> Births:
    """What is `known`. One a process: it is the same for all messages of a batch."""
    return Births(workers.unpacked(known))


def named(decoded: pa.Table, births: Births) -> pa.Table:
    """Values in which each of data has its name, number and unit, or its message is rejected.

    `decoded`: values with the columns of their messages, `message` (a number of its own for each), `metric`, `device`,
    `event_time`, `reason` and what else the decoder found.
    """
    is_open = is_data(decoded) & _is_null(decoded["reason"])
    if not is_open.any():
        return decoded
    data = decoded.filter(pa.array(is_open))
    return pa.concat_tables([decoded.filter(pa.array(~is_open)), _judged(data, births)])


def _judged(data: pa.Table, births: Births) -> pa.Table:
    """What the birth says taken over; where one value of a message needs a birth that is not there, the message becomes
    one reject."""
    place = births.of(data)
    is_unknown = place < 0
    value, signed = (numbers_or(data[name], 0.0) for name in ("value", "signed"))
    is_ambiguous = ~_is_null(data["signed"]) & (signed != value)
    message = numbers(data["message"])
    unborn = np.isin(message, message[is_unknown & (_is_nameless(data) | is_ambiguous)])
    born = births.metrics.take(pa.array(place, mask=is_unknown))
    shown = np.where(_is_null(data["signed"]), value, _as_born(value, signed, numbers_or(born["datatype"], 0)))
    is_unborn = pa.array(unborn)
    columns = {
        "value": pa.array(shown, mask=unborn | _is_null(data["value"])),
        "text": pc.if_else(is_unborn, None, data["text"]),
        "unit": pc.if_else(is_unborn, None, pc.coalesce(data["unit"], born["unit"])),
        "metric": pc.if_else(is_unborn, "", pc.coalesce(born["metric"], data["metric"].cast(pa.string()))),
        "reason": pc.if_else(is_unborn, reasons.NO_BIRTH, data["reason"]),
    }
    columns["metric"] = columns["metric"].dictionary_encode()
    kept = ~unborn
    kept[_firsts(data, np.flatnonzero(unborn))] = True
    return pa.table({name: columns.get(name, data[name]) for name in data.column_names}).filter(pa.array(kept))


def _firsts(data: pa.Table, rows: Numbers) -> Numbers:
    """Of these rows the first one of each message, by metric, alias and time."""
    some = data.select(["metric", "alias", "event_time", "message"]).take(pa.array(rows))
    order = _order(some, ("metric", "alias", "event_time"))
    _, first = np.unique(numbers(some["message"])[order], return_index=True)
    found: Numbers = rows[order[first]]
    return found


def _order(rows: pa.Table, names: Sequence[str]) -> Numbers:
    """Row numbers in rising order of these columns, the first of which counts most; nulls are first."""
    return np.lexsort([column for name in reversed(names) for column in (_rank(rows[name]), ~_is_null(rows[name]))])


def _rank(column: pa.ChunkedArray) -> Numbers:
    """Numbers, or texts numbered in their order."""
    if not (pa.types.is_string(column.type) or pa.types.is_dictionary(column.type)):
        return numbers_or(column.cast(pa.int64()), 0)
    texts = dictionary(column)
    rank = np.argsort(pc.sort_indices(texts.dictionary).to_numpy())
    return np.append(rank, 0)[numbers_or(texts.indices, len(rank))]


def _as_born(value: Numbers, signed: Numbers, datatype: Numbers) -> Numbers:
    """Integers as the data types of their births have them: signed ones are sent as unsigned, in two's complement."""
    found = value
    for of_bits, bits in sparkplug.SIGNED.items():
        count = float(1 << bits)
        low = np.mod(value, count)
        low = np.where(low >= count / 2, low - count, low)
        found = np.where(datatype == of_bits, signed if bits == sparkplug.BITS_MAX else low, found)
    return found


def _is_nameless(data: pa.Table) -> Mask:
    found: Mask = pc.equal(data["metric"], "").to_numpy()
    return found


def _is_null(column: pa.ChunkedArray) -> Mask:
    found: Mask = pc.is_null(column).to_numpy()
    return found
