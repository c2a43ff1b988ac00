"""Derived tables without Spark: rows by override for small lakes, and tables of a fleet of any size.

`python -m tests.spark.gold DIR [--gateways 200]` writes such tables for inspection. Everything is a pure function of
the arguments.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa

from spark import lineage, schemas
from tests.spark import lakes
from tests.spark.lakes import START, message

HOURS = 24
DEVICES = 2
SERIES = 6
"""Devices with windows and anomalies."""
_EMPTY: dict[pa.DataType, Any] = {pa.int64(): 0, pa.int32(): 0, pa.float64(): 0.0, pa.bool_(): False, pa.string(): ""}


def arrow_schema(name: str) -> pa.Schema:
    """Return the columns of a derived table."""
    return pa.schema(deltalake.Schema.from_json(schemas.DERIVED[name].columns.json()).to_arrow())


def put(
    root: Path,
    name: str,
    *rows: Mapping[str, Any],
    made_of: int | None = None,
    beside: str | None = None,
    source: str | None = None,
) -> None:
    """Write a derived table from version `made_of` of telemetry.

    `beside`, `source`: tables that its lineage names by their newest version, as written together or as input.
    """
    data = table(name, rows)
    sources, others = {}, {}
    if made_of is not None:
        sources["telemetry"] = lineage.TableState("t", made_of, START + timedelta(minutes=made_of))
        if source is not None:
            sources[source] = lineage.read_state(deltalake.DeltaTable(root / source))
        if beside is not None:
            others[beside] = lineage.read_state(deltalake.DeltaTable(root / beside))
    write(root, name, data, lineage.TableLineage(sources, others) if sources else None)


def table(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Build rows of a derived table; missing columns are null."""
    schema, rows = arrow_schema(name), list(rows)
    missing = [field.name for field in schema if rows and not field.nullable and field.name not in rows[0]]
    assert not missing, f"{name}: give {missing} a value in tests/spark/gold.py, or in the row of the test"
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def write(root: Path, name: str, data: pa.Table, made_of: lineage.TableLineage | None) -> None:
    """Replace the table with these rows in one commit."""
    told = {"userMetadata": made_of.text()} if made_of is not None else {}
    deltalake.write_deltalake(
        root / name,
        data,
        mode="overwrite",
        partition_by=list(schemas.DERIVED[name].partition_by),
        commit_properties=deltalake.CommitProperties(custom_metadata=told),
    )


def bucket(second: int, received: int, ingested: int, **override: Any) -> dict[str, Any]:
    """Build a row of `throughput`."""
    at = START + timedelta(seconds=second)
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "lane": "live", "bucket": at, "bucket_s": 10}
    row["event_date"] = at.date()
    return row | {"received": received, "ingested": ingested, "lag_max_s": 1.0} | override


def outage(began: float, until: float, drained: float, **override: Any) -> dict[str, Any]:
    """Build a row of `outages`, in seconds after START; its drain begins at `until`."""
    times = {"began": began, "until": until, "drain_began": until, "drained": drained}
    row: dict[str, Any] = {name: START + timedelta(seconds=second) for name, second in times.items()}
    return {"tenant": "default", "gateway": "gw1", "messages": 1, "lag_max_s": drained - began} | row | override


def window(minute: int, low: float, high: float, **override: Any) -> dict[str, Any]:
    """Build a row of a rollup."""
    at = START + timedelta(minutes=minute)
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "device": "dev1"}
    row |= {"address": "load/cpu", "metric": "load"}
    row |= {"window_start": at, "count": 2, "min": low, "max": high, "sum": low + high, "mean": (low + high) / 2}
    row |= {"last": high, "last_at": at, "last_sequence": 1, "p50": low, "p95": high, "sketch": b""}
    row |= {"suspect": 0, "revised_at": at, "event_date": at.date(), "event_hour": at.hour}
    return row | override


def fresh(device: str | None, **override: Any) -> dict[str, Any]:
    """Build a row of `gateway_freshness`."""
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "device": device, "rows": 4, "late_rows": 0}
    row |= dict.fromkeys(("first_event_time", "last_event_time", "last_ingested_at"), START)
    row |= {"late_share": 0.0, "suspect_rows": 0, "lag_p50_s": 1.0, "lag_p95_s": 2.0, "lag_max_s": 3.0}
    return row | override


def address(**override: Any) -> dict[str, Any]:
    """Build a row of `completeness` or `gaps`."""
    row = dict.fromkeys(("missing", "explained", "unexplained", "duplicates"), 0)
    names = {"tenant": "default", "gateway": "gw1", "epoch": "e1", "address": "load/cpu"}
    return names | {"first_sequence": 0, "last_sequence": 3, "rows": 4, "distinct_sequences": 4} | row | override


