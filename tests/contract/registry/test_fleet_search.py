"""Search of the fleet by version, problem and last connection, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from cloud.hub.danger_upkeep import FILL_S
from cloud.hub.fleet_view import FleetView, FleetViews, GatewayQuery
from cloud.hub.gateways_http import read_query
from cloud.hub.groups import Presence
from cloud.hub.registry import gateway_traits
from cloud.hub.registry.danger_filling import DangerFilling
from cloud.hub.registry.dialects import Sqlite
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.fleet_pages import SORTS, FleetFilter, read_page
from cloud.hub.registry.gateway_traits import GatewayTraits
from cloud.hub.registry.hubs import HubRecord, Hubs
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.fleet_world import MINUTE_US, NOW_US, FleetWorld, status

DAY_US = 86_400_000_000
ROWS = {
    "a1": ("1.4.0", True, ("store", "error"), "lyon"),
    "a2": ("1.4.0", True, ("store", "warning"), "brno"),
    "a3": ("1.5.0rc1", True, None, "lyon"),
    "a4": ("1.5.0", True, ("uplink", "error"), "lyon"),
    "b1": ("0.9.12", False, ("store", "error"), "lyon"),
    "b2": ("a branch", False, None, "brno"),
    "b3": (None, False, None, "lyon"),
}
"""Version, connection, problem and site of gateways; those that are away were seen a day ago, two days ago, …"""


@pytest.fixture
def world(place: Place, monkeypatch: pytest.MonkeyPatch) -> FleetWorld:
    monkeypatch.setattr("cloud.hub.fleet_numbers.SLOW_S", 600.0)  # the machine may be slow
    made, away = FleetWorld(place), 0
    with contextlib.closing(StoredProblems(place.url, HERE)) as stored:
        for name, (version, connected, problem, site) in ROWS.items():
            away += not connected
            made.add(name, connected=True, status=status(version=version), site=site)
            if problem is not None:
                stored.report({ProblemSource("default", name): [reported(*problem)]}, NOW_US)
            if not connected:
                made.registry.directory.presence({("default", name): Presence("-", False, NOW_US - away * DAY_US)})
    return made


def reported(code: str, severity: str) -> ReportedProblem:
    return ReportedProblem(code, severity, "what is wrong", "", NOW_US)


def asked(**query: str) -> GatewayQuery:
    return read_query(query, NOW_US)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (asked(version="1.4.0"), ["a1", "a2"]),
        (asked(version="1.4"), []),
        (asked(version="a branch"), ["b2"]),
        (asked(older_than="1.5.0"), ["a1", "a2", "a3", "b1"]),
        (asked(older_than="1.4.0"), ["b1"]),
        (asked(older_than="0.9.2"), []),
        (asked(version="1.4.0", older_than="1.4.0"), []),
        (asked(connected="true"), ["a1", "a2", "a3", "a4"]),
        (asked(connected="false"), ["b1", "b2", "b3"]),
        (asked(connected="false", state="well"), []),
        (asked(seen_before="36h"), ["b2", "b3"]),
        (asked(seen_before=str((NOW_US - 2 * DAY_US) // 1_000)), ["b3"]),
        (asked(seen_before="36h", connected="true"), []),
        (asked(seen_after="36h"), ["a1", "a2", "a3", "a4", "b1"]),
        (asked(seen_after="3d", seen_before="1d"), ["b2", "b3"]),
        (asked(problem="store"), ["a1", "a2", "b1"]),
        (asked(problem="store", severity="error"), ["a1", "b1"]),
        (asked(severity="error"), ["a1", "a4", "b1"]),
        (asked(problem="none"), []),
        (asked(problem="store", older_than="1.4.0"), ["b1"]),
        (asked(problem="store", selector="site=lyon", connected="true"), ["a1"]),
        (asked(severity="error", state="well", q="4"), ["a4"]),
        (asked(severity="error", state="danger"), ["b1"]),
    ],
)
def test_traits_choose_gateways(world: FleetWorld, query: GatewayQuery, names: Sequence[str]) -> None:
    assert sorted(world.names(query)) == names
    assert world.names(query, "acme") == []


def test_gateway_that_never_connected_has_no_trait(world: FleetWorld) -> None:
    world.enrol("new")
    assert "new" in world.names(asked(connected="false"))
    for query in (asked(seen_before="1s"), asked(seen_after="9d"), asked(older_than="9"), asked(severity="error")):
        assert "new" not in world.names(query)


def test_tenants_are_apart(world: FleetWorld) -> None:
    """Both have a gateway of the same name; one has the problem, and the older version."""
    world.add("a3", tenant="acme", connected=True, status=status(version="1.4.0"))
    with contextlib.closing(StoredProblems(world.place.url, HERE)) as stored:
        stored.report({ProblemSource("acme", "a3"): [reported("uplink", "error")]}, NOW_US)
    for query in (asked(problem="uplink"), asked(severity="error"), asked(version="1.4.0")):
        assert "a3" not in world.names(query, "default")
        assert world.names(query, "acme") == ["a3"]
        assert "a3" in world.names(query)


def test_pages_follow_each_other_in_each_order(world: FleetWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a trait is rare for one page, and not for the next one."""
    rare = itertools.cycle((-1, gateway_traits.RARE_MAX))

    async def pages(view: FleetView, query: GatewayQuery) -> list[str]:
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            monkeypatch.setattr(gateway_traits, "RARE_MAX", next(rare))
            page = await view.page(query, after, 1)
            seen += [one.gateway.name for one in page.rows]
            after = page.next
        return seen

    async def work(views: FleetViews) -> None:
        for tenant, sort, down in itertools.product((None, "default"), SORTS, (False, True)):
            view = views.of(tenant)
            for text in ({"problem": "store"}, {"severity": "error"}, {"older_than": "1.5.0"}, {"seen_before": "12h"}):
                query = read_query({**text, "sort": f"{'-' if down else ''}{sort}"}, NOW_US)
                whole = await view.page(query, "", 50)
                assert len(whole.rows) == whole.total >= 3
                assert await pages(view, query) == [one.gateway.name for one in whole.rows]

    world.run(work)


