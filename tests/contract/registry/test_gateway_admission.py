"""Quota of gateways of a tenant: new ones are counted in the registry, known ones always have room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from cloud.hub.groups import GatewaySession, Key, LandingGroup, LandingOutcome, Presence, QueueEntry
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RegistryError
from cloud.hub.registry.gateway_admission import COUNT_FRESH_S, FULL_FRESH_S, FULL_REST, LOST_REST_S, _count
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


def _no_answer(_outcome: LandingOutcome, _words: str) -> None:
    """Ignore the outcome: the entry has it."""


def forget_one(place: Place, name: str) -> None:
    database = open_registry(place.url).database
    database.transaction(lambda tx: forget(tx, "small", name, 9))
    database.close()


def count_counts(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> list[str]:
    """Return the tenants that are counted from now on. `then` is called at each count."""
    counted: list[str] = []

    def count(tx: sa.Connection, tenant: str, most: int) -> int:
        counted.append(tenant)
        then()
        return _count(tx, tenant, most)

    monkeypatch.setattr("cloud.hub.registry.gateway_admission._count", count)
    return counted


class Clock:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


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
    assert connect(limited(place.open(THERE)), *keys("c", "b")) == {("small", "c")}


def test_gateways_of_a_failed_write_are_not_counted_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = limited(place.open())
    hold_clock(registry)

    def fail(*_: object) -> None:
        raise RegistryError("the registry does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(registry.directory, "_write_presence", fail)
        with pytest.raises(RegistryError):
            connect(registry, *keys("a", "b"))
    assert connect(registry, *keys("a", "b")) == set()


def test_late_sighting_of_a_forgotten_gateway_is_not_stored(place: Place) -> None:
    registry = place.open()
    connect(registry, *keys("a"))
    registry.directory.presence({("small", "a"): Presence("-", connected=False, at_us=3)})
    forget_one(place, "a")
    registry.directory.seen(
        {("small", "a"): 4}, {("small", "a"): '{"status": {"version": "1"}, "newest": 1, "dropped": 0}'}
    )
    assert place.execute("SELECT observed FROM gateways") == [(None,)]


def test_forgotten_gateway_frees_its_place_within_a_second(place: Place) -> None:
    registry = limited(place.open())
    clock = hold_clock(registry)
    connect(registry, *keys("a", "b"))
    forget_one(place, "a")
    clock.now_s += FULL_FRESH_S
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
    clock = hold_clock(registry)
    connect(registry, *keys("a", "b"))
    registry.directory.presence({("small", "a"): Presence("-", connected=False, at_us=3)})
    forget_one(place, "a")
    clock.now_s += FULL_FRESH_S
    assert connect(registry, *keys("c")) == set()
    assert connect(registry, *keys("a")) == set(keys("a")), "c has its place, although this hub has admitted a before"
    assert known(registry) == ["b", "c"]


def test_count_is_not_repeated_while_it_is_fresh(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_counts(monkeypatch)
    registry = limited(place.open())
    clock = hold_clock(registry)
    for number in range(5):
        connect(registry, *keys(f"gw{number}", tenant="large"))
    connect(registry, *keys("gw0", tenant="large"))
    assert counted == ["large"]
    connect(registry, *keys("a", "b"))
    for name in "cde":
        assert connect(registry, *keys(name)) == set(keys(name))
    assert counted == ["large", "small"], "the count that refuses is new enough"
    clock.now_s += FULL_FRESH_S
    connect(registry, *keys("f"))
    assert counted == ["large", "small", "small"]


def test_count_that_takes_long_is_repeated_seldom(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = limited(place.open())
    clock = hold_clock(registry)
    counted = count_counts(monkeypatch, lambda: clock.advance(0.5))
    for name in "abc":
        connect(registry, *keys(name))
    clock.now_s += FULL_FRESH_S
    connect(registry, *keys("d"))
    assert counted == ["small"]
    clock.now_s += 0.5 * FULL_REST
    connect(registry, *keys("e"))
    assert counted == ["small", "small"]


def lose(registry: Registry, times: int, *, connected: bool = True, then: Callable[[], None] = lambda: None) -> None:
    """Let the connection of the next counts be lost, or not be made. `then` is called each time."""
    reading = registry.directory.admission._reading
    transaction = reading.transaction
    left = [times]

    def fail(work: Callable[[sa.Connection], object], **options: int) -> object:
        if left[0] == 0:
            return transaction(work, **options)
        left[0] -= 1
        then()
        lost = sa.exc.OperationalError(
            "SELECT" if connected else None, {}, Exception("closed"), connection_invalidated=connected
        )
        raise RegistryError("the server has closed the connection") from lost

    reading.transaction = fail  # type: ignore[method-assign,assignment]


def test_lost_connection_is_made_again_at_once(place: Place) -> None:
    """The server was away since the last count, or a standby has taken over: a new gateway does not wait."""
    registry = limited(place.open())
    connect(registry, *keys("a"))
    lose(registry, 1)
    connect(registry, *keys("b"))
    assert registry.directory.undecided == frozenset()
    assert known(registry) == ["a", "b"]


@pytest.mark.parametrize("connected", [True, False])
def test_server_that_is_away_is_asked_again_soon(place: Place, connected: bool) -> None:
    """Also if it took long to find that out: new gateways would wait for a minute after it is back."""
    registry = limited(place.open())
    clock = hold_clock(registry)
    lose(registry, 2 if connected else 1, connected=connected, then=lambda: clock.advance(5.0))
    connect(registry, *keys("a"))
    assert registry.directory.undecided == frozenset(keys("a"))
    clock.now_s += LOST_REST_S
    connect(registry, *keys("a"))
    assert known(registry) == ["a"]


def test_as_many_as_come_at_once_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.gateway_admission.REFUSED_MAX", 2)
    registry = limited(place.open())
    assert connect(registry, *keys("a", "b", "c", "d", "e", "f")) == set(keys("c", "d", "e", "f"))
    assert known(registry) == ["a", "b"]


def test_refused_gateway_that_is_not_remembered_stays_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.gateway_admission.REFUSED_MAX", 1)
    registry = limited(place.open())
    connect(registry, *keys("a", "b", "c"))
    connect(registry, *keys("d"))
    assert registry.directory.admission.refused(keys("c")) == set()
    assert registry.directory.refused(keys("a", "b", "c", "d")) == set(keys("c", "d")), "nothing lands for them"
    registry.directory.presence({("small", "c"): Presence("-", connected=False, at_us=9)})
    registry.directory.presence({("small", "c"): Presence("-", connected=True, at_us=9)})
    assert known(registry) == ["a", "b"], "neither the end of its connection nor a repeated presence adds it"
    assert connect(registry, *keys("c")) == set(keys("c"))


def test_generation_from_before_a_refusal_admits_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.gateway_admission.REFUSED_MAX", 1)
    registry = limited(place.open())
    clock = hold_clock(registry)
    connect(registry, *keys("a", "b"))
    forget_one(place, "a")
    clock.now_s += FULL_FRESH_S
    assert connect(registry, *keys("c")) == set()
    assert connect(registry, *keys("a")) == set(keys("a"))
    connect(registry, *keys("d"))
    assert registry.directory.refused(keys("a", "d")) == set(keys("a", "d"))
    registry.directory.presence({("small", "a"): Presence("-", connected=False, at_us=9)})
    assert known(registry) == ["b", "c"]


@pytest.mark.parametrize("connected", [False, True], ids=["late disconnect", "repeated presence"])
def test_refused_connection_takes_no_gateway_from_the_hub_that_admitted_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    monkeypatch.setattr("cloud.hub.registry.gateway_admission.REFUSED_MAX", 1)
    here, there = limited(place.open(), 1), limited(place.open(THERE), 4)
    connect(here, *keys("a", "b"))
    assert connect(here, *keys("c")) == set(keys("c"))
    assert here.directory.admission.refused(keys("b")) == set(), "not remembered any more"
    assert connect(there, *keys("b")) == set()
    here.directory.presence({("small", "b"): Presence("-", connected=connected, at_us=9)})
    row = next(each for each in there.directory.gateways() if each.name == "b")
    assert (row.writer, row.connected) == (THERE, True)
    assert there.directory.fenced(keys("b")) == set()


class TestFailingCount:
    """New gateways wait while they cannot be counted; known ones do not."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
        def fail(*_: object) -> int:
            raise RegistryError("too many clients")

        with monkeypatch.context() as patch:
            patch.setattr("cloud.hub.registry.gateway_admission._count", fail)
            yield patch

    def test_known_gateway_connects(self, place: Place, failing: pytest.MonkeyPatch) -> None:
        registry = limited(place.open(), 3)
        clock = hold_clock(registry)
        with failing.context() as patch:
            patch.setattr("cloud.hub.registry.gateway_admission._count", _count)
            connect(registry, *keys("a", "forgotten"))
            forget_one(place, "forgotten")
            clock.now_s += COUNT_FRESH_S
        assert connect(registry, *keys("a", "b", "forgotten")) == set()
        assert registry.directory.undecided == set(keys("b", "forgotten"))
        assert known(registry) == ["a"]
        failing.undo()
        assert connect(registry, *keys("b")) == set()
        assert registry.directory.undecided == set(keys("b")), "it rests after a failure"
        clock.now_s += FULL_FRESH_S
        assert connect(registry, *keys("b", "c", "forgotten")) == set(keys("forgotten"))
        assert (registry.directory.undecided, known(registry)) == (set(), ["a", "b", "c"])

    def test_gateway_that_was_refused_before_is_not_refused_without_a_count(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry = limited(place.open(), 1)
        clock = hold_clock(registry)
        assert connect(registry, *keys("a", "b")) == set(keys("b"))
        clock.now_s += FULL_FRESH_S
        with monkeypatch.context() as patch:
            patch.setattr(registry.directory.admission._reading, "transaction", self._fail)
            assert connect(registry, *keys("b")) == set()
            assert registry.directory.undecided == set(keys("b"))
        clock.now_s += FULL_FRESH_S
        assert connect(registry, *keys("b")) == set(keys("b"))

    @staticmethod
    def _fail(*_: object) -> None:
        raise RegistryError("too many clients")

    def test_content_of_new_gateways_is_held_and_that_of_known_ones_lands(
        self, place: Place, failing: pytest.MonkeyPatch
    ) -> None:
        lake = MemoryLake()
        hub = LandingHub(place, lake)
        hub.registry.directory.presence({("small", "known"): Presence("-", connected=True, at_us=1, connects=1)})
        limited(hub.registry, 2)
        sessions = [GatewaySession("small", name, "-") for name in ("known", "new")]
        entries = [
            QueueEntry(
                session, batch(TEMPERATURE._replace(tenant="small", gateway=session.gateway), 0, 9), _no_answer, 0.0
            )
            for session in sessions
        ]
        presence = {each.key: Presence("-", connected=True, at_us=1, connects=1) for each in sessions}
        states = [{"tenant": "small", "gateway": each.gateway, "reported_at": 1, "state": "s"} for each in sessions]
        group = LandingGroup(entries, presence, states)
        report = hub.lander.land(group, 1_000)
        assert [entry.verdict for entry in entries] == [LandingOutcome.LANDED, None]
        assert (report.fault, report.refused, report.states) == (None, set(), 1)
        assert (group.presence.keys(), group.states) == ({sessions[1].key}, states[1:]), "they are for the next group"
        failing.undo()
        hub.now_s += FULL_FRESH_S
        later = LandingGroup(entries[1:], group.presence, group.states)
        hub.lander.land(later, 1_000)
        assert entries[1].verdict is LandingOutcome.LANDED
        assert (later.presence, later.states) == ({}, [])

    def test_count_that_stands_is_given_up(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        if place.url.drivername.startswith("sqlite"):
            pytest.skip("only a server holds up a reader")

        def stand(tx: sa.Connection, _tenant: str, _most: int) -> int:
            tx.execute(sa.text("SELECT pg_sleep(60)"))
            return 0

        monkeypatch.setattr("cloud.hub.registry.gateway_admission._count", stand)
        monkeypatch.setattr("cloud.hub.registry.gateway_admission.COUNT_S_MAX", 0.05)
        registry = limited(place.open())
        connect(registry, *keys("a"))
        assert registry.directory.undecided == set(keys("a"))
        assert "timeout" in registry.directory.admission.trouble


def test_connection_of_the_count_is_made_at_the_start(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.open()._reading.connections == 1

    def fail(_database: Database) -> None:
        raise RegistryError("too many clients")

    monkeypatch.setattr(Database, "connect", fail)
    with pytest.raises(RegistryError):
        place.open(THERE)


def test_equal_generation_of_another_hub_is_not_that_of_this_one(place: Place) -> None:
    """A standby that takes over may lack the connect to this hub, so that the next hub gives the same number."""
    here, there = limited(place.open()), limited(place.open(THERE))
    connect(here, *keys("a"))
    place.execute("UPDATE gateways SET generation = 0")
    connect(there, *keys("a"))
    here.directory.presence({("small", "a"): Presence("-", connected=False, at_us=9)})
    [row] = there.directory.gateways()
    assert (row.generation, row.writer, row.connected) == (1, THERE, True)


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
