"""Steps of a campaign: phases of devices by their reports and the time, waves, and the rules that halt it."""

from __future__ import annotations

import json
import re

import pytest

from bridge.artefacts.report import UpdateState
from cloud.hub.campaign import (
    CampaignMember,
    CampaignPace,
    MemberReport,
    PastReport,
    count_phases,
    move_member,
    plan_campaign,
)
from cloud.hub.limits import FAILURE_EARLY_S_MAX, SUCCESS_EARLY_S_MAX
from cloud.hub.rollout import MemberPhase, RolloutState
from tests.support.checkout import ROOT

PACE = CampaignPace(soak_s=10, away_s=100, failures_max=1, enough_percent=100)
S = 1_000_000
WAITING, SENT, AWAY, CONFIRMED, DONE, FAILED = (
    MemberPhase.WAITING, MemberPhase.SENT, MemberPhase.AWAY, MemberPhase.CONFIRMED, MemberPhase.DONE,
    MemberPhase.FAILED,
)  # fmt: skip


def moved(
    phase: MemberPhase,
    state: str | None,
    *,
    since: int = 50,
    now: int = 60,
    at: int = 55,
    name: str = "new",
    loading: int | None = None,
    failure: PastReport | None = None,
    held: bool = False,
) -> tuple[MemberPhase, int]:
    """Return phase and begin, in seconds, of a device that was offered the version at second 40, after reports that
    are known as ``old``."""
    loading_at = None if loading is None else loading * S
    member = CampaignMember("pump", 0, phase, since * S, 40 * S, "", loading_at, "old", "old")
    report = None if state is None else MemberReport(UpdateState(state), "", at * S, name, at * S, failure)
    after = move_member(member, report, PACE, now * S, held=held)
    return after.phase, after.since // S


@pytest.mark.parametrize(
    ("phase", "state", "expected"),
    [
        (SENT, None, (SENT, 50)),
        (SENT, "downloading", (SENT, 50)),
        (SENT, "verified", (SENT, 50)),
        (SENT, "installed", (CONFIRMED, 60)),
        (SENT, "healthy", (DONE, 60)),
        (SENT, "rolled-back", (FAILED, 60)),
        (AWAY, None, (AWAY, 50)),
        (AWAY, "downloading", (SENT, 60)),
        (AWAY, "installed", (CONFIRMED, 60)),
        (AWAY, "healthy", (DONE, 60)),
        (AWAY, "rolled-back", (FAILED, 60)),
        (CONFIRMED, "installed", (DONE, 60)),
        (CONFIRMED, "healthy", (DONE, 60)),
        (CONFIRMED, "rolled-back", (FAILED, 60)),
        (CONFIRMED, "downloading", (FAILED, 60)),
        (CONFIRMED, "verified", (FAILED, 60)),
        (DONE, "healthy", (DONE, 50)),
        (DONE, "rolled-back", (FAILED, 60)),
        (DONE, "downloading", (DONE, 50)),
        (WAITING, "healthy", (WAITING, 50)),
        (FAILED, "healthy", (FAILED, 50)),
        (MemberPhase.SUPERSEDED, "rolled-back", (MemberPhase.SUPERSEDED, 50)),
        (MemberPhase.LEFT_OUT, "healthy", (MemberPhase.LEFT_OUT, 50)),
    ],
)
def test_report_gives_the_phase(phase: MemberPhase, state: str | None, expected: tuple[MemberPhase, int]) -> None:
    assert moved(phase, state) == expected


@pytest.mark.parametrize("state", [each.value for each in UpdateState])
@pytest.mark.parametrize("phase", [SENT, AWAY])
def test_report_that_was_known_at_the_offer_moves_nothing(phase: MemberPhase, state: str) -> None:
    """Whatever the clock of the hub said that took it."""
    for at in (1, 40, 59, 9_999):
        assert moved(phase, state, at=at, name="old") == (phase, 50)


def test_old_report_that_comes_late_is_neither_success_nor_failure() -> None:
    """From a gateway that was away for weeks. Clocks of gateways may be wrong by some time."""
    for state, tolerance, expected in (
        ("healthy", SUCCESS_EARLY_S_MAX, DONE),
        ("installed", SUCCESS_EARLY_S_MAX, CONFIRMED),
        ("rolled-back", FAILURE_EARLY_S_MAX, FAILED),
    ):
        assert moved(SENT, state, at=40 - tolerance) == (expected, 60)
        assert moved(SENT, state, at=39 - tolerance) == (SENT, 50)
    old = PastReport("late", "", -FAILURE_EARLY_S_MAX * S)
    assert moved(CONFIRMED, "installed", failure=old, now=55) == (CONFIRMED, 50)


