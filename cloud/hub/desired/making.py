"""Making of configuration versions, with all checks before anything is stored.

The hub cannot check references to a gateway's own resources (a forwarder may name a connector of the gateway). The
gateway checks those before it applies a version, and reports the error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import msgspec

from bridge.desired import DesiredError
from bridge.limits import DESIRED_BYTES_MAX
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource, ResourceKinds
from cloud.hub.desired.loops import Documents, require_no_ring
from cloud.hub.labels import Labels, LabelSelector, parse_selector
from cloud.hub.limits import CONFIRM_S_RANGE, GATEWAYS_AT_ONCE_MAX
from cloud.hub.registry.configurations import (
    Configurations,
    Sign,
    UnknownGateway,
    UnknownVersion,
    VersionRecord,
    WantedConfiguration,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.gateway_pages import GatewayPages
from cloud.hub.registry.rollouts import RolloutError, RolloutRecord, Rollouts, new_id
from cloud.hub.registry.selectors import PlannedGateway, SelectorPlan, SelectorRecord, Selectors, VersionContext
from cloud.hub.rollback import NoWayBack, WayBack, find_way_back
from cloud.hub.rollout import GOING, RolloutPace, RolloutState, make_members, parse_waves
from edge.configuration.hub_part import hub_faults
from edge.configuration.kinds import KINDS


class ConfigurationTables(NamedTuple):
    """Registry tables about configurations, over one connection."""

    configurations: Configurations
    rollouts: Rollouts
    selectors: Selectors
    pages: GatewayPages

    @classmethod
    def of(cls, database: Database) -> ConfigurationTables:
        return cls(Configurations(database), Rollouts(database), Selectors(database), GatewayPages(database))


HEAD_BYTES: Final = 4_096
"""Maximum bytes of a document in addition to its resources."""
PARTS: Final = ResourceKinds(KINDS)
"""Kinds of resources that are part of a whole."""


def check_resources(resources: Sequence[Resource]) -> list[dict[str, Any]]:
    """Return the documents of resources that a hub may send. Raises `ConfigurationRejected`, `DesiredError`."""
    errors = [*PARTS.validate(resources), *hub_faults(resources)]
    if errors:
        raise ConfigurationRejected(sorted(errors))
    documents = [resource.document for resource in resources]
    if len(msgspec.json.encode(documents)) > DESIRED_BYTES_MAX - HEAD_BYTES:
        raise DesiredError(f"more than {DESIRED_BYTES_MAX - HEAD_BYTES} bytes: the limit of one version")
    return documents


def confirm_fault(confirm_s: float) -> str | None:
    """Return why the trial time is invalid; None if it is valid."""
    least, most = CONFIRM_S_RANGE
    return None if least <= confirm_s <= most else f"the trial time must be {least:.0f} s to {most / 3_600:.0f} h"


class RolloutTarget(NamedTuple):
    """Gateways that a roll-out is for."""

    patterns: Sequence[str]
    """Patterns of names (``store-*``)."""
    selector: LabelSelector | None = None
    """Selector, instead of patterns."""


def choose_gateways(
    known: Configurations, labelled: Mapping[str, Labels], tenant: str, wanted: LabelSelector
) -> list[str]:
    """Return the gateways that a selector chooses, connected ones first. Raises `UnknownGateway` for too many."""
    return _bounded([(not up, name) for name, up in known.known(tenant) if wanted.matches(labelled.get(name, {}))])


def match_gateways(known: Configurations, tenant: str, patterns: Sequence[str]) -> list[str]:
    """Return the gateways that match patterns (``store-*``), connected ones first. Raises `UnknownGateway`."""
    there = known.known(tenant)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in there):
            raise UnknownGateway(f"tenant {tenant} has no gateway {pattern}")
    found = [(not up, name) for name, up in there if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return _bounded(found)


def _bounded(found: Sequence[tuple[bool, str]]) -> list[str]:
    if len(found) > GATEWAYS_AT_ONCE_MAX:
        raise UnknownGateway(f"{len(found)} gateways are more than {GATEWAYS_AT_ONCE_MAX}, the limit of one change")
    return [name for _, name in sorted(found)]


def set_wanted_for_selector(
    selectors: Selectors,
    wanted: WantedConfiguration,
    now_us: int,
    sign: Sign,
    check: Callable[[int | None], None] = lambda _decided_at: None,
) -> list[VersionRecord]:
    """Set the configuration of `wanted.selector`; `wanted` names no gateway. Return the versions made. `check`: as of
    `Selectors.set_wanted`.

    Raises `LabelError`, `UnknownGateway` for too many gateways, and as `set_wanted`.
    """
    choice = parse_selector(wanted.selector or "")
    labelled = selectors.labels(wanted.tenant)
    if sum(choice.matches(each) for each in labelled.values()) > GATEWAYS_AT_ONCE_MAX:
        raise UnknownGateway(
            f"{choice} chooses more than {GATEWAYS_AT_ONCE_MAX} gateways: use several narrower selectors"
        )
    record = SelectorRecord(
        tenant=wanted.tenant,
        selector=str(choice),
        decided_at=0,
        made_by=wanted.made_by,
        note=wanted.note,
        resources=wanted.resources,
        confirm_s=wanted.confirm_s,
        restart=wanted.restart,
    )
    return selectors.set_wanted(record, make_context(now_us, sign), check)


def plan_for_selector(selectors: Selectors, wanted: WantedConfiguration, now_us: int, sign: Sign) -> SelectorPlan:
    """Return what `set_wanted_for_selector` would do. Raises as it does."""
    record = SelectorRecord(
        tenant=wanted.tenant,
        selector=str(parse_selector(wanted.selector or "")),
        decided_at=0,
        made_by=wanted.made_by,
        note=wanted.note,
        resources=wanted.resources,
        confirm_s=wanted.confirm_s,
        restart=wanted.restart,
    )
    return selectors.plan(record, make_context(now_us, sign))


def plan_for_gateways(known: Configurations, wanted: WantedConfiguration, patterns: Sequence[str]) -> SelectorPlan:
    """Return what a roll-out to gateways that match patterns would do. Raises `UnknownGateway`, `FleetLoop`."""
    names = match_gateways(known, wanted.tenant, patterns)
    _require_no_ring(known, wanted.tenant, dict.fromkeys(names, wanted.resources))
    connected, before = dict(known.known(wanted.tenant)), known.wanted_resources(wanted.tenant, names)
    planned = [PlannedGateway(name, connected.get(name, False), before.get(name, [])) for name in names]
    resources = list(wanted.resources)
    changed = [each for each in planned if each.before != resources]
    return SelectorPlan(changed, [each for each in planned if each.before == resources], [], Counter())


def make_context(now_us: int, sign: Sign) -> VersionContext:
    """Return the context for versions that follow from labels, with the check for loops."""
    return VersionContext(now_us, sign, require_no_ring)


def set_wanted(
    known: Configurations,
    wanted: Sequence[WantedConfiguration],
    now_us: int,
    sign: Sign,
    check: Callable[[int], None] = lambda _version: None,
) -> list[VersionRecord]:
    """Make the next version of each of these gateways of one tenant. `check`: as of `Configurations.set_wanted`.

    Raises `UnknownGateway`, `DesiredError`, also for a loop over the fleet; then none is made.
    """
    _require_no_ring(known, wanted[0].tenant, {each.gateway: each.resources for each in wanted})
    return known.set_wanted(wanted, now_us, sign, check)


def _require_no_ring(known: Configurations, tenant: str, wanted: Mapping[str, Documents]) -> None:
    """Check that new configurations close no loop. Raises `FleetLoop`."""
    require_no_ring(wanted, known.contents(tenant, wanted.keys()))


class RollBack(NamedTuple):
    """Outcome of a roll-back of one gateway."""

    record: VersionRecord
    """New version; the newest one if that already was the roll-back."""
    is_new: bool
    why: str
    """Reason for the version that it repeats."""


def roll_back(
    known: Configurations,
    tenant: str,
    gateways: Sequence[str],
    number: int | None,
    by: str,
    note: str,
    now_us: int,
    sign: Sign,
    check: Callable[[int], None] = lambda _version: None,
) -> list[RollBack]:
    """Make an earlier version of each gateway its next one: the given one, or the one of `find_way_back`. `check`: as
    of `Configurations.set_wanted`.

    Raises `UnknownVersion`, and as `set_wanted`; then none is made.
    """
    ways = [_way_back(known, tenant, gateway, number) for gateway in gateways]
    for way in ways:
        if way.is_made:
            check(way.goal.version)
    wanted = [_repeat_version(way, by, note) for way in ways if not way.is_made]
    made = iter(set_wanted(known, wanted, now_us, sign, check) if wanted else ())
    return [RollBack(way.goal if way.is_made else next(made), not way.is_made, way.why) for way in ways]


def _way_back(known: Configurations, tenant: str, gateway: str, number: int | None) -> WayBack[VersionRecord]:
    versions = known.versions(tenant, gateway)
    if number is None:
        try:
            return find_way_back(versions)
        except NoWayBack as error:
            raise UnknownVersion(f"gateway {gateway} of tenant {tenant} cannot go back: {error}") from None
    found = next((each for each in versions if each.version == number), None)
    if found is None:
        raise UnknownVersion(
            f"gateway {gateway} of tenant {tenant} has no version {number}; older versions are deleted"
        )
    return WayBack(found, False, "it was chosen")


def _repeat_version(way: WayBack[VersionRecord], by: str, note: str) -> WantedConfiguration:
    """Return the content of a version, to make a new version of it."""
    record, old = way.goal, way.goal.desired
    return WantedConfiguration(
        tenant=record.tenant,
        gateway=record.gateway,
        resources=old.resources,
        confirm_s=old.confirm_s,
        restart=old.restart,
        made_by=by,
        note=note or f"back to version {record.version}",
        repeats=record.version,
    )


def start_rollout(
    tables: ConfigurationTables,
    wanted: WantedConfiguration,
    target: RolloutTarget,
    text: str,
    pace: RolloutPace,
    now_us: int,
) -> RolloutRecord:
    """Start a roll-out; `wanted` names no gateway, `text` is its waves.

    Raises `UnknownGateway`, `WavesError`, `RolloutError`, `LabelError`, and `FleetLoop` for a loop once all gateways
    have it.
    """
    known, rollouts = tables.configurations, tables.rollouts
    labelled = tables.selectors.labels(wanted.tenant)
    if target.selector is not None:
        names = choose_gateways(known, labelled, wanted.tenant, target.selector)
        if not names:
            raise UnknownGateway(f"{target.selector} chooses no gateway of tenant {wanted.tenant}")
    else:
        names = match_gateways(known, wanted.tenant, target.patterns)
    _require_no_ring(known, wanted.tenant, dict.fromkeys(names, wanted.resources))
    found = parse_waves(text, names, labelled)
    busy = next((each for each in rollouts.all(wanted.tenant) if each.state in GOING), None)
    if busy is not None:
        raise RolloutError(f"roll-out {busy.id} is {busy.state.value}: abort it, or wait for its end")
    record = RolloutRecord(
        id=new_id(),
        tenant=wanted.tenant,
        made_at=now_us,
        made_by=wanted.made_by,
        note=wanted.note,
        resources=wanted.resources,
        confirm_s=wanted.confirm_s,
        restart=wanted.restart,
        soak_s=pace.soak_s,
        away_s=pace.away_s,
        failures_max=pace.failures_max,
        wave=0,
        state=RolloutState.RUNNING,
        why="",
        selector=str(target.selector) if target.selector is not None else None,
        stages=[each.words for each in found],
    )
    rollouts.add(record, make_members(found, now_us))
    return record
