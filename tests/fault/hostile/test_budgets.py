"""Peers that make a gateway hold memory: others do not notice, memory stays bounded, and it is returned.

The limits are configured down, so that a few seconds exceed them. `TestFullSize` has the attacks in their measured
size, against the default limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from edge.broker.limits import MIB
from edge.broker.mqtt import packets
from tests.bench.idle import SPARE_FILES, raise_file_limit
from tests.fault.hostile import attacks
from tests.fault.hostile.attacks import Stream
from tests.fault.hostile.crowd import Crowd
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.limited_gateway import CONNECTIONS, KEPT_MIB, MEMORY_MIB, await_pools, limited_gateway
from tests.fault.hostile.neighbour import Neighbour
from tests.fault.hostile.neighbours import FLOOR_S, FULL_SIZE_FLOOR_S, ROUNDS, Felt, Neighbours
from tests.fault.hostile.watch import Watch
from tests.support.hostile import Raw
from tests.support.http_client import status
from tests.support.problems import await_problem
from tests.support.processes import Waypost, resident_mib, wait_until

LOGINS = 10
LOGIN_S = 90.0
"""Timeout of a login, which waits for its turn behind all earlier ones.

When 4 000 clients log in and get a large message each, they take 2.2 s of a gateway's processor time. Next to 25 other
programs this takes 11 s, and sometimes more than 20 s.
"""


class Attack(NamedTuple):
    """Attack with this many connections that all send the same kind of data."""

    name: str
    stream: Stream
    connections: int
    protocol: str = "mqtt"
    seconds: float = 3.0
    receive_bytes: int = 0
    floor_s: float = FLOOR_S


ATTACKS = (
    Attack("half messages", attacks.half_messages(3_600_000), 40),
    Attack("half messages over WebSocket", attacks.in_half_a_frame(attacks.half_messages(3_600_000)), 40, "mqtt-ws"),
    Attack("half messages byte by byte", attacks.byte_by_byte(50_000), 40),
    Attack("half CONNECTs", attacks.half_connects(100_000), 400),
    Attack("large CONNECTs", attacks.fat_connects, 400, floor_s=0.5),
    Attack("topic aliases", attacks.aliases, 60),
    Attack("packet identifiers", attacks.packet_ids, 12),
    Attack("half deliveries on one connection", attacks.half_deliveries(20, 3_600_000), 1, "amqp"),
    Attack("half deliveries", attacks.half_deliveries(2, 3_600_000), 20, "amqp"),
    Attack("half frames", attacks.half_frames, 500, "amqp"),
    Attack("many links", attacks.many_links(50, 20), 12, "amqp", floor_s=0.5),
    Attack("links with large maps", attacks.fat_links(40), 10, "amqp"),
    Attack("half SASL frames", attacks.half_sasl, 500, "amqp"),
    Attack("many filters at once", attacks.many_filters, 2),
    Attack("new addresses", attacks.new_addresses, 2),
    Attack("pings", attacks.pings, 2),
    Attack("links that come and go", attacks.attaches, 2, "amqp"),
    Attack("deaf readers of a large message", attacks.never_reads(200_000), 400, receive_bytes=4_096, floor_s=0.5),
)
OTHERWISE_SENT = ("half messages over WebSocket", "half messages byte by byte", "half deliveries")
"""Attacks that differ from another one in what carries the same bytes."""


def refused_logins(running: Waypost, count: int) -> list[str]:
    """Log clients in from the attackers' address during the attack; describe each refusal and its time."""
    found = []
    for number in range(count):
        began = time.monotonic()
        try:
            with Raw(running, wait_s=LOGIN_S) as client:
                client.connect(f"late-{number}")
        except (AssertionError, OSError) as error:
            found.append(f"{number}: {type(error).__name__} {error} after {time.monotonic() - began:.1f} s")
    return found


def publish_large(running: Waypost, size: int) -> None:
    with Raw(running).connect("publisher") as client:
        client.send(packets.Publish("large/retained", bytes(size), qos=1, retain=True, packet_id=1))
        assert isinstance(client.receive(), packets.PubAck)


def withstand(running: Waypost, attack: Attack, neighbours: Neighbours) -> tuple[Felt, list[str]]:
    """Run one round; return the round trips of other clients, and the logins that failed."""
    neighbours.rest()
    attacked = time.monotonic()
    with Crowd(running.port(attack.protocol), receive_bytes=attack.receive_bytes).open(attack.connections) as crowd:
        crowd.send(attack.stream, seconds=attack.seconds)
        refused = refused_logins(running, LOGINS)
        return neighbours.felt(attacked), refused


def best_round(running: Waypost, attack: Attack, neighbours: Neighbours) -> tuple[Felt, list[str]]:
    """Return the first acceptable round, or else the last of `ROUNDS`."""
    for _ in range(ROUNDS):
        felt, refused = withstand(running, attack, neighbours)
        if felt.bearable(attack.floor_s):
            break
    return felt, refused


