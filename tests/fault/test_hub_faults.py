"""Two hubs of one registry and one bucket under faults at each step of a landing, while both fight for a gateway.

A run: a landing of one hub reaches a step, a fault comes, the gateway moves to the other hub, the fault ends, and the
gateway is connected to both hubs at once. Then each of its messages is in the lake once.

Most of a run is the length of its fault, so several clusters run at the same time. ``WAYPOST_FAULT_RUNS`` (216) and
``WAYPOST_FAULT_CLUSTERS`` (4) change their number.

``WAYPOST_SEED=N ./waypost test tests/fault/test_hub_faults.py -m slow -s``
"""

from __future__ import annotations

import enum
import itertools
import os
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cloud.lake.commits import FAILPOINTS
from tests.demo.lake import Lake
from tests.support.cut_link import CutLink
from tests.support.http_client import status
from tests.support.landing_steps import SOCKET, STEPPING_HUB, HeldStep, LandingSteps
from tests.support.moving_gateway import MovingGateway
from tests.support.postgres import binaries
from tests.support.postgres_pair import PostgresPair
from tests.support.processes import Waypost, wait_until
from tests.support.s3 import BUCKET, KEYS, ObjectStore
from tests.support.seeds import chosen_seed

BATCHES: Final = 8
"""Batches that a gateway sends before the fault."""
MOVED_WITHIN_S: Final = 15.0
"""Longest time that a gateway waits at a hub without a fault, or after the end of its fault."""
BRIEF_S: Final = (1.0, 7.0)
"""Lengths of a brief fault: shorter and longer than PostgreSQL's bound on idle transactions."""
CHECKED_EVERY: Final = 5
"""Runs after which the lake is checked, so that a failure is near its cause."""
PLACE: Final = f"s3://{BUCKET}/lake"


class Fault(enum.Enum):
    """Fault of one hub, or of what both need."""

    KILLED = "killed"
    REPLACED = "replaced with an empty data directory"
    SUSPENDED = "suspended"
    CUT_OFF = "cut off from PostgreSQL"
    SILENT = "no packet from PostgreSQL"
    BUCKET_AWAY = "bucket away"
    BUCKET_SILENT = "no packet from the bucket"
    PROMOTED = "standby promoted"


LONG_S: Final = {
    Fault.SUSPENDED: 60.0,
    Fault.CUT_OFF: 30.0,
    Fault.SILENT: 30.0,
    Fault.BUCKET_AWAY: 30.0,
    Fault.BUCKET_SILENT: 30.0,
}
"""Length of a long fault, longer than all of a hub's pauses; a fault without one ends when its hub is back."""


class FaultRun(NamedTuple):
    """One run."""

    fault: Fault
    step: str | None
    """Step of the landing; None for any moment."""
    held_s: float


class FaultyHub(NamedTuple):
    """Hub and its connection to PostgreSQL."""

    process: Waypost
    registry: CutLink


