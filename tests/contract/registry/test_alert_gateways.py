"""Gateways that the alert rules of a hub judge: its own from memory, those that are connected to no hub from the
registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from cloud.hub.alerts.gateways import JudgedGateways, MeasuredGateways
from cloud.hub.alerts.limits import MEASURED_LABELS_S
from cloud.hub.fleet import FleetState
from cloud.hub.groups import GatewaySession, Key, Presence
from cloud.hub.registry.names import forget
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import HERE, THERE, Place

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000


def key(name: str) -> Key:
    return "default", name


class World:
    """Two hubs of one lake, and what one of them judges."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.here, self.there = place.open(HERE), place.open(THERE)
        place.execute("UPDATE writers SET lake = 'shared'")
        self.fleet = FleetState(hub=HERE)
        self.now_s = 100.0
        self.hint = ChangeHint()
        self.gateways = MeasuredGateways(
            self.fleet, place.url, now_us=lambda: NOW_US, clock=lambda: self.now_s, hint=self.hint
        )

    def connect(self, name: str, at_us: int = NOW_US) -> GatewaySession:
        """Connect a gateway here, in memory and in the registry."""
        session = GatewaySession(*key(name), "-")
        self.fleet.connect(session, at_us)
        self.here.directory.presence({key(name): Presence("-", connected=True, at_us=at_us, connects=1)})
        return session

    def leave(self, name: str, at_us: int, *, hub: str = HERE, connected: bool = False) -> None:
        """Write to the registry that a gateway came to a hub, and left it unless it is `connected`."""
        directory = (self.here if hub == HERE else self.there).directory
        directory.presence({key(name): Presence("-", connected=connected, at_us=at_us, connects=1)})

    def run(self, story: Callable[[World], Awaitable[None]]) -> None:
        async def live() -> None:
            await self.gateways.open()
            try:
                await story(self)
            finally:
                await self.gateways.close()

        asyncio.run(live())

    async def read(self, *members: str) -> JudgedGateways:
        return await self.gateways.read([key(each) for each in members])


@pytest.fixture
def world(place: Place) -> World:
    return World(place)


def names(judged: JudgedGateways) -> dict[str, bool]:
    return {each.gateway.name: each.gateway.connected for each in judged.seen}


def test_own_gateways_and_those_away_are_judged(world: World) -> None:
    async def story(world: World) -> None:
        world.connect("mine")
        world.leave("away", NOW_US - HOUR_US, hub=THERE)
        world.leave("theirs", NOW_US, hub=THERE, connected=True)
        judged = await world.read("theirs", "away", "mine", "never-seen")
        assert names(judged) == {"mine": True, "away": False}
        assert judged.unknown == {key("theirs")}, "its hub judges it"

    world.run(story)


def test_gateway_that_moves_is_judged_by_one_hub_or_none(world: World) -> None:
    async def story(world: World) -> None:
        session = world.connect("hall")
        assert names(await world.read("hall")) == {"hall": True}
        world.leave("hall", NOW_US + 1, hub=THERE, connected=True)
        assert names(await world.read("hall")) == {"hall": True}, "the old connection has not ended"
        world.fleet.disconnect(session, NOW_US + 2)
        judged = await world.read("hall")
        assert (names(judged), judged.unknown) == ({}, {key("hall")})
        world.there.directory.presence({key("hall"): Presence("-", connected=False, at_us=NOW_US + 3)})
        assert names(await world.read("hall")) == {"hall": False}
        world.connect("hall", NOW_US + 4)
        assert names(await world.read("hall")) == {"hall": True}

    world.run(story)


def test_connection_whose_end_is_not_written_is_unknown(world: World) -> None:
    async def story(world: World) -> None:
        session = world.connect("hall")
        world.fleet.gateways[key("hall")].dropped = 3
        world.fleet.disconnect(session, NOW_US)
        judged = await world.read()
        assert (names(judged), judged.unknown) == ({}, {key("hall")}), "a pending rule goes on"
        world.here.directory.presence({key("hall"): Presence("-", connected=False, at_us=NOW_US)})
        [seen] = (await world.read()).seen
        assert (seen.gateway.connected, seen.gateway.dropped, seen.gateway.hub) == (False, 3, HERE)

    world.run(story)


