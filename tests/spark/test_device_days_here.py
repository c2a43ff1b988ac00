"""Days of devices made in this process: the same as Spark makes of whatever readings."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import schemas
from spark.here import device_days
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import health
from tests.spark.lakes import START, Row, message
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_127
METRICS = (
    *("battery", "status.battery", "VBAT", "a/batt_level", "lithium_battery", "battery.x", "Bat.PCT", "battery\n"),
    *("uptime", "sys.uptime_ms", "uptime.s", "uptime_days", "net.rssi", "RSSI", "xrssi", "t", "online", ""),
)
VALUES = (None, 0.0, 0.5, 1.0, 2.5, -3.0, 86_400.25, 5e10, 2e11)
TIMES = (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC), START - timedelta(days=45))


def reading(randoms: random.Random, number: int) -> Row:
    at = START + timedelta(seconds=number * 613)
    received = randoms.choice((at, at, at, *TIMES))
    row = message(number // 3, at=received, ingested_at=at + timedelta(seconds=2))
    row |= {
        "metric": randoms.choice(METRICS),
        "value": randoms.choice(VALUES),
        "suspect": randoms.random() < 0.2,
        "time_source": randoms.choice(("device", "gateway", "message")),
        # Each its own: of two at the same time either may be the newest.
        "event_time": randoms.choice((at, at, received, *TIMES)) + timedelta(microseconds=number),
        "address": randoms.choice(("load", "spBv1.0/g/NBIRTH/n", "x")),
        "device": f"d{randoms.randrange(3)}",
        "gateway": randoms.choice(("g", "h")),
    }
    return row | {"event_date": row["event_time"].date()}


def arrow(rows: list[Row]) -> pa.Table:
    kept = [{name: row[name] for name in device_days.READING} for row in rows]
    return pa.Table.from_pylist(kept, pa.schema([schemas.READINGS.arrow.field(name) for name in device_days.READING]))


def by_key(days: pa.Table) -> dict[tuple[Any, ...], Row]:
    known = {(row["gateway"], row["device"], row["event_date"]): row for row in days.to_pylist()}
    assert len(known) == days.num_rows
    return known


def near(day: Row) -> Row:
    numbers = {name: value for name, value in day.items() if isinstance(value, float)}
    return day | {name: pytest.approx(value, rel=1e-9, abs=1e-9) for name, value in numbers.items()}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("boots_max", [health.BOOTS_MAX, 2])
def test_spark_makes_the_same_days(frame: Make, monkeypatch: pytest.MonkeyPatch, boots_max: int) -> None:
    for module in (health, device_days):
        monkeypatch.setattr(module, "BOOTS_MAX", boots_max)
    randoms = random.Random(chosen_seed(SEED))
    rows = [reading(randoms, number) for number in range(1_200)]
    theirs, ours = by_key(health.days(frame("readings", *rows)).toArrow()), by_key(device_days.days(arrow(rows)))
    assert len(theirs) > 50
    assert theirs.keys() == ours.keys()
    for key, day in theirs.items():
        sums = {
            name: pytest.approx(value, rel=1e-9, abs=1e-9) for name, value in day.items() if isinstance(value, float)
        }
        assert ours[key] == day | sums
    most = max(len(day["boots"]) for day in ours.values())
    assert most == 2 if boots_max == 2 else most > 2
    assert sum(day["battery_n"] > 0 and day["rssi_n"] > 0 for day in ours.values()) > 10


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_folds_them_the_same_way(lake: Lake, frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    batches = [[reading(randoms, number) for number in range(first, first + 400)] for first in (0, 200, 400)]
    lake.ensure("device_days")
    for version, rows in enumerate(batches):
        lake.fold("device_days", health.days(frame("readings", *rows)), health.FOLD, Transaction("job", version))
    theirs = by_key(lake.at("device_days").delta().to_pyarrow_table())
    ours = by_key(device_days.combined(pa.concat_tables(device_days.combined(_days(rows)) for rows in batches)))
    assert theirs.keys() == ours.keys()
    for key, day in theirs.items():
        assert ours[key] == near(day)


def _days(rows: list[Row]) -> pa.Table:
    return device_days.days(arrow(rows))


def test_of_no_readings_there_are_no_days() -> None:
    days = device_days.days(arrow([]))
    assert (days.num_rows, days.column_names) == (0, schemas.DEVICE_DAYS.columns.names)


def test_what_is_too_large_to_be_summed_is_infinite() -> None:
    """And nothing is said of it: a device may send what it likes."""
    randoms = random.Random(chosen_seed(SEED))
    huge = [
        reading(randoms, 0) | {"metric": metric, "value": 1e308} for metric in ("battery", "rssi") for _ in range(3)
    ]
    same = {"gateway": "g", "device": "d", "event_time": START, "received_at": START}
    (day,) = _days([row | same for row in huge]).to_pylist()
    assert (day["battery_v"], day["rssi_sum"]) == (math.inf, math.inf)
    later = [row | same | {"event_time": START + timedelta(days=20)} for row in huge]
    (day,) = _days(later).to_pylist()
    assert day["battery_tv"] == math.inf
