"""What gateways received and what of it landed, over time: of the whole fleet, and of the gateways that held most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.report import limits
from spark.report.tables import Gateway, Tables, keys, unix_seconds

_COLUMNS = ("tenant", "gateway", "lane", "bucket", "bucket_s", "received", "ingested", "lag_max_s")
Array = Any
"""Of numpy."""


class Flow(msgspec.Struct):
    """One gateway over time, or the fleet (`gateway` None), in buckets of `width` seconds from `start`; every list has
    one value a bucket, `reported` moments of its own."""

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
        """Start of each bucket, seconds since 1970."""
        return [self.start + self.width * index for index in range(len(self.received))]

    @property
    def end(self) -> float:
        """End of the last bucket."""
        return self.start + self.width * len(self.received)

    @property
    def backlog(self) -> list[float]:
        """Rows received but not landed at the end of each bucket."""
        held, totals = 0.0, []
        for received, live, late in zip(self.received, self.landed_live, self.landed_backlog, strict=True):
            held += received - live - late
            totals.append(held)
        return totals


def read(tables: Tables) -> tuple[list[Flow], int]:
    """The flows to draw, and how many gateways there are. Those of few gateways, or the fleet and those that held
    most."""
    table = tables.read("throughput", _COLUMNS)
    if not table.num_rows:
        return [], 0
    buckets = _Buckets(table)
    if len(buckets.gateways) <= limits.FLOWS_MAX:
        flows = [buckets.flow(number) for number in range(len(buckets.gateways))]
    else:
        most = np.argsort(-buckets.held_most(), kind="stable")[: limits.FLOWS_MAX - 1]
        flows = [buckets.flow(None), *(buckets.flow(int(number)) for number in most)]
    _add_reported(tables, flows)
    return sorted(flows, key=lambda flow: flow.gateway or ("", "")), len(buckets.gateways)


class _Buckets:
    def __init__(self, table: pa.Table) -> None:
        self.width = float(table["bucket_s"][0].as_py())
        at = unix_seconds(table["bucket"])
        self.start = float(at.min())
        self._place = np.rint((at - self.start) / self.width).astype(np.int64)
        self._length = int(self._place.max()) + 1
        self._codes, self.gateways = keys(table)
        self._received, self._landed = (table[name].to_numpy().astype(np.float64) for name in ("received", "ingested"))
        self._late = pc.equal(table["lane"], "backlog").to_numpy()
        self._lag = pc.fill_null(table["lag_max_s"], -1.0).to_numpy()

    def held_most(self) -> Array:
        """The most messages each gateway held at once."""
        cells = self._codes.astype(np.int64) * self._length + self._place
        size = len(self.gateways) * self._length
        net = np.bincount(cells, weights=self._received - self._landed, minlength=size)
        return net.reshape(len(self.gateways), self._length).cumsum(axis=1).max(axis=1)

    def flow(self, number: int | None) -> Flow:
        """Of the gateway with this number; None: of all."""
        chosen = np.ones(len(self._codes), dtype=bool) if number is None else self._codes == number
        place, late = self._place[chosen], self._late[chosen]

        def summed(weights: Array) -> list[float]:
            counts: list[float] = np.bincount(place, weights=weights, minlength=self._length).tolist()
            return counts

        landed = self._landed[chosen]
        lag = np.full(self._length, -1.0)
        np.maximum.at(lag, place, self._lag[chosen])
        return Flow(
            None if number is None else self.gateways[number],
            self.start,
            self.width,
            received=summed(self._received[chosen]),
            landed_live=summed(np.where(late, 0.0, landed)),
            landed_backlog=summed(np.where(late, landed, 0.0)),
            lag_max=[None if value < 0 else value for value in lag.tolist()],
        )


def _add_reported(tables: Tables, flows: Sequence[Flow]) -> None:
    """What the gateways said of their backlogs. The status table goes on after the version of the messages drawn."""
    drawn = {flow.gateway: flow for flow in flows if flow.gateway is not None}
    names = sorted({gateway for _, gateway in drawn})
    columns = ("tenant", "gateway", "reported_at", "backlog_messages")
    for row in tables.rows("gateway_status", columns, ("gateway", "in", names)) if names else ():
        flow = drawn.get((row["tenant"], row["gateway"]))
        if flow is None or row["backlog_messages"] is None:
            continue
        at = row["reported_at"].timestamp()
        if flow.start <= at <= flow.end:
            flow.reported.append((at, float(row["backlog_messages"])))
    for flow in flows:
        flow.reported.sort()