def device(name: str, **override: Any) -> dict[str, Any]:
    """Build a row of `device_health`."""
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "device": name, "first_at": START, "last_at": START}
    return (
        row | {"messages": 100, "suspect": 0, "interval_s": 10.0, "silent_s": 0.0, "missed": 0, "boots": 0} | override
    )


def slo(width_s: int, start: datetime = START, **override: Any) -> dict[str, Any]:
    """Build a row of `delivery_slo`."""
    row: dict[str, Any] = {
        "tenant": "default",
        "gateway": "gw1",
        "width_s": width_s,
        "window_start": start,
        "messages": 4,
    }
    row |= {"timed": 4, "within": 4, "within_share": 1.0, "p50_s": 1.0, "p95_s": 2.0, "p99_s": 3.0, "max_s": 4.0}
    return row | {"revised_at": start, "event_date": start.date()} | override


def anomaly(minute: int, value: float, **override: Any) -> dict[str, Any]:
    """Build a row of `anomalies`."""
    at = START + timedelta(minutes=minute)
    row: dict[str, Any] = {"tenant": "default", "gateway": "gw1", "device": "dev1"}
    row |= {"address": "load/cpu", "metric": "load"}
    row |= {"event_time": at, "sequence": minute, "value": value, "score": 0.8, "rule": "spike", "expected": 2.0}
    return row | {"ingested_at": at, "event_date": at.date()} | override


def _columns(name: str, size: int, **given: Any) -> pa.Table:
    """Build `size` rows from arrays by column; a missing column has its type's zero value, or null."""
    arrays = []
    for column in arrow_schema(name):
        if column.name in given:
            values = given[column.name]
            arrays.append(pa.array([values] * size if np.ndim(values) == 0 else values, column.type))
        elif column.nullable or column.type not in _EMPTY:
            arrays.append(pa.nulls(size, column.type))
        else:
            arrays.append(pa.array([_EMPTY[column.type]] * size, column.type))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(name))


def fleet(root: Path, gateways: int) -> None:
    """Write a day of a fleet: a tenth of the gateways had an outage, one lost messages, one is silent, some devices are
    unhealthy.
    """
    names = [f"gw{number:05}" for number in range(gateways)]
    made_of = lineage.TableLineage({"telemetry": lineage.TableState("t", 0, START)})
    lakes.write(root, "telemetry", [message(0)])
    for name, data in {**_of_gateways(names), **_over_time(names), **_of_devices(names)}.items():
        write(root, name, data, made_of)


def _of_gateways(names: list[str]) -> dict[str, pa.Table]:
    size = len(names)
    last = [START + timedelta(hours=HOURS if number else 20) for number in range(size)]
    lag = [1.0 + number % 7 for number in range(size)]
    fresh_ = _columns(
        "gateway_freshness",
        size,
        tenant="default",
        gateway=names,
        first_event_time=START,
        last_event_time=last,
        last_ingested_at=last,
        rows=1000,
        lag_p50_s=0.6,
        lag_p95_s=lag,
        lag_max_s=9.0,
    )
    wrong = [7 if number == 1 else 0 for number in range(size)]
    given_up = [12 if number % 50 == 2 else 0 for number in range(size)]
    missing = [a + b for a, b in zip(wrong, given_up, strict=True)]
    landed = [1000 - each for each in missing]
    accounts = _columns(
        "completeness",
        size,
        tenant="default",
        gateway=names,
        epoch="e",
        address="plant/line",
        last_sequence=999,
        rows=landed,
        distinct_sequences=landed,
        accepted=1000,
        missing=missing,
        explained=given_up,
        unexplained=wrong,
        waiting=0,
        unstated=0,
    )
    lossy = [number for number in range(size) if missing[number]]
    gaps = _columns(
        "gaps",
        len(lossy),
        tenant="default",
        gateway=[names[n] for n in lossy],
        epoch="e",
        address="plant/line",
        last_sequence=[missing[n] - 1 for n in lossy],
        missing=[missing[n] for n in lossy],
        explained=[bool(given_up[n]) for n in lossy],
        reason=["expired" if given_up[n] else None for n in lossy],
    )
    return {"gateway_freshness": fresh_, "completeness": accounts, "gaps": gaps}


