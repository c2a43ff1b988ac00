"""Campaign: one version of an artefact for many devices, in waves, halted on failure. Pure.

It has the words of a roll-out (`cloud.hub.rollout`). A device is offered the version by the gateways at which it may
appear, and its reports say how far it is:

| phase | meaning | next |
|---|---|---|
| waiting | its wave has not started | sent |
| sent | it is offered the version | confirmed, done, failed; away when it has not reported for long |
| away | as sent, but not waited for; it gets the version when it wakes | sent, confirmed, done, failed |
| confirmed | it has installed the version; soak time | done, failed |
| done | it counts as a success | failed, when it goes back later |
| failed | it refused the version or went back, or runs a later one | left-out, by resume |
| superseded | a later campaign offers it another version | |
| forgotten | it was removed from the device registry | |
| left-out | it failed, and the campaign was resumed | |

A wave is over when enough of its devices are settled. The campaign halts after more failures than allowed, and after a
wave in which devices failed and none succeeded. Where all are away, it takes as many devices of the next waves into
this one, so that devices that sleep hold up nothing, and nothing goes on without a success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bridge.artefacts.report import UpdateState
from cloud.hub.rollout import MICROSECONDS, SETTLED, MemberPhase, RolloutState

OFFERED: Final = frozenset(
    (
        MemberPhase.SENT,
        MemberPhase.AWAY,
        MemberPhase.CONFIRMED,
        MemberPhase.DONE,
        MemberPhase.FAILED,
        MemberPhase.LEFT_OUT,
    )
)
"""Phases in which gateways hold the version for a device."""
WITHHELD: Final = frozenset((MemberPhase.FAILED, MemberPhase.LEFT_OUT))
"""Phases in which gateways hold it for the reports of a device, and do not let the device fetch it."""
_GOES_ON: Final = (MemberPhase.DONE, MemberPhase.LEFT_OUT)
"""Phases of which one lets the next wave start."""
_GONE: Final = (MemberPhase.SUPERSEDED, MemberPhase.FORGOTTEN)
"""Phases of devices that the campaign does not reach any more."""
_PROGRESS: Final = frozenset((UpdateState.DOWNLOADING, UpdateState.VERIFIED))


class CampaignPace(NamedTuple):
    """Pace and tolerance of a campaign."""

    soak_s: float
    """Time after which a device that has installed the version counts as a success, unless it reports sooner."""
    away_s: float
    """Time without a report after which a device is not waited for."""
    failures_max: int
    """Failures allowed; one more halts the campaign."""
    enough_percent: int
    """Share of a wave that has to be settled before the next one starts."""


class CampaignMember(NamedTuple):
    """Device of a campaign. Times are UTC microseconds."""

    device: str
    wave: int
    phase: MemberPhase
    since: int
    """Begin of its phase."""
    sent_at: int = 0
    """Begin of its offer; 0 before."""
    why: str = ""


class MemberReport(NamedTuple):
    """Newest report of a device about the version."""

    state: UpdateState
    reason: str
    at: int
    """Time at which the hub took it, UTC microseconds."""


class CampaignStep(NamedTuple):
    """Next step of a running campaign."""

    wave: int
    state: RolloutState
    why: str = ""
    send: bool = False
    """Offer the version to the devices of the wave that wait."""
    widen: int = 0
    """Number of devices of later waves to take into this one."""


def move_member(member: CampaignMember, report: MemberReport | None, pace: CampaignPace, now_us: int) -> CampaignMember:
    """Return a member with the phase that its newest report and the time give it."""
    match member.phase:
        case MemberPhase.SENT | MemberPhase.AWAY:
            return _move_offered(member, report, pace, now_us)
        case MemberPhase.CONFIRMED:
            return _move_confirmed(member, report, pace, now_us)
        case MemberPhase.DONE if report is not None and report.state is UpdateState.ROLLED_BACK:
            return _failed(member, report, now_us) if report.at > member.since else member
    return member


def _move_offered(
    member: CampaignMember, report: MemberReport | None, pace: CampaignPace, now_us: int
) -> CampaignMember:
    last = member.since
    if report is not None:
        if report.state is UpdateState.HEALTHY:
            return member._replace(phase=MemberPhase.DONE, since=now_us)
        if report.state is UpdateState.INSTALLED:
            return member._replace(phase=MemberPhase.CONFIRMED, since=now_us)
        if report.state is UpdateState.ROLLED_BACK and report.at >= member.sent_at:  # not of an earlier campaign
            return _failed(member, report, now_us)
        if report.state in _PROGRESS and report.at > last:
            last = report.at
            if member.phase is MemberPhase.AWAY:
                return member._replace(phase=MemberPhase.SENT, since=last)
    if member.phase is MemberPhase.SENT and now_us - last >= pace.away_s * MICROSECONDS:
        return member._replace(phase=MemberPhase.AWAY, since=now_us)
    return member


def _move_confirmed(
    member: CampaignMember, report: MemberReport | None, pace: CampaignPace, now_us: int
) -> CampaignMember:
    if report is not None and report.state is UpdateState.ROLLED_BACK:
        return _failed(member, report, now_us)
    healthy = report is not None and report.state is UpdateState.HEALTHY
    if healthy or now_us - member.since >= pace.soak_s * MICROSECONDS:
        return member._replace(phase=MemberPhase.DONE, since=now_us)
    return member


def _failed(member: CampaignMember, report: MemberReport, now_us: int) -> CampaignMember:
    why = report.reason or "it went back to the version before"
    return member._replace(phase=MemberPhase.FAILED, since=now_us, why=why)


def plan_campaign(
    wave: int,
    pace: CampaignPace,
    counts: Mapping[int, Mapping[MemberPhase, int]],
    failures: Sequence[str],
    *,
    done: bool = False,
) -> CampaignStep:
    """Return the next step of a running campaign. `counts`: members by wave and phase; `failures`: the first failed
    devices with their reasons.

    `done`: it has reached its end. Its offers stay, and devices that were away take them later: failures halt it too.
    """
    mine = Counter(counts.get(wave, {}))
    if sum(each.get(MemberPhase.FAILED, 0) for each in counts.values()) > pace.failures_max:
        return CampaignStep(wave, RolloutState.HALTED, "; ".join(failures))
    if done:
        return CampaignStep(wave, RolloutState.DONE)
    waiting, settled = bool(mine[MemberPhase.WAITING]), sum(mine[phase] for phase in SETTLED)
    if waiting or settled * 100 < pace.enough_percent * mine.total():
        return CampaignStep(wave, RolloutState.RUNNING, send=waiting)
    later = {
        number: each[MemberPhase.WAITING]
        for number, each in counts.items()
        if number > wave and each.get(MemberPhase.WAITING)
    }
    if not any(mine[phase] for phase in _GOES_ON):
        return _plan_without_success(wave, mine, sum(later.values()))
    if not later:
        return CampaignStep(wave, RolloutState.DONE)
    return CampaignStep(min(later), RolloutState.RUNNING, send=True)


def _plan_without_success(wave: int, mine: Counter[MemberPhase], later: int) -> CampaignStep:
    """Return the step after a wave in which no device took the version: halt, or ask others if all are away.

    `later`: devices of later waves that wait.
    """
    if mine[MemberPhase.FAILED]:
        why = f"no device of wave {wave + 1} took the version: {count_phases(mine)}"
        return CampaignStep(wave, RolloutState.HALTED, why)
    if not later and sum(mine[phase] for phase in _GONE) == mine.total():
        return CampaignStep(wave, RolloutState.DONE)
    return CampaignStep(wave, RolloutState.RUNNING, widen=min(later, mine.total()))


def count_phases(counts: Mapping[MemberPhase, int]) -> str:
    """Return the numbers of members as text: ``3 done, 1 failed``."""
    found = sorted((phase.value, count) for phase, count in counts.items() if count)
    return ", ".join(f"{count} {phase}" for phase, count in found)
