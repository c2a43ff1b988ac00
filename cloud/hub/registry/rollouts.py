"""Roll-outs in the registry: they continue after a restart of the hub.

Part of the transactions of `configurations`: a wave starts and its gateways get their versions together or not at all.
Several hubs may advance the same roll-out.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.desired import DesiredError
from bridge.hidden import hides
from cloud.hub.limits import ROLLOUTS_KEPT
from cloud.hub.registry.configurations import (
    ConfigurationRecord,
    Sign,
    UnknownGateway,
    WantedConfiguration,
    gateways_in,
    in_order,
    make_versions,
    touch,
    unsigned_versions,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event, utc_us
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import configurations, gateways, rollout_members, rollouts
from cloud.hub.registry.selectors import SelectorRecord, held_in, require_room, store_selector
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.rollout import (
    GOING,
    OPEN,
    MemberPhase,
    ObservedGateway,
    RolloutMember,
    RolloutPace,
    RolloutState,
    RolloutStep,
    plan_step,
    resume_members,
)

ENDED = (RolloutState.DONE.value, RolloutState.ABORTED.value)


class RolloutError(Exception):
    """The roll-out cannot be changed this way; the message says why."""


@hides("resources")
class RolloutRecord(NamedTuple):
    """Roll-out in the registry."""

    id: str
    tenant: str
    made_at: int
    made_by: str
    note: str
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool
    soak_s: float
    away_s: float
    failures_max: int
    wave: int
    """Current wave, from 0."""
    state: RolloutState
    why: str
    """Reason why it halted."""
    selector: str | None = None
    """Selector that it is for; after the roll-out the selector has its configuration. None for gateways by name."""
    stages: Sequence[str] | None = None
    """Text of each wave; None in roll-outs of older programs."""

    @property
    def pace(self) -> RolloutPace:
        return RolloutPace(self.soak_s, self.away_s, self.failures_max)


def new_id() -> str:
    """Return a new id of a roll-out, short enough to type."""
    return secrets.token_hex(4)


class Rollouts:
    """Roll-outs in the registry, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, record: RolloutRecord, members: Sequence[RolloutMember]) -> None:
        """Add a new roll-out; the hub sends its first wave. Raises `LabelError` if its selector exceeds the limit."""
        stages = msgspec.json.encode(record.stages).decode() if record.stages is not None else None
        row = {**record._asdict(), "resources": _text(record.resources), "state": record.state.value, "stages": stages}

        def work(tx: sa.Connection) -> None:
            require_tenant(tx, record.tenant)
            if record.selector is not None:
                require_room(tx, record.tenant, record.selector)
            tx.execute(rollouts.insert().values(**{**row, "made_at": in_order(tx, record.made_at)}))
            tx.execute(rollout_members.insert(), [_member_row(record.id, each) for each in members])
            _forget_old(tx)
            notify(tx, NoticeTopic.ROLLOUTS)
            append_events(tx, [_rollout_event(record.made_at, record, len(members))])

        self._database.transaction(work)

    def all(self, tenant: str | None = None) -> list[RolloutRecord]:
        """Return roll-outs, the newest first."""
        query = sa.select(*_ROLLOUT).order_by(rollouts.c.made_at.desc(), rollouts.c.id)
        if tenant is not None:
            query = query.where(rollouts.c.tenant == tenant)
        return [_rollout(row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def page(self, tenant: str | None, after: tuple[int, str] | None, limit: int) -> tuple[list[RolloutRecord], int]:
        """Return roll-outs, the newest first, and the number of all. `after`: time and id of the last one of the page
        before."""
        mine = (rollouts.c.tenant == tenant,) if tenant is not None else ()
        query = sa.select(*_ROLLOUT).where(*mine).order_by(rollouts.c.made_at.desc(), rollouts.c.id.desc())
        if after is not None:
            same_time = (rollouts.c.made_at == after[0]) & (rollouts.c.id < after[1])
            query = query.where((rollouts.c.made_at < after[0]) | same_time)
        counting = sa.select(sa.func.count()).select_from(rollouts).where(*mine)

        def work(tx: sa.Connection) -> tuple[list[RolloutRecord], int]:
            return [_rollout(row) for row in tx.execute(query.limit(limit))], tx.execute(counting).scalar() or 0

        return self._database.transaction(work)

    def get(self, rollout: str) -> RolloutRecord | None:
        """Return a roll-out; None if unknown."""
        query = sa.select(*_ROLLOUT).where(rollouts.c.id == rollout)
        row = self._database.transaction(lambda tx: tx.execute(query).first())
        return None if row is None else _rollout(row)

    def members(self, rollout: str) -> list[RolloutMember]:
        """Return the gateways of a roll-out by wave and name."""
        return self._database.transaction(lambda tx: _members(tx, rollout))

    def pause(self, rollout: str) -> RolloutRecord:
        """Pause a roll-out: nothing more is sent, and versions not fetched yet are withheld. Raises `RolloutError`."""
        return self._changed(rollout, (RolloutState.RUNNING,), RolloutState.PAUSED, 0)

    def resume(self, rollout: str, now_us: int) -> RolloutRecord:
        """Resume a roll-out without the gateways that failed. Raises `RolloutError`."""
        return self._changed(rollout, (RolloutState.PAUSED, RolloutState.HALTED), RolloutState.RUNNING, now_us)

    def abort(self, rollout: str) -> RolloutRecord:
        """Abort a roll-out; versions that gateways took stay, as if set for them by name. Raises `RolloutError`."""
        return self._database.transaction(lambda tx: abort_in(tx, rollout))

    def take_back(self, rollout: str, by: str, now_us: int, sign: Sign) -> list[str]:
        """Abort a roll-out, and send gateways that may have its version the last one they confirmed before. Return
        those gateways.

        Gateways with a later decision keep that. Raises `RolloutError`.
        """

        def work(tx: sa.Connection) -> list[str]:
            record = _one(tx, rollout)
            if record.state is not RolloutState.ABORTED:
                record = _change(tx, rollout, tuple(GOING), RolloutState.ABORTED, 0)
            now = gateways_in(tx, record.tenant)
            taken = [each for each in _members(tx, rollout) if _has_taken(each, now.get(each.gateway))]
            wanted = [_previous(tx, record, each, by) for each in taken]
            make_versions(tx, wanted, now_us, sign)
            return [each.gateway for each in wanted]

        return self._database.transaction(work)

    def running(self) -> list[str]:
        """Return the ids of running roll-outs."""
        query = sa.select(rollouts.c.id).where(rollouts.c.state == RolloutState.RUNNING.value)
        return self._database.transaction(lambda tx: list(tx.execute(query).scalars()))

    def advance(self, rollout: str, now_us: int, sign: Sign) -> RolloutRecord | None:
        """Advance a running roll-out; return it if it changed."""
        return self._database.transaction(lambda tx: _advance(tx, rollout, now_us, sign))

    def _changed(self, rollout: str, before: Sequence[RolloutState], after: RolloutState, now_us: int) -> RolloutRecord:
        return self._database.transaction(lambda tx: _change(tx, rollout, before, after, now_us))


_ROLLOUT = [rollouts.c[name] for name in RolloutRecord._fields]
_MEMBER = [rollout_members.c[name] for name in RolloutMember._fields]
_TAKEN = (MemberPhase.SENT, MemberPhase.AWAY, MemberPhase.CONFIRMED, MemberPhase.DONE)


def _has_taken(member: RolloutMember, now: ConfigurationRecord | None) -> bool:
    """Return whether a gateway took or may have taken the version, without a later decision. A failed one has it if
    only its system was rolled back."""
    if member.version is None or now is None or now.wanted != member.version:
        return False
    in_force = now.report is not None and now.report.version == member.version
    return member.phase in _TAKEN or (member.phase in (MemberPhase.FAILED, MemberPhase.LEFT_OUT) and in_force)


def _one(tx: sa.Connection, rollout: str) -> RolloutRecord:
    row = tx.execute(sa.select(*_ROLLOUT).where(rollouts.c.id == rollout)).first()
    if row is None:
        raise RolloutError(f"no roll-out {rollout}")
    return _rollout(row)


def _change(
    tx: sa.Connection, rollout: str, before: Sequence[RolloutState], after: RolloutState, now_us: int
) -> RolloutRecord:
    record = _one(tx, rollout)
    if record.state not in before:
        raise RolloutError(f"roll-out {rollout} is {record.state.value}")
    known = _members(tx, rollout)
    if after is RolloutState.RUNNING:
        _update(tx, rollout, resume_members(known, now_us))
    if after is RolloutState.ABORTED and record.selector is not None:
        mine = (configurations.c.tenant == record.tenant, configurations.c.rollout == rollout)
        tx.execute(configurations.update().where(*mine).values(selector=None))
    touch(tx, record.tenant, [each.gateway for each in known if each.phase in OPEN], now_us)
    tx.execute(rollouts.update().where(rollouts.c.id == rollout).values(state=after.value, why=""))
    notify(tx, NoticeTopic.ROLLOUTS)
    record = record._replace(state=after, why="")
    append_events(tx, [_rollout_event(now_us or utc_us(), record)])
    return record


def abort_in(tx: sa.Connection, rollout: str) -> RolloutRecord:
    """Abort a roll-out within a transaction, see `Rollouts.abort`."""
    return _change(tx, rollout, tuple(GOING), RolloutState.ABORTED, 0)


def _members(tx: sa.Connection, rollout: str) -> list[RolloutMember]:
    query = sa.select(*_MEMBER).where(rollout_members.c.rollout == rollout)
    rows = tx.execute(query.order_by(rollout_members.c.wave, rollout_members.c.gateway))
    return [RolloutMember(*row)._replace(phase=MemberPhase(row.phase)) for row in rows]


def _rollout(row: Any) -> RolloutRecord:
    record = RolloutRecord(*row)
    stages = msgspec.json.decode(row.stages) if row.stages is not None else None
    return record._replace(resources=msgspec.json.decode(row.resources), state=RolloutState(row.state), stages=stages)


def _member_row(rollout: str, member: RolloutMember) -> dict[str, Any]:
    return {**member._asdict(), "rollout": rollout, "phase": member.phase.value}


def _update(tx: sa.Connection, rollout: str, members: Sequence[RolloutMember]) -> None:
    columns = ("phase", "since", "version", "why")
    mine = (rollout_members.c.rollout == rollout, rollout_members.c.gateway == sa.bindparam("at_gateway"))
    rows = [{f"at_{name}": value for name, value in _member_row(rollout, each).items()} for each in members]
    if rows:
        values: dict[str, Any] = {name: sa.bindparam(f"at_{name}") for name in columns}
        wanted = {"at_gateway", *(f"at_{name}" for name in columns)}
        tx.execute(
            rollout_members.update().where(*mine).values(values),
            [{name: value for name, value in row.items() if name in wanted} for row in rows],
        )


def _advance(tx: sa.Connection, rollout: str, now_us: int, sign: Sign) -> RolloutRecord | None:
    """Advance a roll-out; return None without a change."""
    record = _one(tx, rollout)
    if record.state is not RolloutState.RUNNING:  # another hub was faster
        return None
    known = _restart_unsigned(tx, record, _members(tx, rollout), now_us)
    step = plan_step(record.wave, record.pace, known, _seen(tx, record.tenant, known), record.confirm_s, now_us)
    sent = _send(tx, record, step, now_us, sign)
    _update(tx, rollout, [*step.members, *sent])
    if (step.wave, step.state) == (record.wave, record.state):
        return None
    if step.state is RolloutState.DONE and record.selector is not None:
        store_selector(tx, _standing(record))
    if step.state is RolloutState.HALTED:
        touch(tx, record.tenant, [each.gateway for each in known if each.phase in OPEN], now_us)
    values = {"wave": step.wave, "state": step.state.value, "why": step.why}
    tx.execute(rollouts.update().where(rollouts.c.id == rollout).values(**values))
    record = record._replace(wave=step.wave, state=step.state, why=step.why)
    append_events(tx, [_rollout_event(now_us, record)])
    return record


def _restart_unsigned(
    tx: sa.Connection, record: RolloutRecord, known: Sequence[RolloutMember], now_us: int
) -> list[RolloutMember]:
    """Restart the time of members that wait for the signature of their version: no hub has sent it yet."""
    unsigned = unsigned_versions(tx, record.tenant, record.id)
    again = {
        each.gateway: each._replace(since=now_us)
        for each in known
        if each.phase in OPEN and (each.gateway, each.version) in unsigned
    }
    _update(tx, record.id, list(again.values()))
    return [again.get(each.gateway, each) for each in known]


def _rollout_event(at: int, record: RolloutRecord, count: int | None = None) -> FleetEvent:
    """Return the event about a roll-out as it is now. `count`: its gateways, for a new one."""
    about: dict[str, Any] = {"state": record.state.value, "wave": record.wave + 1, "why": record.why or None}
    about |= {"note": record.note or None, "selector": record.selector, "gateways": count}
    return make_event(at, EventType.ROLLOUT_CHANGED, record.tenant, "", record.id, **about)


def _send(tx: sa.Connection, record: RolloutRecord, step: RolloutStep, now_us: int, sign: Sign) -> list[RolloutMember]:
    sent: list[RolloutMember] = []
    held = held_in(tx, record.tenant) if step.send else {}
    for member in step.send:
        _, decided_at = held.get(member.gateway, (None, 0))
        if decided_at > record.made_at:
            why = "another configuration was set for it after the roll-out began"
            sent.append(member._replace(phase=MemberPhase.SUPERSEDED, since=now_us, why=why))
            continue
        wanted = WantedConfiguration(
            tenant=record.tenant,
            gateway=member.gateway,
            resources=record.resources,
            confirm_s=record.confirm_s,
            restart=record.restart,
            made_by=record.made_by,
            note=record.note,
            rollout=record.id,
            selector=record.selector,
            decided_at=record.made_at,
        )
        try:
            [made] = make_versions(tx, [wanted], now_us, sign)
        except (UnknownGateway, DesiredError) as error:
            sent.append(member._replace(phase=MemberPhase.FAILED, since=now_us, why=str(error)))
        else:
            sent.append(member._replace(phase=MemberPhase.SENT, since=now_us, version=made.version))
    return sent


def _standing(record: RolloutRecord) -> SelectorRecord:
    """Return the configuration that its selector gets, dated with the start of the roll-out."""
    return SelectorRecord(
        tenant=record.tenant,
        selector=record.selector or "",
        decided_at=record.made_at,
        made_by=record.made_by,
        note=record.note,
        resources=record.resources,
        confirm_s=record.confirm_s,
        restart=record.restart,
        rollout=record.id,
    )


def _seen(tx: sa.Connection, tenant: str, members: Sequence[RolloutMember]) -> dict[str, ObservedGateway]:
    there = sa.select(gateways.c.name, gateways.c.connected).where(gateways.c.tenant == tenant)
    connected = {row.name: bool(row.connected) for row in tx.execute(there)}
    known = gateways_in(tx, tenant)
    return {each.gateway: _of(known.get(each.gateway), connected.get(each.gateway, False)) for each in members}


def _of(record: ConfigurationRecord | None, connected: bool) -> ObservedGateway:
    if record is None:
        return ObservedGateway(connected, 0, 0)
    version = record.report.version if record.report is not None else 0
    if record.updating:
        return ObservedGateway(connected, record.wanted, 0, updating=True)
    if not record.failed:
        return ObservedGateway(connected, record.wanted, version)
    return ObservedGateway(
        connected,
        record.wanted,
        version,
        record.wanted,
        record.why or "it has already accepted or refused a later version",
    )


def _previous(tx: sa.Connection, record: RolloutRecord, member: RolloutMember, by: str) -> WantedConfiguration:
    """Return the last configuration that a gateway confirmed before this roll-out; an empty one without any."""
    mine = (configurations.c.tenant == record.tenant, configurations.c.gateway == member.gateway)
    before = (configurations.c.version < member.version, configurations.c.confirmed_at.is_not(None))
    columns = (configurations.c.content, configurations.c.selector, configurations.c.decided_at)
    query = sa.select(*columns).where(*mine, *before).order_by(configurations.c.version.desc()).limit(1)
    row = tx.execute(query).first()
    resources = msgspec.json.decode(row.content)["resources"] if row is not None else []
    note = f"reverts roll-out {record.id}"
    wanted = WantedConfiguration(record.tenant, member.gateway, resources, record.confirm_s, record.restart, by, note)
    chosen_by, decided_at = (row.selector, row.decided_at) if row is not None else (None, None)
    return wanted._replace(selector=chosen_by, decided_at=decided_at or 0)


def _forget_old(tx: sa.Connection) -> None:
    ended = sa.select(rollouts.c.id).where(rollouts.c.state.in_(ENDED)).order_by(rollouts.c.made_at.desc())
    for rollout in list(tx.execute(ended).scalars())[ROLLOUTS_KEPT:]:
        tx.execute(rollout_members.delete().where(rollout_members.c.rollout == rollout))
        tx.execute(rollouts.delete().where(rollouts.c.id == rollout))


def _text(resources: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(resources).decode()
