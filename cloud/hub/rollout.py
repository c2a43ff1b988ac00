"""Roll-out: one configuration for many gateways, in waves, halted on failure. Pure.

A wave is sent when all gateways of the previous wave have confirmed the version and stayed connected for the soak time.
Phases of a gateway:

| phase | meaning | next |
|---|---|---|
| waiting | its wave has not started | sent |
| sent | the hub wants the version for it | confirmed, failed, superseded; away when not connected for long |
| away | as sent, but not waited for; it gets the version when it connects | confirmed, failed, superseded |
| confirmed | it has confirmed the version; soak time | done; failed when it disconnects and stays away |
| done | it counts as a success | |
| failed | it refused or rolled back the version, never answered, or left after it confirmed | left-out, by resume |
| superseded | another version was sent to it since the roll-out began | |
| forgotten | the gateway was forgotten; a new one of that name does not take part | left-out, by resume |
| left-out | it failed or was forgotten, and the roll-out was resumed | |

A version that includes a new system is confirmed after that system runs and is kept, however long the download takes.

A roll-out halts after more failures than allowed, and after a wave in which no gateway accepted the version. While it
is halted it sends nothing, and withholds the version from gateways that have not fetched it.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cloud.hub.labels import LabelError, Labels, parse_selector

MICROSECONDS: Final = 1_000_000


class MemberPhase(enum.Enum):
    """Phase of one gateway in a roll-out."""

    WAITING = "waiting"
    SENT = "sent"
    AWAY = "away"
    CONFIRMED = "confirmed"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    FORGOTTEN = "forgotten"
    LEFT_OUT = "left-out"


OPEN: Final = frozenset((MemberPhase.SENT, MemberPhase.AWAY))
"""Phases in which the answer of the gateway is pending."""
SETTLED: Final = frozenset(
    (
        MemberPhase.AWAY,
        MemberPhase.DONE,
        MemberPhase.FAILED,
        MemberPhase.SUPERSEDED,
        MemberPhase.FORGOTTEN,
        MemberPhase.LEFT_OUT,
    )
)
"""Phases that a wave does not wait for."""


class RolloutState(enum.Enum):
    """State of a roll-out."""

    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    DONE = "done"
    ABORTED = "aborted"


GOING: Final = frozenset((RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.HALTED))
"""States of open roll-outs."""


class RolloutPace(NamedTuple):
    """Pace and tolerance of a roll-out."""

    soak_s: float
    """Time that a gateway must stay connected after it confirmed, before the next wave."""
    away_s: float
    """Absence after which a gateway is not waited for."""
    failures_max: int
    """Failures allowed; one more halts the roll-out."""


class RolloutMember(NamedTuple):
    """Gateway of a roll-out. `since`: start of its phase, UTC microseconds."""

    gateway: str
    wave: int
    phase: MemberPhase
    since: int
    version: int | None = None
    why: str = ""


class ObservedGateway(NamedTuple):
    """State of a gateway as the hub knows it now."""

    connected: bool
    wanted: int
    """Newest version the hub wants."""
    version: int
    """Version confirmed by the gateway, with the system of that version installed."""
    failed: int | None = None
    why: str = ""
    updating: bool = False
    """The gateway has accepted the version and is changing its system; the duration depends on its link and its
    maintenance hours."""


class RolloutStep(NamedTuple):
    """Changes of one step of a roll-out."""

    wave: int
    state: RolloutState
    why: str
    members: list[RolloutMember]
    """Gateways with a new phase, except those in `send`."""
    send: list[RolloutMember]
    """Gateways that are to get the version now."""


class Wave(NamedTuple):
    """Gateways that get a version together."""

    words: str
    """Text as the user wrote it; empty for the rest."""
    gateways: list[str]


class WavesError(ValueError):
    """Invalid list of waves; the message says why."""


def parse_waves(text: str, gateways: Sequence[str], labels: Mapping[str, Labels], noun: str = "gateway") -> list[Wave]:
    """Parse waves such as ``ring=canary,10%,100%``: return the gateways of each wave, in their order.

    A number or a share counts all gateways that have the version after that wave. A label selects gateways (``+`` joins
    several, as in ``site=berlin+ring!=canary``) without those of earlier waves. Numbers and shares that add no gateway
    make no wave; the remaining gateways are one more wave. `noun` names them in messages. Raises `WavesError`, also
    for a label that selects no remaining gateway.
    """
    found: list[Wave] = []
    left = list(gateways)
    for word in (each.strip() for each in text.split(",")):
        mine = _of_wave(word, left, len(gateways), labels, noun)
        if mine:
            found.append(Wave(word, mine))
        taken = set(mine)
        left = [each for each in left if each not in taken]
    return [*found, Wave("", left)] if left else found


def _of_wave(word: str, left: Sequence[str], total: int, labels: Mapping[str, Labels], noun: str) -> list[str]:
    counted = re.fullmatch(r"([1-9]\d{0,6})(%?)", word)
    if counted is not None and (not counted[2] or int(counted[1]) <= 100):
        until = math.ceil(total * int(counted[1]) / 100) if counted[2] else int(counted[1])
        return list(left[: max(0, until - (total - len(left)))])
    if "=" not in word:
        words = f"expected a number of {noun}s, a share, or a label, as in ring=canary,10%,100%"
        raise WavesError(f'"{word}" is not a wave; {words}')
    try:
        chosen = parse_selector(word.replace("+", ","))
    except LabelError as error:
        raise WavesError(f'"{word}" is not a wave: {error}') from None
    mine = [each for each in left if chosen.matches(labels.get(each, {}))]
    if not mine:
        raise WavesError(f'wave "{word}": it selects no {noun} that is not in an earlier wave')
    return mine


def make_members(found: Sequence[Wave], now_us: int) -> list[RolloutMember]:
    """Return the members of a new roll-out, in this order."""
    return [
        RolloutMember(gateway, number, MemberPhase.WAITING, now_us)
        for number, wave in enumerate(found)
        for gateway in wave.gateways
    ]


def plan_step(
    wave: int,
    pace: RolloutPace,
    known: Sequence[RolloutMember],
    seen: Mapping[str, ObservedGateway],
    confirm_s: float,
    now_us: int,
) -> RolloutStep:
    """Return the next step of a running roll-out; `confirm_s`: trial time of the version at a gateway."""
    now = [_moved(each, seen.get(each.gateway), pace, confirm_s, now_us) for each in known]
    changed = [after for before, after in zip(known, now, strict=True) if after != before]
    failed = [each for each in now if each.phase is MemberPhase.FAILED]
    if len(failed) > pace.failures_max:
        why = "; ".join(f"gateway {each.gateway}: {each.why}" for each in failed[:3])
        return RolloutStep(wave, RolloutState.HALTED, why, changed, [])
    if waiting := _waiting(now, wave):
        return RolloutStep(wave, RolloutState.RUNNING, "", changed, waiting)
    mine = [each for each in now if each.wave == wave]
    if not all(each.phase in SETTLED for each in mine):
        return RolloutStep(wave, RolloutState.RUNNING, "", changed, [])
    if not any(each.phase in (MemberPhase.DONE, MemberPhase.SUPERSEDED, MemberPhase.LEFT_OUT) for each in mine):
        why = f"no gateway of wave {wave + 1} accepted the version: {_counted(mine)}"
        return RolloutStep(wave, RolloutState.HALTED, why, changed, [])
    if not any(each.wave == wave + 1 for each in now):
        return RolloutStep(wave, RolloutState.DONE, "", changed, [])
    return RolloutStep(wave + 1, RolloutState.RUNNING, "", changed, _waiting(now, wave + 1))


def _waiting(members: Sequence[RolloutMember], wave: int) -> list[RolloutMember]:
    return [each for each in members if each.wave == wave and each.phase is MemberPhase.WAITING]


def resume_members(known: Sequence[RolloutMember], now_us: int) -> list[RolloutMember]:
    """Return the members that change when a roll-out resumes: failed and forgotten ones are left out, pending ones get
    their time again."""
    gone = (MemberPhase.FAILED, MemberPhase.FORGOTTEN)
    left_out = [each._replace(phase=MemberPhase.LEFT_OUT, since=now_us) for each in known if each.phase in gone]
    again = [each._replace(phase=MemberPhase.SENT, since=now_us) for each in known if each.phase in OPEN]
    return [*left_out, *again]


def _moved(
    member: RolloutMember, seen: ObservedGateway | None, pace: RolloutPace, confirm_s: float, now_us: int
) -> RolloutMember:
    passed_s = (now_us - member.since) / MICROSECONDS
    if member.phase in OPEN:
        return _answered(member, seen, passed_s, max(pace.away_s, 2 * confirm_s), now_us) or _missed(
            member, seen, passed_s, pace, now_us
        )
    if member.phase is MemberPhase.CONFIRMED and passed_s >= pace.soak_s:
        if seen is not None and seen.connected:
            return member._replace(phase=MemberPhase.DONE, since=now_us)
        if passed_s >= pace.soak_s + pace.away_s:
            words = "it accepted the version, disconnected, and did not come back"
            return member._replace(phase=MemberPhase.FAILED, since=now_us, why=words)
    return member


def _answered(
    member: RolloutMember, seen: ObservedGateway | None, passed_s: float, patience_s: float, now_us: int
) -> RolloutMember | None:
    """Apply the gateway's report about the version; None without a report."""
    if seen is None or member.version is None:
        return None
    if seen.failed == member.version:
        return member._replace(phase=MemberPhase.FAILED, since=now_us, why=seen.why)
    if seen.version == member.version:
        return member._replace(phase=MemberPhase.CONFIRMED, since=now_us)
    if seen.wanted != member.version:
        return member._replace(phase=MemberPhase.SUPERSEDED, since=now_us, why=f"version {seen.wanted} was sent since")
    if seen.connected and not seen.updating and member.phase is MemberPhase.SENT and passed_s >= patience_s:
        words = (
            f"it is connected, and has not reported on the version for {passed_s:.0f} s; check "
            "whether its software is older"
        )
        return member._replace(phase=MemberPhase.FAILED, since=now_us, why=words)
    return None


def _missed(
    member: RolloutMember, seen: ObservedGateway | None, passed_s: float, pace: RolloutPace, now_us: int
) -> RolloutMember:
    there = seen is not None and seen.connected
    if member.phase is MemberPhase.SENT and not there and passed_s >= pace.away_s:
        return member._replace(phase=MemberPhase.AWAY, since=now_us)
    if member.phase is MemberPhase.AWAY and there:
        return member._replace(phase=MemberPhase.SENT, since=now_us)
    return member


def _counted(found: Sequence[RolloutMember]) -> str:
    counts = Counter(each.phase.value for each in found)
    return ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items()))
