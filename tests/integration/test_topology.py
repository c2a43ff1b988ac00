"""`waypost topology` draws what a router knows of its network."""

from __future__ import annotations

import asyncio

from edge.appliance.crossing.topology import topology_of
from edge.appliance.crossing.topology_cli import drawing
from tests.support.router_network import NetworkConsumer, NetworkOrigin, eventually, routers

RING = (("a", "b", 1), ("b", "d", 1), ("a", "c", 5), ("c", "d", 5), ("d", "e", 2))


def test_the_tree_has_the_cheapest_paths_and_names_the_other_links() -> None:
    asyncio.run(_draw())


async def _draw() -> None:
    async with routers(*"abcde", links=RING) as made:
        a, d, e = made[0], made[3], made[4]
        NetworkConsumer(d, "jobs/x")
        NetworkConsumer(e, "news/#")
        sender = NetworkOrigin(a, "jobs/x")
        await eventually(lambda: sender.credit)
        sender.publish("1", "2")
        await eventually(lambda: len(sender.answers) == 2)
        await eventually(
            lambda: topology_of(a.network).routers[-1].multicast + topology_of(a.network).routers[-2].multicast
        )
        lines = list(drawing(topology_of(a.network)))
        assert lines[:5] == [
            "a                       no consumers",
            "├─ 1 ─ b                no consumers",
            "│      └─ 1 ─ d         consumers of 1 anycast, 0 multicast",
            "│             └─ 2 ─ e  consumers of 0 anycast, 1 multicast",
            "└─ 5 ─ c                no consumers",
        ]
        assert "further links: c ─ 5 ─ d" in lines
        assert "b: 2 messages sent, 0 received" in lines
        await made[1].stop()
        await eventually(lambda: "b" not in a.reached)
        assert "not reached: b" in list(drawing(topology_of(a.network)))


def test_a_gateway_without_a_neighbour_says_what_to_do() -> None:
    (line,) = drawing(topology_of(None))
    assert "connector of type router" in line
