"""The fleet as people look at it, from the registry: danger, pages, causes, sites, and rows of older programs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cloud.hub.bounded_reads import ReadsBusy
from cloud.hub.danger_upkeep import FILL_S
from cloud.hub.fleet_causes import CAUSE_GATEWAYS_MIN, TOGETHER_S
from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.fleet_numbers import FRESH_S, NEVER_FRESH_S, KeptRead
from cloud.hub.fleet_view import FleetView, FleetViews, GatewayQuery
from cloud.hub.groups import GatewaySession, Key, Presence
from cloud.hub.labels import parse_selector
from cloud.hub.observed import NO_TIME_US, DangerFigures, danger_of_status
from cloud.hub.page_position import encode_position
from cloud.hub.registry import danger_filling
from cloud.hub.registry.danger_filling import DangerFilling
from cloud.hub.registry.fleet_pages import SORTS, FleetFilter, FleetPlace, read_page, sections_of
from cloud.hub.registry.hubs import HubRecord, Hubs
from cloud.hub.registry.location import sqlite_url
from cloud.lake.faults import RegistryError
from edge.broker.http.refusal import RequestRefused
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.fleet_world import EVERYTHING, MINUTE_US, NOW_US, FleetWorld, status

DEFAULTS: Final[Mapping[type, str]] = {str: "default"}


@pytest.fixture
def world(place: Place, monkeypatch: pytest.MonkeyPatch) -> FleetWorld:
    monkeypatch.setattr("cloud.hub.fleet_numbers.SLOW_S", 600.0)  # the machine may be slow
    return FleetWorld(place)


@pytest.fixture
def mixed(world: FleetWorld) -> FleetWorld:
    world.add("well", connected=True, status=status(room_hours=9.0))
    world.add("behind", connected=True, status=status(backlog_oldest_at=(NOW_US - 10 * MINUTE_US) // 1_000))
    world.add("full", connected=True, status=status(room_hours=0.0))
    world.add("away", seen_us=NOW_US - MINUTE_US, status=status(room_hours=50.0))
    hour_ago = (NOW_US - 60 * MINUTE_US) // 1_000
    world.add("away and nearly full", seen_us=NOW_US - MINUTE_US, status=status(room_hours=3.0, reported_at=hour_ago))
    return world


def test_what_is_lost_first_is_on_top(mixed: FleetWorld) -> None:
    order = ["full", "away and nearly full", "away", "behind", "well"]
    assert mixed.names() == order
    assert mixed.names(GatewayQuery(down=True)) == order[::-1]
    assert mixed.names(tenant="default") == order
    assert mixed.names(tenant="acme") == []


def test_room_of_an_offline_gateway_shrinks_with_time(mixed: FleetWorld) -> None:
    seen = mixed.run(lambda views: views.of(None).one(("default", "away and nearly full")))
    assert seen is not None
    assert seen.condition is FleetCondition.OFFLINE
    assert seen.room_hours == pytest.approx(2.0)


def test_query_chooses_and_sorts(mixed: FleetWorld) -> None:
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


def test_selector_chooses_by_labels_and_tenants_are_apart(world: FleetWorld) -> None:
    world.add("a", site="lyon")
    world.add("b", site="brno")
    world.add("c", tenant="acme", site="lyon")
    query = GatewayQuery(selector=parse_selector("site=lyon"))
    assert sorted(world.names(query)) == ["a", "c"]
    assert world.names(query, "acme") == ["c"]
    assert world.names(GatewayQuery(selector=parse_selector("site!=lyon"))) == ["b"]
    assert world.run(lambda views: views.of("acme").one(("default", "a"))) is None


def test_enrolled_gateway_that_never_connected_is_listed_with_the_next_step(mixed: FleetWorld) -> None:
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


def test_page_follows_the_last_row_although_gateways_come_and_go(mixed: FleetWorld) -> None:
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
                    everything = [one.gateway.name for one in (await view.page(query, "", 50)).rows]
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
    "after",
    [
        "x",
        "e30",
        "!",
        "WyJhIl0=",
        encode_position([9, 1, "a"]),
        encode_position([0, "a", "b"]),
        "W10=",
        encode_position([0, 10**30, "t", "n"]),
        encode_position([0, 1, "t", "\0"]),
    ],
)
def test_place_of_another_order_is_refused(mixed: FleetWorld, after: str) -> None:
    with pytest.raises(RequestRefused):
        mixed.run(lambda views: views.of(None).page(EVERYTHING, after, 9))


def test_search_counts_to_its_limit(mixed: FleetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.fleet_pages.COUNTED_MAX", 3)
    query = GatewayQuery(part="a")
    assert mixed.run(lambda views: views.of(None).page(query, "", 9)).total == 2
    assert mixed.run(lambda views: views.of(None).page(GatewayQuery(part="l"), "", 9)).total == 3
    mixed.add("all")
    page = mixed.run(lambda views: views.of(None).page(GatewayQuery(part="l"), "", 9))
    assert (page.total, len(page.rows)) == (3, 4), "the rows are complete"


def test_gateways_that_connect_elsewhere_lose_no_others_from_a_page(world: FleetWorld) -> None:
    world.add("well", connected=True)
    for number in range(9):
        world.enrol(f"new{number}")

    async def work(views: FleetViews) -> None:
        view = views.of(None)
        assert (await view.page(EVERYTHING, "", 50)).total == 10
        for number in (0, 1, 2, 5, 8):
            world.add(f"new{number}", connected=True)
        for sort in SORTS:
            for down in (False, True):
                after, seen = "", []
                while after is not None:
                    page = await view.page(GatewayQuery(sort=sort, down=down), after, 4)
                    seen += [one.gateway.name for one in page.rows]
                    after = page.next  # type: ignore[assignment]
                assert sorted(seen) == ["new0", "new1", "new2", "new3", "new4", "new5", "new6", "new7", "new8", "well"]

    world.run(work)


def test_tenant_has_its_own_gateways_that_never_connected(world: FleetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet_numbers.NEVER_LISTED_MAX", 2)
    for number in range(3):
        world.enrol(f"gw{number}", tenant="large", at_us=NOW_US + number)
    world.enrol("small1", tenant="small")
    assert world.names(tenant="small") == ["small1"]
    assert world.names() == ["gw1", "gw2"], "those that enrolled last"
    assert world.run(lambda views: views.of(None).one(("large", "gw0"))) is not None


def test_file_has_each_gateway_once_while_they_change(mixed: FleetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet_view.FILE_PAGE", 2)
    mixed.enrol("new")

    async def work(views: FleetViews) -> None:
        names: list[str] = []
        async for part in views.of(None).every(GatewayQuery(sort="room", down=True)):
            names += [one.gateway.name for one in part]
            mixed.place.execute("UPDATE gateways SET connected = NOT connected, full_at = 5 - full_at")
        assert names == ["away", "away and nearly full", "behind", "full", "well", "new"]
        parts = [part async for part in views.of("default").every(GatewayQuery(part="w", state="danger"))]
        assert {one.gateway.name for part in parts for one in part} == {"away", "away and nearly full", "new"}

    mixed.run(work)


def test_files_beyond_the_limit_are_refused_at_their_begin(mixed: FleetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet_view.FILE_PAGE", 2)
    monkeypatch.setattr("cloud.hub.fleet_view.FILES_WAITING_MAX", 1)

    async def work(views: FleetViews) -> None:
        first, second = (views.of(None).every(EVERYTHING) for _ in range(2))
        parts = [await anext(first)]
        with pytest.raises(ReadsBusy):
            await anext(second)
        parts += [part async for part in first]
        assert sum(map(len, parts)) == 5, "the first one goes on"
        third = views.of(None).every(EVERYTHING)
        await anext(third)
        await third.aclose()
        assert await anext(views.of(None).every(EVERYTHING)), "a client that left holds no place"

    mixed.run(work)


@pytest.mark.parametrize("tenant", [None, "default"])
@pytest.mark.parametrize("sort", ["danger", "name"])
def test_usual_orders_read_only_the_rows_of_a_page(tmp_path: Path, tenant: str | None, sort: str) -> None:
    """SQLite says how it reads: along an index, from the place on, without sorting."""
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
            sa.event.listen(tx, "before_cursor_execute", explain)
            for down in (False, True):
                wanted = FleetFilter(tenant, NOW_US, sort=sort, down=down)
                read_page(tx, wanted, (), None, 9)
                assert said
                assert all("USING" in line and "TEMP B-TREE" not in line for line in said), said
                for number, section in enumerate(sections_of(wanted)):
                    time = NOW_US - 1 if section.most is not None else NO_TIME_US
                    kinds = [each.type.python_type for each in section.columns]
                    said.clear()
                    read_page(tx, wanted, (), FleetPlace(number, tuple(DEFAULTS.get(kind, time) for kind in kinds)), 9)
                    if not section.never:
                        assert "TEMP B-TREE" not in said[0], said
                        from_place = section.most is not None and not down
                        assert ("oldest_at>? AND oldest_at<?" if from_place else ",") in said[0] or sort == "name", said
        engine.dispose()


class SlowRead:
    """Read that takes three seconds of its clock, and ends when it may."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reads = 0
        self.finish = asyncio.Event()
        self.error: RegistryError | None = None

    async def read(self) -> int:
        self.reads += 1
        number = self.reads
        await self.finish.wait()
        self.now_s += 3.0
        if self.error is not None:
            raise self.error
        return number


