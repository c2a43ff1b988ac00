"""Metrics of devices over time: their rollup windows, their readings if the lake is short, and their anomalies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark.detector import numbering
from spark.report import limits
from spark.report.tables import (
    Filter,
    Gateway,
    ReportTables,
    group,
    group_by_gateway,
    seconds,
    take_worst,
    unix_seconds,
)

Series = tuple[str, str, str, str, str]
"""Tenant, gateway, device, address, metric."""
_SERIES = ("tenant", "gateway", "device", "address", "metric")
_DAY_S = 86_400.0


class Anomaly(msgspec.Struct):
    """A value that is unusual for its series, with its rule and the expected value."""

    gateway: Gateway
    device: str
    address: str
    metric: str
    at: float
    value: float
    score: float
    rule: str | None
    expected: float | None

    @property
    def off_by(self) -> float | None:
        """Return the difference from the expected value."""
        return self.value - self.expected if self.expected is not None else None

    @property
    def series(self) -> Series:
        """Return the series of the value."""
        return (*self.gateway, self.device, self.address, self.metric)


class Anomalies(msgspec.Struct):
    """`newest`: as many as a table holds; `hours`: their number by the hour's start in seconds since 1970."""

    count: int
    rules: list[tuple[str, int]]
    newest: list[Anomaly]
    by_gateway: dict[Gateway, dict[str, Any]]
    hours: list[tuple[float, int]] = []


class Track(msgspec.Struct):
    """One metric of one device.

    A window is start, min, max and mean; `last` is the last value. `unit`: the unit of its windows, if they share one.
    """

    gateway: Gateway
    device: str
    address: str
    metric: str
    width: float
    windows: list[tuple[float, float, float, float]]
    last: float
    readings: list[tuple[float, float]] = []
    anomalies: list[Anomaly] = []
    unit: str | None = None

    @property
    def series(self) -> Series:
        """Return the series of the values."""
        return (*self.gateway, self.device, self.address, self.metric)


def read_anomalies(tables: ReportTables) -> Anomalies:
    """Return the anomalies of the fleet, or of one gateway."""
    columns = (*_SERIES, "event_time", "value", "score", "rule", "expected")
    order = ("event_time", "descending"), ("score", "descending")
    newest = take_worst(tables.parts("anomalies", columns), limits.ROWS_MAX, *order)
    rules = group(tables.parts("anomalies", ("rule", "score")), ("rule",), ("score", "count"))
    starts = (pa.table({"hour": _hours(part)}) for part in tables.parts("anomalies", ("event_time",)))
    return Anomalies(
        newest.total,
        sorted(((row["rule"] or "more than one", row["score_count"]) for row in rules), key=lambda pair: -pair[1]),
        [_anomaly(row) for row in newest.rows],
        group_by_gateway(tables.parts("anomalies", ("tenant", "gateway", "value")), ("value", "count")),
        sorted((row["hour"].timestamp(), row["hour_count"]) for row in group(starts, ("hour",), ("hour", "count"))),
    )


def _hours(part: pa.Table) -> pa.ChunkedArray:
    return pc.floor_temporal(pc.cast(part["event_time"], pa.timestamp("us", "UTC")), unit="hour")


def _anomaly(row: Mapping[str, Any]) -> Anomaly:
    return Anomaly(
        (row["tenant"], row["gateway"]), row["device"], row["address"], row["metric"], row["event_time"].timestamp(),
        row["value"], row["score"], row["rule"], row["expected"],
    )  # fmt: skip


def choose_rollup(span: tuple[float, float]) -> tuple[str, float]:
    """Return the table of rollups that suits a period, and the seconds of its windows."""
    return ("rollup_1m", 60.0) if span[1] - span[0] <= _DAY_S else ("rollup_1h", 3600.0)


class TracksDrawn(NamedTuple):
    """The metrics to draw, those with anomalies first, and their number; 0 if it is not known.

    `since`: start of the first window that was read, in seconds since 1970; None: all were read.
    """

    tracks: list[Track]
    total: int
    since: float | None = None


def read(tables: ReportTables, span: tuple[float, float], found: Sequence[Anomaly]) -> TracksDrawn:
    """Return the metrics of the fleet, or of one gateway."""
    name, width = choose_rollup(span)
    where: list[Filter] = []
    small = tables.rows_in_all(name) <= limits.WINDOWS_MAX
    if not small and tables.only is None:
        if not found:
            return TracksDrawn([], 0)
        chosen = list(dict.fromkeys(anomaly.series for anomaly in found))[: limits.TRACKS_MAX]
        where = [
            ("gateway", "in", sorted({each[1] for each in chosen})),
            ("device", "in", sorted({each[2] for each in chosen})),
        ]
    figures = ("window_start", "min", "max", "mean", "last", "count", "suspect")
    columns = (*_SERIES, *figures, *tables.existing_columns(name, "unit"))
    table = tables.read(name, columns, *where) if small or where else _read_newest(tables, name, columns)
    left_out = not small and not where and len(table) >= limits.WINDOWS_MAX
    since = seconds(pc.min(table["window_start"]).as_py()) if left_out else None
    tracks = _windows(table, width, found)
    drawn = [tracks[key] for key in _order_series(tracks, found)[: limits.TRACKS_MAX]]
    if span[1] - span[0] <= limits.RAW_SPAN_S_MAX and tables.rows_in_all("readings") <= limits.RAW_ROWS_MAX:
        _add_readings(tables, drawn, span)
    _add_anomalies(drawn, found)
    return TracksDrawn(drawn, len(tracks) if not where else 0, since)