def test_file_has_the_gateways_of_the_search(world: FleetWorld) -> None:
    async def work(views: FleetViews) -> list[str]:
        parts = [part async for part in views.of(None).every(asked(problem="store", sort="-room"))]
        return [one.gateway.name for part in parts for one in part]

    assert world.run(work) == ["a1", "a2", "b1"]


def test_numbers_of_versions(world: FleetWorld) -> None:
    world.add("a3", tenant="acme", connected=True, status=status(version="1.4.0"))
    found = world.run(lambda views: views.of(None).summary()).versions
    assert [tuple(each.values()) for each in found] == [
        ("1.5.0", 1), ("1.5.0rc1", 1), ("1.4.0", 3), ("0.9.12", 1), ("a branch", 1), (None, 1),
    ]  # fmt: skip
    assert world.run(lambda views: views.of("acme").summary()).versions == [{"version": "1.4.0", "count": 1}]


def test_version_that_an_older_hub_has_written_is_found_after_filling(world: FleetWorld) -> None:
    """The older hub writes the columns of danger, and not the version."""
    key = ("default", "a1")
    with contextlib.closing(Hubs(world.place.url, HERE)) as hubs:
        hubs.write(HubRecord(HERE, "here:5671", "1", "serving", 1, 1, 0))
    world.place.execute("INSERT INTO hubs VALUES (:id, 'b', '1', 'serving', 1, 1, 0, 35)", id=THERE)
    world.report(key, status(version="1.4.0"))
    observed = world.column("a1", "observed").replace("1.4.0", "1.6.0")
    world.place.execute(
        "UPDATE gateways SET last_seen = :at, judged_at = :at, observed = :observed WHERE name = 'a1'",
        at=NOW_US + MINUTE_US, observed=observed,
    )  # fmt: skip
    assert world.names(asked(version="1.6.0")) == []
    with contextlib.closing(DangerFilling(world.place.url, HERE)) as filling:
        assert filling.fill(FILL_S) == 1
    assert world.names(asked(version="1.6.0")) == ["a1"]
    assert world.names(asked(version="1.4.0")) == ["a2"]


def test_forgotten_gateway_has_no_version_when_its_name_returns(world: FleetWorld) -> None:
    with contextlib.closing(Enrolments(world.place.url)) as enrolments:
        enrolments.forget("default", "b1", NOW_US + 1)
    assert world.names(asked(older_than="1.5.0", sort="name")) == ["a1", "a2", "a3"]
    world.registry.directory.presence({("default", "b1"): Presence("-", True, NOW_US + 9, 1)})
    for query in (asked(older_than="1.5.0"), asked(problem="store")):
        assert "b1" not in world.names(query)


def test_rare_trait_reads_the_gateways_that_have_it(tmp_path: Path) -> None:
    """SQLite says how it reads: by the keys of the trait's index, not along the order of the list."""
    place = Place(sqlite_url(tmp_path / "registry.db"))
    with contextlib.closing(place):
        place.open()
        said: list[str] = []

        def explain(connection: sa.Connection, _cursor: object, statement: str, values: object, *_more: object) -> None:
            if not statement.startswith("EXPLAIN"):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)  # type: ignore[arg-type]
                said.extend(row[3] for row in plan)

        engine = Sqlite().reading_engine(place.url)
        with engine.begin() as tx:
            sa.event.listen(tx, "before_cursor_execute", explain)
            for tenant, traits, index in (
                (None, GatewayTraits(problem="store"), "problems_by_code"),
                ("default", GatewayTraits(problem="store"), "problems_by_code"),
                (None, GatewayTraits(severity="error"), "problems_by_severity"),
                (None, GatewayTraits(below_rank=9), "gateways_by_version"),
                ("default", GatewayTraits("1.4.0"), "gateways_by_version"),
            ):
                said.clear()
                read_page(tx, FleetFilter(tenant, NOW_US, traits=traits), (), None, 9)
                assert any(index in line for line in said), said
                assert not any("by_danger" in line or "by_room" in line for line in said), said
                assert not any(line.startswith(("SCAN gateways", "SCAN problems")) for line in said), said
        engine.dispose()
