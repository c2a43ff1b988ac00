"""Synthetic lakes, written as the hub does: delta-rs commits with a second or two of traffic each.

`python -m tests.spark.lakes DIR [--gateways 2 --devices 4 --seconds 150 --hertz 2 --outage gw1:40:60]` writes one for
inspection. Everything is a pure function of the arguments.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from cloud.place.place import LakeLocation, place_of
from spark import schemas

START = datetime(2026, 3, 14, 9, 26, 0, tzinfo=UTC)
LANDING_SECONDS = 2.0
DRAIN_ROWS_PER_S = 120.0

Row = dict[str, Any]


def write(root: LakeLocation, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append `rows` to landed table `name` in one commit; missing columns are null."""
    table = schemas.LANDED[name]
    columns = table.arrow
    names = table.columns.names
    data = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema=columns)
    place, partitions = place_of(root).at(name), list(table.partition_by)
    deltalake.write_deltalake(
        place.uri, data, mode="append", partition_by=partitions, storage_options=place.storage_options
    )


def message(sequence: int = 0, **override: Any) -> Row:
    """Build a telemetry row; fields without an override are plausible."""
    at = override.pop("at", START + timedelta(seconds=sequence))
    row = {
        "tenant": "default",
        "gateway": "gw1",
        "epoch": "e1",
        "address": "load/cpu",
        "sequence": sequence,
        "device": "dev1",
        "event_time": at,
        "received_at": at,
        "ingested_at": at + timedelta(seconds=1),
        "clock_quality": "good",
        "lane": "live",
        "content_type": None,
        "properties": None,
        "body": b"1.0",
    }
    row |= override
    row["ingest_date"] = row["ingested_at"].date()
    return row


def ledger(first: int, last: int, **override: Any) -> Row:
    """Build a ledger row of dropped sequences `first`..`last`."""
    row = {
        "tenant": "default",
        "gateway": "gw1",
        "epoch": "e1",
        "address": "load/cpu",
        "first_sequence": first,
        "last_sequence": last,
        "bytes": 10 * (last - first + 1),
        "reason": "expired",
        "decided_at": START,
        "ingested_at": START,
        "ingest_date": START.date(),
    }
    return row | override


def clock_offset(first: int | None = None, last: int | None = None, **override: Any) -> Row:
    """Build a gateway's report about a stretch of its clock, or about sequences `first`..`last` stamped in it."""
    row = {
        "tenant": "default",
        "gateway": "gw1",
        "boot": "b1",
        "stretch": 1,
        "began": START,
        "known": "not yet",
        "offset_low_us": None,
        "offset_high_us": None,
        "reason": None,
        "whole": False,
        "epoch": None if first is None else "e1",
        "address": None if first is None else "load/cpu",
        "first_sequence": first,
        "last_sequence": last,
        "told_at": START,
        "heard_at": START,
        "ingested_at": START,
        "ingest_date": START.date(),
    }
    return row | override


def manifest(first: int, last: int, **override: Any) -> Row:
    """Build a manifest row: sequences `first`..`last` accepted."""
    row = {
        "tenant": "default",
        "gateway": "gw1",
        "epoch": "e1",
        "address": "load/cpu",
        "hour": START,
        "first_sequence": first,
        "last_sequence": last,
        "count": last - first + 1,
        "digest": "-",
        "signature": None,
        "ingested_at": START,
        "ingest_date": START.date(),
        "until": START,
        "given_up": "{}",
        "clock_quality": "good",
        "store_epoch": "e1",
        "closing": 1,
        "statements": 1,
        "previous": "",
        "public_key": None,
    }
    return row | override


def status(at: datetime, backlog: int | None, **override: Any) -> Row:
    """Build a status row of a gateway that landed at once."""
    row: Row = {"tenant": "default", "gateway": "gw1", "epoch": "e1", "reported_at": at, "state": "running"}
    row |= {"backlog_messages": backlog, "clock_quality": "good", "ingested_at": at, "ingest_date": at.date()}
    return row | override


