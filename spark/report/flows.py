"""Received and landed messages over time, of the whole fleet and of the gateways with the largest backlogs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.report import limits
from spark.report.tables import Gateway, ReportTables, gateway_codes, unix_seconds

_COLUMNS = ("tenant", "gateway", "lane", "bucket", "received", "ingested", "lag_max_s")
Array = Any
"""A numpy array."""


class MessageFlow(msgspec.Struct):
    """One gateway over time, or the fleet if `gateway` is None.

    Buckets are of `width` seconds from `start`. Each list has one value per bucket; `reported` has moments of its own.
    """

    gateway: Gateway | None
    start: float
    width: float
    received: list[float]
    landed_live: list[float]
    landed_backlog: list[float]
    lag_max: list[float | None]
    reported: list[tuple[float, float]] = []

    @property
    def times(self) -> list[float]:
        """Return the start of each bucket in seconds since 1970."""
        return [self.start + self.width * index for index in range(len(self.received))]

    @property
    def end(self) -> float:
        """Return the end of the last bucket."""
        return self.start + self.width * len(self.received)

    @property
    def backlog(self) -> list[float]:
        """Return received rows that had not landed at the end of each bucket."""
        held, totals = 0.0, []
        for received, live, late in zip(self.received, self.landed_live, self.landed_backlog, strict=True):
            held += received - live - late
            totals.append(held)
        return totals


class _Scale(msgspec.Struct):
    """Buckets of the table, and its gateways by number."""

    start: float
    width: float
    length: int
    gateways: dict[Gateway, int]

    def place(self, part: pa.Table) -> Array:
        """Return the number of each row's bucket."""
        return np.rint((unix_seconds(part["bucket"]) - self.start) / self.width).astype(np.int64)

    def number(self, part: pa.Table) -> Array:
        """Return the number of each row's gateway."""
        codes, found = gateway_codes(part)
        return np.array([self.gateways[gateway] for gateway in found])[codes]


def read(tables: ReportTables) -> tuple[list[MessageFlow], int]:
    """Return the flows to draw and the number of gateways.

    These are all gateways if there are few, else the fleet and the gateways with the largest backlogs.
    """
    scale = _scale(tables)
    if scale is None:
        return [], 0
    if len(scale.gateways) <= limits.FLOWS_MAX:
        flows = _of_gateways(tables, scale, scale.gateways)
    else:
        whole, most = _fleet(tables, scale)
        flows = [whole, *_of_gateways(tables, scale, most)]
    _add_reported(tables, flows)
    return sorted(flows, key=lambda flow: flow.gateway or ("", "")), len(scale.gateways)


def _scale(tables: ReportTables) -> _Scale | None:
    """Return the scale of the table; None if it has no rows."""
    first, last, width = np.inf, -np.inf, 0.0
    found: dict[Gateway, int] = {}
    for part in tables.parts("throughput", ("tenant", "gateway", "bucket", "bucket_s")):
        at = unix_seconds(part["bucket"])
        first, last, width = min(first, at.min()), max(last, at.max()), float(part["bucket_s"][0].as_py())
        for gateway in gateway_codes(part)[1]:
            found.setdefault(gateway, len(found))
    return _Scale(float(first), width, round((last - first) / width) + 1, found) if found else None


class _Sums:
    """Adds rows up to one flow."""

    def __init__(self, scale: _Scale) -> None:
        self._scale = scale
        self._received, self._live, self._late = np.zeros((3, scale.length))
        self._lag = np.full(scale.length, -1.0)

    def add(self, part: pa.Table) -> None:
        place = self._scale.place(part)
        landed, late = _numbers(part, "ingested"), pc.equal(part["lane"], "backlog").to_numpy()
        np.add.at(self._received, place, _numbers(part, "received"))
        np.add.at(self._live, place, np.where(late, 0.0, landed))
        np.add.at(self._late, place, np.where(late, landed, 0.0))
        np.maximum.at(self._lag, place, pc.fill_null(part["lag_max_s"], -1.0).to_numpy())

    def flow(self, gateway: Gateway | None) -> MessageFlow:
        return MessageFlow(
            gateway,
            self._scale.start,
            self._scale.width,
            received=self._received.tolist(),
            landed_live=self._live.tolist(),
            landed_backlog=self._late.tolist(),
            lag_max=[None if value < 0 else value for value in self._lag.tolist()],
        )