class TestNumbers:
    def test_are_read_again_after_a_while(self, mixed: FleetWorld) -> None:
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

    def test_slow_ones_are_read_again_later_and_shown_meanwhile(self) -> None:
        world = SlowRead()

        async def work() -> None:
            kept = KeptRead(world.read, lambda: world.now_s)
            world.finish.set()
            assert await asyncio.gather(kept.get(), kept.get()) == [1, 1]
            world.now_s += 59.0
            assert await kept.get() == 1
            world.finish.clear()
            world.now_s += 1.0
            assert [await kept.get() for _ in range(3)] == [1, 1, 1], "the next read is in progress"
            world.finish.set()
            world.now_s += 100.0
            assert await kept.get() == 2, "the first one is too old"
            await kept.close()

        asyncio.run(work())

    def test_failure_is_shared_and_the_last_result_shown_for_a_while(self) -> None:
        world = SlowRead()

        async def work() -> None:
            kept = KeptRead(world.read, lambda: world.now_s)
            world.finish.set()
            world.error = RegistryError("away")
            found = await asyncio.gather(kept.get(), kept.get(), return_exceptions=True)
            assert found == [world.error, world.error]
            with pytest.raises(RegistryError):
                await kept.get()
            assert world.reads == 1
            world.now_s, world.error = world.now_s + FRESH_S, None
            assert await kept.get() == 2
            world.error = RegistryError("away")
            world.now_s += 60.0
            assert await kept.get() == 2
            world.now_s += 180.0
            with pytest.raises(RegistryError):
                await kept.get()

        asyncio.run(work())

    def test_gateways_that_go_away_together_are_one_row(self, world: FleetWorld) -> None:
        for number in range(CAUSE_GATEWAYS_MIN + 2):
            world.add(f"lyon-{number}", seen_us=NOW_US - number * 1_000_000, site="lyon", ring="stable")
        world.add("brno-1", site="brno", ring="stable", connected=True)
        summary = world.run(lambda views: views.of(None).summary())
        assert [(each["kind"], each["count"]) for each in summary.causes] == [("offline", CAUSE_GATEWAYS_MIN + 2)]
        assert [(site["value"], site["total"]) for site in summary.sites] == [("lyon", 7), ("brno", 1)]

    def test_few_or_scattered_in_time_are_no_cause(self, world: FleetWorld) -> None:
        for number in range(CAUSE_GATEWAYS_MIN - 1):
            world.add(f"lyon-{number}", site="lyon")
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"brno-{number}", seen_us=NOW_US - int(number * (TOGETHER_S + 1) * 1e6), site="brno")
        assert world.run(lambda views: views.of(None).summary()).causes == []

    def test_tenants_share_no_cause(self, world: FleetWorld) -> None:
        for number in range(CAUSE_GATEWAYS_MIN):
            world.add(f"gw{number}", tenant="a" if number % 2 else "b", site="lyon")
        assert world.run(lambda views: views.of(None).summary()).causes == []

    def test_worst_site_is_first(self, world: FleetWorld) -> None:
        world.add("a", connected=True, site="well")
        world.add("b", site="away")
        world.add("c", connected=True, status=status(room_hours=0.0), site="full")
        world.add("d", connected=True)
        world.enrol("e", site="away")
        sites = world.run(lambda views: views.of(None).summary()).sites
        assert [(site["value"], site["states"]) for site in sites] == [
            ("full", {"refusing": 1}), ("away", {"offline": 1, "never": 1}), ("", {"well": 1}), ("well", {"well": 1}),
        ]  # fmt: skip

    def test_fleet_without_labels_has_no_sites(self, world: FleetWorld) -> None:
        world.add("a")
        assert world.run(lambda views: views.of(None).summary()).sites == []