def is_said(running: Waypost) -> None:
    """Check that connections that were closed for their memory appear as a problem."""
    if status(running)["memory"]["shed"]:
        await_problem(running.port("http"), "memory", "because they held too much memory", severity="warning")


@pytest.mark.parametrize(
    "attack",
    [pytest.param(each, marks=[pytest.mark.slow] if each.name in OTHERWISE_SENT else []) for each in ATTACKS],
    ids=lambda attack: attack.name.replace(" ", "-"),
)
def test_attack_delays_no_other_client_and_memory_returns(
    tmp_path: Path, control: Waypost, attack: Attack, figures: Callable[[Figures], None]
) -> None:
    raise_file_limit(attack.connections + SPARE_FILES)
    with limited_gateway(tmp_path) as running:
        status(running)  # the first request loads code
        if attack.stream.__qualname__.startswith("never_reads"):
            publish_large(running, 200_000)
        with Watch(running) as watch, Neighbours(running, control) as neighbours:
            felt, refused = best_round(running, attack, neighbours)
            assert felt.bearable(attack.floor_s), str(felt)
            assert not refused
            is_said(running)
        assert watch.most_mib < MEMORY_MIB + 16, f"{watch.most_mib:.0f} MiB resident"
        after_s = await_pools(running, watch.before_mib)
        figures(Figures(attack.name, felt, watch.before_mib, watch.most_mib, after_s))
        running.stop()
        running.start()
        assert resident_mib(running.pid) < watch.before_mib + KEPT_MIB
        assert not refused_logins(running, 1)


class TestPlaces:
    """Many connections from one address."""

    def test_idle_connections_keep_no_client_out(self, tmp_path: Path) -> None:
        """Idle connections beyond the limit keep no client out: the oldest ones are closed for new clients."""
        raise_file_limit(2 * CONNECTIONS + SPARE_FILES)
        with limited_gateway(tmp_path) as running, Crowd(running.port("mqtt")) as crowd:
            crowd.open(CONNECTIONS + 200)
            assert not refused_logins(running, LOGINS)
            figures = status(running)["memory"]
            assert figures["displaced"] >= 200
            assert figures["shed"] == figures["refused"] == 0

    def test_authenticated_connections_leave_places_for_other_addresses(self, tmp_path: Path) -> None:
        raise_file_limit(2 * CONNECTIONS + SPARE_FILES)
        with limited_gateway(tmp_path) as running, Crowd(running.port("mqtt")) as crowd:
            crowd.open(CONNECTIONS + 200)
            crowd.send(attacks.logs_in, seconds=5)
            wait_until(lambda: status(running)["memory"]["refused"] > 0, timeout_s=60, what="the address has enough")
            assert refused_logins(running, 1), "of the same address nobody else"
            with Neighbour(running.port("mqtt")) as neighbour:
                neighbour.wait(10)
            names = [problem["name"] for problem in status(running)["problems"]]
            assert "places" in names


@pytest.fixture(scope="class")
def default_size(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with limited_gateway(tmp_path_factory.mktemp("full"), 256, 16, 10_000) as running:
        status(running)
        yield running


@pytest.mark.slow
class TestFullSize:
    """Attacks in their measured size, with the default limits."""

    @pytest.mark.parametrize(
        "attack",
        [
            Attack("half messages", attacks.half_messages(15 * MIB), 100, seconds=20),
            Attack("half deliveries on one connection", attacks.half_deliveries(100, 15 * MIB), 1, "amqp", seconds=20),
            Attack("half CONNECTs", attacks.half_connects(120_000), 9_500, seconds=20),
            Attack("silent", attacks.silent, 12_000, seconds=5),
            Attack("half frames", attacks.half_frames, 4_000, "amqp", seconds=20),
            Attack("large CONNECTs", attacks.fat_connects, 4_000, seconds=20),
            Attack("deaf readers", attacks.never_reads(200_000), 4_000, seconds=20, receive_bytes=4_096),
        ],
        ids=lambda attack: attack.name.replace(" ", "-"),
    )
    @pytest.mark.timeout(300)
    def test_attack_delays_no_other_client_and_memory_returns(
        self, default_size: Waypost, control: Waypost, attack: Attack, figures: Callable[[Figures], None]
    ) -> None:
        raise_file_limit(attack.connections + SPARE_FILES)
        running = default_size
        publish_large(running, 200_000)
        with Watch(running) as watch, Neighbours(running, control) as neighbours:
            felt, refused = best_round(running, attack._replace(floor_s=FULL_SIZE_FLOOR_S), neighbours)
        after_s = await_pools(running, watch.before_mib)
        name = f"{attack.name}, full size"
        figures(Figures(name, felt, watch.before_mib, watch.most_mib, after_s))
        assert not refused
        assert watch.most_mib < 256
        is_said(running)
        assert felt.bearable(FULL_SIZE_FLOOR_S), str(felt)
