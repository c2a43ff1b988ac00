"""Steps of campaigns: reports and the time move devices on, waves start, offers follow. Parts of transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from bridge.artefacts.report import UpdateState
from cloud.hub.campaign import OFFERED, CampaignMember, CampaignStep, move_member, plan_campaign
from cloud.hub.registry.campaign_rows import (
    MEMBER_COLUMNS,
    REPORTED_AS,
    CampaignRecord,
    campaign_of,
    counts_of,
    member_rows,
    set_state,
    update_members,
    with_reports,
)
from cloud.hub.registry.device_offers import mark_offers
from cloud.hub.registry.schema import artefacts, campaign_members, campaigns, device_updates
from cloud.hub.rollout import MICROSECONDS, OPEN, MemberPhase, RolloutState

MOVED_AT_ONCE: Final = 1_000
"""Members that one transaction moves: 100 ms on SQLite."""
SENT_AT_ONCE: Final = 500
"""Members that one transaction offers the version."""
_FAILURES_SHOWN: Final = 3
_PLANNED: Final = (RolloutState.RUNNING, RolloutState.DONE)
"""States in which a campaign has a next step: failures halt it also when it is done."""


def _movable(record: CampaignRecord, now_us: int) -> sa.ColumnElement[bool]:
    """Return the condition for members that `move_member` gives another phase."""
    member, report = campaign_members.c, device_updates.c
    silent_since = now_us - int(record.away_s * MICROSECONDS)
    soaked_since = now_us - int(record.soak_s * MICROSECONDS)
    went_back = report.state == UpdateState.ROLLED_BACK.value
    runs_it = report.state.in_((UpdateState.INSTALLED.value, UpdateState.HEALTHY.value))
    proceeds = report.state.in_((UpdateState.DOWNLOADING.value, UpdateState.VERIFIED.value))
    silent = report.changed_at.is_(None) | ~proceeds | (report.changed_at <= silent_since)
    answered = runs_it | (went_back & (report.changed_at >= member.sent_at))
    return sa.or_(
        member.phase.in_([each.value for each in OPEN]) & answered,
        (member.phase == MemberPhase.SENT.value) & (member.since <= silent_since) & silent,
        (member.phase == MemberPhase.AWAY.value) & proceeds & (report.changed_at > member.since),
        (member.phase == MemberPhase.CONFIRMED.value)
        & (went_back | (report.state == UpdateState.HEALTHY.value) | (member.since <= soaked_since)),
        (member.phase == MemberPhase.DONE.value) & went_back & (report.changed_at > member.since),
    )


def has_step(tx: sa.Connection, campaign: str, now_us: int) -> bool:
    """Return whether a campaign has a step to make."""
    record = campaign_of(tx, campaign)
    if record.closed:
        return False
    if record.ends_at is not None and record.ends_at <= now_us:
        return True
    if tx.execute(with_reports(campaign).where(_movable(record, now_us)).limit(1)).first() is not None:
        return True
    if record.state not in _PLANNED:
        return False
    step = plan_campaign(record.wave, record.pace, counts_of(tx, campaign), (), done=record.state is RolloutState.DONE)
    return bool(step.send or step.widen or (step.wave, step.state) != (record.wave, record.state))


def advance_campaign(tx: sa.Connection, campaign: str, now_us: int) -> bool:
    record = campaign_of(tx, campaign)
    if record.closed:  # another hub was faster
        return False
    if record.ends_at is not None and record.ends_at <= now_us:
        why = "its time has ended" if record.state is not RolloutState.DONE else ""
        set_state(tx, record, RolloutState.DONE, why, now_us, closed=True)
        return False
    if _move_members(tx, record, now_us):
        return True
    if record.state not in _PLANNED:
        return False
    done, counts = record.state is RolloutState.DONE, counts_of(tx, campaign)
    step = plan_campaign(record.wave, record.pace, counts, _failures(tx, campaign), done=done)
    if step.widen:
        return _widen(tx, record, step.widen)
    if (step.wave, step.state) != (record.wave, record.state):
        record = _set_step(tx, record, step, now_us)
    return step.send and _send(tx, record, now_us)


def _move_members(tx: sa.Connection, record: CampaignRecord, now_us: int) -> bool:
    """Move members to the phases that their reports and the time give them; return whether there may be more."""
    query = with_reports(record.id).where(_movable(record, now_us)).limit(MOVED_AT_ONCE)
    rows = list(member_rows(tx, query))
    moved = [move_member(row.member, row.report, record.pace, now_us) for row in rows]
    changed = [after for row, after in zip(rows, moved, strict=True) if after != row.member]
    update_members(tx, record.id, changed)
    failed = [each.device for each in changed if each.phase is MemberPhase.FAILED]
    for start in range(0, len(failed), SENT_AT_ONCE):  # what failed is withheld
        mark_offers(tx, record.devices_of, failed[start : start + SENT_AT_ONCE])
    return len(rows) >= MOVED_AT_ONCE and bool(changed)


def _failures(tx: sa.Connection, campaign: str) -> list[str]:
    mine = (campaign_members.c.campaign == campaign, campaign_members.c.phase == MemberPhase.FAILED.value)
    query = sa.select(campaign_members.c.device, campaign_members.c.why).where(*mine)
    ordered = query.order_by(campaign_members.c.since, campaign_members.c.device).limit(_FAILURES_SHOWN)
    return [f"device {device}: {why}" for device, why in tx.execute(ordered)]


def _widen(tx: sa.Connection, record: CampaignRecord, count: int) -> bool:
    """Take some devices of the next waves into the current one; return whether there were some."""
    later = (campaign_members.c.campaign == record.id, campaign_members.c.wave > record.wave)
    waiting = campaign_members.c.phase == MemberPhase.WAITING.value
    query = sa.select(campaign_members.c.device).where(*later, waiting)
    names = list(tx.execute(query.order_by(campaign_members.c.wave, campaign_members.c.device).limit(count)).scalars())
    mine = campaign_members.c.campaign == record.id
    for start in range(0, len(names), SENT_AT_ONCE):
        part = campaign_members.c.device.in_(names[start : start + SENT_AT_ONCE])
        tx.execute(campaign_members.update().where(mine, part).values(wave=record.wave))
    return bool(names)


def _set_step(tx: sa.Connection, record: CampaignRecord, step: CampaignStep, now_us: int) -> CampaignRecord:
    record = record._replace(wave=step.wave)
    tx.execute(campaigns.update().where(campaigns.c.id == record.id).values(wave=step.wave))
    return set_state(tx, record, step.state, step.why, now_us)


def _send(tx: sa.Connection, record: CampaignRecord, now_us: int) -> bool:
    """Offer the version to some devices of the current wave; return whether others wait."""
    waiting = (
        campaign_members.c.campaign == record.id,
        campaign_members.c.wave == record.wave,
        campaign_members.c.phase == MemberPhase.WAITING.value,
    )
    query = sa.select(*MEMBER_COLUMNS, REPORTED_AS).where(*waiting).order_by(campaign_members.c.device)
    rows = tx.execute(query.limit(SENT_AT_ONCE)).all()
    later = _later_versions(tx, record, [row[-1] for row in rows])
    changed = []
    for *fields, reported_as in rows:
        member = CampaignMember(*fields)._replace(phase=MemberPhase.SENT, since=now_us, sent_at=now_us)
        if (version := later.get(reported_as)) is not None:
            member = member._replace(phase=MemberPhase.FAILED, why=f"downgraded: it runs {version}, which is later")
        changed.append(member)
    update_members(tx, record.id, changed)
    sent = [each.device for each in changed if each.phase is MemberPhase.SENT]
    if sent:
        _supersede(tx, record, sent, now_us)
        mark_offers(tx, record.devices_of, sent)
    return len(rows) == SENT_AT_ONCE


def _later_versions(tx: sa.Connection, record: CampaignRecord, names: Sequence[str]) -> Mapping[str, str]:
    """Return the version that devices run, by their last report, where it is later than that of the campaign."""
    same = (artefacts.c.tenant == record.tenant, artefacts.c.name == record.name)
    wanted = sa.select(artefacts.c.sequence).where(*same, artefacts.c.version == record.version)
    sequence = tx.execute(wanted).scalar()
    joined = device_updates.join(
        artefacts,
        (device_updates.c.tenant == artefacts.c.tenant)
        & (device_updates.c.name == artefacts.c.name)
        & (device_updates.c.version == artefacts.c.version),
    )
    runs = device_updates.c.state.in_((UpdateState.INSTALLED.value, UpdateState.HEALTHY.value))
    query = (
        sa.select(device_updates.c.device, device_updates.c.version, artefacts.c.sequence)
        .select_from(joined)
        .where(*same, device_updates.c.device.in_(names), runs)
        .order_by(device_updates.c.reported_at)
    )
    last = {device: (version, number) for device, version, number in tx.execute(query)}
    return {name: version for name, (version, number) in last.items() if sequence is not None and number > sequence}


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