def test_failure_counts_although_another_report_has_overtaken_it() -> None:
    failure = PastReport("new-failure", "no boot", 55 * S)
    for phase in (SENT, AWAY, CONFIRMED, DONE):
        for state in ("downloading", "installed", "healthy"):
            assert moved(phase, state, failure=failure) == (FAILED, 60)
    assert moved(DONE, "healthy", failure=failure._replace(name="old")) == (DONE, 50)


def test_report_on_the_way_counts_although_an_old_final_one_hides_it() -> None:
    """The final one is of an earlier campaign, at another gateway."""
    member = CampaignMember("pump", 0, AWAY, 50 * S, 40 * S, "", None, "old", "old", "old")
    hidden = MemberReport(UpdateState.ROLLED_BACK, "", 1, "old", 1, None, PastReport("new", "", 55 * S))
    after = move_member(member, hidden, PACE, 60 * S)
    assert (after.phase, after.loading_at) == (SENT, 60 * S)
    assert move_member(after, hidden, PACE, 159 * S) == after
    assert move_member(after, hidden, PACE, 160 * S).phase is FAILED
    old = hidden._replace(progress=PastReport("new", "", (39 - SUCCESS_EARLY_S_MAX) * S))
    assert move_member(member, old, PACE, 60 * S) == member


def test_time_moves_devices() -> None:
    assert moved(SENT, None, now=149) == (SENT, 50)
    assert moved(SENT, None, now=150) == (AWAY, 150)
    assert moved(CONFIRMED, "installed", now=59) == (CONFIRMED, 50)
    assert moved(CONFIRMED, None, now=60) == (DONE, 60)


def test_silence_after_the_download_has_begun_is_a_failure() -> None:
    assert moved(SENT, "verified", name="old", loading=55, now=154) == (SENT, 50)
    assert moved(SENT, "verified", name="old", loading=55, now=155) == (FAILED, 155)
    assert moved(SENT, "verified", name="old", loading=55, since=70, now=169) == (SENT, 70), "resumed at 70"
    assert moved(SENT, "verified", name="old", loading=55, now=155, held=True) == (SENT, 50), "it may wait for us"
    assert moved(SENT, None, now=150, held=True) == (AWAY, 150)


@pytest.mark.parametrize(
    ("state", "expected"),
    [("downloading", SENT), ("verified", SENT), ("installed", CONFIRMED), ("healthy", DONE), ("rolled-back", FAILED)],
)
def test_device_that_went_silent_comes_back(state: str, expected: MemberPhase) -> None:
    member = CampaignMember("pump", 0, FAILED, 50 * S, 40 * S, "silent", 45 * S, "old", "")
    report = MemberReport(UpdateState(state), "", 0, "new", 55 * S)
    after = move_member(member, report, PACE, 60 * S)
    assert (after.phase, after.since, after.why == "silent") == (expected, 60 * S, False)
    assert move_member(member, report._replace(name="old"), PACE, 9_999 * S) == member
    again = move_member(after, report, PACE, 60 * S)
    assert again.phase is expected, "each report moves it once"


def test_failure_has_its_reason() -> None:
    member = CampaignMember("pump", 0, SENT, 0)
    assert move_member(member, MemberReport(UpdateState.ROLLED_BACK, "no boot", 1), PACE, 2).why == "no boot"
    assert move_member(member, MemberReport(UpdateState.ROLLED_BACK, "", 1), PACE, 2).why


def plan(wave: int = 0, pace: CampaignPace = PACE, **counts: dict[str, int]) -> tuple[str, int, bool, int]:
    """Return state, wave, whether to send, and by how many to widen. `counts`: by wave, as ``w0``."""
    found = {
        int(name[1:]): {MemberPhase(phase.replace("_", "-")): count for phase, count in each.items()}
        for name, each in counts.items()
    }
    step = plan_campaign(wave, pace, found, ["device pump: no boot"])
    return step.state.value, step.wave, step.send, step.widen


