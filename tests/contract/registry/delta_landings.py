"""Landings in a lake of Delta tables."""

from __future__ import annotations

from pathlib import Path

from cloud.hub.groups import Presence
from cloud.hub.registry.registry import Registry
from cloud.lake.delta import DeltaLake
from cloud.lake.landing import Landing
from cloud.lake.sequences import SequenceStream
from tests.contract.registry.landings import batch
from tests.support.lake import rows


def landed(lake: Path, gateway: str) -> list[int]:
    """Return the sequences of a gateway in the lake."""
    return sorted(row["sequence"] for row in rows(lake, "telemetry") if row["gateway"] == gateway)


def land(registry: Registry, lake: Path, *batches: tuple[SequenceStream, int, int]) -> None:
    """Land batches, also those of gateways that are held until their marks are known."""
    delta = DeltaLake(lake)
    registry.commits.write_to(delta)
    registry.directory.presence({(s.tenant, s.gateway): Presence("-", True, 1, 1) for s, _, _ in batches})
    landing = Landing(delta, registry.commits)
    sent = [batch(*each) for each in batches]
    for _ in range(3):
        held = landing.land(sent, 1_000).held
        sent = [each for place, each in enumerate(sent) if place in held]
        if not sent:
            return
    raise AssertionError("gateways are held")
