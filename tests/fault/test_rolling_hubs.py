"""Hubs of the chart are replaced under traffic: every message is in the lake once.

Needs a cluster with pods that reach this machine, and an image of the hub:
``KUBECONFIG=FILE WAYPOST_HUB_IMAGE=waypost-hub:0.1.0 ./waypost test tests/fault/test_rolling_hubs.py -m slow -s``
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from bridge.batch import CAPABILITY, encode
from bridge.engine import DeliveryState
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.demo.lake import Lake
from tests.support import hub_release
from tests.support.amqp_sender import AmqpSender
from tests.support.hub_release import HubRelease
from tests.support.kubernetes_cluster import local_address
from tests.support.postgres import Postgres, binaries
from tests.support.s3 import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]

REPLICAS: Final = 3
GATEWAYS: Final = 40
PER_BATCH: Final = 20
PAUSE_S: Final = 0.5
"""Time between two batches of a gateway."""
RETRY_S: Final = 0.5
STEADY_S: Final = 10.0
"""Traffic before and after each roll-out."""
ACKNOWLEDGED_WITHIN_S: Final = 10.0
"""99th percentile of the time until a batch is acknowledged, also across a change of the hub."""


class RollingGateway(threading.Thread):
    """Sends batches until it is stopped, and connects again whenever its hub leaves."""

    def __init__(self, name: str, release: HubRelease) -> None:
        super().__init__(name=name, daemon=True)
        self.batches = 0
        self.connections = 0
        self.took_s: list[float] = []
        """Time from the first attempt to send a batch until it was acknowledged."""
        self.stopping = threading.Event()
        self._address = release.address()
        self._tls = release.tls(name)
        self._epoch = random.Random(name).randbytes(16).hex()

    def run(self) -> None:
        sender: AmqpSender | None = None
        while not self.stopping.is_set():
            began = time.monotonic()
            body = self._body()
            while sender is None or not self._is_accepted(sender, body):
                if sender is not None:
                    sender.close()
                sender = self._connect()
            self.batches += 1
            self.took_s.append(time.monotonic() - began)
            self.stopping.wait(PAUSE_S)
        if sender is not None:
            sender.close()

    def _connect(self) -> AmqpSender | None:
        host, port = self._address
        try:
            sender = AmqpSender(port, self.name, "telemetry", [CAPABILITY], self._tls, host=host)
        except (OSError, AssertionError):
            time.sleep(RETRY_S)
            return None
        if sender.closed:
            sender.close()
            time.sleep(RETRY_S)
            return None
        self.connections += 1
        return sender

    @staticmethod
    def _is_accepted(sender: AmqpSender, body: bytes) -> bool:
        """Send a batch; return whether it was acknowledged."""
        if sender.closed:
            return False
        try:
            known = len(sender.outcomes)
            sender.send(body)
            outcomes = sender.settled()
        except (OSError, AssertionError):
            return False
        return len(outcomes) > known and outcomes[-1] is DeliveryState.ACCEPTED

    def _body(self) -> bytes:
        first = self.batches * PER_BATCH
        bodies = [b"%d" % sequence for sequence in range(first, first + PER_BATCH)]
        run = Run("load", "device", 1 | CLOCK_GOOD, b"", bodies, time.time_ns())
        return data_section(encode([Stored(-1, first, run)], space="default", epoch=self._epoch))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubRelease]:
    reason = hub_release.missing() or ("PostgreSQL is not installed" if binaries() is None else None)
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("release")
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(elsewhere="all"))
        postgres.stop()
        postgres.start("listen_addresses=*")
        postgres.execute("GRANT CREATE ON SCHEMA public TO careful")
        store = stack.enter_context(ObjectStore(folder / "store.log", local_address()))
        yield stack.enter_context(HubRelease(folder, postgres, store, replicas=REPLICAS))


def landed(release: HubRelease) -> Counter[tuple[str, int]]:
    """Return how often each message is in the lake."""
    options = {name: value for name, value in release.store.environment().items() if name.startswith("AWS_")}
    rows = Lake(release.lake, {**options, "AWS_ALLOW_HTTP": "true"}).rows()
    return Counter((row.gateway, row.sequence) for row in rows)


def test_rolled_and_killed_hubs_lose_nothing_and_land_nothing_twice(release: HubRelease) -> None:
    assert len(release.pods()) == REPLICAS
    gateways = [RollingGateway(f"gw{number}", release) for number in range(GATEWAYS)]
    for gateway in gateways:
        gateway.start()
    time.sleep(STEADY_S)
    first = release.pods()
    for number in range(2):  # to the next version and back
        release.roll(number)
        time.sleep(STEADY_S)
    assert not release.pods() & first
    release.kill(min(release.pods()))
    release.wait()
    time.sleep(STEADY_S)
    for gateway in gateways:
        gateway.stopping.set()
    for gateway in gateways:
        gateway.join(120)
        assert not gateway.is_alive(), release.describe()
    found = landed(release)
    made = {(each.name, sequence) for each in gateways for sequence in range(each.batches * PER_BATCH)}
    took_s = sorted(second for gateway in gateways for second in gateway.took_s)
    p99_s = took_s[int(len(took_s) * 0.99)]
    connections = sum(gateway.connections for gateway in gateways)
    print(
        f"{GATEWAYS} gateways, {len(made)} messages in {len(took_s)} batches, {connections} connections: "
        f"acknowledged after {took_s[len(took_s) // 2]:.2f} s (median), {p99_s:.2f} s (99 %), {took_s[-1]:.2f} s (all)"
    )
    assert {name for name, times in found.items() if times > 1} == set()
    assert set(found) == made
    assert connections > 2 * GATEWAYS
    assert p99_s < ACKNOWLEDGED_WITHIN_S


def test_lake_is_proven_by_the_job(release: HubRelease) -> None:
    said = release.run_job("fleet-prove")
    assert "0 unexplained" in said


def test_token_is_made_in_a_pod(release: HubRelease) -> None:
    token = release.run(
        "waypost", "token", "create", "--data", "/var/lib/waypost/hub",
        "--config", "/etc/waypost/configuration/hub.yaml",
    )  # fmt: skip
    assert len(token.strip()) > 40
