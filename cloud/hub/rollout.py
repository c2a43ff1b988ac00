"""A roll-out: one configuration for many gateways, wave by wave, which halts when it fails. Pure: values in and out.

A wave is sent when all of the one before have taken the version and have been there for the soak time since. What
becomes of each gateway of a wave:

| phase | it is | next |
|---|---|---|
| waiting | its wave is not on yet | sent |
| sent | its hub wants the version of it | confirmed, failed, superseded; away, when it is not there for so long |
| away | as sent, but nobody waits for it: it gets the version when it comes | confirmed, failed, superseded |
| confirmed | it has taken the version, and soaks | done; failed, when it goes and does not come back |
| done | it counts | |
| failed | it refused the version, rolled it back, never answered, or went after it had taken it | left-out, by resume |
| superseded | somebody has said something else for it since the roll-out began | |
| forgotten | its name was given back since: who has it next is not in the roll-out | left-out, by resume |
| left-out | it failed or was forgotten, and somebody let the roll-out go on | |

A version that wants another system is taken once that runs and was kept, however long it is fetched for; it is refused
or rolled back when the system is.

More failures than allowed halt the roll-out; so does a wave of which nobody has taken the version. A roll-out that does
not run sends nothing, and what it has sent is withheld from gateways that have not fetched it yet.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cloud.hub.labels import LabelError, Labels, selector

MICROSECONDS: Final = 1_000_000


class Phase(enum.Enum):
    """What became of one gateway in a roll-out."""

    WAITING = "waiting"
    SENT = "sent"
    AWAY = "away"
    CONFIRMED = "confirmed"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    FORGOTTEN = "forgotten"
    LEFT_OUT = "left-out"


OPEN: Final = frozenset((Phase.SENT, Phase.AWAY))
"""Phases in which the gateway has still to say what it makes of the version."""
SETTLED: Final = frozenset((Phase.AWAY, Phase.DONE, Phase.FAILED, Phase.SUPERSEDED, Phase.FORGOTTEN, Phase.LEFT_OUT))
"""Phases a wave does not wait for."""


class RolloutState(enum.Enum):
    """How a roll-out is."""

    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    DONE = "done"
    ABORTED = "aborted"


GOING: Final = frozenset((RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.HALTED))
"""States of those that are not over."""


class Pace(NamedTuple):
    """How carefully a roll-out goes."""

    soak_s: float
    """So long a gateway has to be there after it has taken the version, before the next wave."""
    away_s: float
    """A gateway that is not there for so long is not waited for."""
    failures_max: int
    """More failures halt it."""


class Member(NamedTuple):
    """One gateway of a roll-out. `since`: when it came into its phase, UTC microseconds."""

    gateway: str
    wave: int
    phase: Phase
    since: int
    version: int | None = None
    why: str = ""


class Seen(NamedTuple):
    """What the hub knows of a gateway now."""

    connected: bool
    wanted: int
    """The newest version its hub wants."""
    version: int
    """Confirmed there, and its system is the one that wants."""
    failed: int | None = None
    why: str = ""
    updating: bool = False
    """It has taken what is wanted, and changes its system for it: that takes as long as its link and its hours say."""


class Step(NamedTuple):
    """What a look at a roll-out changes."""

    wave: int
    state: RolloutState
    why: str
    members: list[Member]
    """Those that changed, but for who is to be sent the version."""
    send: list[Member]
    """These are to be sent it now."""


class Wave(NamedTuple):
    """Gateways that are sent a version together."""

    words: str
    """As somebody wrote it; empty: who was left."""
    gateways: list[str]


class WavesError(ValueError):
    """A text does not say waves; the message says why."""


def waves(text: str, gateways: Sequence[str], labels: Mapping[str, Labels]) -> list[Wave]:
    """``ring=canary,10%,100%``: who of these gateways is in each wave, in their order.

    Each word is a number or a share of all that have the version after that wave, or a label: those that have it (``+``
    between several, as in ``site=berlin+ring!=canary``), but for those of earlier waves. Numbers and shares that bring
    nobody are no wave; who is left is one more. Raises `WavesError`, also for a label that nobody is left for.
    """
    found: list[Wave] = []
    left = list(gateways)
    for word in (each.strip() for each in text.split(",")):
        mine = _of_wave(word, left, len(gateways), labels)
        if mine:
            found.append(Wave(word, mine))
        taken = set(mine)
        left = [each for each in left if each not in taken]
    return [*found, Wave("", left)] if left else found


def _of_wave(word: str, left: Sequence[str], total: int, labels: Mapping[str, Labels]) -> list[str]:
    counted = re.fullmatch(r"([1-9]\d{0,6})(%?)", word)
    if counted is not None and (not counted[2] or int(counted[1]) <= 100):
        until = math.ceil(total * int(counted[1]) / 100) if counted[2] else int(counted[1])
        return list(left[: max(0, until - (total - len(left)))])
    if "=" not in word:
        words = "expected a number of gateways, a share, or a label, as in ring=canary,10%,100%"
        raise WavesError(f'"{word}" is no wave; {words}')
    try:
        chosen = selector(word.replace("+", ","))
    except LabelError as error:
        raise WavesError(f'"{word}" is no wave: {error}') from None
    mine = [each for each in left if chosen.matches(labels.get(each, {}))]
    if not mine:
        raise WavesError(f'wave "{word}": no gateway of the roll-out has that, but those of the waves before')
    return mine


def members(found: Sequence[Wave], now_us: int) -> list[Member]:
    """Those of a new roll-out, in this order."""
    return [
        Member(gateway, number, Phase.WAITING, now_us) for number, wave in enumerate(found) for gateway in wave.gateways
    ]


def look(
    wave: int, pace: Pace, known: Sequence[Member], seen: Mapping[str, Seen], confirm_s: float, now_us: int
) -> Step:
    """What is next for a roll-out that runs; `confirm_s`: how long a gateway tries the version for."""
    now = [_moved(each, seen.get(each.gateway), pace, confirm_s, now_us) for each in known]
    changed = [after for before, after in zip(known, now, strict=True) if after != before]
    failed = [each for each in now if each.phase is Phase.FAILED]
    if len(failed) > pace.failures_max:
        why = "; ".join(f"gateway {each.gateway}: {each.why}" for each in failed[:3])
        return Step(wave, RolloutState.HALTED, why, changed, [])
    if waiting := _waiting(now, wave):
        return Step(wave, RolloutState.RUNNING, "", changed, waiting)
    mine = [each for each in now if each.wave == wave]
    if not all(each.phase in SETTLED for each in mine):
        return Step(wave, RolloutState.RUNNING, "", changed, [])
    if not any(each.phase in (Phase.DONE, Phase.SUPERSEDED, Phase.LEFT_OUT) for each in mine):
        why = f"no gateway of wave {wave + 1} has taken the version: {_counted(mine)}"
        return Step(wave, RolloutState.HALTED, why, changed, [])
    if not any(each.wave == wave + 1 for each in now):
        return Step(wave, RolloutState.DONE, "", changed, [])
    return Step(wave + 1, RolloutState.RUNNING, "", changed, _waiting(now, wave + 1))


def _waiting(members: Sequence[Member], wave: int) -> list[Member]:
    return [each for each in members if each.wave == wave and each.phase is Phase.WAITING]


def resumed(known: Sequence[Member], now_us: int) -> list[Member]:
    """Those that are otherwise when a roll-out goes on: who failed or was forgotten is left out, who has to answer has
    its time anew."""
    gone = (Phase.FAILED, Phase.FORGOTTEN)
    left_out = [each._replace(phase=Phase.LEFT_OUT, since=now_us) for each in known if each.phase in gone]
    again = [each._replace(phase=Phase.SENT, since=now_us) for each in known if each.phase in OPEN]
    return [*left_out, *again]


def _moved(member: Member, seen: Seen | None, pace: Pace, confirm_s: float, now_us: int) -> Member:
    passed_s = (now_us - member.since) / MICROSECONDS
    if member.phase in OPEN:
        return _answered(member, seen, passed_s, max(pace.away_s, 2 * confirm_s), now_us) or _missed(
            member, seen, passed_s, pace, now_us
        )
    if member.phase is Phase.CONFIRMED and passed_s >= pace.soak_s:
        if seen is not None and seen.connected:
            return member._replace(phase=Phase.DONE, since=now_us)
        if passed_s >= pace.soak_s + pace.away_s:
            words = "it has taken the version, has gone, and has not come back"
            return member._replace(phase=Phase.FAILED, since=now_us, why=words)
    return member


def _answered(member: Member, seen: Seen | None, passed_s: float, patience_s: float, now_us: int) -> Member | None:
    """What a gateway says of the version; None: nothing yet."""
    if seen is None or member.version is None:
        return None
    if seen.failed == member.version:
        return member._replace(phase=Phase.FAILED, since=now_us, why=seen.why)
    if seen.version == member.version:
        return member._replace(phase=Phase.CONFIRMED, since=now_us)
    if seen.wanted != member.version:
        return member._replace(phase=Phase.SUPERSEDED, since=now_us, why=f"version {seen.wanted} was sent since")
    if seen.connected and not seen.updating and member.phase is Phase.SENT and passed_s >= patience_s:
        words = f"it is there, and has said nothing of the version for {passed_s:.0f} s; is its program older?"
        return member._replace(phase=Phase.FAILED, since=now_us, why=words)
    return None


def _missed(member: Member, seen: Seen | None, passed_s: float, pace: Pace, now_us: int) -> Member:
    there = seen is not None and seen.connected
    if member.phase is Phase.SENT and not there and passed_s >= pace.away_s:
        return member._replace(phase=Phase.AWAY, since=now_us)
    if member.phase is Phase.AWAY and there:
        return member._replace(phase=Phase.SENT, since=now_us)
    return member


def _counted(found: Sequence[Member]) -> str:
    counts = Counter(each.phase.value for each in found)
    return ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items()))
