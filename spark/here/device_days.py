"""What a day of a device adds up to, made in this process, column by column: as `spark.transforms.health.days`."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark import schemas
from spark.decoding.sparkplug import ONLINE
from spark.here.groups import Groups, Numbers, dictionary, key, numbers, numbers_or
from spark.here.times import DAY_US, SECOND_US, TIME, dates, is_believable
from spark.transforms.health import BATTERY, BIRTH, BOOTS_MAX, DAYS, IN_MS, KEY, RSSI, SUMS, UPTIME, UPTIME_MAX

READING: Final = (
    *(*KEY, "address", "epoch", "sequence", "metric", "event_time", "received_at", "ingested_at"),
    *("suspect", "time_source", "value"),
)
"""Columns of readings that days are made of."""
_BATTERY: Final = ("battery_metric", "battery", "battery_at")
Flags = NDArray[np.bool_]


def days(readings: pa.Table) -> pa.Table:
    """One row per device and day of reception, as table `device_days` has them; see `spark.transforms.health.days`."""
    # What a device sends may be as large as a double is, and a product of it infinite.
    with np.errstate(over="ignore"):
        return _Days(readings.combine_chunks()).table()


def combined(days_: pa.Table) -> pa.Table:
    """Rows of `device_days`, those of one device and day made one, as `spark.transforms.health.FOLD` has it."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in days_.to_pylist():
        key_ = (*(row[name] for name in KEY), row["event_date"])
        before = found.get(key_)
        found[key_] = row if before is None else _both(before, row)
    return pa.Table.from_pylist(list(found.values()), schemas.DEVICE_DAYS.arrow)


