"""Health of devices: the devices that need a look, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.report import limits
from spark.report.tables import Gateway, ReportTables, gateway_codes, group_by_gateway, seconds

_COLUMNS = (
    "tenant",
    "gateway",
    "device",
    "last_at",
    "messages",
    "suspect",
    "interval_s",
    "silent_s",
    "missed",
    "battery_metric",
    "battery",
    "battery_per_day",
    "boots",
    "last_boot_at",
    "clock_ahead_s",
    "rssi",
)
SIGNS = ("silent", "battery", "reboots", "clock")
"""Possible signs of a device, worst first."""


class DeviceHealth(msgspec.Struct):
    """Health of all devices.

    `signs` counts devices by sign; `worst` has rows of `device_health` with their signs, most signs first; `by_gateway`
    has for each gateway the number of devices and of those with a sign.
    """

    devices: int
    signs: dict[str, int]
    worst: list[dict[str, Any]]
    by_gateway: dict[Gateway, dict[str, Any]]

    @property
    def need_a_look(self) -> int:
        """Return the number of devices with a sign."""
        return sum(row["ill_sum"] for row in self.by_gateway.values())


def read(tables: ReportTables, silences: Mapping[Gateway, float], everyone: bool = False) -> DeviceHealth:
    """Return the health of the devices of the fleet, or of one gateway.

    `everyone`: include healthy devices, as far as a table holds them. `silences`: seconds since the last data of each
    gateway.
    """
    table = tables.read("device_health", _COLUMNS)
    if not table.num_rows:
        return DeviceHealth(0, dict.fromkeys(SIGNS, 0), [], {})
    table = _extend_silence(table, silences)
    signs = _signs(table)
    for name, column in signs.items():
        table = table.append_column(f"sign_{name}", column)
    many = pa.chunked_array([sum((pc.cast(column, pa.int64()).to_numpy() for column in signs.values()), start=0)])
    table = table.append_column("signs", many).append_column("ill", pc.cast(pc.greater(many, 0), pa.int64()))
    ill = table if everyone else table.filter(pc.greater(table["signs"], 0))
    order = [("signs", "descending"), ("missed", "descending"), ("device", "ascending")]
    shown = ill.take(pc.sort_indices(ill, sort_keys=order)[: limits.ROWS_MAX]).to_pylist()
    return DeviceHealth(
        devices=table.num_rows,
        signs={name: int(pc.sum(column).as_py() or 0) for name, column in signs.items()},
        worst=[_row(row) for row in shown],
        by_gateway=group_by_gateway([table], ("device", "count"), ("ill", "sum")),
    )


def _extend_silence(table: pa.Table, silences: Mapping[Gateway, float]) -> pa.Table:
    """Count the silence of each device up to now: until the last data of its gateway, plus the gateway's silence."""
    codes, gateways = gateway_codes(table)
    of_gateway = np.array([silences.get(gateway, 0.0) for gateway in gateways])[codes]
    silent = pc.add(pc.fill_null(pc.cast(table["silent_s"], pa.float64()), 0.0), pa.array(of_gateway))
    return table.set_column(table.schema.get_field_index("silent_s"), "silent_s", silent)


def _signs(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return for each device and sign whether the device has it."""

    def over(column: str, limit: float) -> pa.ChunkedArray:
        return pc.fill_null(pc.greater(table[column], limit), False)

    left = pc.divide(pc.cast(table["battery"], pa.float64()), pc.negate(table["battery_per_day"]))
    falls = pc.fill_null(pc.less(table["battery_per_day"], 0.0), False)
    # A pass of minutes does not make devices silent that send each second.
    usual = pc.multiply(pc.fill_null(table["interval_s"], limits.INTERVAL_UNKNOWN_S), float(limits.MISSED_MAX))
    silent = pc.and_(pc.greater(table["silent_s"], usual), over("silent_s", limits.SILENT_S))
    return {
        "silent": pc.or_(over("missed", limits.MISSED_MAX), silent),
        "battery": pc.and_(falls, pc.fill_null(pc.less(left, limits.BATTERY_DAYS), False)),
        "reboots": over("boots", limits.BOOTS_MAX),
        "clock": pc.or_(over("clock_ahead_s", limits.CLOCK_AHEAD_S), over("suspect", 0)),
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    slope = row["battery_per_day"]
    left = row["battery"] / -slope if row["battery"] is not None and slope is not None and slope < 0 else None
    computed = {"last_at": seconds(row["last_at"]), "last_boot_at": seconds(row["last_boot_at"]), "battery_days": left}
    signs = [name for name in SIGNS if row[f"sign_{name}"]]
    return {name: row[name] for name in _COLUMNS} | computed | {"signs": signs}
