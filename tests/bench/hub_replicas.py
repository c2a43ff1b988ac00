"""Cost of a reading at one, two and three hubs of one registry and one lake.

The hubs are the real program, with PostgreSQL and an object store in memory. Each has the same number of gateways. A
hub commits to the log that the others commit to, and reads their entries in between, so the cost of a reading could
grow with the number of hubs.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from cloud.place.place import parse
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.many_gateways import Fleet, Shape
from tests.bench.packages import BrokerMissing, say
from tests.bench.result import Result, at_most
from tests.bench.scratch import scratch_folder
from tests.support.postgres import Postgres, binaries
from tests.support.processes import Waypost, cpu_s
from tests.support.s3 import BUCKET, ObjectStore

HUBS: Final = (1, 2, 3)
GATEWAYS: Final = 100
"""Gateways of each hub: a fleet gets more hubs because it has more gateways."""
READINGS_S: Final = 1_000
"""Readings a second of these gateways; two cores also run the registry, the object store and the fleet."""
WARM_S: Final = 10.0
"""First seconds of a run, which do not count: imports, first compaction and first credit."""
SECONDS: Final = 40.0
SECONDS_FULL: Final = 120.0
DEARER_MAX: Final = 1.15
"""Largest cost of a reading relative to that at one hub."""


@contextmanager
def _hubs(folder: Path, count: int, registry: str, lake: str, environment: dict[str, str]) -> Iterator[list[Waypost]]:
    """Run hubs with one registry and one lake."""
    config = folder / "hub.yaml"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{registry}'}}\n")
    with ExitStack() as stack:
        running = []
        for number in range(count):
            data = folder / f"hub{number}"
            options = ("--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--lake={lake}", f"--config={config}")
            hub = Waypost(folder / f"{data.name}.log", "hub", "run", "--data", str(data), "--dev", *options)
            hub.environment = environment
            running.append(stack.enter_context(hub))
        yield running


def cost_us(postgres: Postgres, folder: Path, count: int, seconds: float) -> float:
    """Return the processor time of all hubs for a reading in microseconds. Raises LoadFailed."""
    with ObjectStore(folder / "store.log") as store:
        environment, place = store.environment(), f"s3://{BUCKET}/lake"
        with _hubs(folder, count, postgres.url(postgres.schema()), place, environment) as hubs:
            fleet = Fleet([hub.port("amqp") for hub in hubs], _shape(count))
            try:
                for _ in fleet.run(WARM_S):
                    pass
                accepted, used_s = fleet.accepted, sum(cpu_s(hub.pid) for hub in hubs)
                for _ in fleet.run(seconds):
                    pass
                accepted, used_s = fleet.accepted - accepted, sum(cpu_s(hub.pid) for hub in hubs) - used_s
                fleet.settle()
            finally:
                fleet.close()
        landed = _landed(place, environment)
        if landed != fleet.accepted:
            raise LoadFailed(f"{landed:,} rows in the lake of {fleet.accepted:,} readings that were accepted")
    return used_s / accepted * 1e6


def _landed(place: str, environment: dict[str, str]) -> int:
    """Return the rows of the table of readings."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return int(parse(place).at("telemetry").delta().count())
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    if binaries() is None:
        raise BrokerMissing("PostgreSQL is not installed (Debian: postgresql)")
    seconds = SECONDS_FULL if settings.full else SECONDS
    found: dict[int, list[float]] = {count: [] for count in HUBS}
    with Postgres() as postgres:
        for number in range(settings.rounds):
            for count in HUBS:
                with scratch_folder() as folder:
                    found[count].append(cost_us(postgres, Path(folder), count, seconds))
            said = ", ".join(f"{count} hubs {values[-1]:.1f} µs" for count, values in found.items())
            say(f"  hub-replicas {number + 1}/{settings.rounds}: {said}")
    details: dict[str, Any] = {f"us_with_{count}_hubs": values for count, values in found.items()}
    results = [
        Result("hub-1-cost", _about(1), "µs", statistics.median(found[1]), details=details),
    ]
    for count in HUBS[1:]:
        dearer = statistics.median(many / one for many, one in zip(found[count], found[1], strict=True))
        goal = at_most(DEARER_MAX, dearer, " x of one hub")
        results.append(
            Result(f"hub-{count}-cost", _about(count), "µs", statistics.median(found[count]), goal, ratio=dearer)
        )
    return results


def _shape(hubs: int) -> Shape:
    return Shape(GATEWAYS * hubs, 2, readings_s=READINGS_S * hubs)


def _about(count: int) -> str:
    return f"processor time of a reading at {count} hub{'s' * (count > 1)} with {GATEWAYS} gateways each"


BENCHMARK: Final = Benchmark("hub-replicas", "what a reading costs at one, two and three hubs of one lake", 900, _run)
