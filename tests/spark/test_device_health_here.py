"""Health of devices found in this process: the same as Spark finds, of whatever days."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark import columns, schemas
from spark.here import device_days
from spark.here import device_health as here
from spark.jobs import health as job
from spark.jobs.snapshot import Snapshot
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import health
from tests.spark.lakes import START, Row
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from tests.spark.conftest import Make

SEED = 20_261_128
HUGE = 1e308
"""Volts: what a device sends is a double, and the sum of two of them need not be one."""


def day(randoms: random.Random, number: int, **override: Any) -> Row:
    """Of a device: what `device_days` may have of it."""
    begin = datetime.combine((START - timedelta(days=number)).date(), datetime.min.time(), UTC)
    first, last = sorted(begin + timedelta(seconds=randoms.random() * 86_399) for _ in range(2))
    row: Row = {
        "tenant": randoms.choice(("t", "u")),
        "gateway": randoms.choice(("g", "h", "gé")),
        "device": f"d{randoms.randrange(4)}",
        "messages": randoms.choice((1, 1, 2, 500, 2**40)),
        "first_at": randoms.choice((first, last)),
        "last_at": last,
        "suspect": randoms.randrange(3),
        "event_date": begin.date(),
        "ahead_s": randoms.choice((None, -3.5, 0.0, 1e9)),
        "rssi_n": 0,
        "rssi_sum": 0.0,
    }
    row |= _battery(randoms, last) if randoms.random() < 0.6 else _battery(randoms, last, count=0)
    if randoms.random() < 0.5:
        row |= {"rssi_n": 3, "rssi_sum": -randoms.random() * 200}
    at = int(begin.timestamp())
    boots = {at + randoms.choice((0, 60, 119, 120, 121, 240, 5_000, -(10**6))) for _ in range(randoms.randrange(5))}
    return row | {"boots": sorted(boots)} | override


def _battery(randoms: random.Random, at: datetime, count: int | None = None) -> Row:
    values = [(randoms.random() * randoms.choice((1e-3, 1.0, 5.0)), randoms.gauss(3.7, 0.2)) for _ in range(4)]
    values = values[: randoms.randrange(1, 5) if count is None else count]
    told: tuple[Any, ...] = (None, None, None)
    if values:
        told = (randoms.choice(("battery", "a/vbat")), values[-1][1], at - timedelta(days=randoms.choice((0, 0, 40))))
    return {
        **dict(zip(("battery_metric", "battery", "battery_at"), told, strict=True)),
        "battery_n": len(values),
        "battery_t": sum(t for t, _ in values) + 0.0,
        "battery_v": sum(v for _, v in values) + 0.0,
        "battery_tt": sum(t * t for t, _ in values) + 0.0,
        "battery_tv": sum(t * v for t, v in values) + 0.0,
    }


def days() -> list[Row]:
    """Of some months, and of a gateway that has been silent for long."""
    randoms = random.Random(chosen_seed(SEED))
    found = {}
    for _ in range(700):
        row = day(randoms, randoms.choice((randoms.randrange(4), 29, 30, 31, randoms.randrange(90))))
        found[tuple(row[name] for name in schemas.DEVICE_DAYS.keys)] = row
    for number in range(200, 260):
        row = day(randoms, number, gateway="silent", tenant="t")
        found[tuple(row[name] for name in schemas.DEVICE_DAYS.keys)] = row
    return list(found.values())


def arrow(rows: list[Row]) -> pa.Table:
    """As the files of the table have them, and are read."""
    rows_ = pa.Table.from_pylist(rows, schemas.DEVICE_DAYS.arrow).select(here.DAY)
    return columns.fitted(rows_, rows_.schema)


def found_here(rows: list[Row], at_once: int = 1_000) -> dict[tuple[Any, ...], Row]:
    recent = here.recent(arrow(rows[n : n + at_once]) for n in range(0, max(1, len(rows)), at_once))
    assert recent is not None
    return by_key(here.health(recent))


def by_key(table: pa.Table) -> dict[tuple[Any, ...], Row]:
    boots = table["last_boot_at"].cast(pa.int64())  # an uptime may say that it was before the year 1
    rows = table.set_column(table.column_names.index("last_boot_at"), "last_boot_at", boots).to_pylist()
    known = {tuple(row[name] for name in schemas.DEVICE_HEALTH.keys): row for row in rows}
    assert len(known) == len(rows)
    return known


def near(row: Row) -> Row:
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    # Of a line through values that are close together: what is left of large sums.
    apart = {name: 1e-6 if name == "battery_per_day" else 1e-9 for name in numbers}
    return row | {name: pytest.approx(value, rel=apart[name], abs=1e-9, nan_ok=True) for name, value in numbers.items()}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("at_once", [1_000, 50])
def test_spark_finds_the_same(frame: Make, at_once: int) -> None:
    rows = days()
    random.Random(chosen_seed(SEED)).shuffle(rows)
    theirs, ours = by_key(health.health(frame("device_days", *rows)).toArrow()), found_here(rows, at_once)
    assert theirs.keys() == ours.keys()
    for key, row in theirs.items():
        assert ours[key] == near(row)
    assert sum(row["battery_per_day"] is not None for row in ours.values()) > 5
    assert any(row["missed"] for row in ours.values())


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_is_large_or_missing_is_as_spark_has_it(frame: Make) -> None:
    randoms = random.Random(chosen_seed(SEED))
    name = {"tenant": "t", "gateway": "g"}
    nothing = _battery(randoms, START, count=0) | {"boots": [], "ahead_s": None, "rssi_n": 0, "rssi_sum": 0.0}
    told = {"battery_metric": "battery", "battery": HUGE, "battery_at": START, "battery_n": 3, "battery_t": 1.0}
    rows = [
        day(randoms, 0, device="nothing", **name, **nothing | {"messages": 1}),
        *(day(randoms, n, device="huge", **name) | told | {"battery_v": HUGE, "battery_tv": HUGE} for n in range(3)),
        day(randoms, 1, device="long ago", **name, **nothing | {"boots": [-99_999_999_999, 5, 126, 246]}),
    ]
    rows[2] |= {"battery_at": None, "battery": None, "battery_metric": None}
    theirs, ours = by_key(health.health(frame("device_days", *rows)).toArrow()), found_here(rows)
    assert ours == {key: near(row) for key, row in theirs.items()}
    assert ours["t", "g", "long ago"]["boots"] == 3
    nullable = {field.name for field in schemas.DEVICE_HEALTH.columns if field.nullable}
    assert {name for name, value in ours["t", "g", "nothing"].items() if value is None} == nullable


def test_of_no_days_there_is_no_health() -> None:
    assert found_here([]) == {}
    recent = here.recent([arrow([])])
    assert recent is not None
    assert here.health(recent).column_names == schemas.DEVICE_HEALTH.columns.names


def test_days_that_are_older_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    randoms = random.Random(chosen_seed(SEED))
    rows = [day(randoms, number, tenant="t", gateway="g", device="d") for number in range(300)]
    monkeypatch.setattr(here, "HERE_BYTES_MAX", arrow(rows[:40]).nbytes)
    parts = [arrow(rows[n : n + 10]) for n in range(0, 300, 10)]
    for order in (parts, parts[::-1]):
        recent = here.recent(order)
        assert recent is not None
        assert len(recent) == health.DAYS
    monkeypatch.setattr(here, "HERE_BYTES_MAX", arrow(rows[:20]).nbytes)
    assert here.recent(parts) is None


def _snapshot() -> Snapshot:
    _, step = job.JOB.steps
    assert isinstance(step, Snapshot)
    return step


def _landed(lake: Lake) -> None:
    lake.ensure("device_days")
    rows = pa.Table.from_pylist(days(), schemas.DEVICE_DAYS.arrow)
    lake.fold_here("device_days", rows, device_days.combined, Transaction("job", 1))


def test_on_one_machine_no_session_is_needed(tmp_path: Path) -> None:
    """And the files of the table lack the day they are apart by."""
    session: Any = None
    lake = Lake(session, tmp_path / "lake", here=True)
    _landed(lake)
    found = _snapshot().frames(lake)["device_health"]
    assert isinstance(found, pa.Table)
    assert by_key(found) == {key: near(row) for key, row in found_here(days()).items()}
    lake.ensure("device_health")
    lake.overwrite("device_health", found, Transaction("job", 1), None)
    assert lake.rows("device_health") == len(found)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("why", ["a cluster", "days are many"])
def test_spark_finds_what_is_not_for_this_process(
    lake: Lake, larger: Lake, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "days are many":
        monkeypatch.setattr(here, "HERE_BYTES_MAX", 1)
    chosen = larger if why == "a cluster" else lake
    _landed(chosen)
    monkeypatch.setattr(here, "health", None)
    found = _snapshot().frames(chosen)["device_health"]
    assert not isinstance(found, pa.Table)
    assert {row["device"] for row in found.collect()} == {"d0", "d1", "d2", "d3"}
