"""Connections that make a hub hold memory: it stays bounded, another gateway is served, and it is returned."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bridge.hub_addresses import TELEMETRY
from cloud.hub.limits import HELD_HALF_SENT_BYTES_MAX
from edge.broker.limits import MIB
from tests.fault.hostile.attacks import half_deliveries
from tests.fault.hostile.crowd import Crowd
from tests.fault.hostile.other_gateway import OtherGateway
from tests.fault.hostile.watch import await_memory
from tests.support.problems import await_problem
from tests.support.processes import hub, peak_mib, resident_mib, wait_until

GREW_MIB_MAX = HELD_HALF_SENT_BYTES_MAX / MIB + 200
"""Limit of held data, and an allowance: assembling a message doubles its size, and a landing takes some."""
KEPT_MIB_MAX = 100.0
BEGIN = b"\x00S\x11"
"""Start of the performative (AMQP 1.0 part 2, 2.7.2)."""
RETURNED_S = 60.0
ANSWER_S_MAX = 10.0
"""Time for another gateway's batch during the attack, with two busy cores; alone it takes 0.6 s."""


@pytest.mark.parametrize(
    ("links", "size", "connections"),
    [(1, 15_000_000, 40), (20, 3_000_000, 12)],
    ids=["one large message of many connections", "many messages of some connections"],
)
def test_incomplete_messages_stay_within_memory_of_hub(tmp_path: Path, links: int, size: int, connections: int) -> None:
    """600 and 720 MB of incomplete messages do not exceed the hub's memory.

    No transfer comes before the hub's begin, which would violate the session's window.
    """
    attack = [half_deliveries(links, size, TELEMETRY)(number) for number in range(connections)]
    with hub(tmp_path) as running, OtherGateway(running, "other") as other:
        before = resident_mib(running.pid)
        with Crowd(running.port("amqp")).open(connections) as crowd:
            crowd.send(lambda number: itertools.islice(attack[number], 2 + links), seconds=6.0)
            crowd.wait_for(BEGIN)
            crowd.send(attack.__getitem__, seconds=6.0)
            await_problem(running.port("http"), "memory", "held the most memory", severity="warning")
            seen = other.rounds
            wait_until(lambda: other.rounds > seen + 1 or other.failure is not None, timeout_s=60, what="an answer")
            assert peak_mib(running.pid) < before + GREW_MIB_MAX
        assert other.failure is None, other.failure
        assert other.longest_s < ANSWER_S_MAX, f"another gateway waited for {other.longest_s:.1f} s"
        await_memory(running.pid, before, kept_mib=KEPT_MIB_MAX, timeout_s=RETURNED_S)
