"""Outages and drains, as the messages themselves tell of them: those of the backlog lane waited at their gateway.

An outage is a stretch in which a gateway held messages that later came over the backlog lane; its drain is the part of
it in which they came. Both are known to a bucket of table `throughput`, and of what has landed only: of messages that
still
wait there tell the gateways (`gateway_backlog`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from spark.report.tables import Gateway, Tables

Bucket = tuple[float, int, int, float]
"""Start in seconds since 1970, received, landed, longest delay in seconds of those that landed."""


class Outage(msgspec.Struct):
    """`began`, `until`: when the messages were received that waited, `drain_began`, `drained`: when they landed;
    seconds since
    1970, to a bucket of `width_s`. `messages` is how many, `lag_max_s` how long the slowest was under way."""

    gateway: Gateway
    began: float
    until: float
    drain_began: float
    drained: float
    messages: int
    lag_max_s: float
    width_s: float

    @property
    def drain_s(self) -> float:
        """How long the drain took."""
        return self.drained - self.drain_began


def read(tables: Tables) -> list[Outage]:
    """All of them, the longest delay first."""
    columns = ("tenant", "gateway", "bucket", "bucket_s", "received", "ingested", "lag_max_s")
    table = tables.read("throughput", columns, ("lane", "=", "backlog"))
    if not table.num_rows:
        return []
    ordered = table.sort_by([("tenant", "ascending"), ("gateway", "ascending"), ("bucket", "ascending")])
    width = float(ordered["bucket_s"][0].as_py())
    rows = zip(*(ordered[name].to_pylist() for name in columns), strict=True)
    found: list[Outage] = []
    for gateway, group in groupby(rows, key=lambda row: (row[0], row[1])):
        buckets = [(row[2].timestamp(), row[4], row[5], row[6] or 0.0) for row in group]
        found += outages(gateway, buckets, width)
    return sorted(found, key=lambda outage: -outage.lag_max_s)


def outages(gateway: Gateway, buckets: list[Bucket], width_s: float) -> Iterator[Outage]:
    """Those of one gateway, out of its buckets of the backlog lane in order of time."""
    stretch: list[Bucket] = []
    held = 0
    for bucket in buckets:
        if stretch and held <= 0 and bucket[0] > stretch[-1][0] + width_s:
            yield _outage(gateway, stretch, width_s)
            stretch, held = [], 0
        stretch.append(bucket)
        held += bucket[1] - bucket[2]
    if stretch:
        yield _outage(gateway, stretch, width_s)


def _outage(gateway: Gateway, stretch: list[Bucket], width_s: float) -> Outage:
    received = [at for at, count, _, _ in stretch if count] or [stretch[0][0]]
    landed = [at for at, _, count, _ in stretch if count] or [stretch[-1][0]]
    return Outage(
        gateway,
        began=received[0],
        until=received[-1] + width_s,
        drain_began=landed[0],
        drained=landed[-1] + width_s,
        messages=sum(count for _, count, _, _ in stretch),
        lag_max_s=max(lag for _, _, _, lag in stretch),
        width_s=width_s,
    )
