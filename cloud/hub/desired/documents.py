"""JSON documents about configurations, roll-outs and labels. Times are UTC, in RFC 3339."""

from __future__ import annotations

from typing import Any, TypedDict

RolloutStage = TypedDict("RolloutStage", {"wave": int, "for": str | None, "gateways": dict[str, int]})
"""A wave of a roll-out: its text, and the number of gateways in each phase."""


class ConfigurationRow(TypedDict):
    """Wanted configuration of a gateway, and the one in force."""

    tenant: str
    gateway: str
    state: str
    wanted: int
    """Version that the hub wants."""
    version: int
    """Version in force; 0: not known."""
    trying: int | None
    """Version on trial."""
    why: str
    """Why the wanted version is not in force."""
    kept: list[str]
    """Own resources of the gateway that the hub's part does not replace."""
    system: Any
    """Versions of its image, where it reports them."""
    reported_at: str | None


class VersionRow(TypedDict):
    """Version of a gateway's configuration, without its content."""

    gateway: str
    version: int
    made_at: str | None
    made_by: str
    note: str
    rollout: str | None
    """Roll-out that made it."""
    selector: str | None
    """Selector that made it."""
    repeats: int | None
    """Earlier version with the same content, of a roll-back."""
    confirmed_at: str | None
    failure: str | None


class RollBackRow(VersionRow):
    """Version after a roll-back."""

    why: str
    """Reason for the version that it repeats."""
    made: bool
    """False if the gateway had gone back already: then nothing was made."""


class SelectorRow(TypedDict):
    """Configuration of all gateways that a selector chooses, without its content."""

    tenant: str
    selector: str
    said_at: str | None
    made_by: str
    note: str
    rollout: str | None


class RankedSelectorRow(SelectorRow):
    """Configuration of a selector, with the number of gateways that it concerns."""

    matches: int
    """Gateways that the selector chooses."""
    effective: int
    """Gateways that get its configuration."""
    hidden_by: dict[str, int]
    """Gateways that an earlier selector takes, by that selector."""
    kinds: dict[str, int]
    """Number of resources by kind."""
    etag: str
    """Its state, for `If-Match`."""


class ConfigurationList(TypedDict):
    """Page of configured gateways, by tenant and name, and the configurations of selectors."""

    gateways: list[ConfigurationRow]
    next: str | None
    """Value of `after` for the next page; null on the last one."""
    total: int
    """Gateways on all pages."""
    configured: int
    """Gateways with a configuration from the hub."""
    selectors: list[SelectorRow]


class ConfigurationDetail(ConfigurationRow):
    """Configuration of one gateway, without secrets."""

    resources: list[Any]
    """Resources of the wanted version."""
    versions: list[VersionRow]
    """The newest first."""
    difference: str | None
    """Difference from the version in force to the wanted one; null if the hub does not have both."""


class VersionList(TypedDict):
    """Versions that a change has made, one for each gateway."""

    selector: str | None
    gateways: list[VersionRow]


class SelectorList(TypedDict):
    """Configurations of selectors, the latest first."""

    selectors: list[RankedSelectorRow]


class SelectorDetail(SelectorRow):
    """Configuration of one selector, without secrets."""

    resources: list[Any]
    yaml: str
    etag: str
    """Its state, for `If-Match`."""


class ExcludedGateway(TypedDict):
    """Gateway that a planned configuration does not reach."""

    gateway: str
    why: str


class PlannedDifference(TypedDict):
    """Difference of gateways with equal resources."""

    gateways: int
    example: str
    """Name of one of them."""
    diff: str


class PlanDocument(TypedDict):
    """Changes that a configuration would make."""

    chosen: int
    changed: int
    unchanged: int
    excluded: int
    connected: int
    gateways: list[str]
    """Names of the first gateways that would change."""
    excluded_gateways: list[ExcludedGateway]
    overlaps: dict[str, int]
    """Gateways that another selector also chooses, by that selector."""
    differences: list[PlannedDifference]


class SelectorPlanDocument(PlanDocument):
    """Changes that a configuration would make, with its selector."""

    selector: str | None


class RolloutRow(TypedDict):
    """A roll-out."""

    id: str
    tenant: str
    state: str
    why: str
    wave: int
    """Wave that runs, from 1."""
    waves: int
    selector: str | None
    stages: list[RolloutStage]
    gateways: dict[str, int]
    """Number of gateways by phase."""
    made_at: str | None
    made_by: str
    note: str


class RolloutMemberRow(TypedDict):
    """A gateway of a roll-out."""

    gateway: str
    wave: int
    phase: str
    version: int | None
    why: str


class RolloutPage(TypedDict):
    """Page of roll-outs, the newest first."""

    rollouts: list[RolloutRow]
    next: str | None
    total: int


class RolloutDetail(RolloutRow):
    """A roll-out with each of its gateways."""

    members: list[RolloutMemberRow]


class LabelledGateway(TypedDict):
    """A gateway and its labels."""

    tenant: str
    gateway: str
    labels: dict[str, str]
    etag: str
    """State of the labels, for `If-Match`."""


class LabelList(TypedDict):
    """Page of gateways and their labels, by name."""

    gateways: list[LabelledGateway]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


class LabelChange(TypedDict):
    """Labels of a gateway after a change."""

    gateway: str
    labels: dict[str, str]
    version: int | None
    """Version of its configuration that the change has made."""
