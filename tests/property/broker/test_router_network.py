"""Routers of random networks agree after links, losses, restarts and announcements in any order; nothing loops."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.broker.limits import NETWORK_GONE_S, NETWORK_HELLOS_MISSED_MAX
from edge.broker.network.protocol import LinkFault, NetworkProtocol
from edge.broker.network.statements import (
    VERSION,
    Hello,
    NetworkDocument,
    Statement,
    decode_document,
    encode_document,
)

NAMES = "abcdef"
ADDRESSES = ("ajobs", "ajobs/#", "mnews", "mnews/+")


class Network:
    """Routers with links that carry documents in order, one at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys = count(1)
        self.routers: dict[str, NetworkProtocol] = {}
        self.links: dict[int, tuple[str, str, int, int]] = {}
        """Link by number: both routers, and the key at each."""
        self.queues: dict[tuple[str, int], deque[NetworkDocument]] = {}
        """Documents on the way, by receiver and its key."""
        self.ends: dict[tuple[str, int], tuple[str, int]] = {}
        self.announced: dict[str, set[str]] = {}

    def boot(self, name: str, instance: int) -> None:
        for number, (a, b, *_) in list(self.links.items()):
            if name in (a, b):
                self.cut(number)
        self.routers[name] = NetworkProtocol(name, instance)
        self.announced[name] = set()

    def link(self, a: str, b: str, cost: int) -> None:
        one, other = next(self.keys), next(self.keys)
        self.links[one] = (a, b, one, other)
        for end, far in (((a, one), (b, other)), ((b, other), (a, one))):
            self.queues[end] = deque()
            self.ends[end] = far
        self.routers[a].connected(one, self.now, cost, 0.5)
        self.routers[b].connected(other, self.now)
        self.collect(a, b)

    def cut(self, number: int) -> None:
        a, b, one, other = self.links.pop(number)
        for name, key in ((a, one), (b, other)):
            del self.queues[name, key], self.ends[name, key]
            self.routers[name].lost(key)
        self.collect(a, b)

    def collect(self, *names: str) -> list[tuple[str, int, LinkFault]]:
        found: list[tuple[str, int, LinkFault]] = []
        for name in names:
            output, faults = self.routers[name].take()
            for key, document in output:
                if (name, key) in self.ends:
                    self.queues[self.ends[name, key]].append(decode_document(encode_document(document)))
            found += [(name, key, fault) for key, fault in faults]
        return found

    def deliver_one(self, choice: int) -> bool:
        busy = [end for end, queue in self.queues.items() if queue]
        if not busy:
            return False
        name, key = busy[choice % len(busy)]
        self.routers[name].received(key, self.queues[name, key].popleft(), self.now)
        assert not self.collect(name)
        return True

    def settle(self) -> None:
        steps = 0
        while self.deliver_one(steps):
            steps += 1
            assert steps < 20_000, "documents without an end"
        for router in self.routers.values():
            router.follow()

    def costs(self) -> dict[tuple[str, str], int]:
        """Return the cost of the cheapest path of each pair, by Floyd and Warshall."""
        far = 1 << 40
        found = {(a, b): 0 if a == b else far for a in self.routers for b in self.routers}
        for a, b, one, _ in self.links.values():
            cost = self.routers[a].links[one].cost
            for pair in ((a, b), (b, a)):
                found[pair] = min(found[pair], cost)
        for over in self.routers:
            for a in self.routers:
                for b in self.routers:
                    found[a, b] = min(found[a, b], found[a, over] + found[over, b])
        return {pair: cost for pair, cost in found.items() if cost < far}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("link"), st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(1, 5)),
        st.tuples(st.just("cut"), st.integers(0, 99)),
        st.tuples(st.just("restart"), st.sampled_from(NAMES), st.integers(-2, 3)),
        st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(ADDRESSES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES), st.sampled_from(ADDRESSES)),
        st.tuples(st.just("deliver"), st.integers(0, 99)),
    ),
    max_size=60,
)


def run(steps: list[tuple[object, ...]]) -> Network:
    network = Network()
    for name in NAMES:
        network.boot(name, 10)
    for kind, *rest in steps:
        match kind, rest:
            case "link", [str(a), str(b), int(cost)] if a != b:
                network.link(a, b, cost)
            case "cut", [int(choice)] if network.links:
                network.cut(list(network.links)[choice % len(network.links)])
            case "restart", [str(name), int(later)]:
                network.boot(name, 10 + later)  # a clock may have gone back
            case "add", [str(name), str(address)]:
                network.announced[name].add(address)
                network.routers[name].announce([address], [])
                network.collect(name)
            case "remove", [str(name), str(address)]:
                network.announced[name].discard(address)
                network.routers[name].announce([], [address])
                network.collect(name)
            case "deliver", [int(choice)]:
                network.deliver_one(choice)
    network.settle()
    return network


