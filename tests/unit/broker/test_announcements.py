"""Announced addresses of a router: fair to its clients, and few statements however many of them come and go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.message import Stored
from edge.broker.limits import NETWORK_ANNOUNCE_S, NETWORK_ANNOUNCED_MAX, NETWORK_ANNOUNCED_PER_USER_MAX, TICK_S
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import SubscribeOptions
from edge.broker.network.shares import AnnouncementShares
from edge.broker.network.statements import ANYCAST, MULTICAST, Hello, Statement, decode_document
from edge.broker.router.router import Router
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer
from tests.unit.broker.network_site import Neighbour

RULES = [AddressRule("jobs/#", AddressType.ANYCAST), AddressRule("news/#", AddressType.MULTICAST)]


class Client(RunConsumer):
    """Consumer of any number of addresses."""

    credit = 1

    def __init__(self, site: Site, user: str = "", name: str = "") -> None:
        self.user = user
        self.name = name or f"client of {user}"
        self._router = site.router
        self._joined: dict[str, Any] = {}

    def take(self, subscription: Any, stored: Stored) -> None:
        raise AssertionError("nothing is sent")

    def consume(self, *addresses: str) -> None:
        for address in addresses:
            self._joined[address] = self._router.subscriptions.subscribe(self, address, SubscribeOptions())

    def leave(self, *addresses: str) -> None:
        for address in addresses or list(self._joined):
            self._router.subscriptions.unsubscribe(self, self._joined.pop(address), forget=False)


class Site:
    """A router with one neighbour, which the test plays, and its clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.router = Router(
            MemoryStore(post=_now),
            AddressTable(RULES),
            clock_ns=lambda: int(self.now_s * 1e9),
            flush_soon=lambda: None,
            monotonic_s=lambda: self.now_s,
        )
        self.network = self.router.join_network("a")
        self.statements: list[Statement] = []
        made: Any = SimpleNamespace(network=self.network)
        self.neighbour = Neighbour(made, "b")
        self.neighbour.peering.send = self._heard  # type: ignore[method-assign]

    def _heard(self, encoded: bytes) -> None:
        document = decode_document(encoded)
        if isinstance(document, Statement):
            self.statements.append(document)

    def pass_time(self, seconds: float) -> None:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s += TICK_S
            self.neighbour.say(Hello("b", 1))
            self.network.tick()

    @property
    def announced(self) -> set[str]:
        record = self.network.protocol.database.get("a")
        assert record is not None
        return set(record.announced)


def _now(call: Callable[[], None]) -> None:
    call()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}/{i}" for i in range(count)]


class TestFairness:
    """No client takes the places of others."""

    def test_a_client_with_a_pattern_takes_no_more_than_its_share(self) -> None:
        site = Site()
        greedy, modest = Client(site, "greedy"), Client(site, "modest")
        greedy.consume(*names("jobs/greedy", NETWORK_ANNOUNCED_MAX))
        modest.consume("jobs/modest", "news/modest")
        site.pass_time(1.0)
        assert {ANYCAST + "jobs/modest", MULTICAST + "news/modest"} <= site.announced
        assert len(site.announced) == NETWORK_ANNOUNCED_PER_USER_MAX + 2
        assert site.network.unannounced == NETWORK_ANNOUNCED_MAX - NETWORK_ANNOUNCED_PER_USER_MAX

    def test_without_authentication_each_client_has_a_share(self) -> None:
        site = Site()
        greedy, modest = Client(site, name="greedy"), Client(site, name="modest")
        greedy.consume(*names("jobs/greedy", NETWORK_ANNOUNCED_PER_USER_MAX + 1))
        modest.consume("jobs/modest")
        site.pass_time(1.0)
        assert ANYCAST + "jobs/modest" in site.announced
        assert len(site.announced) == NETWORK_ANNOUNCED_PER_USER_MAX + 1

    def test_a_place_that_becomes_free_is_used(self) -> None:
        site = Site()
        client = Client(site, "one")
        client.consume(*names("jobs", NETWORK_ANNOUNCED_PER_USER_MAX + 1))
        site.pass_time(1.0)
        assert ANYCAST + f"jobs/{NETWORK_ANNOUNCED_PER_USER_MAX}" not in site.announced
        client.leave("jobs/0")
        site.pass_time(1.0)
        assert ANYCAST + f"jobs/{NETWORK_ANNOUNCED_PER_USER_MAX}" in site.announced

    def test_a_user_with_fewer_addresses_gets_a_place_of_the_one_with_the_most(self) -> None:
        shares = AnnouncementShares(8, 6)
        for user, count in (("x", 6), ("y", 4)):
            for i in range(count):
                shares.update(f"{user}{i}", [user])
        added, _ = shares.take_changes()
        assert len(added) == 8
        shares.update("z0", ["z"])
        added, removed = shares.take_changes()
        assert added == ["z0"]
        assert len(removed) == 1
        shares.update("z0", [])
        added, _ = shares.take_changes()
        assert len(added) == 1

    def test_an_address_counts_for_another_of_its_consumers_when_one_leaves(self) -> None:
        shares = AnnouncementShares(8, 1)
        shares.update("one", ["x", "y"])
        shares.take_changes()
        for left in (["x"], ["y"]):
            shares.update("one", left)
            assert shares.take_changes() == ([], [])
        shares.update("two", ["y"])
        assert shares.take_changes() == ([], [])  # it has its place with the first address
        shares.update("three", ["x"])
        assert shares.take_changes() == (["three"], [])


