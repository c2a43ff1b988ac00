"""Versions of gateway configurations and their roll-outs, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.desired import (
    DESIRED_BYTES_MAX,
    ApplyFailure,
    ApplyOutcome,
    DesiredReport,
    SystemPhase,
    SystemReport,
    digest_of,
    read,
)
from cloud.hub.groups import Presence
from cloud.hub.limits import ROLLOUTS_KEPT, VERSIONS_KEPT, WHY_CHARACTERS_MAX
from cloud.hub.registry.configurations import (
    ConfigurationOffer,
    Configurations,
    UnknownGateway,
    WantedConfiguration,
    sign_late,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.rollouts import RolloutError, RolloutRecord, Rollouts
from cloud.hub.registry.signatures import Signatures
from cloud.hub.rollout import MemberPhase, RolloutState, Wave, make_members
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import GATEWAYS, SECOND, document, sign


def wanted(gateway: str, *names: str, tenant: str = "acme") -> WantedConfiguration:
    return WantedConfiguration(tenant, gateway, [document(name) for name in names], 60.0, False, "ann", "why not")


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    registry = place.open()
    registry.directory.presence({("acme", name): Presence("here", True, 1, 1) for name in GATEWAYS})
    registry.close()
    opened = open_registry(place.url).database
    yield opened
    opened.close()


@pytest.fixture
def known(database: Database) -> Configurations:
    return Configurations(database)


@pytest.fixture
def rollouts(database: Database) -> Rollouts:
    return Rollouts(database)


def say(known: Configurations, key: tuple[str, str], report: DesiredReport, now_us: int) -> ConfigurationOffer | None:
    [offer] = known.reported([(key, report)], now_us)
    return offer


def numbers(offer: ConfigurationOffer | None) -> int | None:
    return None if offer is None else offer.version


def resources(offer: ConfigurationOffer | None) -> list[dict[str, Any]]:
    assert offer is not None
    assert read(offer.signed.content).version == offer.version
    return read(offer.signed.content).resources


class TestVersions:
    def test_numbers_are_dense_for_each_gateway(self, known: Configurations) -> None:
        made = known.set_wanted([wanted("g1", "a"), wanted("g2", "a")], 1, sign)
        made += known.set_wanted([wanted("g1", "b")], 2, sign)
        assert [(each.gateway, each.version) for each in made] == [("g1", 1), ("g2", 1), ("g1", 2)]
        newest, first = known.versions("acme", "g1")
        assert (newest.version, newest.made_by, newest.note, newest.made_at) == (2, "ann", "why not", 2)
        assert newest.desired.resources == [document("b")]
        assert (newest.desired.tenant, newest.desired.gateway, newest.desired.version) == ("acme", "g1", 2)
        assert newest.signature == sign(newest.content)
        assert first.desired.resources == [document("a")]

    def test_change_is_all_or_none_and_refuses_unknown_gateways(self, known: Configurations) -> None:
        with pytest.raises(UnknownGateway):
            known.set_wanted([wanted("g1", "a"), wanted("other", "a")], 1, sign)
        with pytest.raises(UnknownGateway):
            known.set_wanted([wanted("g1", "a", tenant="umbrella")], 1, sign)
        assert known.versions("acme", "g1") == []

    def test_number_exceeds_what_the_gateway_has_seen(self, known: Configurations) -> None:
        """The registry is an older copy, and the gateway has later versions."""
        assert say(known, ("acme", "g1"), DesiredReport(version=7, newest=8), 1) is None
        [made] = known.set_wanted([wanted("g1", "a")], 2, sign)
        assert made.version == 9

    def test_version_with_a_system_is_confirmed_once_the_system_is_kept(self, known: Configurations) -> None:
        key = ("acme", "g1")
        known.set_wanted([wanted("g1", "a")], 1, sign)
        at = 2
        for phase, state in (
            (SystemPhase.WAITING, "updating"),
            (SystemPhase.FETCHING, "updating"),
            (SystemPhase.INSTALLING, "updating"),
            (SystemPhase.TRYING, "updating"),
            (SystemPhase.ROLLED_BACK, "rolled-back"),
            (SystemPhase.REFUSED, "refused"),
            (SystemPhase.KEPT, "confirmed"),
        ):
            system = SystemReport(version="2", phase=phase, why="so" * WHY_CHARACTERS_MAX)
            say(known, key, DesiredReport(version=1, newest=1, system=system), at)
            [found] = known.gateways("acme")
            assert (found.state, found.failed, found.updating) == (state, system.failed, system.under_way)
            assert bool(found.why) is (phase is not SystemPhase.KEPT)
            assert len(found.why) < 2 * WHY_CHARACTERS_MAX
            [version] = known.versions(*key)
            assert version.confirmed_at == (at if phase is SystemPhase.KEPT else None)
            at += 1

    def test_number_used_twice_is_not_confused_with_the_other_version(self, known: Configurations) -> None:
        """The registry is an older copy, and assigns a number again before the gateway has reported it."""
        key = ("acme", "g1")
        [made] = known.set_wanted([wanted("g1", "a")], 1, sign)
        for trying in (1, None):
            lost = DesiredReport(version=0 if trying else 1, trying=trying, newest=1, digest=digest_of("another text"))
            assert say(known, key, lost, 2) is None
            [found] = known.gateways("acme")
            assert (found.state, found.failed) == ("refused", True)
            assert "older copy" in found.why
        [version] = known.versions(*key)
        assert version.confirmed_at is None
        [again] = known.set_wanted([wanted("g1", "a")], 3, sign)
        assert again.version == 2
        say(known, key, DesiredReport(version=2, newest=2, digest=digest_of(again.content)), 4)
        assert known.gateways("acme")[0].state == "confirmed"
        assert made.content != again.content

    def test_active_version_is_not_ours_while_the_trial_is_unknown(self, known: Configurations) -> None:
        """The registry is an older copy. It assigns version 1 again, which the gateway has confirmed with another text,
        and does not know version 2 under trial.
        """
        key = ("acme", "g1")
        known.set_wanted([wanted("g1", "a")], 1, sign)
        assert (
            say(known, key, DesiredReport(version=1, trying=2, newest=2, digest=digest_of("another text")), 2) is None
        )
        [found] = known.gateways("acme")
        assert (found.state, found.failed) == ("refused", True)
        assert known.versions(*key)[0].confirmed_at is None

    def test_old_versions_are_deleted_except_the_last_confirmed(self, known: Configurations) -> None:
        known.set_wanted([wanted("g1", "a")], 1, sign)
        say(known, ("acme", "g1"), DesiredReport(version=1, newest=1), 2)
        for number in range(VERSIONS_KEPT + 5):
            known.set_wanted([wanted("g1", f"n{number}")], 3, sign)
        kept = [each.version for each in known.versions("acme", "g1")]
        assert len(kept) == VERSIONS_KEPT + 2
        assert kept[-1] == 1

    def test_last_version_fit_for_a_roll_back_is_kept(self, known: Configurations) -> None:
        key = ("acme", "g1")
        known.set_wanted([wanted("g1", "good")], 1, sign)
        say(known, key, DesiredReport(version=1, newest=1), 2)
        known.set_wanted([wanted("g1", "bad")], 3, sign)
        say(known, key, DesiredReport(version=2, newest=2), 4)
        known.set_wanted([wanted("g1", "good")._replace(repeats=1)], 5, sign)
        for number in range(VERSIONS_KEPT + 5):
            known.set_wanted([wanted("g1", f"n{number}")], 6, sign)
        versions = known.versions(*key)
        assert [each.version for each in versions][-3:] == [3, 2, 1], "1 is the one to go back to, as 3 passed over 2"
        assert len(versions) == VERSIONS_KEPT + 4


class TestReports:
    def test_due_version_is_found(self, known: Configurations) -> None:
        key = ("acme", "g1")
        assert say(known, key, DesiredReport(), 1) is None
        known.set_wanted([wanted("g1", "a")], 2, sign)
        known.set_wanted([wanted("g1", "b")], 3, sign)
        assert numbers(say(known, key, DesiredReport(), 4)) == 2
        assert say(known, key, DesiredReport(trying=2, newest=2), 5) is None
        known.set_wanted([wanted("g1", "c")], 6, sign)
        assert say(known, key, DesiredReport(trying=2, newest=2), 7) is None, "it is busy"
        assert numbers(say(known, key, DesiredReport(version=2, newest=2), 8)) == 3
        failure = ApplyFailure(3, ApplyOutcome.ROLLED_BACK, "no hub")
        assert say(known, key, DesiredReport(version=2, newest=3, failure=failure), 9) is None, "not twice"
        third, second, _ = known.versions(*key)
        assert (second.confirmed_at, second.failure) == (8, None)
        assert (third.confirmed_at, third.failure) == (None, "rolled-back: no hub")

    @pytest.mark.parametrize(
        ("report", "state"),
        [
            (DesiredReport(), "waiting"),
            (DesiredReport(trying=1, newest=1), "trying"),
            (DesiredReport(version=1, newest=1), "confirmed"),
            (DesiredReport(newest=1, failure=ApplyFailure(1, ApplyOutcome.REFUSED, "x")), "refused"),
            (DesiredReport(newest=1, failure=ApplyFailure(1, ApplyOutcome.ROLLED_BACK, "x")), "rolled-back"),
            (DesiredReport(failure=ApplyFailure(0, ApplyOutcome.REFUSED, "its signature is not the hub's")), "refused"),
            (DesiredReport(version=1, newest=7), "confirmed"),
            (DesiredReport(version=7, newest=7), "refused"),
        ],
    )
    def test_states_follow_the_reports(self, known: Configurations, report: DesiredReport, state: str) -> None:
        known.set_wanted([wanted("g1", "a")], 1, sign)
        say(known, ("acme", "g1"), report, 2)
        [found] = known.gateways("acme")
        assert (found.state, found.report) == (state, report)

    def test_changes_are_found(self, known: Configurations) -> None:
        known.set_wanted([wanted("g1", "a")], 100 * SECOND, sign)
        known.set_wanted([wanted("g2", "a")], 200 * SECOND, sign)
        assert [each.gateway for each in known.gateways(since_us=150 * SECOND)] == ["g2"]

    def test_changes_are_found_with_any_clock_of_their_author(self, known: Configurations) -> None:
        known.set_wanted([wanted("g1", "a")], 100 * SECOND, sign)
        since = known.last_change()
        known.set_wanted([wanted("g2", "a")], 1, sign)
        assert known.last_change() > since
        assert "g2" in {each.gateway for each in known.gateways(since_us=since)}


def begin(rollouts: Rollouts, sizes: list[int], **more: Any) -> str:
    record = RolloutRecord(
        id="r1",
        tenant="acme",
        made_at=1,
        made_by="ann",
        note="",
        resources=[document("new")],
        confirm_s=5.0,
        restart=False,
        soak_s=10.0,
        away_s=100.0,
        failures_max=0,
        wave=0,
        state=RolloutState.RUNNING,
        why="",
    )._replace(**more)
    left = list(GATEWAYS)
    waves = [Wave("", [left.pop(0) for _ in range(size)]) for size in sizes]
    rollouts.add(record, make_members(waves, 1))
    return record.id


def look(rollouts: Rollouts, now_us: int) -> list[RolloutRecord]:
    """Advance all roll-outs; return those that have changed."""
    found = [rollouts.advance(each, now_us, sign) for each in rollouts.running()]
    return [each for each in found if each is not None]


class TestRollouts:
    def test_waves_continue_over_restarts(self, place: Place, known: Configurations, rollouts: Rollouts) -> None:
        begin(rollouts, [1, 2])
        assert look(rollouts, SECOND) == []
        assert numbers(say(known, ("acme", "g1"), DesiredReport(), SECOND)) == 1
        assert say(known, ("acme", "g2"), DesiredReport(), SECOND) is None
        say(known, ("acme", "g1"), DesiredReport(version=1, newest=1), SECOND)
        look(rollouts, 2 * SECOND)
        another = open_registry(place.url).database  # the hub after a restart
        [moved] = look(Rollouts(another), 13 * SECOND)
        assert (moved.wave, moved.state) == (1, RolloutState.RUNNING)
        for name in ("g2", "g3"):
            say(Configurations(another), ("acme", name), DesiredReport(version=1, newest=1), 14 * SECOND)
        look(Rollouts(another), 15 * SECOND)
        [ended] = look(Rollouts(another), 26 * SECOND)
        another.close()
        assert ended.state is RolloutState.DONE
        assert {each.phase for each in rollouts.members("r1")} == {MemberPhase.DONE}

    def test_time_of_a_version_begins_with_its_signature(self, place: Place, rollouts: Rollouts) -> None:
        """The process with the authority's key is away for longer than a gateway may take."""
        begin(rollouts, [1])

        def phase_at(now_us: int) -> MemberPhase:
            rollouts.advance("r1", now_us, sign_late("a" * 64))
            [member] = rollouts.members("r1")
            return member.phase

        assert phase_at(SECOND) is MemberPhase.SENT
        assert phase_at(500 * SECOND) is MemberPhase.SENT
        database = open_registry(place.url).database
        assert Signatures(database).sign_versions("a" * 64, lambda _version: "signed", 10, 500 * SECOND) == 1
        database.close()
        assert phase_at(501 * SECOND) is MemberPhase.SENT
        assert phase_at(700 * SECOND) in (MemberPhase.AWAY, MemberPhase.FAILED)

    def test_too_large_version_fails(self, rollouts: Rollouts) -> None:
        begin(rollouts, [1, 2], resources=[document("a" * DESIRED_BYTES_MAX)])
        [halted] = look(rollouts, 2 * SECOND) or look(rollouts, 3 * SECOND)
        assert halted.state is RolloutState.HALTED
        assert "a gateway accepts up to" in halted.why

    def test_halted_rollout_withholds_until_it_resumes(self, known: Configurations, rollouts: Rollouts) -> None:
        begin(rollouts, [2, 1])
        look(rollouts, SECOND)
        failure = ApplyFailure(1, ApplyOutcome.REFUSED, "no such connector")
        say(known, ("acme", "g1"), DesiredReport(newest=1, failure=failure), 2 * SECOND)
        [halted] = look(rollouts, 3 * SECOND)
        assert (halted.state, halted.why) == (RolloutState.HALTED, "gateway g1: refused: no such connector")
        assert say(known, ("acme", "g2"), DesiredReport(), 4 * SECOND) is None
        assert look(rollouts, 500 * SECOND) == []
        rollouts.resume("r1", 501 * SECOND)
        assert numbers(known.due(("acme", "g2"), DesiredReport())) == 1
        assert "g2" in {each.gateway for each in known.gateways(since_us=501 * SECOND)}, "it is looked at again"
        say(known, ("acme", "g2"), DesiredReport(version=1, newest=1), 502 * SECOND)
        look(rollouts, 503 * SECOND)
        [moved] = look(rollouts, 514 * SECOND)
        assert moved.wave == 1
        assert [each.phase for each in rollouts.members("r1")] == [
            MemberPhase.LEFT_OUT,
            MemberPhase.DONE,
            MemberPhase.SENT,
        ]

    def test_gateway_with_a_later_version_keeps_it(self, known: Configurations, rollouts: Rollouts) -> None:
        begin(rollouts, [3])
        look(rollouts, SECOND)
        known.set_wanted([wanted("g2", "its own")], 2 * SECOND, sign)
        assert rollouts.take_back("r1", "bob", 3 * SECOND, sign) == ["g1", "g3"]
        assert resources(known.due(("acme", "g2"), DesiredReport())) == [document("its own")]

    def test_gateway_without_a_new_version_is_examined_again(self, known: Configurations, rollouts: Rollouts) -> None:
        """A hub about to send the version to a gateway learns that it is withheld."""
        begin(rollouts, [3])
        look(rollouts, SECOND)
        for stop in (rollouts.pause, rollouts.abort):
            since = known.last_change()
            stop("r1")
            assert [each.gateway for each in known.gateways() if each.changed_at > since] == list(GATEWAYS)

    @pytest.mark.parametrize("aborted", [True, False])
    def test_accepted_version_can_be_withdrawn(self, known: Configurations, rollouts: Rollouts, aborted: bool) -> None:
        known.set_wanted([wanted("g1", "before")], 1, sign)
        say(known, ("acme", "g1"), DesiredReport(version=1, newest=1), 2)
        begin(rollouts, [3])
        look(rollouts, SECOND)
        assert numbers(say(known, ("acme", "g1"), DesiredReport(version=1, newest=1), 2 * SECOND)) == 2
        if aborted:
            rollouts.abort("r1")
            assert known.due(("acme", "g2"), DesiredReport()) is None
        assert rollouts.take_back("r1", "bob", 3 * SECOND, sign) == list(GATEWAYS)
        assert [each.state for each in rollouts.all()] == [RolloutState.ABORTED]
        due = {name: known.due(("acme", name), DesiredReport()) for name in GATEWAYS}
        assert resources(due["g1"]) == [document("before")]
        assert resources(due["g2"]) == []
        assert numbers(due["g1"]) == 3

    def test_invalid_actions_are_refused(self, rollouts: Rollouts) -> None:
        begin(rollouts, [3])
        with pytest.raises(RolloutError, match="no roll-out other"):
            rollouts.pause("other")
        with pytest.raises(RolloutError, match="r1 is running"):
            rollouts.resume("r1", 1)
        rollouts.pause("r1")
        assert look(rollouts, SECOND) == []
        rollouts.abort("r1")
        with pytest.raises(RolloutError, match="r1 is aborted"):
            rollouts.abort("r1")


