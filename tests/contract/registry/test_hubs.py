"""Hubs of one registry: each shows all of them, and the gateways that are connected to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest

from cloud.hub.fleet import FleetState, GatewayState
from cloud.hub.gateway_counter import GatewayCounter
from cloud.hub.groups import GatewaySession, Presence, StoredState
from cloud.hub.limits import HUB_SILENT_S, HUBS_CLEANUP_S
from cloud.hub.observed import ObservedState
from cloud.hub.registry.hubs import HubRecord, Hubs, HubState
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.replicas import HubReplicas
from tests.contract.registry.conftest import HERE, THERE, Place

HALL: Final = ("default", "hall")
CAME: Final = Presence("192.0.2.1:9", connected=True, at_us=50, connects=1)


class Hub:
    """Hub of a test: what it shows, and its part of the registry."""

    def __init__(self, place: Place, identifier: str, clock: Callable[[], float]) -> None:
        self.registry = place.open(identifier)
        self.identifier = identifier
        self.fleet = FleetState(hub=identifier)
        self.seen_at = 0
        self.returned = 0
        self.replicas = HubReplicas(
            place.url, identifier, self.fleet,
            describe=self._describe, returned=self._return, hint=ChangeHint(), clock=clock,
        )  # fmt: skip

    def _describe(self) -> HubRecord:
        self.seen_at += 1
        return HubRecord(self.identifier, f"{self.identifier[:1]}:5671", "1", "serving", 1, self.seen_at, 3)

    def _return(self) -> None:
        self.returned += 1

    def shown(self) -> GatewayState:
        return self.fleet.current(self.registry.directory.gateways()[0])

    def connect(self) -> GatewaySession:
        """Connect the gateway here, and write it to the registry."""
        session = GatewaySession(*HALL, CAME.remote)
        self.fleet.connect(session, CAME.at_us)
        self.registry.directory.presence({HALL: CAME})
        return session


class World:
    """Two hubs and a clock."""

    def __init__(self, place: Place) -> None:
        self.now_s = 100.0
        self.here = Hub(place, HERE, lambda: self.now_s)
        self.there = Hub(place, THERE, lambda: self.now_s)

    def run(self, work: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            try:
                for hub in (self.here, self.there):
                    await hub.replicas.open()
                await work(self)
            finally:
                for hub in (self.here, self.there):
                    await hub.replicas.close()

        asyncio.run(main())


@pytest.fixture
def world(place: Place) -> World:
    return World(place)


@pytest.fixture
def registry_of_hubs(place: Place) -> Iterator[Hubs]:
    place.open(HERE)
    place.open(THERE)
    with contextlib.closing(Hubs(place.url, HERE)) as hubs:
        yield hubs


def test_gateway_at_another_hub_is_shown_as_that_hub_shows_it(world: World) -> None:
    async def work(world: World) -> None:
        here, there = world.here, world.there
        there.connect()
        state = there.fleet.gateways[HALL]
        state.status, state.newest_received_at = {"version": "9"}, 77
        there.registry.directory.seen({HALL: 60}, {HALL: state.observation()})
        shown = here.shown()
        assert (shown.connected, shown.hub, shown.connected_at, shown.remote) == (True, THERE, 50, CAME.remote)
        assert (shown.status, shown.newest_received_at, shown.last_seen) == ({"version": "9"}, 77, 60)
        assert not here.fleet.gateways, "only the registry has it"
        there.registry.directory.presence({HALL: Presence("-", connected=False, at_us=70)})
        assert not here.shown().connected

    world.run(work)


def test_gateway_that_moves_is_shown_at_one_hub(world: World) -> None:
    async def work(world: World) -> None:
        here, there = world.here, world.there
        session = here.connect()
        there.connect()
        assert here.shown().hub == HERE, "the old connection has not ended"
        here.fleet.disconnect(session, 80)
        assert (here.shown().connected, here.shown().hub, here.fleet.connected_here) == (True, THERE, 0)
        here.registry.directory.seen({HALL: 90}, {HALL: '{"newest_received_at": 5}'})
        await there.replicas.look()
        assert here.registry.directory.gateways()[0].observed is None, "the hub of its last connection writes them"

    world.run(work)


def test_silent_hub_counts_as_gone_until_it_writes_again(world: World) -> None:
    async def work(world: World) -> None:
        here, there = world.here, world.there
        there.connect()
        await here.replicas.look()
        assert here.shown().connected
        for _ in range(3):
            world.now_s += HUB_SILENT_S / 2
            await here.replicas.look()
        assert not here.shown().connected
        assert not here.registry.directory.gateways()[0].connected
        await here.replicas.look()
        assert here.replicas.known[THERE].record.state == HubState.GONE.value
        await there.replicas.look()
        assert there.returned == 1
        await here.replicas.look()
        assert here.replicas.known[THERE].there

    world.run(work)


def test_hub_that_did_not_look_counts_no_silence(world: World) -> None:
    async def work(world: World) -> None:
        world.there.connect()
        await world.here.replicas.look()
        world.now_s += 3 * HUB_SILENT_S
        await world.here.replicas.look()
        assert world.here.shown().connected

    world.run(work)


def test_stopped_hub_has_no_gateways(world: World) -> None:
    async def work(world: World) -> None:
        world.there.connect()
        await world.there.replicas.close()
        await world.here.replicas.look()
        assert not world.here.shown().connected
        stopped = world.here.replicas.known[THERE]
        assert (stopped.record.state, stopped.there) == (HubState.STOPPED.value, False)

    world.run(work)


def test_hub_that_wrote_in_the_meantime_is_not_gone(registry_of_hubs: Hubs, place: Place) -> None:
    with contextlib.closing(Hubs(place.url, THERE)) as other:
        record = HubRecord(THERE, "b", "1", HubState.SERVING.value, 1, 5, 0)
        assert not other.write(record)
        assert not other.write(record._replace(seen_at=6))
        registry_of_hubs.count_gone(THERE, 5)
        assert [each.state for each in registry_of_hubs.hubs()] == ["serving"]
        registry_of_hubs.count_gone(THERE, 6)
        assert [each.state for each in registry_of_hubs.hubs()] == ["gone"]
        assert other.write(record._replace(seen_at=7))
        assert not other.write(record._replace(seen_at=8))


def test_rows_of_hubs_that_stopped_long_ago_are_deleted(registry_of_hubs: Hubs, place: Place) -> None:
    record = HubRecord(HERE, "a", "1", HubState.SERVING.value, 1, 100, 0)
    registry_of_hubs.write(record)
    for number, state in enumerate((HubState.STOPPED, HubState.GONE, HubState.STOPPED, HubState.DRAINING)):
        place.execute(
            "INSERT INTO hubs VALUES (:id, 'b', '1', :state, 1, :seen, 0, NULL)",
            id=f"{number:032}", state=state.value, seen=10 + number,
        )  # fmt: skip
    assert registry_of_hubs.clean_up(13, 2) == 2
    assert registry_of_hubs.clean_up(12, 2) == 0
    assert registry_of_hubs.clean_up(13, 2) == 1
    assert sorted(each.state for each in registry_of_hubs.hubs()) == ["draining", "serving"]
    assert not registry_of_hubs.write(record)


def test_hub_whose_row_was_deleted_learns_that_it_was_gone(registry_of_hubs: Hubs, place: Place) -> None:
    record = HubRecord(THERE, "b", "1", HubState.SERVING.value, 1, 5, 0)
    with contextlib.closing(Hubs(place.url, THERE)) as other:
        assert not other.write(record), "it has just started"
        registry_of_hubs.count_gone(THERE, 5)
        assert registry_of_hubs.clean_up(6, 9) == 1
        assert other.write(record._replace(seen_at=7))
        assert not other.write(record._replace(seen_at=8))


def test_hub_that_follows_others_cleans_up(world: World, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.replicas.HUBS_SHOWN_S", 0.0)

    async def work(world: World) -> None:
        await world.there.replicas.close()
        for _ in range(3):
            world.now_s += HUBS_CLEANUP_S
            await world.here.replicas.look()
        assert list(world.here.replicas.known) == [HERE]

    world.run(work)


def test_observations_of_a_newer_program_change_nothing() -> None:
    state = GatewayState("default", "hall", 1, 1, status={"version": "1"})
    state.read_observed('{"status": 7}')
    assert state.status == {"version": "1"}
    state.read_observed(None)
    assert state.status == {"version": "1"}
    state.read_observed(GatewayState("default", "hall", 1, 1, dropped=4).observation())
    assert (state.status, state.dropped) == (ObservedState().status, 4)


def test_gateways_are_counted_by_tenant_and_hub(place: Place) -> None:
    here, there = place.open(HERE), place.open(THERE)
    fleet = FleetState(hub=HERE)
    for directory, tenant, names in ((here.directory, "acme", "ab"), (there.directory, "acme", "cde")):
        directory.presence({(tenant, name): CAME for name in names})
    there.directory.presence({("acme", "e"): Presence("-", connected=False, at_us=60), ("other", "f"): CAME})
    there.directory.presence({("acme", "a"): Presence("-", connected=True, at_us=70, connects=1)})

    async def work() -> None:
        counter = GatewayCounter(fleet, place.url, hint=ChangeHint(), clock=lambda: 0.0)
        await counter.open()
        try:
            await counter.count()
        finally:
            await counter.close()

    asyncio.run(work())
    assert (fleet.count_known("acme"), fleet.count_known("other"), fleet.count_known()) == (5, 1, 6)
    assert (fleet.counted.elsewhere, fleet.counted.hubs) == ({"acme": 3, "other": 1}, {THERE: 4})


def test_connection_tells_what_the_registry_has(registry_of_hubs: Hubs, place: Place) -> None:
    here, there = place.open(HERE).directory, place.open(THERE).directory
    assert here.presence({HALL: CAME}) == {HALL: StoredState(0, None)}
    here.seen({HALL: 60}, {HALL: '{"newest_received_at": 5}'})
    place.execute("UPDATE gateways SET landed = 7")
    assert here.presence({HALL: Presence("-", connected=False, at_us=70)}) == {}
    assert there.presence({HALL: CAME}) == {HALL: StoredState(7, '{"newest_received_at": 5}')}
