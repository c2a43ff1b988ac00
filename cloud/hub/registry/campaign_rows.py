"""Rows of campaigns and of their devices, for the transactions of `campaigns` and `campaign_steps`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.artefacts.report import UpdateState
from cloud.hub.campaign import HOLDING, OFFERED, CampaignMember, CampaignPace, MemberReport, PastReport
from cloud.hub.registry.campaign_states import CampaignState, campaign_event
from cloud.hub.registry.device_offers import mark_offers
from cloud.hub.registry.device_updates import report_name
from cloud.hub.registry.events import append_events
from cloud.hub.registry.schema import campaign_members, campaigns, device_updates
from cloud.hub.rollout import GOING, MemberPhase, RolloutState


class UnknownCampaign(LookupError):
    """The campaign does not exist."""


class CampaignRecord(NamedTuple):
    """Campaign in the registry. Times are UTC microseconds."""

    id: str
    tenant: str
    made_at: int
    made_by: str
    note: str
    name: str
    """Name of the artefact."""
    version: str
    devices_of: str
    """Tenant of the device registry."""
    selector: str | None
    soak_s: float
    away_s: float
    failures_max: int
    enough_percent: int
    wave: int
    """Current wave, from 0."""
    state: RolloutState
    why: str
    """Reason why it halted, or ended early."""
    stages: Sequence[str]
    """Text of each wave."""
    ends_at: int | None
    """Time at which offers that were not taken are withdrawn."""
    closed: bool
    """Nothing is offered any more."""
    marked_to: str | None = None
    """Last device with gateways that get the changed state; None: all of them do."""

    @property
    def shown(self) -> CampaignState:
        """State for its events."""
        return CampaignState(*[getattr(self, name) for name in CampaignState._fields])

    @property
    def pace(self) -> CampaignPace:
        """Pace and tolerance."""
        return CampaignPace(self.soak_s, self.away_s, self.failures_max, self.enough_percent)


class MemberRow(NamedTuple):
    """Member with its newest report about the version."""

    member: CampaignMember
    report: MemberReport | None


class OfferingCampaign(NamedTuple):
    """Campaign that a hub looks at."""

    id: str
    done: bool
    """True when it has reached its end; it goes on to offer its version."""


MARKED_AT_ONCE: Final = 500
"""Devices of which one transaction passes the offers on: 20 ms on SQLite, so that a halt delays no landing."""

WaveCounts = dict[int, dict[MemberPhase, int]]
"""Members by wave and phase."""


CAMPAIGN_COLUMNS: Final = [campaigns.c[name] for name in CampaignRecord._fields]
MEMBER_COLUMNS: Final = [campaign_members.c[name] for name in CampaignMember._fields]
REPORTED_AS: Final = sa.case(
    (campaign_members.c.devices_of == campaign_members.c.tenant, campaign_members.c.device),
    else_=campaign_members.c.device + "@" + campaign_members.c.devices_of,
)
"""Name of a member in reports."""
REPORT_NAME: Final = device_updates.c.stream + ":" + sa.cast(device_updates.c.sequence, sa.Text)
"""Name of the report in a row, as `device_updates.report_name` makes it."""
_REPORT_COLUMNS: Final = (
    *(device_updates.c[name] for name in ("state", "reason", "changed_at", "stream", "sequence", "reported_at")),
    *(device_updates.c[name] for name in ("failure", "failure_reason", "failure_at", "progress", "progress_at")),
)


_REMOVED: Final = "its tenant is removed"


def campaign_of(tx: sa.Connection, campaign: str) -> CampaignRecord:
    row = tx.execute(sa.select(*CAMPAIGN_COLUMNS).where(campaigns.c.id == campaign)).first()
    if row is None:
        raise UnknownCampaign(campaign)
    return to_campaign(row)


def to_campaign(row: Any) -> CampaignRecord:
    record = CampaignRecord(*row)
    return record._replace(state=RolloutState(row.state), stages=msgspec.json.decode(row.stages))


def stages_text(stages: Sequence[str]) -> str:
    return msgspec.json.encode(stages).decode()


def counts_of(tx: sa.Connection, campaign: str) -> WaveCounts:
    columns = (campaign_members.c.wave, campaign_members.c.phase)
    query = sa.select(*columns, sa.func.count()).where(campaign_members.c.campaign == campaign).group_by(*columns)
    found: WaveCounts = {}
    for wave, phase, count in tx.execute(query):
        found.setdefault(wave, {})[MemberPhase(phase)] = count
    return found


def with_reports(campaign: str) -> sa.Select[Any]:
    """Return the query for members of a campaign with their reports."""
    same = (
        (device_updates.c.tenant == campaigns.c.tenant)
        & (device_updates.c.name == campaigns.c.name)
        & (device_updates.c.version == campaigns.c.version)
        & (device_updates.c.device == REPORTED_AS)
    )
    joined = campaign_members.join(campaigns, campaign_members.c.campaign == campaigns.c.id).outerjoin(
        device_updates, same
    )
    return (
        sa.select(*MEMBER_COLUMNS, *_REPORT_COLUMNS).select_from(joined).where(campaign_members.c.campaign == campaign)
    )


def member_rows(tx: sa.Connection, query: sa.Select[Any]) -> Iterator[MemberRow]:
    width = len(MEMBER_COLUMNS)
    for row in tx.execute(query):
        member = CampaignMember(*row[:width])
        yield MemberRow(member._replace(phase=MemberPhase(member.phase)), _to_report(*row[width:]))


def _to_report(state: str | None, reason: str, at: int, stream: str, sequence: int, *more: Any) -> MemberReport | None:
    if state is None:
        return None
    reported_at, failure, failure_reason, failure_at, progress, progress_at = more
    last = (
        None if failure is None else PastReport(failure, failure_reason or "", failure_at or 0),
        None if progress is None else PastReport(progress, "", progress_at or 0),
    )
    return MemberReport(UpdateState(state), reason, at, report_name(stream, sequence), reported_at, *last)


def update_members(tx: sa.Connection, campaign: str, members: Sequence[CampaignMember]) -> None:
    if not members:
        return
    columns = CampaignMember._fields[1:]
    mine = (campaign_members.c.campaign == campaign, campaign_members.c.device == sa.bindparam("at_device"))
    values: dict[str, Any] = {name: sa.bindparam(f"at_{name}") for name in columns}
    rows = [
        {f"at_{name}": value for name, value in (each._asdict() | {"phase": each.phase.value}).items()}
        for each in members
    ]
    tx.execute(campaign_members.update().where(*mine).values(values), rows)


def set_state(
    tx: sa.Connection, record: CampaignRecord, state: RolloutState, why: str, now_us: int, *, closed: bool = False
) -> CampaignRecord:
    """Set the state of a campaign, and pass changed offers of its first devices on to gateways; `mark_members` does the
    others, in transactions of their own."""
    if closed and state is RolloutState.ABORTED and record.state is RolloutState.DONE:
        state = RolloutState.DONE  # it has reached its end, and offers nothing any more
    after = record._replace(state=state, why=why, closed=closed)
    values = {"state": state.value, "why": why, "closed": closed}
    tx.execute(campaigns.update().where(campaigns.c.id == record.id).values(**values))
    if closed or (record.state in HOLDING) != (state in HOLDING):
        after = mark_members(tx, after._replace(marked_to=""))
    append_events(tx, [campaign_event(now_us, after.shown)])
    return after


def close_campaigns_of(tx: sa.Connection, tenant: str, now_us: int) -> int:
    """End the campaigns of a tenant that is removed; return their number. Its gateways are removed as well, so that no
    offer has to be withdrawn from them."""
    mine = (campaigns.c.tenant == tenant, campaigns.c.closed.is_(False))
    records = [to_campaign(row) for row in tx.execute(sa.select(*CAMPAIGN_COLUMNS).where(*mine))]
    ended = [
        each._replace(closed=True, state=RolloutState.ABORTED if each.state in GOING else each.state, why=_REMOVED)
        for each in records
    ]
    for each in ended:
        values = {"state": each.state.value, "why": each.why, "closed": True}
        tx.execute(campaigns.update().where(campaigns.c.id == each.id).values(**values))
    append_events(tx, [campaign_event(now_us, each.shown) for each in ended])
    return len(ended)


def mark_members(tx: sa.Connection, record: CampaignRecord) -> CampaignRecord:
    """Pass the offers of some devices on to gateways, after `marked_to`; return the campaign with its new place. The
    state is in force before: a gateway that gets a device for another reason gets its present offers."""
    mine = (
        campaign_members.c.campaign == record.id,
        campaign_members.c.phase.in_([each.value for each in OFFERED]),
        campaign_members.c.device > record.marked_to,
    )
    query = sa.select(campaign_members.c.device).where(*mine).order_by(campaign_members.c.device)
    names = list(tx.execute(query.limit(MARKED_AT_ONCE)).scalars())
    if names:
        mark_offers(tx, record.devices_of, names)
    after = record._replace(marked_to=names[-1] if len(names) == MARKED_AT_ONCE else None)
    tx.execute(campaigns.update().where(campaigns.c.id == record.id).values(marked_to=after.marked_to))
    return after


def total_counts(counts: WaveCounts) -> Counter[MemberPhase]:
    """Return the numbers of members by phase, over all waves."""
    found = Counter[MemberPhase]()
    for each in counts.values():
        found.update(each)
    return found