class TestLimits:
    def test_reason_is_cut(self, known: Configurations) -> None:
        failure = ApplyFailure(1, ApplyOutcome.REFUSED, "x" * (WHY_CHARACTERS_MAX + 1))
        say(known, ("acme", "g1"), DesiredReport(newest=1, failure=failure), 1)
        [found] = known.gateways("acme")
        assert len(found.why) < WHY_CHARACTERS_MAX + 20

    def test_text_of_a_gateway_is_valid_for_a_database(self, known: Configurations) -> None:
        """PostgreSQL accepts no NUL in a text."""
        [made] = known.set_wanted([wanted("g1", "a")], 1, sign)
        system = SystemReport(version="2\0", phase=SystemPhase.REFUSED, why="b\0")
        failure = ApplyFailure(made.version, ApplyOutcome.REFUSED, "a\0\nb")
        say(known, ("acme", "g1"), DesiredReport(newest=made.version, failure=failure, system=system), 2)
        [now] = known.versions("acme", "g1")
        assert now.failure == "refused: a\\x00\\nb"

    def test_ended_rollouts_are_deleted(self, rollouts: Rollouts) -> None:
        for number in range(ROLLOUTS_KEPT + 3):
            begin(rollouts, [3], id=f"r{number}", made_at=number, state=RolloutState.ABORTED)
        kept = [each.id for each in rollouts.all()]
        assert len(kept) == ROLLOUTS_KEPT
        assert "r0" not in kept
        assert rollouts.members("r0") == []
