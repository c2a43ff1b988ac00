"""Choice of the version that a gateway goes back to. Pure.

A roll-back makes a new version with the content of an earlier one (`PastVersion.repeats`). It passes over the versions
between the two: an operator gave them up, so no later roll-back returns to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

_PASSED_SHOWN_MAX: Final = 3
"""Versions that a reason names; the history has all."""


class PastVersion(Protocol):
    """Version of a configuration, as far as the choice needs it."""

    @property
    def version(self) -> int: ...

    @property
    def confirmed_at(self) -> int | None: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def repeats(self) -> int | None:
        """Earlier version with the same content, of a roll-back."""


class ComparedVersion(PastVersion, Protocol):
    """Version with its content."""

    @property
    def resources(self) -> list[dict[str, Any]]: ...


P = TypeVar("P", bound=PastVersion)
V = TypeVar("V", bound=ComparedVersion)


class NoWayBack(Exception):
    """No earlier version is fit; the message says why."""


class WayBack(NamedTuple, Generic[V]):
    """Roll-back of a gateway."""

    goal: V
    """Version to make again; the newest one where that already is the roll-back."""
    is_made: bool
    """True if the newest version already is the roll-back: nothing has to be made."""
    why: str
    """Reason for this version."""


def find_way_back(versions: Sequence[V]) -> WayBack[V]:
    """Return the newest version that was in force and good before the newest one. Raises `NoWayBack`.

    `versions`: those kept of a gateway, the newest first. A roll-back that has not failed stays, so that a repeated
    request goes no further than the first one.
    """
    if not versions:
        raise NoWayBack("the hub has no version for it")
    newest = versions[0]
    if newest.repeats is not None and newest.failure is None:
        return WayBack(newest, True, f"it already goes back to version {newest.repeats}")
    before = newest.version if newest.repeats is None else newest.repeats
    good = [each for each in fit_versions(versions) if each.version < before]
    goal = next((each for each in good if each.resources != newest.resources), None)
    if goal is None:
        raise NoWayBack(f"no version before {before} was in force and good")
    return WayBack(
        goal, False, f"it was the last one in force and good before version {before}{_passed(versions, goal)}"
    )


def fit_versions(versions: Sequence[P]) -> list[P]:
    """Return the versions that were in force, did not fail, and were not rolled back from."""
    spans = [(each.repeats, each.version) for each in versions if each.repeats is not None]
    return [
        each
        for each in versions
        if each.confirmed_at is not None
        and each.failure is None
        and not any(first < each.version < last for first, last in spans)
    ]


def _passed(versions: Sequence[V], goal: V) -> str:
    """Return which confirmed versions between the newest one and the goal are passed over."""
    between = [each.version for each in versions[1:] if each.version > goal.version and each.confirmed_at is not None]
    if not between:
        return ""
    named = ", ".join(str(number) for number in between[:_PASSED_SHOWN_MAX])
    more = ", …" if len(between) > _PASSED_SHOWN_MAX else ""
    return f"; passed over, as rolled back from, failed, or equal to it: {named}{more}"
