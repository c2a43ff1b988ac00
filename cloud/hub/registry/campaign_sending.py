"""Begin of the offers of a campaign, with the reports that are known of each device then. Parts of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.campaign import OFFERED, RUNNING, CampaignMember
from cloud.hub.registry.campaign_rows import MEMBER_COLUMNS, REPORTED_AS, CampaignRecord, update_members
from cloud.hub.registry.device_offers import mark_offers
from cloud.hub.registry.device_updates import report_name
from cloud.hub.registry.schema import artefacts, campaign_members, campaigns, device_updates, devices
from cloud.hub.rollout import MemberPhase

SENT_AT_ONCE: Final = 500
"""Members that one transaction offers the version."""
_RUNS: Final = {state.value: phase for state, phase in RUNNING.items()}


class _KnownReports(NamedTuple):
    """Reports of a device about an artefact before it is offered a version."""

    report: str = ""
    """Name of the newest report about the version; empty without one."""
    failure: str = ""
    """Name of the last failure of the version; empty without one."""
    progress: str = ""
    """Name of the last report on the way; empty without one."""
    runs: MemberPhase | None = None
    """Phase, if the newest report about any version says that the device runs this one."""
    later: str | None = None
    """Version that it runs, if that is a later one."""


def send_offers(tx: sa.Connection, record: CampaignRecord, now_us: int) -> bool:
    """Offer the version to some devices of the current wave; return whether others wait."""
    waiting = (
        campaign_members.c.campaign == record.id,
        campaign_members.c.wave == record.wave,
        campaign_members.c.phase == MemberPhase.WAITING.value,
    )
    same = (devices.c.tenant == campaign_members.c.devices_of) & (devices.c.device == campaign_members.c.device)
    query = (
        sa.select(*MEMBER_COLUMNS, REPORTED_AS, devices.c.device.is_not(None))
        .select_from(campaign_members.outerjoin(devices, same))
        .where(*waiting)
        .order_by(campaign_members.c.device)
    )
    rows = tx.execute(query.limit(SENT_AT_ONCE)).all()
    known = _known_reports(tx, record, [row[-2] for row in rows])
    changed = []
    for *fields, name, registered in rows:
        member = CampaignMember(*fields)
        if registered:
            changed.append(_offered(member, known.get(name, _KnownReports()), now_us))
        else:  # it was removed between its choice and the start of the campaign
            changed.append(member._replace(phase=MemberPhase.FORGOTTEN, since=now_us, why="it was removed"))
    update_members(tx, record.id, changed)
    offered = [each.device for each in changed if each.phase in OFFERED and each.phase is not MemberPhase.FAILED]
    if offered:
        _supersede(tx, record, offered, now_us)
        mark_offers(tx, record.devices_of, offered)
    return len(rows) == SENT_AT_ONCE


def _offered(member: CampaignMember, known: _KnownReports, now_us: int) -> CampaignMember:
    """Return a member with its offer."""
    phase, why = known.runs or MemberPhase.SENT, ""
    if known.later is not None:
        phase, why = MemberPhase.FAILED, f"downgraded: it runs {known.later}, which is later"
    return member._replace(
        phase=phase,
        since=now_us,
        sent_at=now_us,
        why=why,
        seen_report=known.report,
        seen_failure=known.failure,
        seen_progress=known.progress,
    )


def _known_reports(tx: sa.Connection, record: CampaignRecord, names: Sequence[str]) -> dict[str, _KnownReports]:
    """Return what devices have reported about the artefact, by their names in reports. A success is one only if nothing
    newer is known about any version: a device that went back to another one has to prove this one again."""
    same = (artefacts.c.tenant == record.tenant, artefacts.c.name == record.name)
    wanted = sa.select(artefacts.c.sequence).where(*same, artefacts.c.version == record.version)
    sequence = tx.execute(wanted).scalar()
    row, about = device_updates.c, artefacts.c
    joined = device_updates.outerjoin(
        artefacts, (row.tenant == about.tenant) & (row.name == about.name) & (row.version == about.version)
    )
    columns = (row.device, row.version, row.state, row.stream, row.sequence, about.sequence, row.failure, row.progress)
    mine = (row.tenant == record.tenant, row.name == record.name, row.device.in_(names))
    found: dict[str, _KnownReports] = {}
    query = sa.select(*columns).select_from(joined).where(*mine).order_by(row.reported_at)
    for device, version, state, stream, number, rank, *past in tx.execute(query):
        known = found.get(device, _KnownReports())._replace(runs=None)
        if version == record.version:
            failure, progress = (name or "" for name in past)
            known = _KnownReports(report_name(stream, number), failure, progress, _RUNS.get(state), known.later)
        if state in _RUNS:
            later = sequence is not None and rank is not None and rank > sequence
            known = known._replace(later=version if later else None)
        found[device] = known
    return found


def _supersede(tx: sa.Connection, record: CampaignRecord, names: Sequence[str], now_us: int) -> None:
    """End the offers of earlier campaigns with other versions of the artefact for these devices."""
    same = (campaigns.c.tenant == record.tenant, campaigns.c.name == record.name, campaigns.c.id != record.id)
    mine = (
        campaign_members.c.devices_of == record.devices_of,
        campaign_members.c.device.in_(names),
        campaign_members.c.phase.in_([each.value for each in OFFERED]),
        campaign_members.c.campaign.in_(sa.select(campaigns.c.id).where(*same)),
    )
    why = f"campaign {record.id} offers it {record.version}"
    values = {"phase": MemberPhase.SUPERSEDED.value, "since": now_us, "why": why}
    tx.execute(campaign_members.update().where(*mine).values(**values))