class _HeldMessages:
    """Backlog of each gateway over time, in periods long enough to stay below `HELD_CELLS_MAX` cells."""

    def __init__(self, scale: _Scale) -> None:
        self._scale = scale
        self._each = -(-len(scale.gateways) * scale.length // limits.HELD_CELLS_MAX)
        self._net = np.zeros((len(scale.gateways), -(-scale.length // self._each)), dtype=np.float32)

    def add(self, part: pa.Table) -> None:
        net = _numbers(part, "received") - _numbers(part, "ingested")
        np.add.at(self._net, (self._scale.number(part), self._scale.place(part) // self._each), net)

    def most(self) -> list[int]:
        """Return the numbers of the gateways with the largest backlog at one time, largest first."""
        peaks = np.array([row.cumsum(dtype=np.float64).max() for row in self._net])
        found: list[int] = np.argsort(-peaks, kind="stable")[: limits.FLOWS_MAX - 1].tolist()
        return found


def _fleet(tables: ReportTables, scale: _Scale) -> tuple[MessageFlow, list[Gateway]]:
    """Return the flow of all gateways and those of the gateways with the largest backlogs."""
    whole, held = _Sums(scale), _HeldMessages(scale)
    for part in tables.parts("throughput", _COLUMNS):
        whole.add(part)
        held.add(part)
    names = list(scale.gateways)
    return whole.flow(None), [names[number] for number in held.most()]


def _of_gateways(tables: ReportTables, scale: _Scale, chosen: Collection[Gateway]) -> list[MessageFlow]:
    sums = {gateway: _Sums(scale) for gateway in chosen}
    tenants, names = ({gateway[part] for gateway in chosen} for part in (0, 1))
    table = tables.read("throughput", _COLUMNS, ("tenant", "in", tenants), ("gateway", "in", names))
    codes, found = gateway_codes(table)
    for number, gateway in enumerate(found):
        if gateway in sums:
            sums[gateway].add(table.filter(pa.array(codes == number)))
    return [each.flow(gateway) for gateway, each in sums.items()]


def _numbers(part: pa.Table, column: str) -> Array:
    return part[column].to_numpy().astype(np.float64)


def _add_reported(tables: ReportTables, flows: Sequence[MessageFlow]) -> None:
    """Add the backlog that gateways reported, the last report of each bucket.

    The status table may be newer than the version of the messages that is drawn.
    """
    drawn = {flow.gateway: flow for flow in flows if flow.gateway is not None}
    if not drawn:
        return
    reports: dict[Gateway, dict[int, tuple[float, float]]] = {gateway: {} for gateway in drawn}
    columns = ("tenant", "gateway", "reported_at", "backlog_messages")
    for part in tables.parts("gateway_status", columns, ("gateway", "in", {name for _, name in drawn})):
        codes, found = gateway_codes(part)
        for number, gateway in enumerate(found):
            if gateway in drawn:
                _keep_last(reports[gateway], part.filter(pa.array(codes == number)), drawn[gateway])
    for gateway, flow in drawn.items():
        flow.reported = sorted(reports[gateway].values())


def _keep_last(reports: dict[int, tuple[float, float]], part: pa.Table, flow: MessageFlow) -> None:
    """Store the last report of a gateway in each bucket."""
    part = part.filter(pc.is_valid(part["backlog_messages"])).sort_by("reported_at")
    at, held = unix_seconds(part["reported_at"]), _numbers(part, "backlog_messages")
    drawn = (at >= flow.start) & (at <= flow.end)
    at, held = at[drawn], held[drawn]
    place = ((at - flow.start) // flow.width).astype(np.int64)
    last = np.flatnonzero(np.diff(place, append=-1))
    for number, each in zip(
        place[last].tolist(), zip(at[last].tolist(), held[last].tolist(), strict=True), strict=True
    ):
        reports[number] = max(each, reports.get(number, each))
