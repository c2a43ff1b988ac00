"""Labels of gateways and configurations for selectors, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.desired import ApplyFailure, ApplyOutcome, DesiredError, DesiredReport
from bridge.enrolment import RefusalReason
from cloud.hub.desired.making import ConfigurationTables, RolloutTarget, set_wanted_for_selector, start_rollout
from cloud.hub.groups import Presence
from cloud.hub.labels import LabelError, parse_selector
from cloud.hub.limits import LABELS_MAX, SELECTORS_MAX
from cloud.hub.registry import labels
from cloud.hub.registry.configurations import UnknownGateway, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import CertificateRecord, EnrolmentRefused, Enrolments, TokenClaim, TokenRecord
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.hub.registry.selectors import VersionContext
from cloud.hub.rollout import MemberPhase, RolloutPace, RolloutState
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import GATEWAYS, SECOND, document, sign


def judge(wanted: Any, others: Any) -> None:
    """Refuse configurations with a ring of forwarders."""
    named = [each["metadata"]["name"] for mine in (wanted, others) for found in mine.values() for each in found]
    if named.count("half") > 1:
        raise DesiredError("messages would circle")


class Person:
    """Operator of tenant acme's fleet, with its own clock."""

    def __init__(self, database: Database) -> None:
        self.tables = ConfigurationTables.of(database)
        self.now_us = SECOND

    @property
    def how(self) -> VersionContext:
        self.now_us += SECOND
        return VersionContext(self.now_us, sign, judge)

    def label(self, gateway: str, **changes: str | None) -> dict[str, int]:
        made = self.tables.selectors.label("acme", (gateway,), changes, self.how)
        return {each.gateway: each.version for each in made}

    def say_for(self, text: str, *names: str, tenant: str = "acme") -> list[str]:
        """Configure a selector; return the gateways with a new version."""
        wanted = WantedConfiguration(
            tenant, "", [document(name) for name in names], 60.0, False, "ann", "", selector=text
        )
        return [each.gateway for each in set_wanted_for_selector(self.tables.selectors, wanted, self.how.now_us, sign)]

    def say_by_name(self, gateway: str, *names: str) -> None:
        wanted = WantedConfiguration("acme", gateway, [document(name) for name in names], 60.0, False, "ann", "")
        self.tables.configurations.set_wanted([wanted], self.how.now_us, sign)

    def begin(self, text: str, name: str, waves: str = "1,100%") -> str:
        wanted = WantedConfiguration("acme", "", [document(name)], 5.0, False, "ann", "")
        whom = RolloutTarget((), parse_selector(text))
        return start_rollout(self.tables, wanted, whom, waves, RolloutPace(10.0, 100.0, 0), self.how.now_us).id

    def falls(self) -> list[str]:
        """Apply selectors to all gateways, as a running hub does."""
        names = self.tables.selectors.find_outdated("acme")
        return [each.gateway for each in self.tables.selectors.apply_to("acme", names, self.how)]

    def has(self, gateway: str) -> list[str] | None:
        """Return the names of the resources wanted of a gateway; None without any version."""
        versions = self.tables.configurations.versions("acme", gateway)
        return [each["metadata"]["name"] for each in versions[0].desired.resources] if versions else None

    def everybody_takes_it(self) -> None:
        """Let gateways confirm their wanted versions."""
        for each in self.tables.configurations.gateways("acme"):
            report = DesiredReport(version=each.wanted, newest=each.wanted)
            self.tables.configurations.reported([(("acme", each.gateway), report)], self.now_us)

    def offered(self, gateway: str, report: DesiredReport) -> int | None:
        """Return the version offered to a gateway with this report."""
        found = self.tables.configurations.due(("acme", gateway), report)
        return found.version if found is not None else None

    def look(self, after_s: float) -> list[RolloutState]:
        self.now_us += int(after_s * SECOND)
        known = self.tables.rollouts
        found = [known.advance(each, self.now_us, sign) for each in known.running()]
        return [each.state for each in found if each is not None]


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    registry = place.open()
    there = Presence("here", True, 1, 1)
    registry.directory.presence({(tenant, name): there for tenant in ("acme", "umbrella") for name in GATEWAYS})
    registry.close()
    with contextlib.closing(open_registry(place.url).database) as found:
        yield found


