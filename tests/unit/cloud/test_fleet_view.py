"""The fleet as people look at it: danger, causes, sites."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloud.hub.fleet import FleetState
from cloud.hub.fleet_view import (
    CAUSE_GATEWAYS_MIN,
    FRESH_S,
    LABELS_FRESH_S,
    SORTS,
    TOGETHER_S,
    FleetCondition,
    FleetView,
    GatewayQuery,
    InvalidRow,
    Registered,
    count_sites,
    find_causes,
)
from cloud.hub.groups import GatewaySession, Key
from cloud.hub.labels import parse_selector
from cloud.hub.registry.directory import GatewayRecord

NOW_US = 1_800_000_000_000_000
MINUTE_US = 60_000_000
EVERYTHING = GatewayQuery()


class World:
    """Fleet, labels and time."""

    def __init__(self) -> None:
        self.fleet = FleetState()
        self.labels: dict[Key, dict[str, str]] = {}
        self.waiting: dict[Key, int] = {}
        self.now_s = 0.0
        self.label_reads = 0

    def add(
        self, name: str, *, tenant: str = "default", seen_us: int = NOW_US, connected: bool = False,
        status: dict[str, Any] | None = None, **labels: str,
    ) -> None:  # fmt: skip
        key = (tenant, name)
        if connected:
            self.fleet.connect(GatewaySession(tenant, name, "192.0.2.1"), seen_us)
        else:
            self.fleet.load([GatewayRecord(tenant, name, seen_us, seen_us, False, "-", 1, 0)])
        self.fleet.gateways[key].status = status
        self.labels[key] = labels

    async def read_registered(self) -> Registered:
        self.label_reads += 1
        return Registered(self.labels, self.waiting)

    def view(self, tenant: str | None = None) -> FleetView:
        return FleetView(self.fleet, tenant, lambda: NOW_US, lambda: self.now_s, self.read_registered)

    def names(self, query: GatewayQuery = EVERYTHING, tenant: str | None = None) -> list[str]:
        return [one.gateway.name for one in asyncio.run(self.view(tenant).select(query))]


def test_enrolled_gateway_that_never_connected_is_listed_with_the_next_step() -> None:
    world = mixed()
    world.waiting = {("default", "new"): NOW_US - MINUTE_US, ("acme", "other"): NOW_US, ("default", "well"): NOW_US}
    world.labels["default", "new"] = {"site": "lyon"}
    names = world.names(tenant="default")
    assert names.index("behind") < names.index("new") < names.index("well"), "it loses nothing"
    assert "other" not in names
    view = world.view("default")
    [new] = asyncio.run(view.select(GatewayQuery(state="never")))
    assert (new.why, new.since_us, new.labels) == (
        "it has enrolled, and never connected", NOW_US - MINUTE_US, {"site": "lyon"},
    )  # fmt: skip
    assert "waypost doctor" in new.next_step
    assert asyncio.run(view.one(("default", "new"))) == new
    assert asyncio.run(view.one(("acme", "other"))) is None
    assert asyncio.run(view.summary()).states["never"] == 1
    assert all(one.gateway.name != "new" for one in asyncio.run(view.gateways())), "no alert is about it"


def status(**more: Any) -> dict[str, Any]:
    return {"reported_at": NOW_US // 1_000, "backlog_oldest_at": None, **more}


def mixed() -> World:
    world = World()
    world.add("well", connected=True, status=status(room_hours=9.0))
    world.add("behind", connected=True, status=status(backlog_oldest_at=(NOW_US - 10 * MINUTE_US) // 1_000))
    world.add("full", connected=True, status=status(room_hours=0.0))
    world.add("away", seen_us=NOW_US - MINUTE_US, status=status(room_hours=50.0))
    hour_ago = (NOW_US - 60 * MINUTE_US) // 1_000
    world.add("away and nearly full", seen_us=NOW_US - MINUTE_US, status=status(room_hours=3.0, reported_at=hour_ago))
    return world


def test_what_is_lost_first_is_on_top() -> None:
    assert mixed().names() == ["full", "away and nearly full", "away", "behind", "well"]


def test_room_of_an_offline_gateway_shrinks_with_time() -> None:
    seen = asyncio.run(mixed().view().one(("default", "away and nearly full")))
    assert seen is not None
    assert seen.condition is FleetCondition.OFFLINE
    assert seen.room_hours == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (GatewayQuery(state="danger"), ["full", "away and nearly full", "away", "behind"]),
        (GatewayQuery(state="offline"), ["away and nearly full", "away"]),
        (GatewayQuery(part="AWAY"), ["away and nearly full", "away"]),
        (GatewayQuery(sort="name"), ["away", "away and nearly full", "behind", "full", "well"]),
        (GatewayQuery(sort="name", down=True), ["well", "full", "behind", "away and nearly full", "away"]),
    ],
)
def test_query_chooses_and_sorts(query: GatewayQuery, names: list[str]) -> None:
    assert mixed().names(query) == names


def test_selector_chooses_by_labels_and_tenants_are_apart() -> None:
    world = World()
    world.add("a", site="lyon")
    world.add("b", site="brno")
    world.add("c", tenant="acme", site="lyon")
    query = GatewayQuery(selector=parse_selector("site=lyon"))
    assert sorted(world.names(query)) == ["a", "c"]
    assert world.names(query, "acme") == ["c"]
    assert asyncio.run(world.view("acme").one(("default", "a"))) is None


def test_summary_is_made_once_for_each_list() -> None:
    async def run() -> None:
        world = mixed()
        view = world.view()
        first = await view.summary()
        assert (first.total, first.states) == (5, {"well": 1, "behind": 1, "refusing": 1, "offline": 2})
        assert await view.summary() is first
        world.now_s += FRESH_S
        assert await view.summary() is not first

    asyncio.run(run())


def test_list_is_kept_for_some_seconds_and_labels_longer() -> None:
    async def run() -> None:
        world = World()
        world.add("a")
        view = world.view()
        assert len(await view.gateways()) == 1
        world.add("b")
        assert len(await view.gateways()) == 1
        world.now_s += 3
        assert len(await view.gateways()) == 2
        assert world.label_reads == 1
        world.now_s += LABELS_FRESH_S
        await view.gateways()
        assert world.label_reads == 2

    asyncio.run(run())


class TestCauses:
    def test_gateways_that_go_away_together_are_one_row(self) -> None:
        world = World()
        for number in range(CAUSE_GATEWAYS_MIN + 2):
            world.add(f"lyon-{number}", seen_us=NOW_US - number * 1_000_000, site="lyon", ring="stable")
        world.add("brno-1", site="brno", ring="stable", connected=True)
        causes = find_causes(asyncio.run(world.view().gateways()))
        assert [(each["kind"], each["count"]) for each in causes] == [("offline", CAUSE_GATEWAYS_MIN + 2)]

    def test_few_or_scattered_in_time_are_no_cause(self) -> None:
        world = World()
        for number in range(CAUSE_GATEWAYS_MIN - 1):
            world.add(f"lyon-{number}", site="lyon")
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"brno-{number}", seen_us=NOW_US - int(number * (TOGETHER_S + 1) * 1e6), site="brno")
        assert find_causes(asyncio.run(world.view().gateways())) == []

    def test_tenants_share_no_cause(self) -> None:
        world = World()
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"gw{number}", tenant="a" if number % 2 else "b", site="lyon")
        assert find_causes(asyncio.run(world.view().gateways())) == []


def test_worst_site_is_first() -> None:
    world = World()
    world.add("a", connected=True, site="well")
    world.add("b", site="away")
    world.add("c", connected=True, status=status(room_hours=0.0), site="full")
    world.add("d", connected=True)
    assert [site["value"] for site in count_sites(asyncio.run(world.view().gateways()))] == ["full", "away", "", "well"]


def test_fleet_without_labels_has_no_sites() -> None:
    world = World()
    world.add("a")
    assert count_sites(asyncio.run(world.view().gateways())) == []


def test_ten_thousand_gateways_are_listed_in_slices() -> None:
    async def run() -> None:
        world = World()
        records = [GatewayRecord("default", f"gw{n:05}", 1, NOW_US - n, False, "-", 1, 0) for n in range(10_000)]
        world.fleet.load(records)
        view, turns = world.view(), 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(count_turns())
        assert len(await view.gateways()) == 10_000
        others.cancel()
        assert turns >= 20

    asyncio.run(run())


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_page_follows_the_last_row_although_gateways_come_and_go(sort: str, down: bool) -> None:
    world = mixed()
    for number in range(10):
        world.add(f"gw{number}", connected=number % 2 == 0, status=status(backlog_messages=number % 3))
    query = GatewayQuery(sort=sort, down=down)
    everything = asyncio.run(world.view().select(query))
    seen, row = [], ""
    while True:
        view = asyncio.run(world.view().select(query))
        start = query.following(view, row) if row else 0
        page = view[start : start + 4]
        seen += [one.gateway.name for one in page]
        if start + 4 >= len(view):
            break
        row = query.row(page[-1])
        if page[-1].gateway.name in ("gw4", "gw5"):
            del world.fleet.gateways[page[-1].key]  # the next page does not need the row
    assert seen == [one.gateway.name for one in everything]


@pytest.mark.parametrize("row", ["x", "e30", "!", "WyJhIl0", "WyJhIiwxLDEsMV0"])
def test_row_of_another_order_is_refused(row: str) -> None:
    query = GatewayQuery()
    found = asyncio.run(mixed().view().select(query))
    with pytest.raises(InvalidRow):
        query.following(found, row)
