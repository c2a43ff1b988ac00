"""Campaign: one version of an artefact for many devices, in waves, halted on failure. Pure.

It has the words of a roll-out (`cloud.hub.rollout`). A device is offered the version by the gateways at which it may
appear, and its reports say how far it is:

| phase | meaning | next |
|---|---|---|
| waiting | its wave has not started | sent |
| sent | it is offered the version | confirmed, done, failed; away when it has not reported for long |
| away | as sent, but not waited for; it gets the version when it wakes | sent, confirmed, done, failed |
| confirmed | it has installed the version; soak time | done; failed, also when it fetches the version again |
| done | it counts as a success | failed, when it goes back later |
| failed | it refused the version or went back, or runs a later one | left-out, by resume |
| failed | it began to fetch the version, and went silent | left-out, by resume; the others when it reports again |
| superseded | a later campaign offers it another version | |
| forgotten | it was removed from the device registry | |
| left-out | it failed, and the campaign was resumed | |

A wave is over when enough of its devices are settled. The campaign halts after more failures than allowed, and after a
wave in which devices failed and none succeeded. Where all are away, it takes as many devices of the next waves into
this one, so that devices that sleep hold up nothing, and nothing goes on without a success.

Only reports that came after the offer move a device. A member remembers the last report that the registry had of it,
by name and not by time, since hubs and gateways have clocks of their own. Their times are compared with tolerance: for
reports of before that come late, from a gateway that was away. Durations are measured by the clock of the registry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bridge.artefacts.report import UpdateState
from cloud.hub.limits import FAILURE_EARLY_S_MAX, SUCCESS_EARLY_S_MAX
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
HOLDING: Final = (RolloutState.PAUSED, RolloutState.HALTED)
"""States in which gateways do not let devices fetch the version."""
PROGRESS: Final = frozenset((UpdateState.DOWNLOADING, UpdateState.VERIFIED))
"""States of a device that has started, and has not ended."""
RUNNING: Final = {UpdateState.INSTALLED: MemberPhase.CONFIRMED, UpdateState.HEALTHY: MemberPhase.DONE}
"""States of a device that runs the version, and the phases that they give it."""
FALLIBLE: Final = frozenset((MemberPhase.SENT, MemberPhase.AWAY, MemberPhase.CONFIRMED, MemberPhase.DONE))
"""Phases in which a failure is looked for."""
_WENT_SILENT: Final = "it started to fetch the version, and has not reported since"
_BEGAN_AGAIN: Final = "it fetched the version again after it had installed it"
_WENT_BACK: Final = "it went back to the version before"


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
    loading_at: int | None = None
    """Time at which it was last seen to fetch the version; None before, and after it has reported an end."""
    seen_report: str | None = None
    """Name of the newest report that is known: any other one is new. Empty: none; None: of an older program."""
    seen_failure: str | None = None
    """Name of the last failure that is known, as `seen_report`."""
    seen_progress: str | None = None
    """Name of the last report on the way that is known, as `seen_report`."""


class PastReport(NamedTuple):
    """Report of a device about the version that another one may hide."""

    name: str
    """Stream and sequence."""
    reason: str
    reported_at: int
    """Time at which the gateway received it, UTC microseconds."""


class MemberReport(NamedTuple):
    """Newest report of a device about the version. Times are UTC microseconds."""

    state: UpdateState
    reason: str
    at: int
    """Time at which the hub took it."""
    name: str = "report"
    """Stream and sequence."""
    reported_at: int = 0
    """Time at which the gateway received it."""
    failure: PastReport | None = None
    """Last failure, which may be older than the report."""
    progress: PastReport | None = None
    """Last report on the way, which a final one of another gateway hides."""


class CampaignStep(NamedTuple):
    """Next step of a running campaign."""

    wave: int
    state: RolloutState
    why: str = ""
    send: bool = False
    """Offer the version to the devices of the wave that wait."""
    widen: int = 0
    """Number of devices of later waves to take into this one."""


def move_member(
    member: CampaignMember,
    report: MemberReport | None,
    pace: CampaignPace,
    now_us: int,
    *,
    held: bool = False,
    settling: bool = False,
) -> CampaignMember:
    """Return a member with the phase that its newest report and the time give it.

    `held`: the campaign is paused or halted, so that gateways do not let devices fetch the version, and silence does
    not count as a failure. `settling`: the hub may not have the reports yet, and silence does not count at all.
    """
    silent = member.phase is MemberPhase.FAILED and member.loading_at is not None
    if member.phase not in FALLIBLE and not silent:
        return member
    failure = _new_failure(member, report)
    if failure is not None:
        why = failure.reason or _WENT_BACK
        return _seen(member, report)._replace(phase=MemberPhase.FAILED, since=now_us, why=why, loading_at=None)
    if member.phase is MemberPhase.DONE:
        return member
    if member.phase is MemberPhase.CONFIRMED:
        return _move_confirmed(member, report, pace, now_us)
    after = _move_answered(member, report, now_us)
    if after is not member or silent or settling:
        return after
    return _move_silent(member, pace, now_us, held=held)


def _move_answered(member: CampaignMember, report: MemberReport | None, now_us: int) -> CampaignMember:
    """Return a member that was offered the version, after a new report; the member itself without one."""
    if report is None:
        return member
    known, is_new = _seen(member, report)._replace(why=""), _is_new(member, report)
    if is_new and report.state in RUNNING:
        return known._replace(phase=RUNNING[report.state], since=now_us, loading_at=None)
    if (is_new and report.state in PROGRESS) or _has_progress(member, report):
        since = member.since if member.phase is MemberPhase.SENT else now_us
        return known._replace(phase=MemberPhase.SENT, since=since, loading_at=now_us)
    return member


def _move_silent(member: CampaignMember, pace: CampaignPace, now_us: int, *, held: bool) -> CampaignMember:
    """Return a member that has not reported for long: one that sleeps, or one that has not survived the version."""
    sent = member.phase is MemberPhase.SENT
    last = max(member.since if sent else 0, member.loading_at or 0)
    if now_us - last < pace.away_s * MICROSECONDS:
        return member
    if member.loading_at is None:
        if not sent:
            return member
        return member._replace(phase=MemberPhase.AWAY, since=now_us)
    if held:  # it may wait for the rest of the image
        return member
    return member._replace(phase=MemberPhase.FAILED, since=now_us, why=_WENT_SILENT)


def _move_confirmed(
    member: CampaignMember, report: MemberReport | None, pace: CampaignPace, now_us: int
) -> CampaignMember:
    if report is not None and report.state in PROGRESS and _is_new(member, report):
        return _seen(member, report)._replace(phase=MemberPhase.FAILED, since=now_us, why=_BEGAN_AGAIN)
    healthy = report is not None and report.state is UpdateState.HEALTHY
    if healthy or now_us - member.since >= pace.soak_s * MICROSECONDS:
        return _seen(member, report)._replace(phase=MemberPhase.DONE, since=now_us)
    return member


def _new_failure(member: CampaignMember, report: MemberReport | None) -> PastReport | None:
    """Return a failure since the offer, also one that another report has overtaken; None without one."""
    if report is None:
        return None
    found = report.failure
    if found is not None and _is_since(member, report, found, member.seen_failure, FAILURE_EARLY_S_MAX):
        return found
    newest = PastReport(report.name, report.reason, report.reported_at)
    rolled_back = report.state is UpdateState.ROLLED_BACK
    if rolled_back and _is_since(member, report, newest, member.seen_report, FAILURE_EARLY_S_MAX):
        return newest
    return None


def _is_since(member: CampaignMember, report: MemberReport, one: PastReport, seen: str | None, early_s: int) -> bool:
    """Return whether a report came after the offer, and not from long before it. `seen`: name that is known.

    A member of an older program remembers no names, so the time at which the hub took the newest report decides.
    """
    if member.seen_report is None:
        return report.at >= member.sent_at and (one.name == report.name or one.reported_at >= member.sent_at)
    return one.name != seen and one.reported_at >= member.sent_at - early_s * MICROSECONDS


def _is_new(member: CampaignMember, report: MemberReport) -> bool:
    """Return whether a report came after the offer, and not from long before it."""
    newest = PastReport(report.name, report.reason, report.reported_at)
    return _is_since(member, report, newest, member.seen_report, SUCCESS_EARLY_S_MAX)


def _has_progress(member: CampaignMember, report: MemberReport) -> bool:
    """Return whether a report on the way came after the offer: it counts also where an old final one hides it."""
    found = report.progress
    return found is not None and _is_since(member, report, found, member.seen_progress, SUCCESS_EARLY_S_MAX)


def _seen(member: CampaignMember, report: MemberReport | None) -> CampaignMember:
    """Return a member that knows all reports."""
    if report is None:
        return member
    failure = member.seen_failure if report.failure is None else report.failure.name
    progress = member.seen_progress if report.progress is None else report.progress.name
    return member._replace(seen_report=report.name, seen_failure=failure, seen_progress=progress)


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