STEPS = st.lists(
    st.tuples(st.integers(0, 11), st.sets(st.sampled_from("uvwxyz"), max_size=2), st.booleans()), max_size=60
)


@given(STEPS, st.integers(1, 8), st.integers(1, 4))
def test_shares_differ_by_one_at_most_while_any_address_waits(
    steps: list[tuple[int, set[str], bool]], addresses_max: int, per_user_max: int
) -> None:
    shares = AnnouncementShares(addresses_max, per_user_max)
    announced: set[str] = set()
    wanted: set[str] = set()
    for number, users, take in [*steps, (99, set(), True)]:
        address = f"a{number}"
        shares.update(address, sorted(users))
        wanted = wanted | {address} if users else wanted - {address}
        if not take:
            continue
        added, removed = shares.take_changes()
        assert not announced & set(added)
        assert announced >= set(removed)
        announced = announced - set(removed) | set(added)
        counts = Counter(shares._chosen.values())
        assert announced == set(shares._chosen)
        assert set(shares.wanted) == wanted
        assert len(announced) <= addresses_max
        assert max(counts.values(), default=0) <= per_user_max
        for user in shares._waiting_of:
            full = len(announced) == addresses_max
            assert counts[user] == per_user_max or (full and max(counts.values()) <= counts[user] + 1)


class TestCoalescing:
    """Consumers that come and go cost a bounded number of statements."""

    def test_the_first_change_is_stated_at_once_and_thousands_more_in_a_few_statements(self) -> None:
        site = Site()
        site.pass_time(1.0)
        client = Client(site, "one")
        client.consume("jobs/first")
        assert [each.added for each in site.statements] == [[ANYCAST + "jobs/first"]]
        started = site.now_s
        for i in range(4_000):
            site.now_s += 0.0002
            if i % 1_000 == 0:
                site.pass_time(TICK_S)
            client.consume(f"jobs/{i}")
            client.leave(f"jobs/{i}")
        site.pass_time(1.0)
        assert len(site.statements) <= (site.now_s - started) / NETWORK_ANNOUNCE_S + 1
        assert site.announced == {ANYCAST + "jobs/first"}

    def test_a_change_that_waits_is_stated_within_two_ticks(self) -> None:
        site = Site()
        site.pass_time(1.0)
        client = Client(site, "one")
        client.consume("jobs/first", "jobs/second")
        assert ANYCAST + "jobs/second" not in site.announced
        site.pass_time(2 * TICK_S)
        assert ANYCAST + "jobs/second" in site.announced

    def test_ten_thousand_filters_are_left_as_fast_as_ten(self) -> None:
        def seconds(others: int) -> float:
            site = Site()
            Client(site, "others").consume(*(f"jobs/{i}/+" for i in range(others)))
            client = Client(site, "one")
            own = [f"jobs/own/{i}/+" for i in range(200)]
            client.consume(*own)
            site.now_s -= 10.0  # so nothing is announced
            started = time.perf_counter()
            client.leave(*own)
            return time.perf_counter() - started

        few = min(seconds(10) for _ in range(3))
        assert seconds(10_000) < 10 * few + 0.02