@given(STEPS)
def test_routers_that_reach_each_other_agree(steps: list[tuple[object, ...]]) -> None:
    network = run(steps)
    costs = network.costs()
    for name, router in network.routers.items():
        tree = router.paths.tree(name)
        assert {other: step.cost for other, step in tree.items()} == {b: c for (a, b), c in costs.items() if a == name}
        for other in tree:
            record = router.database.get(other)
            assert record is not None
            assert set(record.announced) == network.announced[other]


@given(STEPS)
def test_messages_follow_the_cheapest_path_and_never_loop(steps: list[tuple[object, ...]]) -> None:
    network = run(steps)
    for (start, end), cost in network.costs().items():
        at, spent, passed = start, 0, {start}
        while at != end:
            hop = network.routers[at].paths.next_hop(at, end)
            assert hop is not None
            assert hop not in passed
            key = network.routers[at].link_to(hop)
            assert key is not None
            spent += network.routers[at].links[key].cost
            passed.add(hop)
            at = hop
        assert spent == cost


@given(STEPS, st.sampled_from(NAMES))
def test_each_router_gets_one_copy_of_a_multicast_message(steps: list[tuple[object, ...]], origin: str) -> None:
    network = run(steps)
    reached = network.routers[origin].paths.tree(origin)
    wanted = {name for name in reached if name != origin and "mnews" in network.announced[name]}
    copies: dict[str, int] = {}
    waiting = [origin]
    while waiting:
        at = waiting.pop()
        for child in network.routers[at].paths.branches(origin, at, wanted):
            copies[child] = copies.get(child, 0) + 1
            waiting.append(child)
    assert set(copies.values()) <= {1}
    assert wanted <= set(copies)


def test_a_silent_neighbour_is_given_up_after_three_intervals() -> None:
    network = Network()
    for name in "ab":
        network.boot(name, 1)
    network.link("a", "b", 1)
    network.settle()
    router = network.routers["a"]
    network.now = 0.5 * NETWORK_HELLOS_MISSED_MAX
    router.tick(network.now)
    assert not network.collect("a")
    network.now += 0.01
    router.tick(network.now)
    ((_, _, fault),) = network.collect("a")
    assert fault is LinkFault.SILENT


def test_greetings_keep_a_link_and_a_router_that_is_gone_is_forgotten() -> None:
    network = Network()
    for name in "ab":
        network.boot(name, 1)
    network.link("a", "b", 1)
    network.settle()
    for _ in range(100):
        network.now += 0.25
        for name in "ab":
            network.routers[name].tick(network.now)
            assert not network.collect(name)
        network.settle()
    network.cut(next(iter(network.links)))
    network.settle()
    router = network.routers["a"]
    router.tick(network.now)
    assert router.database.get("b") is not None
    router.tick(network.now + NETWORK_GONE_S + 1)
    assert router.database.get("b") is None


def test_two_routers_of_one_name_do_not_answer_each_other_without_end() -> None:
    network = Network()
    network.boot("m", 1)
    twins = [NetworkProtocol("x", 5), NetworkProtocol("x", 9)]
    network.routers |= {"x": twins[0], "y": twins[1]}
    network.link("x", "m", 1)
    network.link("y", "m", 1)
    network.settle()
    assert any(twin.clashing for twin in twins)


def linked() -> Network:
    network = Network()
    for name in "ab":
        network.boot(name, 1)
    network.link("a", "b", 1)
    network.settle()
    return network


def test_a_neighbour_keeps_its_name() -> None:
    network = linked()
    router = network.routers["a"]
    (key,) = router.links
    router.received(key, Hello("c", VERSION), network.now)
    ((_, _, fault),) = network.collect("a")
    assert fault is LinkFault.RENAMED
    assert router.links[key].router == "b"


@pytest.mark.parametrize("version", [0, 7, 2**62])
def test_a_forged_statement_of_the_last_instance_does_not_spoil_ours(version: int) -> None:
    network = linked()
    a, b = network.routers["a"], network.routers["b"]
    (key,) = a.links
    a.received(key, Statement("a", 2**62, version, 0, {}, ["aforged"]), network.now)
    network.collect("a")  # encodes and decodes: every document is valid
    a.announce(["ajobs"], [])
    network.collect("a")
    network.settle()
    record = b.database.get("a")
    assert record is not None
    assert set(record.announced) == {"ajobs"}
