"""Two hubs on one registry and one lake: a gateway moves from a hub that is killed or suspended to the other one.

The messages of an unfinished landing are in the lake once, and no gateway waits for the failed hub.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bridge.batch import CAPABILITY, encode
from bridge.engine import DeliveryState
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.support.amqp_sender import AmqpSender
from tests.support.http_client import status
from tests.support.hub_replicas import hub_replicas
from tests.support.lake import rows
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, wait_until

PER_BATCH: Final = 50
BATCHES: Final = 20
"""Batches that a gateway sends before its hub fails."""
MOVED_WITHIN_S: Final = 15.0
"""Longest time from the move of a gateway until everything is accepted."""
GATEWAYS: Final = ("gw1", "gw2")


def batch(gateway: str, number: int) -> bytes:
    first = number * PER_BATCH
    bodies = [b"%d" % sequence for sequence in range(first, first + PER_BATCH)]
    run = Run("load", "device", 1 | CLOCK_GOOD, b"", bodies, time.time_ns())
    return data_section(encode([Stored(-1, first, run)], space="default", epoch=gateway[-1] * 32))


class MovingGateway:
    """Sends batches to one hub at a time, and those without an answer again to the next one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: set[int] = set()
        self.made = 0
        self._sender: AmqpSender | None = None
        self._sent: list[int] = []
        self._hub: Waypost | None = None
        self.displaced = 0
        """Connections that a hub closed before everything was accepted."""

    def send(self, hub: Waypost, more: int) -> None:
        """Connect to this hub, and send what has no answer and more."""
        self.close()
        self._hub = hub
        self.made += more
        self._sent = sorted(set(range(self.made)) - self.accepted)
        self._sender = AmqpSender(hub.port("amqp"), self.name, "telemetry", [CAPABILITY])
        self._sender.send(*(batch(self.name, number) for number in self._sent))

    def wait(self) -> None:
        """Wait until everything sent is accepted. Connect again, as a gateway does, if the hub closes the connection: a
        hub that stood still may have written an earlier connection late, and that one counts as the newest then."""
        deadline = time.monotonic() + MOVED_WITHIN_S
        while not self._all_accepted():
            assert self._sender is not None
            assert self._sender.condition is not None, "the hub has closed the connection"
            assert time.monotonic() < deadline
            assert self._hub is not None
            self.displaced += 1
            self.send(self._hub, 0)

    def _all_accepted(self) -> bool:
        assert self._sender is not None
        self._sender.settled()
        self._count()
        return len(self.accepted) == self.made

    def close(self) -> None:
        """Break the connection; what the hub has answered until now counts."""
        if self._sender is not None:
            self._count()
            self._sender.close()
            self._sender = None

    def _count(self) -> None:
        assert self._sender is not None
        outcomes = self._sender.outcomes.items()
        self.accepted |= {self._sent[tag] for tag, outcome in outcomes if outcome is DeliveryState.ACCEPTED}


@pytest.fixture
def hubs(tmp_path: Path, postgres: Postgres) -> Iterator[list[Waypost]]:
    with hub_replicas(tmp_path, postgres.url(postgres.schema()), 100) as running:
        yield running


def move_under_faults(hubs: list[Waypost], lake: Path, rounds: int, seed: int) -> list[float]:
    """Let each hub fail in turn under load. Return the seconds from each move until everything was accepted."""
    dice = random.Random(seed)
    gateways = [MovingGateway(name) for name in GATEWAYS]
    took_s = []
    for number in range(rounds):
        here, there = hubs[number % 2], hubs[1 - number % 2]
        for gateway in gateways:
            gateway.send(here, BATCHES)
        time.sleep(dice.random() * 0.4)  # where in its landing the hub fails
        how = dice.choice((signal.SIGKILL, signal.SIGSTOP))
        os.kill(here.pid, how)
        began = time.monotonic()
        for gateway in gateways[: dice.randint(1, len(GATEWAYS))]:
            gateway.send(there, 1)
            gateway.wait()
        took_s.append(time.monotonic() - began)
        if how is signal.SIGKILL:
            here.ends()
            here.start()
        else:
            os.kill(here.pid, signal.SIGCONT)
        for gateway in gateways:  # also to the hub that has just returned
            gateway.send(dice.choice(hubs), 1)
            gateway.wait()
    for gateway in gateways:
        gateway.close()
    landed = Counter((row["gateway"], row["sequence"]) for row in rows(lake, "telemetry"))
    made = {(gateway.name, sequence) for gateway in gateways for sequence in range(gateway.made * PER_BATCH)}
    assert {name for name, times in landed.items() if times > 1} == set()
    assert set(landed) == made
    assert sum(gateway.displaced for gateway in gateways) <= rounds, "a hub that stood still costs one connection"
    for hub in hubs:
        wait_until(lambda hub=hub: not status(hub)["landing"]["failing"], timeout_s=60, what="both hubs land")
    return took_s


def test_gateways_move_from_failing_hubs_without_loss_or_repetition(hubs: list[Waypost], tmp_path: Path) -> None:
    assert max(move_under_faults(hubs, tmp_path / "lake", rounds=4, seed=1)) < MOVED_WITHIN_S


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_gateways_move_two_hundred_times(hubs: list[Waypost], tmp_path: Path) -> None:
    took_s = move_under_faults(hubs, tmp_path / "lake", rounds=200, seed=random.SystemRandom().randrange(1 << 32))
    assert max(took_s) < MOVED_WITHIN_S