class TestHere:
    def test_gateway_that_is_here_is_shown_as_it_is_now(self, world: FleetWorld) -> None:
        world.add("gw", status=status(room_hours=9.0))
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        world.fleet.gateways[session.key].status = status(room_hours=0.0)
        assert world.names() == ["gw"]
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert (seen.condition, seen.gateway.remote) == (FleetCondition.REFUSING, "192.0.2.7")
        [row] = world.run(lambda views: views.of(None).page(GatewayQuery(state="offline"), "", 9)).rows
        assert row.condition is FleetCondition.REFUSING, "the registry does not know yet that it has come back"
        world.fleet.disconnect(session, NOW_US + 1)
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert seen.gateway.last_seen == NOW_US + 1

    def test_gateway_that_has_gone_to_another_hub_is_shown_as_that_one_wrote(self, world: FleetWorld) -> None:
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        world.fleet.disconnect(session, NOW_US + 1)
        there = world.place.open(THERE).directory
        there.presence({session.key: Presence("192.0.2.9", connected=True, at_us=NOW_US, connects=1)})
        seen = world.run(lambda views: views.of(None).one(session.key))
        assert seen is not None
        assert (seen.gateway.hub, seen.gateway.remote, seen.gateway.connected) == (THERE, "192.0.2.9", True)

    def test_gateway_is_shown_before_its_first_write(self, world: FleetWorld) -> None:
        session = GatewaySession("default", "gw", "192.0.2.7")
        world.fleet.connect(session, NOW_US)
        assert world.run(lambda views: views.of(None).one(session.key)) is not None
        world.fleet.disconnect(session, NOW_US)
        assert world.run(lambda views: views.of(None).one(session.key)) is None


