"""Mutes of a gateway's problems, in a file of its data directory.

A muted problem is still a problem: `/healthz` and the metrics report it. Pages and commands list it apart, with who
muted it, why and until when; the hub shows that it is muted.
"""

from __future__ import annotations

import datetime
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from edge.appliance.muting.limits import MUTES_MAX
from edge.health.problems import HealthProblem, ProblemMute, Severity
from edge.output.log_history import event
from edge.output.text import line

log = logging.getLogger(__name__)

FILE: Final = "mutes.json"


class MutesFull(Exception):
    """No further problem can be muted; the message has the next step."""


class ProblemMuteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Mute of the problems of a name. Times are UTC seconds since 1970."""

    name: str
    what: str = ""
    """Text of the one problem that is muted; empty for every problem of this name."""
    severity: Severity = Severity.ERROR
    """Most serious problem that is muted: one that gets worse is shown again. Error: every problem."""
    until_s: float
    reason: str
    by: str
    """User who muted it; empty without authentication."""
    made_at_s: float

    @property
    def key(self) -> tuple[str, str]:
        """Name and text: one mute each."""
        return self.name, self.what

    def covers(self, problem: HealthProblem) -> bool:
        """Return True for a problem of its name that is not more serious than those it is for."""
        return self.name == problem.name and self.severity.rank <= problem.severity.rank

    def shown(self) -> ProblemMute:
        """Return what a muted problem shows."""
        until = datetime.datetime.fromtimestamp(self.until_s, datetime.UTC).isoformat(timespec="seconds")
        return ProblemMute(until, self.by, self.reason)


class ProblemMutes:
    """Mutes in effect. Any thread may change them; a change is durable on return."""

    def __init__(self, data: Path, utc_s: Callable[[], float]) -> None:
        """`utc_s` returns UTC seconds. A damaged file counts as none: its problems are shown again."""
        self._file = data / FILE
        self._utc_s = utc_s
        self._changing = threading.Lock()
        kept = (each for each in self._read() if each.until_s > utc_s())
        self._mutes: dict[tuple[str, str], ProblemMuteRecord] = {each.key: each for each in kept}

    def all(self) -> list[ProblemMuteRecord]:
        """Return the mutes in effect, the first to end first."""
        return sorted(self._in_effect().values(), key=lambda each: (each.until_s, each.key))

    def apply(self, problems: Iterable[HealthProblem]) -> list[HealthProblem]:
        """Return problems with their mutes, the muted ones last."""
        mutes = self._in_effect()
        if not mutes:
            return list(problems)
        return sorted((_muted(mutes, each) for each in problems), key=lambda each: each.muted is not None)

    def add(self, mute: ProblemMuteRecord) -> None:
        """Add a mute, or replace that of the same problem. Raises `MutesFull`, OSError."""
        with self._changing:
            self._forget_ended()
            if mute.key not in self._mutes and len(self._mutes) >= MUTES_MAX:
                raise MutesFull(
                    f"{MUTES_MAX} problems are muted, the most at a time: end some (waypost problem unmute)"
                )
            self._write({**self._mutes, mute.key: mute})
        log.info(
            "problem %s is muted until %s by %s: %s",
            line(mute.name), mute.shown().until, line(mute.by or "-"), line(mute.reason),
            extra=event("problem"),
        )  # fmt: skip

    def remove(self, name: str, what: str, by: str) -> bool:
        """End a mute; return False if there is none. Raises OSError."""
        with self._changing:
            if (name, what) not in self._mutes:
                return False
            self._write({key: each for key, each in self._mutes.items() if key != (name, what)})
        log.info("problem %s is no longer muted, by %s", line(name), line(by or "-"), extra=event("problem"))
        return True

    def _in_effect(self) -> dict[tuple[str, str], ProblemMuteRecord]:
        """Return the mutes that are not over. It does not wait for a change, which writes to the disk."""
        if self._changing.acquire(blocking=False):
            try:
                self._forget_ended()
            finally:
                self._changing.release()
        now_s = self._utc_s()
        return {key: each for key, each in self._mutes.items() if each.until_s > now_s}

    def _forget_ended(self) -> None:
        """Forget mutes that are over; the caller holds the lock. The file has them until the next change; nothing reads
        them there."""
        now_s = self._utc_s()
        ended = [each for each in self._mutes.values() if each.until_s <= now_s]
        if ended:
            self._mutes = {key: each for key, each in self._mutes.items() if each.until_s > now_s}
        for each in ended:
            log.info("problem %s is no longer muted: its time is over", line(each.name), extra=event("problem"))

    def _write(self, mutes: dict[tuple[str, str], ProblemMuteRecord]) -> None:
        replace_file(self._file, json.dumps([msgspec.to_builtins(each) for each in mutes.values()]).encode())
        self._mutes = mutes

    def _read(self) -> list[ProblemMuteRecord]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[ProblemMuteRecord])[:MUTES_MAX]
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, so no problem is muted: %s", self._file, error)
            return []


# --- inside -----------------------------------------------------------------------------------------------------------


def _muted(mutes: Mapping[tuple[str, str], ProblemMuteRecord], problem: HealthProblem) -> HealthProblem:
    """Return a problem with the mute that covers it: that of its text before that of its name."""
    for key in ((problem.name, problem.what), (problem.name, "")):
        mute = mutes.get(key)
        if mute is not None and mute.covers(problem):
            return msgspec.structs.replace(problem, muted=mute.shown())
    return problem
