"""Steps of campaigns: reports and the time move devices on, waves start, offers follow. Parts of transactions."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from bridge.artefacts.report import UpdateState
from cloud.hub.campaign import FALLIBLE, HOLDING, OFFERED, PROGRESS, CampaignStep, move_member, plan_campaign
from cloud.hub.limits import FAILURE_EARLY_S_MAX, SUCCESS_EARLY_S_MAX
from cloud.hub.registry.campaign_rows import (
    REPORT_NAME,
    CampaignRecord,
    campaign_of,
    counts_of,
    mark_members,
    member_rows,
    set_state,
    update_members,
    with_reports,
)
from cloud.hub.registry.campaign_sending import SENT_AT_ONCE, send_offers
from cloud.hub.registry.device_offers import changes_offer, mark_offers
from cloud.hub.registry.schema import campaign_members, campaigns, device_updates
from cloud.hub.rollout import MICROSECONDS, OPEN, MemberPhase, RolloutState

MOVED_AT_ONCE: Final = 1_000
"""Members that one transaction moves: 100 ms on SQLite."""
_FAILURES_SHOWN: Final = 3
_PLANNED: Final = (RolloutState.RUNNING, RolloutState.DONE)
"""States in which a campaign has a next step: failures halt it also when it is done."""


def _is_since(
    name: sa.ColumnElement[str], at: sa.ColumnElement[int], seen: sa.ColumnElement[str | None], early_s: int
) -> sa.ColumnElement[bool]:
    """Return the condition for a report that came after the offer, as `cloud.hub.campaign` decides."""
    member, report = campaign_members.c, device_updates.c
    newest = (name == REPORT_NAME) | (at >= member.sent_at)
    of_older_program = member.seen_report.is_(None) & (report.changed_at >= member.sent_at) & newest
    other = seen.is_(None) | (seen != name)
    return of_older_program | (
        member.seen_report.is_not(None) & other & (at >= member.sent_at - early_s * MICROSECONDS)
    )


def _movable(record: CampaignRecord, now_us: int, *, settling: bool = False) -> sa.ColumnElement[bool]:
    """Return the condition for members that `move_member` changes."""
    member, report = campaign_members.c, device_updates.c
    silent_since = now_us - int(record.away_s * MICROSECONDS)
    soaked_since = now_us - int(record.soak_s * MICROSECONDS)
    rolled_back = report.state == UpdateState.ROLLED_BACK.value
    proceeds = report.state.in_([each.value for each in PROGRESS])
    newest = REPORT_NAME, report.reported_at, member.seen_report
    new = _is_since(*newest, SUCCESS_EARLY_S_MAX)
    progress = _is_since(report.progress, report.progress_at, member.seen_progress, SUCCESS_EARLY_S_MAX)
    failure = _is_since(report.failure, report.failure_at, member.seen_failure, FAILURE_EARLY_S_MAX)
    answered = (~rolled_back & new) | progress
    failed = (rolled_back & _is_since(*newest, FAILURE_EARLY_S_MAX)) | failure
    sent, silent = member.phase == MemberPhase.SENT.value, member.since <= silent_since
    loading = member.loading_at.is_not(None)
    conditions = [
        member.phase.in_([each.value for each in FALLIBLE]) & failed,
        member.phase.in_([each.value for each in OPEN]) & answered,
        (member.phase == MemberPhase.FAILED.value) & loading & (failed | answered),
        (member.phase == MemberPhase.CONFIRMED.value)
        & ((proceeds & new) | (report.state == UpdateState.HEALTHY.value) | (member.since <= soaked_since)),
    ]
    if not settling:
        conditions.append(sent & ~loading & silent)
    if not settling and record.state not in HOLDING:
        away = member.phase == MemberPhase.AWAY.value  # by an older program, which takes silence for sleep
        conditions.append(((sent & silent) | away) & (member.loading_at <= silent_since))
    return sa.or_(*conditions)


def has_step(tx: sa.Connection, campaign: str, now_us: int, *, settling: bool = False) -> bool:
    """Return whether a campaign has a step to make. `settling`: silence says nothing yet."""
    record = campaign_of(tx, campaign)
    if record.marked_to is not None:
        return True
    if record.closed:
        return False
    if _has_ended(tx, record, now_us):
        return True
    if (
        tx.execute(with_reports(campaign).where(_movable(record, now_us, settling=settling)).limit(1)).first()
        is not None
    ):
        return True
    if record.state not in _PLANNED:
        return False
    step = plan_campaign(record.wave, record.pace, counts_of(tx, campaign), (), done=record.state is RolloutState.DONE)
    return bool(step.send or step.widen or (step.wave, step.state) != (record.wave, record.state))


def advance_campaign(tx: sa.Connection, campaign: str, now_us: int, *, settling: bool = False) -> bool:
    record = campaign_of(tx, campaign)
    if record.marked_to is not None:
        mark_members(tx, record)
        return True
    if record.closed:  # another hub was faster
        return False
    if _has_ended(tx, record, now_us):
        why = "its time has ended" if record.state is not RolloutState.DONE else ""
        return set_state(tx, record, RolloutState.DONE, why, now_us, closed=True).marked_to is not None
    moved = _move_members(tx, record, now_us, settling=settling)
    return moved or (record.state in _PLANNED and _make_step(tx, record, now_us))


def _make_step(tx: sa.Connection, record: CampaignRecord, now_us: int) -> bool:
    """Make the step that follows from the phases of all members; return whether there may be more to do."""
    done, counts = record.state is RolloutState.DONE, counts_of(tx, record.id)
    step = plan_campaign(record.wave, record.pace, counts, _failures(tx, record.id), done=done)
    if step.widen:
        return _widen(tx, record, step.widen)
    if (step.wave, step.state) != (record.wave, record.state):
        record = _set_step(tx, record, step, now_us)
    return record.marked_to is not None or (step.send and send_offers(tx, record, now_us))


def _has_ended(tx: sa.Connection, record: CampaignRecord, now_us: int) -> bool:
    """Return whether a campaign has nothing to offer any more: its time is over, or later ones have its devices."""
    if record.ends_at is not None and record.ends_at <= now_us:
        return True
    if record.state is not RolloutState.DONE:
        return False
    mine = (campaign_members.c.campaign == record.id, campaign_members.c.phase.in_([each.value for each in OFFERED]))
    return tx.execute(sa.select(campaign_members.c.device).where(*mine).limit(1)).first() is None


def _move_members(tx: sa.Connection, record: CampaignRecord, now_us: int, *, settling: bool) -> bool:
    """Move members to the phases that their reports and the time give them; return whether there may be more."""
    query = with_reports(record.id).where(_movable(record, now_us, settling=settling)).limit(MOVED_AT_ONCE)
    rows = list(member_rows(tx, query))
    held = record.state in HOLDING
    moved = [move_member(row.member, row.report, record.pace, now_us, held=held, settling=settling) for row in rows]
    pairs = [(row.member, after) for row, after in zip(rows, moved, strict=True) if after != row.member]
    changed = [after for _, after in pairs]
    update_members(tx, record.id, changed)
    marked = [
        after.device
        for before, after in pairs
        if changes_offer(before.phase, after.phase) or before.phase is MemberPhase.FAILED
    ]
    for start in range(0, len(marked), SENT_AT_ONCE):
        mark_offers(tx, record.devices_of, marked[start : start + SENT_AT_ONCE])
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