@dataclass(frozen=True, slots=True)
class Plan:
    """Traffic of a synthetic fleet. `outages`: gateway -> (from, until) in seconds, while its uplink is cut."""

    gateways: int = 2
    devices: int = 4
    seconds: int = 150
    hertz: float = 2.0
    outages: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def fleet(root: LakeLocation, plan: Plan) -> int:
    """Write the lake of `plan`; return the number of telemetry rows."""
    rows: list[Row] = []
    status: list[Row] = []
    for number in range(1, plan.gateways + 1):
        name = f"gw{number}"
        received = sorted(_received(name, plan), key=lambda row: row["received_at"])
        _number(received)
        _land(received, plan.outages.get(name))
        rows += received
        status += _status(name, received, plan)
    rows.sort(key=lambda row: row["ingested_at"])
    for _, commit in groupby(rows, key=lambda row: int(row["ingested_at"].timestamp() / LANDING_SECONDS)):
        write(root, "telemetry", commit)
    write(root, "gateway_status", status)
    return len(rows)


def _received(gateway: str, plan: Plan) -> Iterable[Row]:
    for number in range(plan.devices):
        kind = ("cpu", "env", "disk", "net")[number % 4]
        device = f"{gateway}-{kind}{number // 4 + 1}"
        for step in range(int(plan.seconds * plan.hertz)):
            second = step / plan.hertz + number * 0.013
            at = START + timedelta(seconds=second)
            yield message(
                gateway=gateway,
                epoch=f"{gateway}-e1",
                address=f"load/{kind}",
                device=device,
                at=at,
                event_time=at - timedelta(milliseconds=4),
                body=_body(kind, second, number),
            )


def _body(kind: str, second: float, phase: int) -> bytes:
    wave = math.sin(second / 9 + phase)
    noise = math.sin(second * 12.9898 + phase * 78.233) * 43758.5453 % 1
    match kind:
        case "cpu":
            return json.dumps({"load": round(35 + 25 * wave + 8 * noise, 2), "idle": round(60 - 20 * wave, 2)}).encode()
        case "env":
            values = {
                "temperature": round(21 + 1.5 * wave + 0.2 * noise, 3),
                "air": {"humidity": round(45 + 5 * noise, 1)},
            }
            return json.dumps(values).encode()
        case "disk":
            return b"%.1f" % (512 + second * 3 + 40 * noise)
        case _:
            return json.dumps({"rx": round(1e6 * (1.2 + wave) + 2e5 * noise), "tx": round(4e5 * (1.1 - wave))}).encode()


def _number(rows: list[Row]) -> None:
    counters: dict[str, int] = {}
    for row in rows:
        row["sequence"] = counters.get(row["address"], 0)
        counters[row["address"]] = row["sequence"] + 1


def _land(rows: list[Row], outage: tuple[float, float] | None) -> None:
    drained = START + timedelta(seconds=outage[1] + 1.5) if outage else START
    for row in rows:
        at = row["received_at"]
        second = (at - START).total_seconds()
        landed = at + timedelta(seconds=0.4 + 1.2 * (second * 0.37 % 1))
        if outage and outage[0] <= second < outage[1]:
            drained += timedelta(seconds=1 / DRAIN_ROWS_PER_S)
            landed = drained
            row["lane"] = "backlog"
        row["ingested_at"] = landed
        row["ingest_date"] = landed.date()


def _status(gateway: str, rows: list[Row], plan: Plan) -> Iterable[Row]:
    for second in range(0, plan.seconds + 10, 5):
        at = START + timedelta(seconds=second)
        held = sum(row["received_at"] <= at < row["ingested_at"] for row in rows)
        yield {
            "tenant": "default",
            "gateway": gateway,
            "epoch": f"{gateway}-e1",
            "reported_at": at,
            "state": "running",
            "backlog_messages": held,
            "clock_quality": "good",
            "ingested_at": at,
            "ingest_date": at.date(),
        }


def main() -> None:
    """Write one lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    for name, default in (("gateways", 2), ("devices", 4), ("seconds", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hertz", type=float, default=2.0)
    parser.add_argument("--outage", action="append", default=[], metavar="GATEWAY:FROM:UNTIL")
    options = parser.parse_args()
    outages = {name: (float(a), float(b)) for name, a, b in (text.split(":") for text in options.outage)}
    plan = Plan(options.gateways, options.devices, options.seconds, options.hertz, outages)
    print(fleet(options.root, plan), "rows")


if __name__ == "__main__":
    main()
