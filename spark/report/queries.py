"""What the report draws, read from the derived tables with delta-rs: no JVM, and no Spark import.

A table that is not there reads as no rows; the page says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark.provenance import State
from spark.report import snapshot

RAW_SPAN_SECONDS_MAX = 45 * 60
"""Up to this span single readings are drawn behind the one-minute rollups, which would be a handful of points."""
RAW_ROWS_MAX = 400_000
"""Readings looked at for that."""
RAW_POINTS = 150
"""Points a small plot shows; more readings are averaged into so many."""

Gateway = tuple[str, str]
"""Tenant and gateway."""


@dataclass(slots=True)
class Flow:
    """One gateway over time, in buckets of `width` seconds from `start`; every list has one value a bucket."""

    gateway: Gateway
    start: float
    width: float
    received: list[float]
    landed_live: list[float]
    landed_backlog: list[float]
    lag_max: list[float | None]
    reported: list[tuple[float, float]] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """Start of each bucket, seconds since 1970."""
        return [self.start + self.width * index for index in range(len(self.received))]

    @property
    def backlog(self) -> list[float]:
        """Rows received but not landed at the end of each bucket."""
        held, totals = 0.0, []
        for received, live, late in zip(self.received, self.landed_live, self.landed_backlog, strict=True):
            held += received - live - late
            totals.append(held)
        return totals


@dataclass(slots=True)
class Track:
    """One metric of one device: its rollup windows, and its readings when the lake is short."""

    gateway: Gateway
    device: str
    address: str
    metric: str
    width: float
    windows: list[tuple[float, float, float, float]]
    """Start, min, max, mean."""
    last: float
    readings: list[tuple[float, float]] = field(default_factory=list)


@dataclass(slots=True)
class LakeFigures:
    """Everything on the page.

    `landed`        messages in the lake at the version of `telemetry` that the page is of.
    `landed_since`  messages that came after it.
    `telemetry`     that version; None before the first job, or when the tables are `mixed`.
    `readings_at`   where readings and rejects stand when they are not of that version.
    `tracks_at`     where the rollups stand that the tracks are drawn from.
    """

    landed: int
    landed_since: int
    telemetry: State | None
    mixed: bool
    readings: int
    flows: list[Flow]
    freshness: list[dict[str, Any]]
    completeness: list[dict[str, Any]]
    gaps: list[dict[str, Any]]
    rejects: list[tuple[str, int]]
    tracks: list[Track]
    versions: dict[str, int]
    readings_at: snapshot.Standing | None = None
    tracks_at: snapshot.Standing | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last second there is anything to draw of; None without rows."""
        if not self.flows:
            return None
        ends = [flow.start + flow.width * len(flow.received) for flow in self.flows]
        return min(flow.start for flow in self.flows), max(ends)


def read(root: Path) -> LakeFigures:
    """Read the tables under `root`, all as they are at the start."""
    taken = snapshot.taken(root)
    tables = _Tables(taken)
    completeness = tables.rows("completeness")
    there = tables.count("telemetry")
    landed = total(completeness, "rows") if completeness else there
    figures = LakeFigures(
        landed=landed,
        landed_since=max(0, there - landed),
        telemetry=taken.telemetry,
        mixed=taken.mixed,
        readings=tables.count("readings"),
        flows=_flows(tables),
        freshness=tables.rows("gateway_freshness"),
        completeness=completeness,
        gaps=tables.rows("gaps"),
        rejects=_rejects(tables),
        tracks=[],
        versions={name: table.version() for name, table in taken.tables.items()},
        readings_at=taken.apart.get("readings"),
    )
    if taken.telemetry is not None:
        figures.versions["telemetry"] = taken.telemetry.version
    if figures.span is not None:
        name, width = _rollup(figures.span)
        figures.tracks = _tracks(tables, figures.span, name, width)
        figures.tracks_at = taken.apart.get(name)
    return figures