def _both(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` is what was read later, of two batteries told of at the same time."""
    later = old["battery_at"] is None or (new["battery_at"] is not None and new["battery_at"] >= old["battery_at"])
    one, other = (new, old) if later else (old, new)
    aheads = [row["ahead_s"] for row in (old, new) if row["ahead_s"] is not None]
    return {
        **old,
        **{name: old[name] + new[name] for name in SUMS},
        "first_at": min(old["first_at"], new["first_at"]),
        "last_at": max(old["last_at"], new["last_at"]),
        **{name: one[name] if one[name] is not None else other[name] for name in _BATTERY},
        "ahead_s": max(aheads, default=None),
        "boots": sorted({*old["boots"], *new["boots"]})[:BOOTS_MAX],
    }


class _Days:
    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._at, received, ingested = (numbers(rows[name]) for name in ("event_time", "received_at", "ingested_at"))
        self._received = np.where(is_believable(received, ingested), received, ingested)
        self._day = self._received // DAY_US
        self._groups = Groups(key(rows, KEY, self._day))
        self._group = self._groups.of_rows()
        self._value = numbers_or(rows["value"], np.nan)

    def table(self) -> pa.Table:
        groups = self._groups
        columns = {name: self._rows[name].take(pa.array(groups.first)) for name in KEY} | {
            "messages": pa.array(self._messages()),
            "first_at": pa.array(groups.least(self._received)).cast(TIME),
            "last_at": pa.array(groups.greatest(self._received)).cast(TIME),
            "suspect": pa.array(groups.sum(numbers(self._rows["suspect"]).astype(np.int64))),
            **self._battery(),
            **self._radio(),
            "ahead_s": self._ahead(),
            "boots": self._boots(),
            "event_date": dates(self._day[groups.first]),
        }
        names = schemas.DEVICE_DAYS.columns.names
        return pa.table({name: columns[name] for name in names})

    def _messages(self) -> Numbers:
        """Of each day; a message is one, however many readings it has."""
        one_each = Groups(key(self._rows, ("address", "epoch"), self._group, numbers(self._rows["sequence"]))).first
        return np.bincount(self._group[one_each], minlength=len(self._groups))

    def _battery(self) -> dict[str, pa.Array]:
        chosen = self._named(BATTERY) & ~np.isnan(self._value)
        begin = self._day * DAY_US
        since, reception = (self._at - begin) / DAY_US, (self._received - begin) / DAY_US
        # What a wrong clock says would be years away, and outweigh all others.
        at, value = np.where(np.abs(since) <= DAYS, since, reception), self._value
        count = self._count(chosen)
        newest, there = np.zeros(len(self._groups), np.int64), count > 0
        rows = np.flatnonzero(chosen)
        if len(rows):
            last = rows[Groups(self._group[rows]).newest(self._at[rows], self._order_of_metrics()[rows])]
            newest[self._group[last]] = last
        taken = pa.array(newest, mask=~there)
        return {
            "battery_metric": self._rows["metric"].take(taken),
            "battery": self._rows["value"].take(taken),
            "battery_at": self._rows["event_time"].take(taken),
            "battery_n": pa.array(count),
            "battery_t": self._sum(chosen, at),
            "battery_v": self._sum(chosen, value),
            "battery_tt": self._sum(chosen, at * at),
            "battery_tv": self._sum(chosen, at * value),
        }

    def _radio(self) -> dict[str, pa.Array]:
        chosen = self._named(RSSI) & ~np.isnan(self._value)
        return {"rssi_n": pa.array(self._count(chosen)), "rssi_sum": self._sum(chosen, self._value)}

    def _ahead(self) -> pa.Array:
        """Seconds, of readings with a time of their own."""
        chosen = ~pc.equal(self._rows["time_source"], "gateway").to_numpy()
        ahead = np.where(chosen, (self._at - self._received) / SECOND_US, -np.inf)
        return pa.array(self._groups.greatest(ahead), mask=self._count(chosen) == 0)

    def _boots(self) -> pa.Array:
        """Seconds since 1970, in rising order, each once."""
        seconds = self._at // SECOND_US
        unit = np.where(self._named(IN_MS), 1_000.0, 1.0)
        with np.errstate(invalid="ignore"):  # a text is no number
            told = self._named(UPTIME) & (self._value >= 0) & (self._value < UPTIME_MAX)
            up = np.where(told, np.floor(self._value / unit + 0.5), 0).astype(np.int64)
        is_online = pc.equal(self._rows["metric"], ONLINE).to_numpy() & (self._value == 1.0)
        born = is_online & self._matches("address", BIRTH)
        rows = np.flatnonzero(told | born)
        found = np.unique(np.column_stack((self._group[rows], (seconds - up)[rows])), axis=0)
        starts = np.searchsorted(found[:, 0], found[:, 0])
        found = found[np.arange(len(found)) - starts < BOOTS_MAX]
        ends = np.cumsum(np.bincount(found[:, 0], minlength=len(self._groups)))
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), pa.array(found[:, 1], pa.int64()))

    def _count(self, chosen: Flags) -> Numbers:
        return self._groups.sum(chosen.astype(np.int64))

    def _sum(self, chosen: Flags, column: Numbers) -> pa.Array:
        return pa.array(self._groups.sum(np.where(chosen, column, 0.0)))

    def _named(self, pattern: str) -> Flags:
        return self._matches("metric", pattern)

    def _matches(self, column: str, pattern: str) -> Flags:
        """Of each text once, however many rows have it."""
        # As Java reads it: case is that of ASCII.
        searched = re.compile(pattern.replace(r"\z", r"\Z"), re.ASCII)
        texts = dictionary(self._rows[column])
        found = np.array([searched.search(text) is not None for text in texts.dictionary.to_pylist()], bool)
        chosen: Flags = found[texts.indices.to_numpy()]
        return chosen

    def _order_of_metrics(self) -> Numbers:
        """Whole numbers in the order of the texts, as Spark compares these: by their bytes."""
        texts = dictionary(self._rows["metric"])
        names = texts.dictionary.to_pylist()
        place = np.empty(len(names), np.int64)
        place[sorted(range(len(names)), key=lambda each: names[each].encode())] = np.arange(len(names))
        order: Numbers = place[texts.indices.to_numpy()]
        return order
