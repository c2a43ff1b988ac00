"""The fleet as people look at it, from the registry: danger, pages, causes, sites, and rows of older programs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import sqlalchemy as sa

from cloud.hub.fleet import FleetState
from cloud.hub.fleet_causes import CAUSE_GATEWAYS_MIN, TOGETHER_S
from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.fleet_numbers import FRESH_S, NEVER_FRESH_S, KeptRead
from cloud.hub.fleet_view import FleetView, FleetViews, GatewayQuery
from cloud.hub.groups import GatewaySession, Key, Presence
from cloud.hub.labels import parse_selector
from cloud.hub.observed import NO_TIME_US
from cloud.hub.page_position import encode_position
from cloud.hub.registry.fleet_pages import SORTS, FleetFilter, read_page
from cloud.hub.registry.hubs import HubRecord, Hubs
from cloud.hub.registry.location import sqlite_url
from edge.broker.http.refusal import RequestRefused
from tests.contract.registry.conftest import HERE, THERE, Place

T = TypeVar("T")
NOW_US: Final = 1_800_000_000_000_000
MINUTE_US: Final = 60_000_000
EVERYTHING: Final = GatewayQuery()


def status(**more: Any) -> dict[str, Any]:
    return {"reported_at": NOW_US // 1_000, "backlog_oldest_at": None, **more}


class World:
    """Registry of two hubs, the fleet of one of them, and time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.registry = place.open(HERE)
        self.fleet = FleetState(hub=HERE)
        self.now_s = 0.0

    def add(
        self, name: str, *, tenant: str = "default", seen_us: int = NOW_US, connected: bool = False,
        status: dict[str, Any] | None = None, **labels: str,
    ) -> None:  # fmt: skip
        key, directory = (tenant, name), self.registry.directory
        directory.presence({key: Presence("192.0.2.1", connected=True, at_us=seen_us, connects=1)})
        if status is not None:
            self.report(key, status, seen_us)
        if not connected:
            directory.presence({key: Presence("192.0.2.1", connected=False, at_us=seen_us)})
        self.label(key, **labels)

    def report(self, key: Key, status: dict[str, Any], seen_us: int = NOW_US) -> None:
        state = FleetState().current(self.registry.directory.gateways()[0])
        state.status = status
        self.registry.directory.seen({key: seen_us}, {key: state.observation()})

    def label(self, key: Key, **labels: str) -> None:
        for label, value in labels.items():
            self.place.execute(
                "INSERT INTO labels VALUES (:tenant, :name, :label, :value)",
                tenant=key[0], name=key[1], label=label, value=value,
            )  # fmt: skip

    def enrol(self, name: str, *, tenant: str = "default", at_us: int = NOW_US, **labels: str) -> None:
        self.place.execute(
            "INSERT INTO certificates VALUES (:serial, :tenant, :name, :key, :at, :at, NULL, '')",
            serial=f"{tenant}-{name}", tenant=tenant, name=name, key=b"", at=at_us,
        )  # fmt: skip
        self.label((tenant, name), **labels)

    def run(self, work: Callable[[FleetViews], Awaitable[T]]) -> T:
        async def main() -> T:
            views = FleetViews(self.fleet, self.place.url, now_us=lambda: NOW_US, clock=lambda: self.now_s)
            try:
                await views.open()
                return await work(views)
            finally:
                await views.close()

        return asyncio.run(main())

    def names(self, query: GatewayQuery = EVERYTHING, tenant: str | None = None) -> list[str]:
        async def work(views: FleetViews) -> list[str]:
            page = await views.of(tenant).page(query, "", 50)
            assert page.next is None
            assert page.total == len(page.rows)
            return [one.gateway.name for one in page.rows]

        return self.run(work)

    def column(self, name: str, column: str) -> Any:
        [(value,)] = self.place.execute(f"SELECT {column} FROM gateways WHERE name = :name", name=name)
        return value


@pytest.fixture
def world(place: Place) -> World:
    return World(place)