def _over_time(names: list[str]) -> dict[str, pa.Table]:
    """Build hours of every gateway; a tenth had an outage of three hours."""
    size = len(names) * HOURS
    hour = np.tile(np.arange(HOURS), len(names))
    number = np.repeat(np.arange(len(names)), HOURS)
    start = np.datetime64(START.replace(tzinfo=None, minute=0), "us")
    at = start + hour * np.timedelta64(1, "h")
    dates = at.astype("datetime64[D]")
    cut = (number % 10 == 3) & (hour >= 8) & (hour < 11)
    received = np.full(size, 40)
    repeated = np.repeat(np.array(names), HOURS)
    live = _columns(
        "throughput",
        size,
        tenant="default",
        gateway=repeated,
        lane="live",
        bucket=at,
        bucket_s=3600,
        received=np.where(cut, 0, received),
        ingested=np.where(cut, 0, received),
        lag_max_s=2.0 + hour % 3,
        event_date=dates,
    )
    back = cut | ((number % 10 == 3) & (hour == 11))
    count = int(back.sum())
    drained = np.where(hour[back] == 11, 120, 0)
    late = _columns(
        "throughput",
        count,
        tenant="default",
        gateway=repeated[back],
        lane="backlog",
        bucket=at[back],
        bucket_s=3600,
        received=np.where(hour[back] == 11, 0, 40),
        ingested=drained,
        lag_max_s=np.where(drained > 0, 10_900.0, 0.0),
        event_date=dates[back],
    )
    cut_off = [name for place, name in enumerate(names) if place % 10 == 3]
    began, until = (np.full(len(cut_off), start + hours * np.timedelta64(1, "h")) for hours in (8, 11))
    outages = _columns(
        "outages",
        len(cut_off),
        tenant="default",
        gateway=cut_off,
        began=began,
        until=until,
        drain_began=until,
        drained=until + np.timedelta64(100, "s"),
        messages=120,
        lag_max_s=10_900.0,
    )
    within = np.where(cut, 0, 40)
    hours = _columns(
        "delivery_slo",
        size,
        tenant="default",
        gateway=repeated,
        width_s=3600,
        window_start=at,
        messages=40,
        timed=40,
        within=within,
        p50_s=0.6,
        p95_s=np.where(cut, 9_000.0, 2.0),
        p99_s=np.where(cut, 10_000.0, 3.0),
        max_s=np.where(cut, 10_900.0, 4.0),
        revised_at=at,
        event_date=dates,
    )
    day = hour == 0
    ends = within.reshape(len(names), HOURS).sum(axis=1)
    days = _columns(
        "delivery_slo",
        len(names),
        tenant="default",
        gateway=names,
        width_s=86_400,
        window_start=at[day],
        messages=40 * HOURS,
        timed=40 * HOURS,
        within=ends,
        p50_s=0.6,
        p95_s=2.0,
        p99_s=3.0,
        max_s=4.0,
        revised_at=at[day],
        event_date=dates[day],
    )
    flows, slos = pa.concat_tables([live, late]), pa.concat_tables([hours, days])
    return {"throughput": flows, "outages": outages, "delivery_slo": slos}


def _of_devices(names: list[str]) -> dict[str, pa.Table]:
    size = len(names) * DEVICES
    gateways = np.repeat(np.array(names), DEVICES)
    number = np.arange(size)
    devices = [f"{gateway}-dev{each % DEVICES}" for each, gateway in enumerate(gateways)]
    health = _columns(
        "device_health",
        size,
        tenant="default",
        gateway=gateways,
        device=devices,
        first_at=START,
        last_at=START,
        messages=500,
        interval_s=10.0,
        silent_s=np.where(number % 97 == 5, 4_000.0, 3.0),
        missed=np.where(number % 97 == 5, 400, 0),
        battery=np.where(number % 89 == 3, 20.0, 80.0),
        battery_per_day=np.where(number % 89 == 3, -2.0, -0.1),
        boots=0,
    )
    series = range(min(SERIES, size))
    windows = [
        window(
            60 * hour,
            20.0 + hour % 5,
            24.0 + hour % 5,
            gateway=str(gateways[one]),
            device=devices[one],
            metric="temperature",
        )
        for one in series
        for hour in range(HOURS)
    ]
    unusual = [
        anomaly(60 * 9 + one, 61.5, gateway=str(gateways[one]), device=devices[one], metric="temperature")
        for one in series
    ]
    return {
        "device_health": health,
        "rollup_1m": pa.Table.from_pylist(windows, schema=arrow_schema("rollup_1m")),
        "anomalies": pa.Table.from_pylist(unusual, schema=arrow_schema("anomalies")),
    }


def main() -> None:
    """Write the tables of one fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--gateways", type=int, default=200)
    options = parser.parse_args()
    fleet(options.root, options.gateways)


if __name__ == "__main__":
    main()
