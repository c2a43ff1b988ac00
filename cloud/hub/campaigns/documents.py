"""Documents of campaigns in the API of a hub. Times are milliseconds since 1970, UTC, unless a field says otherwise."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated

import msgspec

from bridge.artefacts.limits import NAME_LENGTH_MAX
from cloud.hub.campaigns.limits import NOTE_CHARACTERS_MAX, PATTERNS_MAX, SECONDS_MAX
from cloud.hub.registry.campaign_rows import CampaignRecord, MemberRow, WaveCounts, total_counts
from cloud.hub.rollout import MemberPhase
from edge.broker.http.preconditions import tag_of

ArtefactWord = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=r"^[^\x00]*$")]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=SECONDS_MAX)]
ShortText = Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[^\x00]*$")]


class NewCampaign(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Campaign to start. At least one of `devices`, `selector` and `group`; all that are given have to hold."""

    artefact: ArtefactWord
    version: ArtefactWord
    devices: Annotated[list[ShortText], msgspec.Meta(max_length=PATTERNS_MAX)] = []
    """Patterns of ids, as ``pump-*``."""
    selector: ShortText | None = None
    """Labels of devices, as ``site=berlin,ring!=canary``."""
    group: ShortText | None = None
    """Group of acting devices (`memberOf`)."""
    device_tenant: ShortText | None = None
    """Tenant of the device registry; without it that of the same name."""
    waves: ShortText = "1,10%,100%"
    """Cumulative size of each wave: a number, a share, or a label."""
    soak_s: Seconds = 600
    """Time after which a device that has installed the version counts as a success, unless it reports sooner."""
    away_s: Seconds = 86_400
    """Time without a report after which a device is not waited for."""
    failures_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Failures allowed; one more halts the campaign."""
    enough_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    """Share of a wave that has to be settled before the next one starts."""
    ends_at: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None
    """Time at which offers that were not taken are withdrawn, as ``2026-12-24T00:00:00Z``; null: never."""
    note: Annotated[str, msgspec.Meta(max_length=NOTE_CHARACTERS_MAX, pattern=r"^[^\x00]*$")] = ""


class CampaignStage(msgspec.Struct, kw_only=True):
    """Wave of a campaign."""

    wave: int
    """Number, from 1."""
    text: str
    """Text of the operator; empty for the rest."""
    devices: dict[str, int]
    """Number of devices by phase."""


class CampaignDocument(msgspec.Struct, kw_only=True):
    """Campaign."""

    id: str
    tenant: str
    artefact: str
    version: str
    device_tenant: str
    selector: str | None
    state: str
    """``running``, ``paused``, ``halted``, ``done`` or ``aborted``."""
    why: str
    """Reason why it halted, or ended early."""
    offering: bool
    """False: nothing is offered any more."""
    wave: int
    """Wave that runs, from 1."""
    stages: list[CampaignStage]
    devices: dict[str, int]
    """Number of devices by phase."""
    soak_s: float
    away_s: float
    failures_max: int
    enough_percent: int
    ends_at: int | None
    made_at: int
    made_by: str
    note: str
    etag: str
    """Its state, for `If-Match`."""


class CampaignPage(msgspec.Struct, kw_only=True):
    """Page of campaigns, the newest first."""

    campaigns: list[CampaignDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


class CampaignDevice(msgspec.Struct, kw_only=True):
    """Device of a campaign."""

    device: str
    wave: int
    """Number, from 1."""
    phase: str
    since: int
    """Begin of its phase."""
    why: str
    """Reason of the phase."""
    report: str | None
    """State in its newest report about the version; null without one."""
    reported_at: int | None
    """Time at which the hub took the report."""


class CampaignDevicePage(msgspec.Struct, kw_only=True):
    """Page of the devices of a campaign, by id."""

    devices: list[CampaignDevice]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


def campaign_tag(record: CampaignRecord) -> str:
    """Return the entity tag of a campaign: it changes with state and wave, not with each report."""
    return tag_of([record.state.value, record.wave, record.closed])


def campaign_document(record: CampaignRecord, counts: WaveCounts) -> CampaignDocument:
    """Return the document of a campaign."""
    stages = [
        CampaignStage(
            wave=wave + 1,
            text=text,
            devices=_by_phase(counts.get(wave, {})),
        )
        for wave, text in enumerate(record.stages)
    ]
    return CampaignDocument(
        id=record.id,
        tenant=record.tenant,
        artefact=record.name,
        version=record.version,
        device_tenant=record.devices_of,
        selector=record.selector,
        state=record.state.value,
        why=record.why,
        offering=not record.closed,
        wave=record.wave + 1,
        stages=stages,
        devices=_by_phase(total_counts(counts)),
        soak_s=record.soak_s,
        away_s=record.away_s,
        failures_max=record.failures_max,
        enough_percent=record.enough_percent,
        ends_at=None if record.ends_at is None else record.ends_at // 1_000,
        made_at=record.made_at // 1_000,
        made_by=record.made_by,
        note=record.note,
        etag=campaign_tag(record),
    )


def member_document(row: MemberRow) -> CampaignDevice:
    """Return the document of a device of a campaign."""
    member, report = row
    return CampaignDevice(
        device=member.device,
        wave=member.wave + 1,
        phase=member.phase.value,
        since=member.since // 1_000,
        why=member.why,
        report=None if report is None else report.state.value,
        reported_at=None if report is None else report.at // 1_000,
    )


def _by_phase(counts: Mapping[MemberPhase, int]) -> dict[str, int]:
    return dict(sorted((phase.value, count) for phase, count in counts.items()))