@pytest.fixture
def person(database: Database) -> Person:
    return Person(database)


class TestLabels:
    def test_labels_are_set_changed_and_removed(self, person: Person) -> None:
        person.label("g1", site="berlin", ring="canary")
        person.label("g1", site="paris", ring=None, rack="7")
        assert person.tables.selectors.labels("acme") == {"g1": {"rack": "7", "site": "paris"}, "g2": {}, "g3": {}}
        assert not any(person.tables.selectors.labels("umbrella").values())

    def test_change_is_all_or_none(self, person: Person) -> None:
        with pytest.raises(UnknownGateway):
            person.tables.selectors.label("acme", ("g1", "other"), {"a": "b"}, person.how)
        most = {f"k{number}": "v" for number in range(LABELS_MAX)}
        person.label("g2", **most)
        with pytest.raises(LabelError):
            person.tables.selectors.label("acme", ("g1", "g2"), {"a": "b"}, person.how)
        assert person.tables.selectors.labels("acme")["g1"] == {}
        assert person.tables.selectors.labels("acme")["g2"] == most


class TestConfigurationsOfSelectors:
    def test_configuration_applies_to_present_and_future_members(self, person: Person) -> None:
        person.label("g1", site="berlin")
        assert person.say_for("site=berlin", "one") == ["g1"]
        assert person.label("g2", site="berlin", ring="canary") == {"g2": 1}
        assert person.say_for("ring!=canary,site=berlin", "two") == ["g1"]
        assert (person.has("g1"), person.has("g2"), person.has("g3")) == (["two"], ["one"], None)
        assert person.tables.configurations.versions("acme", "g2")[0].selector == "site=berlin"
        assert person.falls() == []
        assert person.tables.configurations.versions("umbrella", "g1") == []

    def test_newest_configuration_counts(self, person: Person) -> None:
        person.label("g1", site="berlin", ring="canary")
        person.say_for("site=berlin", "site")
        assert person.say_for("ring=canary", "ring") == ["g1"]
        assert person.say_for("site=berlin", "newer") == ["g1"]
        person.say_by_name("g1", "mine")
        assert person.falls() == []
        assert person.label("g1", rack="7") == {}, "by name was later than both"
        assert person.say_for("ring=canary", "last") == ["g1"]
        assert person.has("g1") == ["last"]

    def test_former_member_gets_the_configuration_of_others_or_none(self, person: Person) -> None:
        person.label("g1", site="berlin", ring="canary")
        person.say_for("ring", "older")
        person.say_for("site=berlin", "newer")
        assert person.label("g1", site="paris") == {"g1": 3}
        assert person.has("g1") == ["older"]
        person.label("g1", ring=None)
        assert person.has("g1") == []
        assert person.label("g1", ring="early") == {"g1": 5}, "an empty version keeps nothing away"
        assert person.has("g1") == ["older"]

    def test_configuration_is_deleted(self, person: Person) -> None:
        person.label("g1", site="berlin")
        person.say_for("site", "any")
        person.say_for("site=berlin", "one")
        made = person.tables.selectors.delete("acme", "site=berlin", person.how)
        assert [each.gateway for each in made] == ["g1"]
        assert person.has("g1") == ["any"]
        person.tables.selectors.delete("acme", "site", person.how)
        assert person.has("g1") == []
        with pytest.raises(UnknownGateway, match="site"):
            person.tables.selectors.delete("acme", "site", person.how)

    def test_invalid_configuration_changes_nothing(self, person: Person) -> None:
        person.label("g1", site="berlin")
        wanted = WantedConfiguration("acme", "g3", [document("half")], 60.0, False, "ann", "")
        person.tables.configurations.set_wanted([wanted], 1, sign)
        person.say_for("site=paris", "half")
        with pytest.raises(DesiredError, match="would circle"):
            person.label("g1", site="paris")
        assert person.tables.selectors.labels("acme")["g1"] == {"site": "berlin"}
        assert person.has("g1") is None

    def test_clock_of_the_author_does_not_matter(self, person: Person) -> None:
        person.label("g1", site="berlin")
        person.say_for("site=berlin", "first")
        person.now_us = 0
        person.say_by_name("g1", "second")
        assert person.falls() == []
        person.now_us = 0
        assert person.say_for("site=berlin", "third") == ["g1"]

    def test_selectors_are_limited(self, person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        assert SELECTORS_MAX >= 100
        monkeypatch.setattr("cloud.hub.registry.selectors.SELECTORS_MAX", 2)
        person.say_for("a", "one")
        person.say_for("b", "one")
        with pytest.raises(LabelError, match="limit"):
            person.say_for("c", "one")
        person.label("g1", d="1")
        with pytest.raises(LabelError, match="limit"):
            person.begin("d", "one")
        person.say_for("a", "again")
        person.say_for("c", "one", tenant="umbrella")


class TestRolloutsToSelectors:
    def test_gateway_labelled_later_gets_it_when_the_rollout_ends(self, person: Person) -> None:
        for name in ("g1", "g2"):
            person.label(name, site="berlin")
        person.say_for("site=berlin", "old")
        identifier = person.begin("site=berlin", "new")
        person.look(1)
        person.everybody_takes_it()
        assert person.label("g3", site="berlin") == {"g3": 1}
        assert (person.has("g1"), person.has("g2"), person.has("g3")) == (["new"], ["old"], ["old"])
        assert person.falls() == [], "those of a roll-out are the roll-out's"
        person.look(1)
        person.look(11)
        person.everybody_takes_it()
        person.look(1)
        assert person.look(11) == [RolloutState.DONE]
        assert {each.phase for each in person.tables.rollouts.members(identifier)} == {MemberPhase.DONE}
        assert person.falls() == ["g3"]
        assert person.has("g3") == ["new"]
        [standing] = person.tables.selectors.all("acme")
        assert (standing.selector, standing.rollout) == ("site=berlin", identifier)

    def test_configuration_since_the_start_counts(self, person: Person) -> None:
        for name in ("g1", "g2", "g3"):
            person.label(name, site="berlin")
        person.begin("site=berlin", "new", "100%")
        person.look(1)
        person.say_by_name("g1", "mine")
        person.say_for("site=berlin", "newer")
        person.everybody_takes_it()
        person.look(1)
        assert person.look(11) == [RolloutState.DONE]
        assert person.falls() == ["g1", "g2", "g3"]
        assert person.has("g1") == ["newer"]
        [standing] = person.tables.selectors.all("acme")
        assert standing.rollout is None

    def test_aborted_rollout_remains_only_where_it_arrived(self, person: Person) -> None:
        for name in ("g1", "g2"):
            person.label(name, site="berlin")
        person.say_for("site=berlin", "old")
        person.everybody_takes_it()
        identifier = person.begin("site=berlin", "new")
        person.look(1)
        person.everybody_takes_it()
        person.tables.rollouts.abort(identifier)
        assert person.falls() == []
        assert (person.has("g1"), person.has("g2")) == (["new"], ["old"])
        person.tables.rollouts.take_back(identifier, "bob", person.how.now_us, sign)
        assert person.has("g1") == ["old"]
        assert person.falls() == []
        assert person.say_for("site=berlin", "newer") == ["g1", "g2"]

    def test_wave_skips_gateways_configured_by_name_meanwhile(self, person: Person) -> None:
        for name in ("g1", "g2"):
            person.label(name, site="berlin")
        identifier = person.begin("site=berlin", "new")
        person.look(1)
        person.say_by_name("g2", "mine")
        person.everybody_takes_it()
        person.look(1)
        person.look(11)
        person.look(1)
        assert [each.state for each in person.tables.rollouts.all("acme")] == [RolloutState.DONE]
        phases = {each.gateway: each.phase for each in person.tables.rollouts.members(identifier)}
        assert phases == {"g1": MemberPhase.DONE, "g2": MemberPhase.SUPERSEDED}
        assert person.falls() == []
        assert (person.has("g1"), person.has("g2")) == (["new"], ["mine"])

    def test_stage_is_a_label(self, person: Person) -> None:
        for name in GATEWAYS:
            person.label(name, site="berlin", ring="canary" if name == "g3" else None)
        identifier = person.begin("site=berlin", "new", "ring=canary,100%")
        [record] = person.tables.rollouts.all("acme")
        assert (record.selector, record.stages) == ("site=berlin", ["ring=canary", "100%"])
        person.look(1)
        assert (person.has("g1"), person.has("g3")) == (None, ["new"])
        failure = ApplyFailure(1, ApplyOutcome.ROLLED_BACK, "no hub")
        report = DesiredReport(newest=1, failure=failure)
        person.tables.configurations.reported([(("acme", "g3"), report)], person.now_us)
        assert person.look(1) == [RolloutState.HALTED]
        assert person.has("g1") is None
        assert identifier == record.id


class TestEnrolment:
    TOKEN = TokenRecord("t1", b"digest", "acme", None, 0, 10_000 * SECOND, labels=labels.encode({"site": "berlin"}))

    def enrol(self, place: Place, token: TokenRecord, gateway: str) -> None:
        certificate = CertificateRecord(token.id, "acme", gateway, b"key", 0, 10_000 * SECOND, None, "pem")
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.add([token])
            enrolments.enrol(TokenClaim(token.id, token.secret, gateway, b"key"), SECOND, lambda *_: certificate)

    def test_token_carries_labels(self, place: Place, person: Person) -> None:
        person.say_for("site=berlin", "one")
        self.enrol(place, self.TOKEN, "new")
        assert person.tables.selectors.labels("acme")["new"] == {"site": "berlin"}
        assert person.falls() == ["new"]
        assert person.has("new") == ["one"]

    def test_successor_of_a_forgotten_name_has_no_labels(self, place: Place, person: Person) -> None:
        self.enrol(place, self.TOKEN, "new")
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.revoke("acme", "new", 2 * SECOND)
            enrolments.forget("acme", "new", 3 * SECOND)
            assert enrolments.labels() == {}
        self.enrol(place, self.TOKEN._replace(id="t2", labels=None), "new")
        assert person.tables.selectors.labels("acme")["new"] == {}

    @pytest.mark.parametrize("others", [True, False], ids=["other selectors stay", "none"])
    def test_forgotten_gateway_is_not_selected(self, place: Place, person: Person, others: bool) -> None:
        person.say_for("site=berlin", "one")
        if others:
            person.say_for("site!=berlin", "two")
        self.enrol(place, self.TOKEN, "new")
        person.falls()
        assert person.has("new") == ["one"]
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.revoke("acme", "new", 2 * SECOND)
            enrolments.forget("acme", "new", 3 * SECOND)
        if not others:
            person.tables.selectors.delete("acme", "site=berlin", person.how)
        assert person.falls() == []
        assert person.has("new") is None

    def test_configuration_by_name_is_not_for_the_successor(self, place: Place, person: Person) -> None:
        self.enrol(place, self.TOKEN._replace(labels=None), "new")
        person.say_by_name("new", "one")
        said = DesiredReport(version=1, newest=1)
        person.tables.configurations.reported([(("acme", "new"), said)], person.now_us)
        self.forget(place, "new")
        assert person.tables.configurations.gateways("acme") == []
        with pytest.raises(UnknownGateway):
            person.say_by_name("new", "two")
        self.enrol(place, self.TOKEN._replace(id="t2", labels=None), "new")
        assert person.offered("new", DesiredReport()) is None
        assert person.has("new") is None
        person.say_by_name("new", "three")
        assert person.offered("new", DesiredReport()) == person.offered("new", said) == 2, "1 is not given again"

    def test_rollout_continues_without_forgotten_gateways(self, place: Place, person: Person) -> None:
        self.enrol(place, self.TOKEN, "new")
        person.label("g1", site="berlin")
        person.label("g2", site="berlin")
        identifier = person.begin("site=berlin", "one", "1,100%")
        person.look(1)
        person.everybody_takes_it()
        self.forget(place, "new")
        self.enrol(place, self.TOKEN._replace(id="t2", labels=None), "new")
        for _ in range(6):
            person.look(11)
            person.everybody_takes_it()
        members = {each.gateway: each.phase for each in person.tables.rollouts.members(identifier)}
        assert members == {"g1": MemberPhase.DONE, "g2": MemberPhase.DONE, "new": MemberPhase.FORGOTTEN}
        assert person.has("new") is None

    def test_wave_of_forgotten_gateways_halts(self, place: Place, person: Person) -> None:
        self.enrol(place, self.TOKEN, "new")
        identifier = person.begin("site=berlin", "one", "1")
        self.forget(place, "new")
        assert person.look(1) == [RolloutState.HALTED]
        [record] = person.tables.rollouts.all("acme")
        assert "1 forgotten" in record.why
        person.tables.rollouts.resume(identifier, person.now_us)
        assert person.look(1) == [RolloutState.DONE]

    def test_leftovers_of_an_older_program_end_with_an_enrolment(self, place: Place, person: Person) -> None:
        self.enrol(place, self.TOKEN, "new")
        person.say_by_name("new", "one")
        place.execute("UPDATE certificates SET revoked_at = 1 WHERE gateway = 'new'")
        place.execute(
            "INSERT INTO gateways (tenant, name, first_seen, last_seen, connected, remote, generation, landed,"
            " forgotten_at) VALUES ('acme', 'new', 1, 1, FALSE, '', 0, 0, 2)"
        )
        self.enrol(place, self.TOKEN._replace(id="t2", labels=None), "new")
        assert (person.has("new"), person.tables.selectors.labels("acme")["new"]) == (None, {})

    @staticmethod
    def forget(place: Place, gateway: str) -> None:
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.revoke("acme", gateway, 2 * SECOND)
            enrolments.forget("acme", gateway, 3 * SECOND)

    def test_enrolment_with_too_many_selectors_is_refused_and_the_token_stays_valid(
        self, place: Place, person: Person
    ) -> None:
        self.enrol(place, self.TOKEN._replace(labels=None), "new")
        person.label("new", **{f"k{number}": "v" for number in range(LABELS_MAX)})
        again = self.TOKEN._replace(id="t2", gateway="new")
        with pytest.raises(EnrolmentRefused) as refused:
            self.enrol(place, again, "new")
        assert refused.value.reason is RefusalReason.UNAVAILABLE
        person.label("new", k0=None)
        certificate = CertificateRecord("t2", "acme", "new", b"key", 0, 10_000 * SECOND, None, "pem")
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            enrolments.enrol(TokenClaim("t2", again.secret, "new", b"key"), SECOND, lambda *_: certificate)
        assert person.tables.selectors.labels("acme")["new"]["site"] == "berlin"


def test_registry_of_the_previous_schema_gets_tables_and_columns(place: Place) -> None:
    place.open().directory.presence({("acme", "g1"): Presence("here", True, 1, 1)})
    with contextlib.closing(open_registry(place.url).database) as database:
        Person(database).say_by_name("g1", "before")
    place.execute("DROP TABLE labels")
    place.execute("DROP TABLE selectors")
    place.execute("DROP INDEX ix_configurations_selector")
    columns = {"configurations": ("selector", "decided_at"), "rollouts": ("selector", "stages"), "tokens": ("labels",)}
    for table, names in columns.items():
        for name in names:
            place.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    place.execute("UPDATE schema_version SET version = 9")
    with contextlib.closing(open_registry(place.url).database) as database:
        person = Person(database)
        assert person.has("g1") == ["before"]
        person.label("g1", site="berlin")
        assert person.falls() == []
        assert person.say_for("site=berlin", "one") == ["g1"], "what an older program was told was said before"
        assert person.begin("site=berlin", "two")
    assert place.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]
    place.execute("DROP INDEX ix_configurations_selector")
