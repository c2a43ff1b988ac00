"""The health of devices, found in this process, column by column: as `spark.transforms.health.health`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark import schemas
from spark.here.groups import Groups, Numbers, key, numbers, numbers_or
from spark.here.times import DAY_US, SECOND_US, TIME
from spark.transforms.health import BOOT_APART_S, DAYS, KEY, SPREAD_MIN

GATEWAY: Final = ("tenant", "gateway")
HEARD: Final = (*GATEWAY, "last_at")
"""Columns of days, and of devices, that say when a gateway was heard."""
DAY: Final = tuple(name for name in schemas.DEVICE_DAYS.columns.names if name not in schemas.DEVICE_DAYS.partition_by)
"""Columns of the table that are looked at: its files have these."""
Flags = NDArray[np.bool_]
HERE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of days that are held in this process: those of 28 000 devices, or of 380 that boot every minute. With what is
made of them they take 700 MB at most."""


def recent(days: Iterable[pa.Table]) -> pa.Table | None:
    """Of these parts (`DAY`) of table `device_days` the last `DAYS` days of each gateway; None where they take more
    than `HERE_BYTES_MAX`, or there are none."""
    held: pa.Table | None = None
    for part in days:
        held = _recent(part if held is None else pa.concat_tables([held, part]))
        if held.nbytes > HERE_BYTES_MAX:
            return None
    return held


