"""JSON documents of planned configurations, and of selectors with their order and overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bridge.resources.diff import unified
from bridge.resources.plan import ResourceChange, key_of
from cloud.hub.desired.documents import PlanDocument, PlannedDifference, RankedSelectorRow
from cloud.hub.desired.loops import Documents
from cloud.hub.desired.shown import selector_row
from cloud.hub.labels import Labels, parse_selector
from cloud.hub.registry.selectors import PlannedGateway, SelectorPlan, SelectorRecord
from edge.broker.http.preconditions import tag_of
from edge.configuration.kinds import KINDS

NAMES_SHOWN_MAX: Final = 50
"""Gateways named in a plan for each outcome."""
DIFFERENCES_SHOWN_MAX: Final = 5
"""Differences shown in a plan: gateways with equal resources have the same one."""


def plan_document(plan: SelectorPlan, resources: Documents) -> PlanDocument:
    """Make the document of a plan. `resources`: the planned ones."""
    every = [*plan.changed, *plan.unchanged]
    return {
        "chosen": len(every) + len(plan.excluded),
        "changed": len(plan.changed),
        "unchanged": len(plan.unchanged),
        "excluded": len(plan.excluded),
        "connected": sum(each.connected for each in every),
        "gateways": [each.gateway for each in plan.changed[:NAMES_SHOWN_MAX]],
        "excluded_gateways": [
            {"gateway": each.gateway, "why": each.why_not} for each in plan.excluded[:NAMES_SHOWN_MAX]
        ],
        "overlaps": dict(plan.overlaps),
        "differences": list(_differences(plan.changed, resources)),
    }


def _differences(changed: Sequence[PlannedGateway], resources: Documents) -> Iterator[PlannedDifference]:
    """Yield the differences of gateways, those of most gateways first."""
    groups: dict[bytes, list[PlannedGateway]] = {}
    for each in changed:
        groups.setdefault(msgspec.json.encode(each.before), []).append(each)
    for group in sorted(groups.values(), key=len, reverse=True)[:DIFFERENCES_SHOWN_MAX]:
        diff = difference_of(group[0].before, resources)
        yield {"gateways": len(group), "example": group[0].gateway, "diff": diff}


def difference_of(before: Documents, after: Documents) -> str:
    """Return the diff of two lists of resources, without secrets; empty for equal ones."""
    old, new = ({key_of(each): each for each in some} for some in (before, after))
    changes = [ResourceChange(*key, old.get(key), new.get(key)) for key in sorted({*old, *new})]
    return "".join(unified(KINDS, each) for each in changes if each.before != each.after)


def selector_rows(records: Sequence[SelectorRecord], labelled: Mapping[str, Labels]) -> list[RankedSelectorRow]:
    """Make the rows of a tenant's selectors, the latest first, with the number of gateways that each chooses.

    A gateway gets the configuration of the first one that chooses it (`effective`); `hidden_by` counts the gateways
    that an earlier row takes from a selector.
    """
    parsed = [parse_selector(each.selector) for each in records]
    matches, effective = Counter[int](), Counter[int]()
    hidden: list[Counter[str]] = [Counter() for _ in records]
    for labels in labelled.values():
        chosen = [place for place, selector in enumerate(parsed) if selector.matches(labels)]
        matches.update(chosen)
        if chosen:
            effective[chosen[0]] += 1
        for place in chosen[1:]:
            hidden[place][records[chosen[0]].selector] += 1
    return [
        {
            **selector_row(each),
            "etag": tag_of(each.decided_at),
            "matches": matches[place],
            "effective": effective[place],
            "hidden_by": dict(hidden[place]),
            "kinds": dict(Counter(str(one.get("kind", "")) for one in each.resources)),
        }
        for place, each in enumerate(records)
    ]