class FaultyCluster:
    """Two hubs, and everything between them and what they need."""

    def __init__(
        self,
        hubs: Sequence[FaultyHub],
        postgres: PostgresPair,
        bucket: CutLink,
        store: ObjectStore,
        steps: LandingSteps,
    ) -> None:
        self.hubs = hubs
        self._postgres = postgres
        self._bucket = bucket
        self._store = store
        self._steps = steps
        self._numbers = itertools.count()
        self._gateways: list[MovingGateway] = []

    def run(self, run: FaultRun, dice: random.Random) -> float:
        """Do one run; return the longest time that the gateway waited for an answer."""
        here, there = dice.sample(self.hubs, 2)
        number = next(self._numbers)
        gateway = MovingGateway(f"gw{number}", f"{number:032x}")
        self._gateways.append(gateway)
        held = None if run.step is None else self._steps.hold(here.process, run.step)
        gateway.send(here.process, BATCHES)
        if held is None:
            time.sleep(dice.random() * 0.4)
        else:
            held.wait()
        waited_s = self._act(run, here, there, gateway, held)
        for hub in (here, there, here):  # both hubs serve it, and have unanswered batches of it
            with suppress(OSError):
                gateway.send(hub.process, 1)
                time.sleep(dice.random() * 0.2)
        last_s = gateway.finish(dice.sample([here.process, there.process], 2), MOVED_WITHIN_S)
        gateway.close()
        return max(waited_s, last_s)

    def _act(
        self, run: FaultRun, here: FaultyHub, there: FaultyHub, gateway: MovingGateway, held: HeldStep | None
    ) -> float:
        def proceed() -> None:
            if held is not None:
                held.release()

        other = [there.process]
        match run.fault:
            case Fault.KILLED | Fault.REPLACED:
                os.kill(here.process.pid, signal.SIGKILL)
                proceed()
                waited_s = gateway.finish(other, MOVED_WITHIN_S)
                here.process.ends()
                if run.fault is Fault.REPLACED:
                    shutil.rmtree(here.process.data)
                here.process.start()
                return waited_s
            case Fault.SUSPENDED:
                return self._for_a_while(
                    run,
                    lambda: (os.kill(here.process.pid, signal.SIGSTOP), proceed()),
                    lambda: os.kill(here.process.pid, signal.SIGCONT),
                    lambda: gateway.finish(other, MOVED_WITHIN_S),
                )
            case Fault.CUT_OFF:
                return self._for_a_while(
                    run,
                    lambda: (here.registry.down(True), proceed()),
                    lambda: here.registry.down(False),
                    lambda: gateway.finish(other, MOVED_WITHIN_S),
                )
            case Fault.SILENT:
                return self._for_a_while(
                    run,
                    lambda: (here.registry.hold(True), proceed()),
                    lambda: here.registry.hold(False),
                    lambda: gateway.finish(other, MOVED_WITHIN_S),
                )
            case Fault.BUCKET_AWAY | Fault.BUCKET_SILENT:
                act = self._bucket.down if run.fault is Fault.BUCKET_AWAY else self._bucket.hold
                self._for_a_while(
                    run,
                    lambda: (act(True), proceed()),
                    lambda: act(False),
                    lambda: self._knock(gateway, there.process),
                )
            case Fault.PROMOTED:
                self._postgres.fail_over()
                for hub in self.hubs:
                    hub.registry.lead_to(self._postgres.primary.port)
                proceed()
        waited_s = gateway.finish(other, MOVED_WITHIN_S)
        self._postgres.replicate()
        return waited_s

    @staticmethod
    def _for_a_while(
        run: FaultRun, begin: Callable[[], object], end: Callable[[], object], meanwhile: Callable[[], float]
    ) -> float:
        until_s = time.monotonic() + run.held_s
        begin()
        try:
            waited_s = meanwhile()
            time.sleep(max(0.0, until_s - time.monotonic()))
        finally:
            end()
        return waited_s

    @staticmethod
    def _knock(gateway: MovingGateway, hub: Waypost) -> float:
        """Connect to the other hub, which cannot land either."""
        gateway.send(hub, 1)
        return 0.0

    def check(self) -> None:
        """Check that each message is in the lake once, and that both hubs land."""
        for hub in self.hubs:
            wait_until(lambda hub=hub: not status(hub.process)["landing"]["failing"], timeout_s=60, what="hubs land")
        options = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._store.port}", "AWS_ALLOW_HTTP": "true"}
        landed = Counter((row.gateway, row.sequence) for row in Lake(PLACE, options).rows())
        made = {(gateway.name, sequence) for gateway in self._gateways for sequence in gateway.sequences}
        assert {name: times for name, times in landed.items() if times > 1} == {}
        assert set(landed) == made


