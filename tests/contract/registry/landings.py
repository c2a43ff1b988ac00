"""Commits of ranges to the registry."""

from __future__ import annotations

from typing import Any

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.registry.registry import Registry
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.support.memory_lake import MemoryLake


def land(registry: Registry, *ranges: SequenceRange, table: str = "telemetry", version: int = 1) -> None:
    registry.commits.confirm(registry.commits.prepare(table, ranges, 1), version)


TEMPERATURE = SequenceStream("default", "gw1", "e" * 32, "plant/1/temp")


PUMP = SequenceStream("default", "gw2", "f" * 32, "pump")


def batch(stream: SequenceStream, first: int, last: int) -> ReceivedBatch:
    run = Run(stream.address, "d", 0, b"", [b"x"] * (last - first + 1), 1_000)
    return ReceivedBatch(
        stream.tenant, stream.gateway, decode(encode([Stored(-1, first, run)], space="s", epoch=stream.epoch))
    )


def sequences(lake: MemoryLake, stream: SequenceStream) -> list[int]:
    rows: list[dict[str, Any]] = [row for part in lake.appended["telemetry"] for row in part.to_pylist()]
    return sorted(
        row["sequence"] for row in rows if (row["gateway"], row["address"]) == (stream.gateway, stream.address)
    )
