"""Fleet in numbers: gateways by condition, likely causes of troubles, and sites. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cloud.hub.fleet_causes import CauseGroup, Trouble, group_by_cause
from cloud.hub.fleet_condition import FleetCondition
from cloud.hub.seen_gateway import SeenGateway

SITES_SHOWN_MAX: Final = 60
SITE: Final = "site"
"""Label by which gateways are grouped into sites."""


class FleetSummary(NamedTuple):
    """A fleet in numbers."""

    total: int
    states: Mapping[str, int]
    """Gateways by condition."""
    causes: Sequence[Mapping[str, Any]]
    sites: Sequence[Mapping[str, Any]]
    versions: Sequence[Mapping[str, Any]]


def find_causes(seen: Iterable[SeenGateway]) -> list[dict[str, Any]]:
    """Return groups of gateways with the same trouble since about the same time and a label in common, largest first.

    A gateway is in one group at most.
    """
    troubled = {one.key: one for one in seen if one.condition is not FleetCondition.WELL and one.since_us}
    causes = group_by_cause(Trouble(key, one.condition, one.since_us, one.labels) for key, one in troubled.items())
    return [_cause_document(cause, [troubled[one.key] for one in cause.troubles]) for cause in causes]


def _cause_document(cause: CauseGroup, members: Sequence[SeenGateway]) -> dict[str, Any]:
    since_us = cause.troubles[0].since_us
    seconds = (cause.troubles[-1].since_us - since_us) // 1_000_000
    rooms = [one.room_hours for one in members if one.room_hours is not None]
    return {
        "key": f"{cause.tenant} {cause.kind} {cause.selector} {since_us}",
        "kind": cause.kind,
        "what": f"all within {max(1, seconds)} s, with the label {cause.selector} in common",
        "tenant": cause.tenant,
        "selector": cause.selector,
        "count": len(members),
        "since": since_us // 1_000,
        "room_hours": min(rooms, default=None),
    }


def rank_sites(states: Mapping[str, int], sites: Mapping[str, Counter[str]]) -> list[dict[str, Any]]:
    """Return the number of gateways of each site by condition, the worst first; none without any label `SITE`.

    `states`: all gateways by condition; `sites`: those with the label, by its value. The others are a site without a
    name.
    """
    if not sites:
        return []
    rest = Counter(states)
    for each in sites.values():
        rest -= each
    every = {**sites, "": rest} if rest else sites

    def badness(item: tuple[str, Counter[str]]) -> tuple[tuple[int, ...], str]:
        name, counts = item
        return tuple(-counts[condition] for condition in FleetCondition if condition != "well"), name

    rows = [
        {"label": SITE, "value": name, "total": counts.total(), "states": dict(counts)}
        for name, counts in sorted(every.items(), key=badness)
    ]
    return rows[:SITES_SHOWN_MAX]