@contextmanager
def faulty_cluster(folder: Path) -> Iterator[FaultyCluster]:
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresPair())
        store = stack.enter_context(ObjectStore(folder / "store.log"))
        bucket = stack.enter_context(CutLink(store.port))
        steps = stack.enter_context(LandingSteps(folder / "steps"))
        hubs = []
        for name in ("first", "second"):
            link = stack.enter_context(CutLink(postgres.primary.port))
            config = folder / f"{name}.yaml"
            url = f"postgresql://waypost@127.0.0.1:{link.port}/postgres"
            config.write_text(
                f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{url}', gatherMilliseconds: 100}}\n"
            )
            process = Waypost(
                folder / f"{name}.log", "hub", "run", "--data", str(folder / name), "--dev",
                "--amqp=127.0.0.1:0", "--http=127.0.0.1:0", f"--lake={PLACE}", f"--config={config}",
                program=STEPPING_HUB,
            )  # fmt: skip
            process.environment = {**store.environment(bucket.port), SOCKET: str(steps.path)}
            hubs.append(FaultyHub(stack.enter_context(process), link))
        yield FaultyCluster(hubs, postgres, bucket, store, steps)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with faulty_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.parametrize(
    "run",
    [
        FaultRun(Fault.KILLED, "committed", 0.0),
        FaultRun(Fault.CUT_OFF, "prepared", 1.0),
        FaultRun(Fault.PROMOTED, "synced", 0.0),
    ],
    ids=lambda run: f"{run.fault.name.lower()}-{run.step}",
)
def test_fault_at_a_step_of_a_landing(cluster: FaultyCluster, run: FaultRun) -> None:
    cluster.run(run, random.Random(1))
    cluster.check()


def every_run() -> list[FaultRun]:
    """Return each fault at each step, with each length that it may have."""
    return [
        FaultRun(fault, step, held_s)
        for fault in Fault
        for step in (*FAILPOINTS, None)
        for held_s in ((*BRIEF_S, LONG_S[fault]) if fault in LONG_S else (0.0,))
    ]


def run_in_order(folder: Path, runs: Sequence[FaultRun], dice: random.Random) -> list[tuple[FaultRun, float]]:
    """Do runs in one cluster, and check its lake; return the longest wait of each run."""
    folder.mkdir()
    waited_s = []
    with faulty_cluster(folder) as cluster:
        for number, run in enumerate(runs):
            told = f"{folder.name}, run {number}: {run.fault.value} at {run.step}, {run.held_s:g} s"
            try:
                took_s = cluster.run(run, dice)
            except Exception as error:
                print(f"{told}: {error}", flush=True)
                raise
            print(f"{told}: answered after {took_s:.1f} s", flush=True)
            waited_s.append((run, took_s))
            if number % CHECKED_EVERY == 0:
                cluster.check()
        cluster.check()
    return waited_s


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_faults_at_all_steps_of_landings(tmp_path: Path) -> None:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    seed, clusters = chosen_seed(), int(os.environ.get("WAYPOST_FAULT_CLUSTERS", "4"))
    dice, every = random.Random(seed), every_run()
    runs: list[FaultRun] = []
    wanted = int(os.environ.get("WAYPOST_FAULT_RUNS", str(2 * len(every))))
    while len(runs) < wanted:
        runs += dice.sample(every, min(len(every), wanted - len(runs)))
    with ThreadPoolExecutor(clusters) as pool:
        parts = [
            pool.submit(run_in_order, tmp_path / f"cluster{part}", runs[part::clusters], random.Random(seed + part))
            for part in range(clusters)
        ]
    waits: defaultdict[tuple[Fault, float], list[float]] = defaultdict(list)
    for run, took_s in itertools.chain.from_iterable(part.result() for part in parts):
        waits[run.fault, run.held_s].append(took_s)
    for (fault, held_s), seconds in sorted(waits.items(), key=lambda item: (item[0][0].value, item[0][1])):
        print(f"{fault.value}, {held_s:g} s: {len(seconds)} runs, longest wait {max(seconds):.1f} s")