class TestColumns:
    """Columns made from the observations: a newer hub writes them, an older one does not."""

    @pytest.fixture
    def hubs(self, world: FleetWorld) -> Iterator[Hubs]:
        with contextlib.closing(Hubs(world.place.url, HERE)) as hubs:
            hubs.write(HubRecord(HERE, "here:5671", "1", "serving", 1, 1, 0))
            yield hubs

    @pytest.fixture
    def filling(self, world: FleetWorld, hubs: Hubs) -> Iterator[DangerFilling]:
        del hubs
        with contextlib.closing(DangerFilling(world.place.url, HERE)) as filling:
            filling.fill(FILL_S)
            yield filling

    def older_hub_writes(self, world: FleetWorld, at: int) -> None:
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

    def test_rows_of_an_older_hub_are_filled(self, mixed: FleetWorld, filling: DangerFilling) -> None:
        for at in (1, 2):
            self.older_hub_writes(mixed, at)
            assert filling.fill(FILL_S) == 2
            assert filling.fill(FILL_S) == 0
            assert mixed.names(GatewayQuery(state="refusing")) == ["full", "well"]
            for mark in ("figures_at", "judged_at"):
                assert mixed.column("full", mark) == mixed.column("full", "last_seen") == NOW_US + at

    def test_last_rows_of_an_older_hub_are_filled_when_it_has_ended(
        self, mixed: FleetWorld, hubs: Hubs, filling: DangerFilling
    ) -> None:
        self.older_hub_writes(mixed, 1)
        assert filling.fill(FILL_S) == 2
        mixed.place.execute("UPDATE gateways SET last_seen = 9 WHERE name = 'away'")
        assert filling.fill(FILL_S) == 0
        hubs.count_gone(THERE, 1)
        assert filling.fill(FILL_S) == 1

    def test_row_that_changes_meanwhile_is_filled_by_the_next_pass(
        self, mixed: FleetWorld, filling: DangerFilling, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.older_hub_writes(mixed, 1)
        read = danger_filling._unfilled

        def changed(tx: sa.Connection, *, after: Key | None) -> list[Mapping[str, Any]]:
            return [
                {**row, "at_last_seen": row["at_last_seen"] - (row["at_name"] == "well")}
                for row in read(tx, after=after)
            ]

        monkeypatch.setattr(danger_filling, "_unfilled", changed)
        assert filling.fill(FILL_S) == 1
        monkeypatch.undo()
        assert filling.fill(FILL_S) == 1

    def test_one_hub_fills(self, mixed: FleetWorld, hubs: Hubs, filling: DangerFilling) -> None:
        self.older_hub_writes(mixed, 1)
        other = "c" * 32
        with contextlib.closing(Hubs(mixed.place.url, other)) as more:
            more.write(HubRecord(other, "other:5671", "1", "serving", 1, 1, 0))
        with contextlib.closing(DangerFilling(mixed.place.url, other)) as second:
            assert second.fill(FILL_S) == 0
            hubs.stop()
            assert (filling.fill(FILL_S), second.fill(FILL_S)) == (0, 2)

    def test_without_an_older_hub_no_gateway_is_read(
        self, mixed: FleetWorld, filling: DangerFilling, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del mixed
        monkeypatch.setattr(danger_filling, "_unfilled", None)
        assert filling.fill(FILL_S) == 0

    def test_migrated_registry_is_filled_in_parts(
        self, mixed: FleetWorld, hubs: Hubs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del hubs
        monkeypatch.setattr(danger_filling, "FILLED_AT_ONCE", 2)
        mixed.place.execute("UPDATE gateways SET figures_at = NULL, refusing = :no", no=False)
        times = itertools.chain([0.0, 1.0], itertools.repeat(2.0))
        with contextlib.closing(DangerFilling(mixed.place.url, HERE, lambda: next(times))) as filling:
            assert filling.fill(1.0) == 2, "its time is over"
            filling_on = DangerFilling(mixed.place.url, HERE)
            assert filling_on.fill(FILL_S) == 3
            filling_on.close()
        assert mixed.names()[0] == "full"

    @pytest.mark.parametrize("mark", ["figures_at", "judged_at"])
    def test_changes_of_last_seen_keep_the_columns(self, mixed: FleetWorld, filling: DangerFilling, mark: str) -> None:
        key = ("default", "full")
        mixed.registry.directory.seen({key: NOW_US + 5})
        assert mixed.column("full", mark) == NOW_US + 5
        mixed.registry.directory.presence({key: Presence("-", connected=True, at_us=NOW_US + 6, connects=1)})
        assert mixed.column("full", mark) == NOW_US + 6
        self.older_hub_writes(mixed, 7)
        mixed.registry.directory.seen({key: NOW_US + 8})
        assert mixed.column("full", mark) == NOW_US + 6, "an older hub has written in between"
        assert filling.fill(FILL_S) == 2

    def test_unreadable_observations_of_a_newer_program_order_nothing(self, mixed: FleetWorld) -> None:
        assert danger_of_status({"room_hours": {"value": 1}}) == DangerFigures()
        mixed.registry.directory.seen({("default", "full"): NOW_US + 1}, {("default", "full"): '{"status": 7}'})
        assert mixed.column("full", "oldest_at") == NO_TIME_US
        assert mixed.names(GatewayQuery(state="refusing")) == []

    def test_end_of_the_room_that_moves_a_little_is_not_written(self, world: FleetWorld) -> None:
        world.add("gw", connected=True, status=status(room_hours=100.0))
        ends = [world.column("gw", "full_at")]
        for hours in (104.0, 96.0, 106.0, 0.0):
            world.report(("default", "gw"), status(room_hours=hours))
            ends.append(world.column("gw", "full_at"))
        assert [round((end - NOW_US) / 3.6e9, 3) for end in ends] == [100.0, 100.0, 100.0, 106.0, 0.0]

    def test_young_message_is_not_told_apart(self, world: FleetWorld) -> None:
        world.add("gw", connected=True, status=status(backlog_oldest_at=(NOW_US - MINUTE_US) // 1_000 + 1))
        assert world.column("gw", "oldest_at") == NO_TIME_US
        world.report(("default", "gw"), status(backlog_oldest_at=(NOW_US - MINUTE_US) // 1_000))
        assert world.column("gw", "oldest_at") == NOW_US - MINUTE_US