def test_waves_follow_each_other() -> None:
    assert plan(w0={"waiting": 1}, w1={"waiting": 9}) == ("running", 0, True, 0)
    assert plan(w0={"sent": 1}, w1={"waiting": 9}) == ("running", 0, False, 0)
    assert plan(w0={"confirmed": 1}, w1={"waiting": 9}) == ("running", 0, False, 0)
    assert plan(w0={"done": 1}, w1={"waiting": 9}) == ("running", 1, True, 0)
    assert plan(1, w0={"done": 1}, w1={"done": 8, "failed": 1}) == ("done", 1, False, 0)
    assert plan(1, w0={"done": 1}, w1={"done": 8, "away": 1}) == ("done", 1, False, 0)
    assert plan(w0={"done": 1}, w1={"forgotten": 1}, w2={"waiting": 9}) == ("running", 2, True, 0)
    assert plan(w0={"done": 1}, w1={"forgotten": 1}) == ("done", 0, False, 0)


def test_wave_without_a_success_starts_no_other() -> None:
    """Devices that were removed, or taken over by a later campaign, prove nothing."""
    for phase in ("superseded", "forgotten"):
        assert plan(w0={phase: 1}, w2={"waiting": 9}) == ("running", 0, False, 1)
        assert plan(w0={"away": 1, phase: 1}, w1={phase: 3}) == ("running", 0, False, 0), "none waits"
        assert plan(w0={phase: 2}, w1={phase: 3}) == ("done", 0, False, 0), "nothing is left"


def test_failures_halt_a_campaign_that_is_done() -> None:
    """Devices that were away take the version later."""

    def after(failed: int) -> RolloutState:
        return plan_campaign(0, PACE, {0: {DONE: 1, AWAY: 3, FAILED: failed}}, [], done=True).state

    assert (after(1), after(2)) == (RolloutState.DONE, RolloutState.HALTED), "one is allowed"


def test_enough_of_a_wave_ends_it() -> None:
    pace = PACE._replace(enough_percent=90)
    assert plan(0, pace, w0={"done": 8, "sent": 2}, w1={"waiting": 1})[1] == 0
    assert plan(0, pace, w0={"done": 9, "sent": 1}, w1={"waiting": 1})[1] == 1


def test_failures_halt() -> None:
    assert plan(w0={"failed": 1, "done": 1}, w1={"waiting": 1}) == ("running", 1, True, 0), "one is allowed"
    assert plan(w0={"failed": 1}, w1={"waiting": 1}) == ("halted", 0, False, 0), "and no other one succeeded"
    assert plan(w0={"failed": 2, "done": 9}, w1={"waiting": 1}) == ("halted", 0, False, 0)
    assert plan(1, w0={"done": 9, "failed": 1}, w1={"sent": 1, "failed": 1}) == ("halted", 1, False, 0)
    assert plan(w0={"left_out": 2}, w1={"waiting": 1}) == ("running", 1, True, 0), "resumed"


def test_devices_that_sleep_hold_up_nothing() -> None:
    assert plan(w0={"away": 1}, w1={"waiting": 9}) == ("running", 0, False, 1)
    assert plan(w0={"away": 6}, w1={"waiting": 4}) == ("running", 0, False, 4)
    assert plan(w0={"away": 10}) == ("running", 0, False, 0), "they get it when they wake"
    assert plan(w0={"away": 9, "done": 1}) == ("done", 0, False, 0)


def test_why_it_halted() -> None:
    counts = {0: {FAILED: 1, AWAY: 2}}
    assert "1 failed" in plan_campaign(0, PACE, counts, []).why
    halted = plan_campaign(0, PACE, {0: {FAILED: 2}}, ["device a: x", "device b: y"])
    assert (halted.state, halted.why) == (RolloutState.HALTED, "device a: x; device b: y")
    assert count_phases({DONE: 2, AWAY: 0}) == "2 done"


def test_the_console_offers_every_phase() -> None:
    script = (ROOT / "cloud" / "console" / "pages" / "campaigns.js").read_text(encoding="utf-8")
    (found,) = re.findall(r"^const PHASES = (\[.*?\]);$", script, re.MULTILINE | re.DOTALL)
    assert {key for key, _ in json.loads(found)} == {"", *(each.value for each in MemberPhase)}