def changed(days: Iterable[pa.Table], devices: pa.Table) -> pa.Table:
    """The gateways (`HEARD`, when they were heard last) of which these days, new or others than before, are among the
    last `DAYS`, those included that `devices` of table `device_health` are made of.

    The rows of others stay as they are: a device's health is of nothing but the last days of its own gateway.
    """
    new, known = _heard(days), _heard([devices])
    both = pa.concat_tables([new, known])
    gateways = Groups(key(both, GATEWAY))
    newest = gateways.greatest(numbers(both["last_at"]))[gateways.of_rows()][: len(new)]
    is_recent = pa.array(_day(new) > newest // DAY_US - DAYS)
    return new.set_column(HEARD.index("last_at"), "last_at", pa.array(newest).cast(TIME)).filter(is_recent)


def _heard(parts: Iterable[pa.Table]) -> pa.Table:
    """When each gateway of these rows was heard last."""
    return reduce(lambda one, other: _newest(pa.concat_tables([one, other])), (_newest(part) for part in parts))


def _newest(rows: pa.Table) -> pa.Table:
    gateways = Groups(key(rows, GATEWAY))
    names = rows.select(GATEWAY).unify_dictionaries().take(pa.array(gateways.first))
    return names.append_column("last_at", pa.array(gateways.greatest(numbers(rows["last_at"]))).cast(TIME))


def dates(gateways: pa.Table) -> set[date]:
    """Those that the last `DAYS` days of any of these are (`HEARD`)."""
    newest = np.unique(_day(gateways))
    numbers_ = np.unique(newest[:, None] - np.arange(DAYS))
    return set(pa.array(numbers_.astype(np.int32)).cast(pa.date32()).to_pylist())


def of_gateways(rows: pa.Table, gateways: pa.Table) -> pa.Table:
    """Of these days, or devices, those of some gateways."""
    return rows.filter(pa.array(_is_of(rows, gateways)))


def of_others(rows: pa.Table, gateways: pa.Table) -> pa.Table:
    """Those of all others."""
    return rows.filter(pa.array(~_is_of(rows, gateways)))


def _is_of(rows: pa.Table, gateways: pa.Table) -> Flags:
    names = pa.concat_tables([rows.select(GATEWAY), gateways.select(GATEWAY)])
    one_number_each = key(names, GATEWAY)
    return np.isin(one_number_each[: len(rows)], one_number_each[len(rows) :])


def _recent(days: pa.Table) -> pa.Table:
    day, gateways = _day(days), Groups(key(days, GATEWAY))
    newest = gateways.greatest(day)[gateways.of_rows()]
    # Each file has its own dictionaries of the same names.
    return days.filter(pa.array(day > newest - DAYS)).unify_dictionaries().combine_chunks()


def _day(days: pa.Table) -> Numbers:
    """Since 1970: that of reception, which is `event_date`. The files are apart by it, and it is not in them."""
    return numbers(days["last_at"]) // DAY_US


def health(days: pa.Table) -> pa.Table:
    """One row per device, of its last days (`recent`), as table `device_health` has them; see
    `spark.transforms.health.health`."""
    # What a device sends may be as large as a double is, and what is made of it infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        return _Health(days).table()


class _Health:
    def __init__(self, days: pa.Table) -> None:
        self._days = days
        self._devices = Groups(key(days, KEY))
        self._device = self._devices.of_rows()
        self._day, self._last = _day(days), numbers(days["last_at"])

    def table(self) -> pa.Table:
        devices, days = self._devices, self._days
        last, messages = devices.greatest(self._last), self._sum("messages")
        silent = (self._of_gateway(self._last)[devices.first] - last) / SECOND_US
        heard = devices.sum((self._last - numbers(days["first_at"])) / SECOND_US)
        interval = _divided(heard, messages - devices.counts)
        of_battery = self._newest(pc.is_valid(days["battery_at"]), _times(days["battery_at"]))
        of_clock = self._newest(pc.is_valid(days["ahead_s"]))
        columns = {name: days[name].take(pa.array(devices.first)) for name in KEY} | {
            "first_at": pa.array(devices.least(numbers(days["first_at"]))).cast(TIME),
            "last_at": pa.array(last).cast(TIME),
            "messages": pa.array(messages),
            "suspect": pa.array(self._sum("suspect")),
            "interval_s": interval,
            "silent_s": pa.array(silent),
            "missed": _missed(silent, interval),
            "battery_metric": days["battery_metric"].take(of_battery),
            "battery": days["battery"].take(of_battery),
            "battery_per_day": self._battery_per_day(),
            **self._boots(),
            "clock_ahead_s": days["ahead_s"].take(of_clock),
            "rssi": _divided(self._sum("rssi_sum"), self._sum("rssi_n")),
        }
        return pa.table({name: columns[name] for name in schemas.DEVICE_HEALTH.columns.names})

    def _sum(self, name: str) -> Numbers:
        return self._devices.sum(numbers(self._days[name]))

    def _of_gateway(self, column: Numbers) -> Numbers:
        """The greatest of each row's gateway."""
        gateways = Groups(key(self._days, GATEWAY))
        return gateways.greatest(column)[gateways.of_rows()]

    def _newest(self, chosen: pa.ChunkedArray, *columns: Numbers) -> pa.Array:
        """The number of each device's last row among those chosen, by these columns and the day; null without one."""
        rows = np.flatnonzero(chosen.to_numpy())
        found, there = np.zeros(len(self._devices), np.int64), np.zeros(len(self._devices), bool)
        if len(rows):
            newest = Groups(self._device[rows]).newest(*(column[rows] for column in (*columns, self._day)))
            last = rows[newest]
            found[self._device[last]], there[self._device[last]] = last, True
        return pa.array(found, mask=~there)

    def _battery_per_day(self) -> pa.Array:
        """The slope of a straight line through the battery's values."""
        n, t, v, tt, tv = (numbers(self._days[f"battery_{name}"]) for name in ("n", "t", "v", "tt", "tv"))
        # Days counted from the newest: what a line of so few days is fitted by stays small numbers.
        shift = (self._day - self._of_gateway(self._day)).astype(np.float64)
        sums = (n, t + shift * n, v, tt + 2 * shift * t + shift * shift * n, tv + shift * v)
        n, t, v, tt, tv = map(self._devices.sum, sums)
        spread = n * tt - t * t
        told = (n > 1) & (spread > SPREAD_MIN * n * n)
        return pa.array((n * tv - t * v) / np.where(told, spread, 1.0), mask=~told)

    def _boots(self) -> dict[str, pa.Array]:
        """How often each device started, and when it last did."""
        boots = self._days["boots"]
        at = numbers(pc.list_flatten(boots))
        since, until = at.min(initial=0), at.max(initial=0)
        # One number each, in the order of devices and times, and further apart where another device begins. With times
        # of less than 10^12 s, and a device for each row that is held, it stays below 2^63.
        span = int(until - since) + BOOT_APART_S + 1
        placed = np.repeat(self._device * span - since, numbers(pc.list_value_length(boots)))
        placed += at
        placed.sort()
        starts = placed[np.diff(placed, prepend=-span) > BOOT_APART_S]
        count = np.bincount(starts // span, minlength=len(self._devices))
        last = np.append(starts, 0)[np.cumsum(count) - 1] % span + since  # of a device without one it is another's
        last_at = pa.array(last * SECOND_US, mask=count == 0).cast(TIME)
        return {"boots": pa.array(count.astype(np.int32)), "last_boot_at": last_at}


def _times(column: pa.ChunkedArray) -> Numbers:
    """Those that are there."""
    return numbers_or(column, 0)


def _divided(sums: Numbers, counts: Numbers) -> pa.Array:
    """Null where there is nothing to divide by."""
    return pa.array(sums / np.where(counts == 0, 1, counts), mask=counts == 0)


def _missed(silent: Numbers, interval: pa.Array) -> pa.Array:
    """How many intervals that is; null of a device without one."""
    apart = numbers_or(interval, 0.0)
    told = apart > 0
    return pa.array(np.floor(silent / np.where(told, apart, 1.0)).astype(np.int64), mask=~told)