def _read_newest(tables: ReportTables, name: str, columns: Sequence[str]) -> pa.Table:
    """Return windows of one gateway, of the newest days up to about `WINDOWS_MAX`, from at least one file."""
    parts, count = [], 0
    for part in tables.newest(name, columns, tables.rows_in_all(name)):
        parts.append(part)
        count += len(part)
        if count >= limits.WINDOWS_MAX:
            break
    return pa.concat_tables(parts)


def _order_series(tracks: Iterable[Series], found: Sequence[Anomaly]) -> list[Series]:
    marked = {anomaly.series for anomaly in found}
    ordered = sorted(tracks, key=lambda series: (series not in marked, series))
    return sorted(ordered[: limits.TRACKS_MAX])


def _windows(table: pa.Table, width: float, found: Sequence[Anomaly]) -> dict[Series, Track]:
    """Return all series of a table by name; those that are drawn have their windows."""
    if not table.num_rows:
        return {}
    # A window that only a wrong clock filled would stretch the axis to 1970.
    table = table.filter(pc.not_equal(table["suspect"], table["count"]))
    if "unit" not in table.column_names:
        table = table.append_column("unit", pa.nulls(len(table), pa.string()))
    found_names = table.group_by(list(_SERIES)).aggregate([])
    names: list[Series] = list(zip(*(found_names[name].to_pylist() for name in _SERIES), strict=True))
    marked = {anomaly.series for anomaly in found}
    # A sequence number needs no chart and stays in the tables, unless it has anomalies.
    worth = [series for series in names if series in marked or not numbering.is_numbering_name(series[4])]
    tracks = {series: _track(series, width) for series in worth}
    drawn = set(_order_series(worth, found))
    columns = ("window_start", "min", "max", "mean", "last", "unit")
    units: dict[Series, set[str]] = {series: set() for series in drawn}
    if len(worth) > len(drawn):
        devices = pa.array(sorted({series[2] for series in drawn}))
        table = table.filter(pc.is_in(table["device"], devices))
    table = table.sort_by("window_start")
    for row in zip(*(table[name].to_pylist() for name in (*_SERIES, *columns)), strict=True):
        if row[:5] in drawn:
            track = tracks[row[:5]]
            track.windows.append((row[5].timestamp(), row[6], row[7], row[8]))
            track.last = row[9]
            units[row[:5]].update(filter(None, (row[10],)))
    for series in drawn:
        tracks[series].windows = tracks[series].windows[-limits.WINDOWS_DRAWN :]
        tracks[series].unit = units[series].pop() if len(units[series]) == 1 else None
    return tracks


def _track(series: Series, width: float) -> Track:
    tenant, gateway, device, address, metric = series
    return Track((tenant, gateway), device, address, metric, width, windows=[], last=0.0)


def _add_readings(tables: ReportTables, drawn: Sequence[Track], span: tuple[float, float]) -> None:
    """Add the readings of each metric, averaged into `RAW_POINTS` equal parts of the period."""
    table = tables.read("readings", (*_SERIES, "event_time", "value", "suspect"))
    if not table.num_rows:
        return
    usable = table.filter(pc.and_(pc.is_valid(table["value"]), pc.invert(table["suspect"])))
    at = unix_seconds(usable["event_time"])
    width = (span[1] - span[0]) / limits.RAW_POINTS
    slots = ((at - span[0]) // width).astype("int64")
    small = (
        usable.select([*_SERIES, "value"]).append_column("second", pa.array(at)).append_column("slot", pa.array(slots))
    )
    grouped = small.group_by([*_SERIES, "slot"]).aggregate([("second", "mean"), ("value", "mean")])
    by_name = {track.series: track for track in drawn}
    for row in grouped.sort_by("slot").to_pylist():
        track = by_name.get(tuple(row[name] for name in _SERIES))
        if track is not None:
            track.readings.append((row["second_mean"], row["value_mean"]))


def _add_anomalies(drawn: Sequence[Track], found: Sequence[Anomaly]) -> None:
    by_name = {track.series: track for track in drawn}
    for anomaly in found:
        track = by_name.get(anomaly.series)
        if track is not None:
            track.anomalies.append(anomaly)
