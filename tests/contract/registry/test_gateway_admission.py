"""Quota of gateways of a tenant: new ones are counted in the registry, known ones always have room."""

from __future__ import annotations

import pytest

from cloud.hub.groups import GatewaySession, Key, LandingGroup, LandingOutcome, Presence, QueueEntry
from cloud.hub.registry.gateway_admission import COUNT_FRESH_S
from cloud.hub.registry.names import forget
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.registry import Registry
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.landing_hub import LandingHub
from tests.contract.registry.landings import TEMPERATURE, batch
from tests.support.memory_lake import MemoryLake


def limited(registry: Registry, most: int = 2) -> Registry:
    """Limit the tenant `small`."""
    registry.directory.admission.limit_to(lambda tenant: most if tenant == "small" else 1_000)
    return registry


class Clock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now_s


def hold_clock(registry: Registry) -> Clock:
    clock = Clock()
    registry.directory.admission._clock = clock
    return clock


def keys(*names: str, tenant: str = "small") -> list[Key]:
    return [(tenant, name) for name in names]


def connect(registry: Registry, *who: Key) -> set[Key]:
    """Connect gateways, one after the other; return those that were refused."""
    changes = {key: Presence("-", connected=True, at_us=at, connects=1) for at, key in enumerate(who, 1)}
    registry.directory.presence(changes)
    return registry.directory.refused(who)


def known(registry: Registry) -> list[str]:
    return sorted(each.name for each in registry.directory.gateways() if each.tenant == "small")


def test_gateways_beyond_the_quota_are_refused_and_known_ones_never(place: Place) -> None:
    registry = limited(place.open())
    assert connect(registry, *keys("a", "b", "c"), *keys("a", "b", "c", tenant="large")) == {("small", "c")}
    assert connect(registry, *keys("a", "b")) == set()
    assert known(registry) == ["a", "b"]
    registry.directory.presence({("small", "c"): Presence("-", connected=False, at_us=9)})
    assert known(registry) == ["a", "b"], "nothing is stored of the end of a refused connection"
    assert limited(place.open(THERE)).directory.refused(keys("c")) == set()
    assert connect(limited(place.open(THERE)), *keys("c", "b")) == {("small", "c")}


def test_forgotten_gateway_frees_its_place_at_once(place: Place) -> None:
    registry = limited(place.open())
    connect(registry, *keys("a", "b"))
    database = open_registry(place.url).database
    database.transaction(lambda tx: forget(tx, "small", "a", 9))
    database.close()
    assert connect(registry, *keys("c")) == set()
    assert known(registry) == ["b", "c"]


def test_other_hub_is_noticed_after_a_while(place: Place) -> None:
    here, there = limited(place.open(), 4), limited(place.open(THERE), 4)
    clock = hold_clock(here)
    assert connect(here, *keys("a")) == set()
    connect(there, *keys("b", "c", "d"))
    assert connect(here, *keys("e")) == set(), "one more than the quota, within the age of a count"
    clock.now_s += COUNT_FRESH_S
    assert connect(here, *keys("f")) == set(keys("f"))


def test_forgotten_gateway_that_returns_is_new(place: Place) -> None:
    registry = limited(place.open())
    connect(registry, *keys("a", "b"))
    registry.directory.presence({("small", "a"): Presence("-", connected=False, at_us=3)})
    database = open_registry(place.url).database
    database.transaction(lambda tx: forget(tx, "small", "a", 9))
    database.close()
    assert connect(registry, *keys("c")) == set()
    assert connect(registry, *keys("a")) == set(keys("a")), "c has its place, although this hub has admitted a before"
    assert known(registry) == ["b", "c"]


def test_count_is_not_repeated_while_there_is_room(place: Place) -> None:
    registry = limited(place.open())
    clock = hold_clock(registry)
    for number in range(5):
        connect(registry, *keys(f"gw{number}", tenant="large"))
    connect(registry, *keys("gw0", tenant="large"))
    assert clock.asked == 6, "the first gateway asks twice, for its count and the age of that"


def test_refused_ones_are_remembered_to_a_limit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.gateway_admission.REFUSED_MAX", 2)
    registry = limited(place.open())
    connect(registry, *keys("a", "b"))
    assert connect(registry, *keys("c", "d", "e")) == set(keys("d", "e"))


def test_nothing_lands_for_a_refused_gateway(place: Place) -> None:
    lake = MemoryLake()
    hub = LandingHub(place, lake)
    limited(hub.registry, 1)
    sessions = [GatewaySession("small", name, "-") for name in ("admitted", "refused")]

    def group(*connected: GatewaySession) -> LandingGroup:
        entries = []
        for session in sessions:
            received = batch(TEMPERATURE._replace(tenant="small", gateway=session.gateway), 0, 9)
            entries.append(QueueEntry(session, received, lambda _outcome, _words: None, 0.0))
        changes = {each.key: Presence("-", connected=True, at_us=at, connects=1) for at, each in enumerate(connected)}
        return LandingGroup(entries, changes)

    came, later = group(*sessions), group()
    assert hub.lander.land(came, 1_000).refused == {sessions[1].key}
    assert not hub.lander.land(later, 1_000).refused
    for some in (came, later):
        assert [each.verdict for each in some.entries] == [LandingOutcome.LANDED, LandingOutcome.RELEASED]
    limited(hub.registry, 2)
    again = group(sessions[1])
    assert not hub.lander.land(again, 1_000).refused
    assert [each.verdict for each in again.entries] == [LandingOutcome.LANDED] * 2
