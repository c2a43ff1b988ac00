"""`waypost topology` draws what a router knows of its network."""

from __future__ import annotations

import asyncio

from edge.appliance.console.metrics import exposition
from edge.appliance.crossing.status import BridgeWatch
from edge.appliance.crossing.topology import topology_of
from edge.appliance.crossing.topology_cli import drawing
from edge.broker.model.interfaces import DeliveryOutcome
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


def test_status_metrics_and_bridge_show_the_messages_of_the_network() -> None:
    asyncio.run(_measure())


async def _measure() -> None:
    async with routers("a", "b", links=(("a", "b", 3),)) as (a, b):
        watch = BridgeWatch(a.uplinks, a.store, stored_bytes=lambda: 0, room_bytes=lambda: None)
        NetworkConsumer(b, "jobs/taken")
        NetworkConsumer(b, "jobs/refused", outcome=DeliveryOutcome.REJECTED)
        taken, refused = NetworkOrigin(a, "jobs/taken"), NetworkOrigin(a, "jobs/refused")
        await eventually(lambda: taken.credit and refused.credit)
        taken.publish("1", "2")
        refused.publish("3")
        await eventually(lambda: len(taken.answers) + len(refused.answers) == 3)

        (connector,) = watch.status("a", None, ()).connectors
        link = connector.router
        assert link is not None
        assert (link.neighbour, link.cost, link.links) == ("b", 3, 2)
        assert (link.sent, link.received, link.unanswered) == (3, 0, 0)
        assert link.outcomes == {"accepted": 2, "rejected": 1, "released": 0, "modified": 0, "path_lost": 0}
        assert connector.accepted == 2

        status = watch.network()
        assert status is not None
        metrics = exposition(lambda: {"network": status}).decode().splitlines()
        for line in (
            "waypost_network_neighbours 1.0",
            'waypost_network_path_cost{router="b"} 3.0',
            "waypost_network_links 2.0",
            "waypost_network_links_waiting 0.0",
            "waypost_network_sent_total 3.0",
            'waypost_network_outcomes_total{outcome="accepted"} 2.0',
            'waypost_network_outcomes_total{outcome="rejected"} 1.0',
            "waypost_network_unannounced_addresses 0.0",
        ):
            assert line in metrics
        assert "waypost_network" not in exposition(lambda: {"network": None}).decode()
        assert "answers of neighbours: 2 accepted, 1 rejected" in list(drawing(topology_of(a.network)))


def test_messages_stay_counted_when_their_link_has_ended() -> None:
    asyncio.run(_lose_a_link())


async def _lose_a_link() -> None:
    async with routers("a", "b", links=(("a", "b", 3),)) as (a, b):
        NetworkConsumer(a, "jobs/x", outcome=None)
        sender = NetworkOrigin(b, "jobs/x")
        await eventually(lambda: sender.credit)
        sender.publish("1")
        await eventually(lambda: a.network.traffic.received == 1)
        (connector,) = a.uplinks
        connector.dialer.pause()
        await eventually(lambda: not a.network.peerings and not b.network.peerings)
        assert (a.network.traffic.received, b.network.traffic.sent, b.network.traffic.path_lost) == (1, 1, 1)
        connector.dialer.resume()
        await eventually(lambda: b.network.peerings and a.reached == {"a", "b"})
        assert (a.network.traffic.received, b.network.traffic.sent) == (1, 1)