@pytest.fixture
def mixed(world: World) -> World:
    world.add("well", connected=True, status=status(room_hours=9.0))
    world.add("behind", connected=True, status=status(backlog_oldest_at=(NOW_US - 10 * MINUTE_US) // 1_000))
    world.add("full", connected=True, status=status(room_hours=0.0))
    world.add("away", seen_us=NOW_US - MINUTE_US, status=status(room_hours=50.0))
    hour_ago = (NOW_US - 60 * MINUTE_US) // 1_000
    world.add("away and nearly full", seen_us=NOW_US - MINUTE_US, status=status(room_hours=3.0, reported_at=hour_ago))
    return world


def test_what_is_lost_first_is_on_top(mixed: World) -> None:
    order = ["full", "away and nearly full", "away", "behind", "well"]
    assert mixed.names() == order
    assert mixed.names(GatewayQuery(down=True)) == order[::-1]
    assert mixed.names(tenant="default") == order
    assert mixed.names(tenant="acme") == []


def test_room_of_an_offline_gateway_shrinks_with_time(mixed: World) -> None:
    seen = mixed.run(lambda views: views.of(None).one(("default", "away and nearly full")))
    assert seen is not None
    assert seen.condition is FleetCondition.OFFLINE
    assert seen.room_hours == pytest.approx(2.0)


def test_query_chooses_and_sorts(mixed: World) -> None:
    for query, names in (
        (GatewayQuery(state="danger"), ["full", "away and nearly full", "away", "behind"]),
        (GatewayQuery(state="offline"), ["away and nearly full", "away"]),
        (GatewayQuery(state="offline", sort="name"), ["away", "away and nearly full"]),
        (GatewayQuery(state="danger", sort="name"), ["away", "away and nearly full", "behind", "full"]),
        (GatewayQuery(part="AWAY"), ["away and nearly full", "away"]),
        (GatewayQuery(part="%"), []),
        (GatewayQuery(sort="name"), ["away", "away and nearly full", "behind", "full", "well"]),
        (GatewayQuery(sort="name", down=True), ["well", "full", "behind", "away and nearly full", "away"]),
        (GatewayQuery(sort="room"), ["full", "away and nearly full", "well", "away", "behind"]),
        (GatewayQuery(sort="seen"), ["behind", "full", "well", "away", "away and nearly full"]),
    ):
        assert mixed.names(query) == names, query


def test_selector_chooses_by_labels_and_tenants_are_apart(world: World) -> None:
    world.add("a", site="lyon")
    world.add("b", site="brno")
    world.add("c", tenant="acme", site="lyon")
    query = GatewayQuery(selector=parse_selector("site=lyon"))
    assert sorted(world.names(query)) == ["a", "c"]
    assert world.names(query, "acme") == ["c"]
    assert world.names(GatewayQuery(selector=parse_selector("site!=lyon"))) == ["b"]
    assert world.run(lambda views: views.of("acme").one(("default", "a"))) is None


def test_enrolled_gateway_that_never_connected_is_listed_with_the_next_step(mixed: World) -> None:
    mixed.enrol("new", at_us=NOW_US - MINUTE_US, site="lyon")
    mixed.enrol("other", tenant="acme")
    mixed.enrol("well")
    names = mixed.names(tenant="default")
    assert names.index("behind") < names.index("new") < names.index("well"), "it loses nothing"
    assert "other" not in names
    assert mixed.names(GatewayQuery(sort="name"))[-2:] == ["other", "new"]

    async def work(views: FleetViews) -> None:
        view = views.of("default")
        [new] = (await view.page(GatewayQuery(state="never"), "", 9)).rows
        assert (new.why, new.since_us, new.labels) == (
            "it has enrolled, and never connected", NOW_US - MINUTE_US, {"site": "lyon"},
        )  # fmt: skip
        assert "waypost doctor" in new.next_step
        assert await view.one(("default", "new")) == new
        assert await view.one(("acme", "other")) is None
        assert (await view.summary()).states["never"] == 1
        mixed.add("new", connected=True)
        assert (await view.page(GatewayQuery(state="never"), "", 9)).rows == [], "it has connected"
        mixed.now_s += NEVER_FRESH_S
        assert "never" not in (await view.summary()).states

    mixed.run(work)


def test_page_follows_the_last_row_although_gateways_come_and_go(mixed: World) -> None:
    for number in range(6):
        mixed.add(f"gw{number}", connected=number % 2 == 0, status=status(backlog_messages=number % 3))
    for number in range(3):
        mixed.enrol(f"new{number}", tenant="acme" if number % 2 else "default")

    async def pages(view: FleetView, query: GatewayQuery) -> list[str]:
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await view.page(query, after, 4)
            assert page.next is None or len(page.rows) == 4
            seen += [one.gateway.name for one in page.rows]
            after = page.next
        return seen

    async def work(views: FleetViews) -> None:
        for tenant in (None, "default"):
            view = views.of(tenant)
            for sort in SORTS:
                for down in (False, True):
                    query = GatewayQuery(sort=sort, down=down)
                    everything = [one.gateway.name async for page in view.every(query) for one in page]
                    assert len(everything) == len(set(everything)) == (14 if tenant is None else 13)
                    assert await pages(view, query) == everything
        page = await views.of(None).page(GatewayQuery(), "", 3)
        last = page.rows[-1].key
        rest = [one.key for one in (await views.of(None).page(GatewayQuery(), page.next or "", 50)).rows]
        mixed.place.execute("UPDATE gateways SET forgotten_at = 1 WHERE name = :name", name=last[1])
        again = [one.key for one in (await views.of(None).page(GatewayQuery(), page.next or "", 50)).rows]
        assert again == rest, "the page does not need the row"

    mixed.run(work)


@pytest.mark.parametrize(
    "after", ["x", "e30", "!", "WyJhIl0=", encode_position([9, 1, "a"]), encode_position([0, "a", "b"]), "W10="]
)
def test_place_of_another_order_is_refused(mixed: World, after: str) -> None:
    with pytest.raises(RequestRefused):
        mixed.run(lambda views: views.of(None).page(EVERYTHING, after, 9))


def test_search_counts_to_its_limit(mixed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.fleet_pages.COUNTED_MAX", 3)
    query = GatewayQuery(part="a")
    assert mixed.run(lambda views: views.of(None).page(query, "", 9)).total == 2
    assert mixed.run(lambda views: views.of(None).page(GatewayQuery(part="l"), "", 9)).total == 3
    mixed.add("all")
    page = mixed.run(lambda views: views.of(None).page(GatewayQuery(part="l"), "", 9))
    assert (page.total, len(page.rows)) == (3, 4), "the rows are complete"


@pytest.mark.parametrize("tenant", [None, "default"])
@pytest.mark.parametrize("sort", ["danger", "name"])
def test_usual_orders_read_only_the_rows_of_a_page(tmp_path: Path, tenant: str | None, sort: str) -> None:
    """SQLite says how it reads: along an index, without sorting."""
    place = Place(sqlite_url(tmp_path / "registry.db"))
    with contextlib.closing(place):
        place.open()
        said: list[str] = []

        def explain(connection: Any, _cursor: Any, statement: str, values: Any, *_more: Any) -> None:
            if "ORDER BY" in statement and not statement.startswith("EXPLAIN"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                said.extend(row[3] for row in plan)

        engine = sa.create_engine(place.url)
        with engine.begin() as tx:
            sa.event.listen(engine, "before_cursor_execute", explain)
            for down in (False, True):
                read_page(tx, FleetFilter(tenant, NOW_US, sort=sort, down=down), (), None, 9)
            sa.event.remove(engine, "before_cursor_execute", explain)
        engine.dispose()
        assert said
        assert all("USING" in line and "TEMP B-TREE" not in line for line in said), said


class TestNumbers:
    def test_are_read_again_after_a_while(self, mixed: World) -> None:
        async def work(views: FleetViews) -> None:
            view = views.of(None)
            first = await view.summary()
            assert (first.total, first.states) == (5, {"well": 1, "behind": 1, "refusing": 1, "offline": 2})
            assert await view.summary() is first
            mixed.add("more")
            mixed.now_s += FRESH_S
            assert (await view.summary()).total == 6
            assert (await views.of("acme").summary()).total == 0

        mixed.run(work)

    def test_slow_ones_are_read_again_later(self) -> None:
        now_s, reads = 0.0, 0

        async def read() -> int:
            nonlocal now_s, reads
            now_s += 1.0
            reads += 1
            return reads

        async def work() -> None:
            nonlocal now_s
            kept = KeptRead(read, lambda: now_s)
            assert await asyncio.gather(kept.get(), kept.get()) == [1, 1]
            now_s += 19.0
            assert await kept.get() == 1
            now_s += 1.0
            assert await kept.get() == 2
            kept.drop()
            assert await kept.get() == 3

        asyncio.run(work())

    def test_gateways_that_go_away_together_are_one_row(self, world: World) -> None:
        for number in range(CAUSE_GATEWAYS_MIN + 2):
            world.add(f"lyon-{number}", seen_us=NOW_US - number * 1_000_000, site="lyon", ring="stable")
        world.add("brno-1", site="brno", ring="stable", connected=True)
        summary = world.run(lambda views: views.of(None).summary())
        assert [(each["kind"], each["count"]) for each in summary.causes] == [("offline", CAUSE_GATEWAYS_MIN + 2)]
        assert [(site["value"], site["total"]) for site in summary.sites] == [("lyon", 7), ("brno", 1)]

    def test_few_or_scattered_in_time_are_no_cause(self, world: World) -> None:
        for number in range(CAUSE_GATEWAYS_MIN - 1):
            world.add(f"lyon-{number}", site="lyon")
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"brno-{number}", seen_us=NOW_US - int(number * (TOGETHER_S + 1) * 1e6), site="brno")
        assert world.run(lambda views: views.of(None).summary()).causes == []

    def test_tenants_share_no_cause(self, world: World) -> None:
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"gw{number}", tenant="a" if number % 2 else "b", site="lyon")
        assert world.run(lambda views: views.of(None).summary()).causes == []

    def test_worst_site_is_first(self, world: World) -> None:
        world.add("a", connected=True, site="well")
        world.add("b", site="away")
        world.add("c", connected=True, status=status(room_hours=0.0), site="full")
        world.add("d", connected=True)
        world.enrol("e", site="away")
        sites = world.run(lambda views: views.of(None).summary()).sites
        assert [(site["value"], site["states"]) for site in sites] == [
            ("full", {"refusing": 1}), ("away", {"offline": 1, "never": 1}), ("", {"well": 1}), ("well", {"well": 1}),
        ]  # fmt: skip

    def test_fleet_without_labels_has_no_sites(self, world: World) -> None:
        world.add("a")
        assert world.run(lambda views: views.of(None).summary()).sites == []


class TestHere:
    def test_gateway_that_is_here_is_shown_as_it_is_now(self, world: World) -> None:
        world.add("gw", status=status(room_hours=9.0))
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        world.fleet.gateways[session.key].status = status(room_hours=0.0)
        assert world.names() == ["gw"]
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert (seen.condition, seen.gateway.remote) == (FleetCondition.REFUSING, "192.0.2.7")
        page = world.run(lambda views: views.of(None).page(GatewayQuery(state="offline"), "", 9))
        assert page.rows == [], "the registry does not know yet that it has come back"
        world.fleet.disconnect(session, NOW_US + 1)
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert seen.gateway.last_seen == NOW_US + 1

    def test_gateway_that_has_gone_to_another_hub_is_shown_as_that_one_wrote(self, world: World) -> None:
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        world.fleet.disconnect(session, NOW_US + 1)
        there = world.place.open(THERE).directory
        there.presence({session.key: Presence("192.0.2.9", connected=True, at_us=NOW_US, connects=1)})
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert (seen.gateway.hub, seen.gateway.remote, seen.gateway.connected) == (THERE, "192.0.2.9", True)

    def test_gateway_is_shown_before_its_first_write(self, world: World) -> None:
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        assert world.run(lambda views: views.of(None).one(session.key)) is not None
        world.fleet.disconnect(session, NOW_US)
        assert world.run(lambda views: views.of(None).one(session.key)) is None


class TestColumns:
    """Columns made from the observations: a newer hub writes them, an older one does not."""

    @pytest.fixture
    def hubs(self, world: World) -> Any:
        with contextlib.closing(Hubs(world.place.url, HERE)) as hubs:
            hubs.write(HubRecord(HERE, "here:5671", "1", "serving", 1, 1, 0))
            hubs.judge()
            yield hubs

    def older_hub_writes(self, world: World, at: int) -> None:
        """Write as a program of schema version 30 does."""
        world.place.execute("DELETE FROM hubs WHERE id = :id", id=THERE)
        world.place.execute(
            "INSERT INTO hubs VALUES (:id, 'b', '1', 'serving', 1, :at, 0, 30)", id=THERE, at=at
        )  # fmt: skip
        world.place.execute("UPDATE gateways SET last_seen = :at WHERE name = 'full'", at=NOW_US + at)
        world.place.execute(
            "UPDATE gateways SET last_seen = :at, observed = :observed WHERE name = 'well'",
            at=NOW_US + at, observed=f'{{"status":{{"reported_at":{NOW_US // 1_000},"room_hours":0.0}}}}',
        )  # fmt: skip

    def test_rows_of_an_older_hub_are_judged_again(self, mixed: World, hubs: Hubs) -> None:
        for at in (1, 2):
            self.older_hub_writes(mixed, at)
            assert hubs.judge() == 2
            assert hubs.judge() == 0
            assert mixed.names(GatewayQuery(state="refusing")) == ["full", "well"]
            assert mixed.column("full", "judged_at") == mixed.column("full", "last_seen") == NOW_US + at

    def test_last_rows_of_an_older_hub_are_judged_when_it_has_ended(self, mixed: World, hubs: Hubs) -> None:
        self.older_hub_writes(mixed, 1)
        assert hubs.judge() == 2
        mixed.place.execute("UPDATE gateways SET last_seen = 9 WHERE name = 'away'")
        assert hubs.judge() == 0
        hubs.count_gone(THERE, 1)
        assert hubs.judge() == 1

    def test_nothing_is_read_without_an_older_hub(self, mixed: World, hubs: Hubs) -> None:
        mixed.place.execute("UPDATE gateways SET last_seen = 7")
        assert hubs.judge() == 0

    def test_migrated_registry_is_judged_in_parts(
        self, mixed: World, hubs: Hubs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cloud.hub.registry.danger_columns.JUDGED_AT_ONCE", 2)
        monkeypatch.setattr("cloud.hub.registry.danger_columns.JUDGED_IN_A_LOOK", 4)
        del hubs
        mixed.place.execute("UPDATE gateways SET judged_at = 0, refusing = :no", no=False)
        with contextlib.closing(Hubs(mixed.place.url, HERE)) as after_start:
            assert [after_start.judge() for _ in range(3)] == [4, 1, 0]
        assert mixed.names()[0] == "full"

    def test_changes_of_last_seen_keep_the_columns(self, mixed: World, hubs: Hubs) -> None:
        key = ("default", "full")
        mixed.registry.directory.seen({key: NOW_US + 5})
        assert mixed.column("full", "judged_at") == NOW_US + 5
        mixed.registry.directory.presence({key: Presence("-", connected=True, at_us=NOW_US + 6, connects=1)})
        assert mixed.column("full", "judged_at") == NOW_US + 6
        self.older_hub_writes(mixed, 7)
        mixed.registry.directory.seen({key: NOW_US + 8})
        assert mixed.column("full", "judged_at") == NOW_US + 6, "an older hub has written in between"
        assert hubs.judge() == 2

    def test_unreadable_observations_of_a_newer_program_order_nothing(self, mixed: World, hubs: Hubs) -> None:
        mixed.registry.directory.seen({("default", "full"): NOW_US + 1}, {("default", "full"): '{"status": 7}'})
        assert mixed.column("full", "oldest_at") == NO_TIME_US
        assert mixed.names(GatewayQuery(state="refusing")) == []

    def test_end_of_the_room_that_moves_a_little_is_not_written(self, world: World) -> None:
        world.add("gw", connected=True, status=status(room_hours=100.0))
        ends = [world.column("gw", "full_at")]
        for hours in (104.0, 96.0, 106.0, 0.0):
            world.report(("default", "gw"), status(room_hours=hours))
            ends.append(world.column("gw", "full_at"))
        assert [round((end - NOW_US) / 3.6e9, 3) for end in ends] == [100.0, 100.0, 100.0, 106.0, 0.0]

    def test_young_message_is_not_told_apart(self, world: World) -> None:
        world.add("gw", connected=True, status=status(backlog_oldest_at=(NOW_US - MINUTE_US) // 1_000 + 1))
        assert world.column("gw", "oldest_at") == NO_TIME_US
        world.report(("default", "gw"), status(backlog_oldest_at=(NOW_US - MINUTE_US) // 1_000))
        assert world.column("gw", "oldest_at") == NOW_US - MINUTE_US
