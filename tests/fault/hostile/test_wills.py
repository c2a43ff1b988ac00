"""Clients with a will each that vanish together, with their network: others do not notice, and every will arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.broker.mqtt import packets
from edge.broker.mqtt.handshake import WillMessage
from tests.bench.idle import SPARE_FILES, raise_file_limit
from tests.fault.hostile.crowd import Crowd
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.limited_gateway import await_pools, limited_gateway
from tests.fault.hostile.neighbours import FLOOR_S, ROUNDS, Felt, Neighbours
from tests.fault.hostile.watch import Watch
from tests.support.hostile import Raw
from tests.support.processes import Waypost

ACCEPTED = packets.ConnAck().encode(4)
MEMORY_MIB = 256
KEPT_MIB = 48
"""Allocator reserve for 4 000 connections and new addresses.

It was 22 MiB after the first round, 39 from the fourth on, and then constant.
"""


def with_wills(number: int) -> Iterator[bytes]:
    """CONNECT with a will for a new address."""
    will = WillMessage(f"wills/{number}", bytes(1_000), qos=1)
    yield packets.Connect(f"mortal-{number}", 4, will=will).encode(4)


def gone(running: Waypost, neighbours: Neighbours, watching: Raw, count: int) -> Felt:
    """Let all clients vanish; return the round trips of others, and check that every will arrives once."""
    neighbours.rest()
    with Crowd(running.port("mqtt")).open(count) as crowd:
        crowd.send(with_wills, seconds=20)
        crowd.wait_for(ACCEPTED)
        going = time.monotonic()
    topics = []
    for _ in range(count):
        packet = watching.receive()
        assert isinstance(packet, packets.Publish), packet
        topics.append(packet.topic)
    assert sorted(topics) == sorted(f"wills/{number}" for number in range(count))
    return neighbours.felt(going)


@pytest.mark.parametrize(("count", "floor_s"), [(400, FLOOR_S), pytest.param(4_000, 0.5, marks=pytest.mark.slow)])
def test_wills_of_clients_that_vanish_together_all_arrive(
    tmp_path: Path, control: Waypost, count: int, floor_s: float, figures: Callable[[Figures], None]
) -> None:
    """Many clients with wills that vanish together do not disturb others.

    `floor_s`: the loop reports the end of 4 000 connections in one turn, with or without wills.
    """
    raise_file_limit(count + SPARE_FILES)
    with limited_gateway(tmp_path, MEMORY_MIB, 16, 10_000) as running, Raw(running) as watching:
        watching.connect("watching", keep_alive_s=0).subscribe("wills/#")
        with Watch(running) as watch, Neighbours(running, control) as neighbours:
            for last in range(1, ROUNDS + 1):
                felt = gone(running, neighbours, watching, count)
                if felt.bearable(floor_s):
                    break
                assert last < ROUNDS, str(felt)
        assert watch.most_mib < MEMORY_MIB
        after_s = await_pools(running, watch.before_mib, kept_mib=KEPT_MIB)
    figures(Figures(f"{count} wills", felt, watch.before_mib, watch.most_mib, after_s))
