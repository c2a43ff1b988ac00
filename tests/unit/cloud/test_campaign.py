"""Steps of a campaign: phases of devices by their reports and the time, waves, and the rules that halt it."""

from __future__ import annotations

import pytest

from bridge.artefacts.report import UpdateState
from cloud.hub.campaign import CampaignMember, CampaignPace, MemberReport, count_phases, move_member, plan_campaign
from cloud.hub.rollout import MemberPhase, RolloutState

PACE = CampaignPace(soak_s=10, away_s=100, failures_max=1, enough_percent=100)
S = 1_000_000
WAITING, SENT, AWAY, CONFIRMED, DONE, FAILED = (
    MemberPhase.WAITING, MemberPhase.SENT, MemberPhase.AWAY, MemberPhase.CONFIRMED, MemberPhase.DONE,
    MemberPhase.FAILED,
)  # fmt: skip


def moved(
    phase: MemberPhase, state: str | None, *, since: int = 50, now: int = 60, at: int = 55, reason: str = ""
) -> tuple[MemberPhase, int]:
    """Return phase and begin, in seconds, of a device that was offered the version at second 40."""
    member = CampaignMember("pump", 0, phase, since * S, 40 * S)
    report = None if state is None else MemberReport(UpdateState(state), reason, at * S)
    after = move_member(member, report, PACE, now * S)
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
        (AWAY, "downloading", (SENT, 55)),
        (AWAY, "installed", (CONFIRMED, 60)),
        (AWAY, "healthy", (DONE, 60)),
        (AWAY, "rolled-back", (FAILED, 60)),
        (CONFIRMED, "installed", (DONE, 60)),
        (CONFIRMED, "healthy", (DONE, 60)),
        (CONFIRMED, "rolled-back", (FAILED, 60)),
        (DONE, "healthy", (DONE, 50)),
        (DONE, "rolled-back", (FAILED, 60)),
        (WAITING, "healthy", (WAITING, 50)),
        (FAILED, "healthy", (FAILED, 50)),
        (MemberPhase.SUPERSEDED, "rolled-back", (MemberPhase.SUPERSEDED, 50)),
        (MemberPhase.LEFT_OUT, "healthy", (MemberPhase.LEFT_OUT, 50)),
    ],
)
def test_report_gives_the_phase(phase: MemberPhase, state: str | None, expected: tuple[MemberPhase, int]) -> None:
    assert moved(phase, state) == expected


def test_reports_of_earlier_campaigns() -> None:
    """A failure before the offer does not count; a device that runs the version already is done."""
    assert moved(SENT, "rolled-back", at=39) == (SENT, 50)
    assert moved(SENT, "rolled-back", at=40) == (FAILED, 60)
    assert moved(SENT, "healthy", at=1) == (DONE, 60)
    assert moved(AWAY, "downloading", at=50) == (AWAY, 50)
    assert moved(DONE, "rolled-back", at=50) == (DONE, 50)


def test_time_moves_devices() -> None:
    assert moved(SENT, None, now=149) == (SENT, 50)
    assert moved(SENT, None, now=150) == (AWAY, 150)
    assert moved(SENT, "downloading", now=154) == (SENT, 50), "it has proceeded at 55"
    assert moved(SENT, "downloading", now=155) == (AWAY, 155)
    assert moved(CONFIRMED, "installed", now=59) == (CONFIRMED, 50)
    assert moved(CONFIRMED, None, now=60) == (DONE, 60)


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