def test_connection_that_is_not_written_yet_is_judged(world: World) -> None:
    async def story(world: World) -> None:
        world.leave("hall", NOW_US - HOUR_US)
        world.fleet.connect(GatewaySession(*key("hall"), "-"), NOW_US)
        world.fleet.connect(GatewaySession(*key("new"), "-"), NOW_US)
        assert names(await world.read()) == {"hall": True, "new": True}

    world.run(story)


def test_forgotten_gateway_is_neither_judged_nor_unknown(world: World) -> None:
    async def story(world: World) -> None:
        world.leave("hall", NOW_US - HOUR_US)
        database = open_registry(world.place.url).database
        database.transaction(lambda tx: forget(tx, *key("hall"), NOW_US))
        database.close()
        judged = await world.read("hall")
        assert (names(judged), judged.unknown) == ({}, frozenset()), "its alerts end"

    world.run(story)


def test_gateway_of_another_lake_is_judged_there(world: World) -> None:
    async def story(world: World) -> None:
        world.leave("roamer", NOW_US - HOUR_US, hub=THERE)
        world.place.execute("UPDATE writers SET lake = id")
        judged = await world.read("roamer")
        assert (names(judged), judged.unknown) == ({}, frozenset())
        world.place.execute("UPDATE writers SET lake = NULL")
        assert names(await world.read("roamer")) == {"roamer": False}

    world.run(story)


def test_beyond_the_limit_those_seen_last_are_judged_and_alerts_of_others_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.hub.alerts.gateways.AWAY_GATEWAYS_MAX", 2)

    async def story(world: World) -> None:
        for number in range(4):
            world.leave(f"gw{number}", NOW_US - number * HOUR_US)
        judged = await world.read("gw2")
        assert names(judged) == {"gw0": False, "gw1": False}
        assert judged.unknown == {key("gw2")}

    world.run(story)


def test_room_of_a_gateway_away_is_that_of_its_last_report(world: World) -> None:
    async def story(world: World) -> None:
        world.leave("hall", NOW_US - HOUR_US)
        reported_ms = (NOW_US - HOUR_US) // 1_000
        text = f'{{"status": {{"reported_at": {reported_ms}, "room_hours": 5.0}}}}'
        world.here.directory.seen({key("hall"): NOW_US - HOUR_US}, {key("hall"): text})
        world.leave("silent", NOW_US - HOUR_US)
        found = {each.gateway.name: each.room_hours for each in (await world.read()).seen}
        assert found == {"hall": pytest.approx(4.0), "silent": None}

    world.run(story)


def test_labels_are_read_again_after_a_change(world: World) -> None:
    async def story(world: World) -> None:
        def label(site: str) -> None:
            world.place.execute("DELETE FROM labels")
            row = "INSERT INTO labels (tenant, gateway, key, value) VALUES ('default', 'hall', 'site', :site)"
            world.place.execute(row, site=site)

        async def labels(asked: Collection[str] = ("hall", "yard")) -> dict[str, dict[str, str]]:
            found = await world.gateways.labels([key(each) for each in asked])
            return {name: dict(each) for (_, name), each in found.items()}

        for name in ("hall", "yard"):
            world.leave(name, NOW_US)
        label("lyon")
        assert await labels() == {"hall": {"site": "lyon"}, "yard": {}}
        label("bern")
        assert await labels() == {"hall": {"site": "lyon"}, "yard": {}}
        world.now_s += MEASURED_LABELS_S
        assert await labels(["hall"]) == {"hall": {"site": "bern"}}
        label("oslo")
        world.hint.give()
        assert await labels(["hall"]) == {"hall": {"site": "oslo"}}

    world.run(story)
