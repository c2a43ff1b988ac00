"""Campaigns in the registry: they continue after a restart of a hub, and at any hub of the registry.

A step is one transaction with the changed offers, so a wave starts and its devices are offered the version together or
not at all. Several hubs may advance the same campaign.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from cloud.hub.campaign import CampaignMember
from cloud.hub.limits import CAMPAIGNS_KEPT, CAMPAIGNS_MAX
from cloud.hub.registry.campaign_rows import (
    CAMPAIGN_COLUMNS,
    CampaignRecord,
    MemberRow,
    OfferingCampaign,
    WaveCounts,
    campaign_of,
    counts_of,
    member_rows,
    set_state,
    stages_text,
    to_campaign,
    with_reports,
)
from cloud.hub.registry.campaign_states import campaign_event
from cloud.hub.registry.campaign_steps import advance_campaign, has_step
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import append_events
from cloud.hub.registry.schema import artefacts, campaign_members, campaigns
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.rollout import GOING, OPEN, MemberPhase, RolloutState

FORGOTTEN_AT_ONCE: Final = 1_000
"""Devices of an old campaign that one transaction deletes: 20 ms on SQLite."""


ADDED_AT_ONCE: Final = 2_000
"""Devices of a new campaign that one transaction adds: 100 ms on SQLite."""
_INTERRUPTED: Final = "its start was interrupted"


class CampaignError(Exception):
    """The campaign cannot be changed this way; the message says why."""


Check = Callable[[CampaignRecord], None]
"""Gets the present state of what a request changes; raises to prevent the change."""


def _no_check(_record: CampaignRecord) -> None:
    """Allow the change."""


def new_campaign_id() -> str:
    """Return a new id of a campaign, short enough to type."""
    return secrets.token_hex(4)


class Campaigns:
    """Campaigns in the registry, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`, and `UnknownCampaign` for an unknown one."""

    def __init__(self, database: Database, clock: Callable[[sa.Connection], int] | None = None) -> None:
        """`clock` returns UTC microseconds; without it that of the registry, which all hubs share."""
        self._database = database
        self._clock = clock or database.now_us

    def now_us(self) -> int:
        """Return the time of the registry, UTC microseconds."""
        return self._database.transaction(self._clock)

    def add(self, record: CampaignRecord, members: Sequence[CampaignMember]) -> None:
        """Add a new campaign; a hub offers the version to its first wave. Raises `CampaignError`.

        Some transactions: until the last one the campaign is one that was aborted, so that an interrupted start offers
        nothing, and ends as any old campaign.
        """
        same = {"campaign": record.id, "tenant": record.tenant, "devices_of": record.devices_of}
        aborted = {"state": RolloutState.ABORTED.value, "why": _INTERRUPTED, "closed": True}

        def begin(tx: sa.Connection) -> None:
            require_tenant(tx, record.tenant)
            _require_startable(tx, record)
            tx.execute(campaigns.insert().values(**record._asdict() | {"stages": stages_text(record.stages)} | aborted))

        def add_some(tx: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
            require_tenant(tx, record.tenant)
            if tx.execute(sa.select(campaigns.c.id).where(campaigns.c.id == record.id)).first() is None:
                raise CampaignError("another hub has deleted the campaign during its start: start it again")
            tx.execute(campaign_members.insert(), rows)

        def finish(tx: sa.Connection) -> None:
            require_tenant(tx, record.tenant)
            _require_startable(tx, record)
            values = {"state": record.state.value, "why": "", "closed": False}
            if not tx.execute(campaigns.update().where(campaigns.c.id == record.id).values(**values)).rowcount:
                raise CampaignError("another hub has deleted the campaign during its start: start it again")
            append_events(tx, [campaign_event(record.made_at, record.shown, devices=len(members))])

        self._database.transaction(begin)
        for start in range(0, len(members), ADDED_AT_ONCE):
            rows = [{**each._asdict(), **same, "phase": each.phase.value} for each in members[start:][:ADDED_AT_ONCE]]
            self._database.transaction(partial(add_some, rows=rows))
        self._database.transaction(finish)

    def get(self, campaign: str) -> CampaignRecord:
        """Return a campaign."""
        return self._database.transaction(lambda tx: campaign_of(tx, campaign))

    def page(self, tenant: str | None, after: tuple[int, str] | None, limit: int) -> list[CampaignRecord]:
        """Return campaigns, the newest first. `after`: time and id of the last one of the page before."""
        query = sa.select(*CAMPAIGN_COLUMNS).order_by(campaigns.c.made_at.desc(), campaigns.c.id.desc()).limit(limit)
        if tenant is not None:
            query = query.where(campaigns.c.tenant == tenant)
        if after is not None:
            query = query.where(sa.tuple_(campaigns.c.made_at, campaigns.c.id) < sa.tuple_(*after))
        return self._database.transaction(lambda tx: [to_campaign(row) for row in tx.execute(query)])

    def counts(self, campaign: str) -> WaveCounts:
        """Return the numbers of members by wave and phase."""
        return self._database.transaction(lambda tx: counts_of(tx, campaign))

    def members(self, campaign: str, phase: MemberPhase | None, after: str, limit: int) -> list[MemberRow]:
        """Return members by device, behind the device `after`."""

        def work(tx: sa.Connection) -> list[MemberRow]:
            campaign_of(tx, campaign)
            query = with_reports(campaign).where(campaign_members.c.device > after)
            if phase is not None:
                query = query.where(campaign_members.c.phase == phase.value)
            return list(member_rows(tx, query.order_by(campaign_members.c.device).limit(limit)))

        return self._database.transaction(work)

    def pause(self, campaign: str, check: Check = _no_check) -> CampaignRecord:
        """Pause a campaign: nothing more is offered, and what devices have not taken is withheld. Raises
        `CampaignError`."""
        return self._change(campaign, (RolloutState.RUNNING,), RolloutState.PAUSED, check)

    def resume(self, campaign: str, check: Check = _no_check) -> CampaignRecord:
        """Resume a paused or halted campaign without the devices that failed. Raises `CampaignError`."""
        return self._change(campaign, (RolloutState.PAUSED, RolloutState.HALTED), RolloutState.RUNNING, check)

    def stop(self, campaign: str, check: Check = _no_check) -> CampaignRecord:
        """Stop a campaign for good: its offers are withdrawn. Devices keep what they have installed. Raises
        `CampaignError`."""
        return self._change(campaign, (*GOING, RolloutState.DONE), RolloutState.ABORTED, check)

    def offering(self) -> list[OfferingCampaign]:
        """Return the campaigns that offer something, or did until now and some gateways do not know yet, the oldest
        first."""
        passes_on = campaigns.c.marked_to.is_not(None)
        done = (campaigns.c.state == RolloutState.DONE.value) & ~passes_on
        query = sa.select(campaigns.c.id, done).where(campaigns.c.closed.is_(False) | passes_on)
        ordered = query.order_by(campaigns.c.made_at, campaigns.c.id)
        return self._database.transaction(
            lambda tx: [OfferingCampaign(name, bool(ended)) for name, ended in tx.execute(ordered)]
        )

    def has_old(self) -> bool:
        """Return whether a tenant has more than `CAMPAIGNS_KEPT` campaigns that are over."""
        return self._database.transaction(lambda tx: _oldest(tx) is not None)

    def forget_old(self) -> bool:
        """Delete some devices of the oldest campaign beyond `CAMPAIGNS_KEPT` of a tenant, and then the campaign; return
        False if every tenant has fewer."""

        def work(tx: sa.Connection) -> bool:
            old = _oldest(tx)
            if old is None:
                return False
            mine = campaign_members.c.campaign == old
            query = sa.select(campaign_members.c.device).where(mine).order_by(campaign_members.c.device)
            names = list(tx.execute(query.limit(FORGOTTEN_AT_ONCE)).scalars())
            if names:
                tx.execute(campaign_members.delete().where(mine, campaign_members.c.device <= names[-1]))
            if len(names) < FORGOTTEN_AT_ONCE:
                tx.execute(campaigns.delete().where(campaigns.c.id == old))
            return True

        return self._database.transaction(work)

    def has_step(self, campaign: str, *, settling: bool = False) -> bool:
        """Return whether there is a step to make; for a database that reads, too. `settling`: the hub may not have all
        reports yet, so silence does not count."""
        return self._database.transaction(lambda tx: has_step(tx, campaign, self._clock(tx), settling=settling))

    def advance(self, campaign: str, *, settling: bool = False) -> bool:
        """Advance a campaign by one step; return whether there may be more to do now. `settling` as in `has_step`."""
        return self._database.transaction(lambda tx: advance_campaign(tx, campaign, self._clock(tx), settling=settling))

    def going(self) -> list[CampaignRecord]:
        """Return the campaigns that run, are paused or halted."""
        query = sa.select(*CAMPAIGN_COLUMNS).where(campaigns.c.state.in_([each.value for each in GOING]))
        return self._database.transaction(lambda tx: [to_campaign(row) for row in tx.execute(query)])

    def _change(
        self, campaign: str, before: Sequence[RolloutState], after: RolloutState, check: Check
    ) -> CampaignRecord:
        def work(tx: sa.Connection) -> CampaignRecord:
            record = campaign_of(tx, campaign)
            check(record)
            if record.state not in before or record.closed:
                closed = " and offers nothing any more" if record.closed else ""
                raise CampaignError(f"campaign {campaign} is {record.state.value}{closed}")
            now_us = self._clock(tx)
            if after is RolloutState.RUNNING:
                _require_alone(tx, record, [RolloutState.RUNNING])
                _resume_members(tx, campaign, now_us)
            return set_state(tx, record, after, "", now_us, closed=after is RolloutState.ABORTED)

        return self._database.transaction(work)


def _require_startable(tx: sa.Connection, record: CampaignRecord) -> None:
    """Check that the artefact is stored, and that no other campaign of it is going. Raises `CampaignError`."""
    stored = (
        artefacts.c.tenant == record.tenant,
        artefacts.c.name == record.name,
        artefacts.c.version == record.version,
        artefacts.c.stored_at.is_not(None),
        artefacts.c.removing.is_(False),
    )
    if tx.execute(sa.select(artefacts.c.name).where(*stored)).first() is None:
        raise CampaignError(f"tenant {record.tenant} has no stored artefact {record.name} {record.version}")
    _require_alone(tx, record, GOING)
    counting = sa.select(sa.func.count()).select_from(campaigns).where(campaigns.c.tenant == record.tenant, ~_is_over())
    if tx.execute(counting).scalar_one() >= CAMPAIGNS_MAX:
        raise CampaignError(f"tenant {record.tenant} has {CAMPAIGNS_MAX} campaigns with offers: stop some of them")


def _require_alone(tx: sa.Connection, record: CampaignRecord, states: Iterable[RolloutState]) -> None:
    """Check that no other campaign of the artefact is in one of the states. Raises `CampaignError`.

    Those of an older copy of the registry are paused, also one that was done and the next one of the same artefact.
    """
    others = (campaigns.c.tenant == record.tenant, campaigns.c.name == record.name, campaigns.c.id != record.id)
    in_them = campaigns.c.state.in_([each.value for each in states])
    busy = tx.execute(sa.select(campaigns.c.id, campaigns.c.state).where(*others, in_them)).first()
    if busy is not None:
        raise CampaignError(f"campaign {busy.id} of {record.name} is {busy.state}: stop it, or wait for its end")


def _resume_members(tx: sa.Connection, campaign: str, now_us: int) -> None:
    """Leave failed devices out, and give pending ones their time again. Those that went silent may have lost their
    power during the download: they are sent once more, and sleep until they begin again."""
    mine = campaign_members.update().where(campaign_members.c.campaign == campaign)
    silent = (campaign_members.c.phase == MemberPhase.FAILED.value) & campaign_members.c.loading_at.is_not(None)
    tx.execute(mine.where(silent).values(phase=MemberPhase.SENT.value, since=now_us, why="", loading_at=None))
    failed = campaign_members.c.phase == MemberPhase.FAILED.value
    tx.execute(mine.where(failed).values(phase=MemberPhase.LEFT_OUT.value, since=now_us))
    pending = campaign_members.c.phase.in_([each.value for each in OPEN])
    tx.execute(mine.where(pending).values(phase=MemberPhase.SENT.value, since=now_us))


def _oldest(tx: sa.Connection) -> str | None:
    """Return the oldest campaign of a tenant with more than `CAMPAIGNS_KEPT` that are over; None without one."""
    counting = sa.select(campaigns.c.tenant).where(_is_over()).group_by(campaigns.c.tenant)
    tenant = tx.execute(counting.having(sa.func.count() > CAMPAIGNS_KEPT).limit(1)).scalar()
    if tenant is None:
        return None
    over = sa.select(campaigns.c.id).where(campaigns.c.tenant == tenant, _is_over())
    return tx.execute(over.order_by(campaigns.c.made_at, campaigns.c.id).limit(1)).scalar()


def _is_over() -> sa.ColumnElement[bool]:
    """Return the condition for campaigns without offers. Those that later ones have taken over are closed in a step."""
    return campaigns.c.closed & campaigns.c.marked_to.is_(None)
