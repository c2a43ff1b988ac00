"""Troubles that began together, with a label in common: they have one likely cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cloud.hub.groups import Key
from cloud.hub.labels import Labels

TOGETHER_S: Final = 300.0
"""Time within which troubles of gateways with a label in common began, if one cause is likely."""
CAUSE_GATEWAYS_MIN: Final = 5
"""Gateways from which one cause is likely."""


class Trouble(NamedTuple):
    """Trouble of one gateway, to be grouped with others by likely cause."""

    key: Key
    kind: str
    """Troubles of different kinds have different causes."""
    since_us: int
    """Begin, UTC microseconds."""
    labels: Labels


class CauseGroup(NamedTuple):
    """Troubles with one likely cause: the same kind, a label in common, started about the same time."""

    kind: str
    tenant: str
    selector: str
    """The label in common."""
    troubles: Sequence[Trouble]
    """The earliest first."""


def group_by_cause(troubles: Iterable[Trouble]) -> list[CauseGroup]:
    """Return groups of at least `CAUSE_GATEWAYS_MIN` troubles, the largest first.

    A gateway is in one group of a kind at most.
    """
    shared: dict[tuple[str, str, str], list[Trouble]] = {}
    for one in troubles:
        for label, value in one.labels.items():
            shared.setdefault((one.kind, one.key[0], f"{label}={value}"), []).append(one)
    taken: set[tuple[str, Key]] = set()
    found = []
    for (kind, tenant, selector), members in sorted(shared.items(), key=lambda item: -len(item[1])):
        left = [one for one in members if (kind, one.key) not in taken]
        group = _densest(sorted(left, key=lambda one: one.since_us))
        if len(group) >= CAUSE_GATEWAYS_MIN:
            taken.update((kind, one.key) for one in group)
            found.append(CauseGroup(kind, tenant, selector, group))
    return found


def _densest(ordered: Sequence[Trouble]) -> Sequence[Trouble]:
    """Return the largest group with troubles that began within `TOGETHER_S`. `ordered`: by that time."""
    best, start = ordered[:0], 0
    for end, one in enumerate(ordered):
        while one.since_us - ordered[start].since_us > TOGETHER_S * 1e6:
            start += 1
        if end + 1 - start > len(best):
            best = ordered[start : end + 1]
    return best
