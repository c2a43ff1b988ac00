"""Pages of gateways by name, with their configurations and their labels, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pytest
import sqlalchemy as sa

from bridge.desired import ApplyFailure, ApplyOutcome, DesiredReport, SystemPhase, SystemReport
from cloud.hub.groups import Key, Presence
from cloud.hub.labels import parse_selector
from cloud.hub.registry import labels
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.gateway_pages import ConfigurationPage, GatewayPages
from cloud.hub.registry.names import forget
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import certificates, configured
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import SECOND, document, sign

NAMES = ("g1", "g2", "g3", "g4", "g5")
ODD_NAMES = ("Z", "a", "B b", "a-b", "a_b", "ä", "z", "ab", "-", "%", "日本")
"""Names that databases sort in ways of their own."""


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    registry = place.open()
    there = Presence("here", True, 1, 1)
    registry.directory.presence({(tenant, name): there for tenant in ("acme", "umbrella") for name in NAMES})
    registry.close()
    with contextlib.closing(open_registry(place.url).database) as found:
        yield found


@pytest.fixture
def pages(database: Database) -> GatewayPages:
    return GatewayPages(database)


def want(database: Database, *keys: Key) -> None:
    """Make the next version of gateways."""
    wanted = [WantedConfiguration(*key, [document("a")], 60.0, False, "ann", "") for key in keys]
    Configurations(database).set_wanted(wanted, SECOND, sign)


def say(database: Database, key: Key, report: DesiredReport) -> None:
    Configurations(database).reported([(key, report)], 2 * SECOND)


def names_of(page: ConfigurationPage) -> list[str]:
    return [each.gateway for each in page.rows]


def add(database: Database, names: Sequence[str]) -> None:
    """Enrol gateways that have not connected."""
    rows = [
        {"serial": f"{number:040x}", "tenant": "acme", "gateway": name, "key_id": b"", "begins_at": 1, "ends_at": 2}
        for number, name in enumerate(names)
    ]
    database.transaction(lambda tx: tx.execute(certificates.insert(), [{**row, "pem": ""} for row in rows]))


class TestConfigurations:
    def test_pages_follow_each_other_by_name(self, database: Database, pages: GatewayPages) -> None:
        want(database, *(("acme", name) for name in NAMES), ("umbrella", "g1"))
        first = pages.configurations("acme", None, 2)
        assert (names_of(first), first.total, first.configured) == (["g1", "g2"], 5, 5)
        assert names_of(pages.configurations("acme", ("acme", "g2"), 9)) == ["g3", "g4", "g5"]
        assert pages.configurations("acme", ("acme", "g5"), 2).rows == []
        assert pages.configurations("other", None, 2) == ConfigurationPage([], 0, 0)
        every = pages.configurations(None, ("acme", "g4"), 9)
        assert [(each.tenant, each.gateway) for each in every.rows] == [("acme", "g5"), ("umbrella", "g1")]
        assert (every.total, every.configured) == (6, 6)

    def test_page_begins_behind_a_gateway_that_is_gone(self, database: Database, pages: GatewayPages) -> None:
        want(database, *(("acme", name) for name in NAMES))
        mine = configured.c.gateway.in_(["g2", "g4"])
        database.transaction(lambda tx: tx.execute(configured.delete().where(mine)))
        found = pages.configurations("acme", ("acme", "g2"), 9)
        assert (names_of(found), found.total) == (["g3", "g5"], 3)
        add(database, ("g0",))
        want(database, ("acme", "g0"))  # before the page: later pages stay as they are
        assert names_of(pages.configurations("acme", ("acme", "g2"), 9)) == ["g3", "g5"]

    def test_gateway_without_a_version_is_there_once_it_has_reported(
        self, database: Database, pages: GatewayPages
    ) -> None:
        want(database, ("acme", "g1"))
        say(database, ("acme", "g3"), DesiredReport())
        found = pages.configurations("acme", None, 9)
        assert (names_of(found), found.total, found.configured) == (["g1", "g3"], 2, 1)

    def test_unconfirmed_gateways_are_those_with_another_state(self, database: Database, pages: GatewayPages) -> None:
        names = [f"s{number}" for number in range(8)]
        add(database, names)
        want(database, *(("acme", name) for name in names))
        failure = ApplyFailure(1, ApplyOutcome.ROLLED_BACK, "no")
        older = ApplyFailure(0, ApplyOutcome.REFUSED, "not readable")
        for number, report in enumerate(
            (
                DesiredReport(version=1, newest=1),
                DesiredReport(trying=1, newest=1),
                DesiredReport(newest=1, failure=failure),
                DesiredReport(version=1, newest=1, failure=older),
                DesiredReport(version=1, newest=1, system=SystemReport(version="2", phase=SystemPhase.KEPT)),
                DesiredReport(version=1, newest=1, system=SystemReport(version="2", phase=SystemPhase.FETCHING)),
            )
        ):
            say(database, ("acme", f"s{number}"), report)
        broken = configured.update().where(configured.c.gateway == "s7").values(report='{"version":"x"}', reported_at=1)
        database.transaction(lambda tx: tx.execute(broken))
        every = pages.configurations("acme", None, 99)
        expected = [each.gateway for each in every.rows if each.state != "confirmed"]
        assert expected == ["s1", "s2", "s5", "s6", "s7"]
        found = pages.unconfirmed("acme", None, 3)
        assert (names_of(found), found.total, found.configured) == (expected[:3], 5, 8)
        following = pages.unconfirmed("acme", ("acme", "s5"), 3)
        assert (names_of(following), following.total) == (["s6", "s7"], 5)
        assert names_of(pages.unconfirmed(None, ("acme", "s4"), 9)) == ["s5", "s6", "s7"]

    def test_every_page_together_is_the_list_whatever_the_names(self, database: Database, pages: GatewayPages) -> None:
        add(database, ODD_NAMES)
        want(database, *(("acme", name) for name in ODD_NAMES))
        for read in (pages.configurations, pages.unconfirmed):
            found: list[str] = []
            after: Key | None = None
            while page := read(None, after, 2).rows:
                found += [each.gateway for each in page]
                after = (page[-1].tenant, page[-1].gateway)
            assert sorted(found) == sorted(ODD_NAMES)


class TestLabels:
    def label(self, database: Database, **values: str) -> None:
        """Give gateways their ring, and those of ring canary a site too."""

        def work(tx: sa.Connection) -> None:
            for name, value in values.items():
                labels.put(tx, "acme", name, {"ring": value} | ({"site": "lyon"} if value == "canary" else {}))

        database.transaction(work)

    def test_pages_follow_each_other_by_name(self, database: Database, pages: GatewayPages) -> None:
        self.label(database, g2="canary", g4="late")
        first = pages.labels("acme", None, "", 2)
        assert first == {"g1": {}, "g2": {"ring": "canary", "site": "lyon"}}
        assert list(pages.labels("acme", None, "g2", 9)) == ["g3", "g4", "g5"]
        assert pages.labels("acme", None, "g5", 9) == {}
        assert pages.labels("other", None, "", 9) == {}

    def test_page_begins_behind_a_gateway_that_is_gone(self, database: Database, pages: GatewayPages) -> None:
        database.transaction(lambda tx: [forget(tx, "acme", name, 9) for name in ("g2", "g4")])
        assert pages.labels("acme", None, "g2", 9) == {"g3": {}, "g5": {}}

    def test_gateway_that_only_enrolled_is_there_until_it_is_forgotten(
        self, database: Database, pages: GatewayPages
    ) -> None:
        add(database, ("g0", "g3"))
        assert list(pages.labels("acme", None, "", 2)) == ["g0", "g1"]
        assert list(pages.labels("acme", None, "", 9)) == ["g0", *NAMES]
        database.transaction(lambda tx: forget(tx, "acme", "g0", 9))
        assert list(pages.labels("acme", None, "", 2)) == ["g1", "g2"]

    @pytest.mark.parametrize(
        "text",
        ["ring=canary", "ring!=canary", "ring", "!ring", "ring,site!=lyon", "ring=canary,site=lyon", "!ring,!site"],
    )
    def test_selector_chooses_what_it_matches(self, database: Database, pages: GatewayPages, text: str) -> None:
        self.label(database, g1="canary", g2="late", g4="canary")
        selector = parse_selector(text)
        every = pages.labels("acme", None, "", 99)
        expected = [name for name, mine in every.items() if selector.matches(mine)]
        assert list(pages.labels("acme", selector, "", 99)) == expected
        assert list(pages.labels("acme", selector, "g2", 1)) == [name for name in expected if name > "g2"][:1]

    def test_every_page_together_is_the_list_whatever_the_names(self, database: Database, pages: GatewayPages) -> None:
        add(database, ODD_NAMES)
        found: list[str] = []
        while page := pages.labels("acme", None, found[-1] if found else "", 2):
            found += page
        assert sorted(found) == sorted((*ODD_NAMES, *NAMES))
