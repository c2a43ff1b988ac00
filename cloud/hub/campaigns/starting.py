"""Start of a campaign: its devices and waves, as the operator wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cloud.hub.campaign import CampaignMember, CampaignPace
from cloud.hub.limits import CAMPAIGN_DEVICES_MAX
from cloud.hub.registry.campaign_rows import CampaignRecord
from cloud.hub.registry.campaigns import CampaignError, Campaigns, new_campaign_id
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_choice import DeviceTarget, choose_devices
from cloud.hub.rollout import MemberPhase, RolloutState, parse_waves


class CampaignDraft(NamedTuple):
    """Campaign that an operator wants."""

    tenant: str
    devices_of: str
    """Tenant of the device registry."""
    name: str
    version: str
    target: DeviceTarget
    waves: str
    pace: CampaignPace
    ends_at: int | None
    """UTC microseconds."""
    made_by: str
    note: str


class NoDeviceChosen(LookupError):
    """The campaign would have no device; the message says why."""


def find_devices(database: Database, draft: CampaignDraft) -> dict[str, dict[str, str]]:
    """Return the labels of the devices of a campaign, by id; the database may be one for reading. Raises
    `CampaignError`, `NoDeviceChosen`, `UnknownDeviceTenant` and `RegistryError`."""
    labelled = choose_devices(database, draft.tenant, draft.devices_of, draft.target, CAMPAIGN_DEVICES_MAX)
    if not labelled:
        raise NoDeviceChosen(f"no device of tenant {draft.devices_of} is chosen")
    if len(labelled) > CAMPAIGN_DEVICES_MAX:
        words = f"more than {CAMPAIGN_DEVICES_MAX} devices are chosen, the limit of one campaign"
        raise CampaignError(f"{words}: choose fewer, and start another one when it is done")
    return labelled


def start_campaign(
    campaigns: Campaigns, draft: CampaignDraft, labelled: Mapping[str, Mapping[str, str]]
) -> CampaignRecord:
    """Start a campaign for devices with their labels. Raises `CampaignError`, `WavesError` and `RegistryError`."""
    now_us = campaigns.now_us()
    if draft.ends_at is not None and draft.ends_at <= now_us:
        raise CampaignError("the end of the campaign is in the past")
    stages, members = _members(draft.waves, labelled, now_us)
    record = CampaignRecord(
        id=new_campaign_id(),
        tenant=draft.tenant,
        made_at=now_us,
        made_by=draft.made_by,
        note=draft.note,
        name=draft.name,
        version=draft.version,
        devices_of=draft.devices_of,
        selector=str(draft.target.selector) if draft.target.selector is not None else None,
        soak_s=draft.pace.soak_s,
        away_s=draft.pace.away_s,
        failures_max=draft.pace.failures_max,
        enough_percent=draft.pace.enough_percent,
        wave=0,
        state=RolloutState.RUNNING,
        why="",
        stages=stages,
        ends_at=draft.ends_at,
        closed=False,
    )
    campaigns.add(record, members)
    return record


def _members(
    text: str, labelled: Mapping[str, Mapping[str, str]], now_us: int
) -> tuple[list[str], list[CampaignMember]]:
    """Return the text of each wave, and the members. Raises `WavesError`."""
    found = parse_waves(text, list(labelled), labelled, "device")
    members = [
        CampaignMember(device, number, MemberPhase.WAITING, now_us)
        for number, wave in enumerate(found)
        for device in wave.gateways
    ]
    return [each.words for each in found], members