class _Tables:
    def __init__(self, taken: snapshot.Snapshot) -> None:
        self._tables = taken.tables

    def count(self, name: str) -> int:
        """Rows, from the statistics in the log."""
        table = self._tables.get(name)
        return int(table.count()) if table is not None else 0

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table | None:
        """A table's columns; None when it is not there."""
        table = self._tables.get(name)
        if table is None:
            return None
        return table.to_pyarrow_table(columns=list(columns) if columns is not None else None)

    def rows(self, name: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """A small table's rows."""
        table = self.read(name, columns)
        return table.to_pylist() if table is not None else []


def _flows(tables: _Tables) -> list[Flow]:
    rows = tables.rows("throughput")
    if not rows:
        return []
    width = float(rows[0]["bucket_s"])
    seconds = [row["bucket"].timestamp() for row in rows]
    start, buckets = min(seconds), round((max(seconds) - min(seconds)) / width) + 1
    flows: dict[Gateway, Flow] = {}
    for row, second in zip(rows, seconds, strict=True):
        gateway = (row["tenant"], row["gateway"])
        if gateway not in flows:
            received, live, late = ([0.0] * buckets for _ in range(3))
            flows[gateway] = Flow(gateway, start, width, received, live, late, [None] * buckets)
        flow, index = flows[gateway], round((second - start) / width)
        landed = flow.landed_backlog if row["lane"] == "backlog" else flow.landed_live
        flow.received[index] += row["received"]
        landed[index] += row["ingested"]
        if row["lag_max_s"] is not None:
            flow.lag_max[index] = max(row["lag_max_s"], flow.lag_max[index] or 0.0)
    _add_reported(tables, flows)
    return [flows[gateway] for gateway in sorted(flows)]


def _add_reported(tables: _Tables, flows: dict[Gateway, Flow]) -> None:
    for row in tables.rows("gateway_status", ("tenant", "gateway", "reported_at", "backlog_messages")):
        flow = flows.get((row["tenant"], row["gateway"]))
        if flow is None or row["backlog_messages"] is None:
            continue
        at = row["reported_at"].timestamp()
        # The status table goes on after the version of the messages that is drawn.
        if flow.start <= at <= flow.start + flow.width * len(flow.received):
            flow.reported.append((at, float(row["backlog_messages"])))
    for flow in flows.values():
        flow.reported.sort()


def _rejects(tables: _Tables) -> list[tuple[str, int]]:
    table = tables.read("reject", ("reason",))
    if table is None or not table.num_rows:
        return []
    counts = table["reason"].value_counts().to_pylist()
    return sorted(((each["values"], each["counts"]) for each in counts), key=lambda pair: -pair[1])


ENVELOPE = frozenset({"at", "boot", "seq", "sequence", "time", "timestamp", "ts"})
"""Last names of metrics that say which reading it is and not what was measured: in the tables, and not worth a plot."""


def _rollup(span: tuple[float, float]) -> tuple[str, float]:
    """The table of rollups that suits a span, and the seconds of its windows."""
    return ("rollup_1m", 60.0) if span[1] - span[0] <= 24 * 3600 else ("rollup_1h", 3600.0)


def _tracks(tables: _Tables, span: tuple[float, float], name: str, width: float) -> list[Track]:
    columns = ("tenant", "gateway", "device", "address", "metric", "window_start", "min", "max", "mean", "last")
    tracks: dict[tuple[str, ...], Track] = {}
    rows = tables.rows(name, (*columns, "count", "suspect"))
    for row in sorted(rows, key=lambda row: row["window_start"]):
        if row["suspect"] == row["count"]:
            continue  # a window that only a wrong clock filled would stretch the axis to 1970
        key = tuple(row[column] for column in columns[:5])
        if key[4].rpartition(".")[2] in ENVELOPE:
            continue
        if key not in tracks:
            tenant, gateway, device, address, metric = key
            tracks[key] = Track((tenant, gateway), device, address, metric, width, windows=[], last=0.0)
        track = tracks[key]
        track.windows.append((row["window_start"].timestamp(), row["min"], row["max"], row["mean"]))
        track.last = row["last"]
    if span[1] - span[0] <= RAW_SPAN_SECONDS_MAX and tables.count("readings") <= RAW_ROWS_MAX:
        _add_readings(tables, tracks, span)
    return [tracks[key] for key in sorted(tracks)]


def _add_readings(tables: _Tables, tracks: dict[tuple[str, ...], Track], span: tuple[float, float]) -> None:
    """Readings of each track, averaged into `RAW_POINTS` equal stretches of the span."""
    keys = ["tenant", "gateway", "device", "address", "metric"]
    table = tables.read("readings", (*keys, "event_time", "value", "suspect"))
    if table is None:
        return
    usable = table.filter(pc.and_(pc.is_valid(table["value"]), pc.invert(table["suspect"])))
    seconds = pc.divide(pc.cast(pc.cast(usable["event_time"], pa.timestamp("us")), pa.int64()), pa.scalar(1e6))
    width = (span[1] - span[0]) / RAW_POINTS
    slots = pc.cast(pc.floor(pc.divide(pc.subtract(seconds, span[0]), width)), pa.int64())
    small = usable.select([*keys, "value"]).append_column("second", seconds).append_column("slot", slots)
    grouped = small.group_by([*keys, "slot"]).aggregate([("second", "mean"), ("value", "mean")])
    for row in grouped.sort_by([("slot", "ascending")]).to_pylist():
        track = tracks.get(tuple(row[key] for key in keys))
        if track is not None:
            track.readings.append((row["second_mean"], row["value_mean"]))


def total(rows: Iterable[dict[str, Any]], column: str) -> int:
    """Sum of a column."""
    return sum(row[column] for row in rows)


def latest(rows: Iterable[dict[str, Any]], column: str) -> datetime | None:
    """The latest of a column of times; None without rows."""
    return max((row[column] for row in rows), default=None)
