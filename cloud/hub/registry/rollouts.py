"""Roll-outs of a configuration as the registry keeps them: they go on where they were when the hub starts again.

As `configurations`, and in its transactions: a wave is begun, and its gateways are sent their versions, at once or not
at all. Several hubs may look at the same one.
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
    GatewayRecord,
    Sign,
    UnknownGateway,
    Wanted,
    gateways_in,
    in_order,
    make_versions,
    touch,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import configurations, gateways, rollout_members, rollouts
from cloud.hub.registry.selectors import SelectorRecord, held_in, keep, require_room
from cloud.hub.rollout import GOING, OPEN, Member, Pace, Phase, RolloutState, Seen, Step, look, resumed

ENDED = (RolloutState.DONE.value, RolloutState.ABORTED.value)


class RolloutError(Exception):
    """What is asked of a roll-out cannot be; the message says why."""


@hides("resources")
class RolloutRecord(NamedTuple):
    """A roll-out."""

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
    """The one it is at, from 0."""
    state: RolloutState
    why: str
    """Why it halted."""
    selector: str | None = None
    """What it is for; who this chooses later has the same, from when it is done. None: gateways by name."""
    stages: Sequence[str] | None = None
    """The words of each wave; None: an older program did not keep them."""

    @property
    def pace(self) -> Pace:
        return Pace(self.soak_s, self.away_s, self.failures_max)


def new_id() -> str:
    """Of a roll-out: short enough to be typed."""
    return secrets.token_hex(4)


class Rollouts:
    """For the thread that opened the database. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, record: RolloutRecord, members: Sequence[Member]) -> None:
        """Begin one, made now at the latest. Its first wave is sent by the hub. Raises `LabelError` where its selector
        is one too many."""
        stages = msgspec.json.encode(record.stages).decode() if record.stages is not None else None
        row = {**record._asdict(), "resources": _text(record.resources), "state": record.state.value, "stages": stages}

        def work(tx: sa.Connection) -> None:
            if record.selector is not None:
                require_room(tx, record.tenant, record.selector)
            tx.execute(rollouts.insert().values(**{**row, "made_at": in_order(tx, record.made_at)}))
            tx.execute(rollout_members.insert(), [_member_row(record.id, each) for each in members])
            _forget_old(tx)

        self._database.transaction(work)

    def all(self, tenant: str | None = None) -> list[RolloutRecord]:
        """The newest first."""
        query = sa.select(*_ROLLOUT).order_by(rollouts.c.made_at.desc(), rollouts.c.id)
        if tenant is not None:
            query = query.where(rollouts.c.tenant == tenant)
        return [_rollout(row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def members(self, rollout: str) -> list[Member]:
        """By wave and name."""
        return self._database.transaction(lambda tx: _members(tx, rollout))

    def pause(self, rollout: str) -> RolloutRecord:
        """Nothing more is sent, and what is not fetched yet is withheld. Raises `RolloutError`."""
        return self._changed(rollout, (RolloutState.RUNNING,), RolloutState.PAUSED, 0)

    def resume(self, rollout: str, now_us: int) -> RolloutRecord:
        """Go on; gateways that failed are left out. Raises `RolloutError`."""
        return self._changed(rollout, (RolloutState.PAUSED, RolloutState.HALTED), RolloutState.RUNNING, now_us)

    def abort(self, rollout: str) -> RolloutRecord:
        """End it; what gateways have taken stays, as if it were said for them by name. Raises `RolloutError`."""
        return self._changed(rollout, tuple(GOING), RolloutState.ABORTED, 0)

    def take_back(self, rollout: str, by: str, now_us: int, sign: Sign) -> list[str]:
        """End it, where it is not aborted already, and send who has taken its version, or may have, the last it
        confirmed before, as a new one; returns whom. Who was told something else since keeps that. Raises
        `RolloutError`."""

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
        """Ids of those that have next steps."""
        query = sa.select(rollouts.c.id).where(rollouts.c.state == RolloutState.RUNNING.value)
        return self._database.transaction(lambda tx: list(tx.execute(query).scalars()))

    def advance(self, rollout: str, now_us: int, sign: Sign) -> RolloutRecord | None:
        """Take the next steps of one that runs; None: it is as it was."""
        return self._database.transaction(lambda tx: _advance(tx, rollout, now_us, sign))

    def _changed(self, rollout: str, before: Sequence[RolloutState], after: RolloutState, now_us: int) -> RolloutRecord:
        return self._database.transaction(lambda tx: _change(tx, rollout, before, after, now_us))


_ROLLOUT = [rollouts.c[name] for name in RolloutRecord._fields]
_MEMBER = [rollout_members.c[name] for name in Member._fields]
_TAKEN = (Phase.SENT, Phase.AWAY, Phase.CONFIRMED, Phase.DONE)


def _has_taken(member: Member, now: GatewayRecord | None) -> bool:
    """Or may have, and was told nothing else since. One that failed has, where its system alone went back."""
    if member.version is None or now is None or now.wanted != member.version:
        return False
    in_force = now.report is not None and now.report.version == member.version
    return member.phase in _TAKEN or (member.phase in (Phase.FAILED, Phase.LEFT_OUT) and in_force)


def _one(tx: sa.Connection, rollout: str) -> RolloutRecord:
    row = tx.execute(sa.select(*_ROLLOUT).where(rollouts.c.id == rollout)).first()
    if row is None:
        raise RolloutError(f"there is no roll-out {rollout}")
    return _rollout(row)


def _change(
    tx: sa.Connection, rollout: str, before: Sequence[RolloutState], after: RolloutState, now_us: int
) -> RolloutRecord:
    record = _one(tx, rollout)
    if record.state not in before:
        raise RolloutError(f"roll-out {rollout} is {record.state.value}")
    known = _members(tx, rollout)
    if after is RolloutState.RUNNING:
        _update(tx, rollout, resumed(known, now_us))
    if after is RolloutState.ABORTED and record.selector is not None:
        mine = (configurations.c.tenant == record.tenant, configurations.c.rollout == rollout)
        tx.execute(configurations.update().where(*mine).values(selector=None))
    touch(tx, record.tenant, [each.gateway for each in known if each.phase in OPEN], now_us)
    tx.execute(rollouts.update().where(rollouts.c.id == rollout).values(state=after.value, why=""))
    return record._replace(state=after, why="")


def _members(tx: sa.Connection, rollout: str) -> list[Member]:
    query = sa.select(*_MEMBER).where(rollout_members.c.rollout == rollout)
    rows = tx.execute(query.order_by(rollout_members.c.wave, rollout_members.c.gateway))
    return [Member(*row)._replace(phase=Phase(row.phase)) for row in rows]


def _rollout(row: Any) -> RolloutRecord:
    record = RolloutRecord(*row)
    stages = msgspec.json.decode(row.stages) if row.stages is not None else None
    return record._replace(resources=msgspec.json.decode(row.resources), state=RolloutState(row.state), stages=stages)


def _member_row(rollout: str, member: Member) -> dict[str, Any]:
    return {**member._asdict(), "rollout": rollout, "phase": member.phase.value}


def _update(tx: sa.Connection, rollout: str, members: Sequence[Member]) -> None:
    columns = ("phase", "since", "version", "why")
    here = (rollout_members.c.rollout == rollout, rollout_members.c.gateway == sa.bindparam("at_gateway"))
    rows = [{f"at_{name}": value for name, value in _member_row(rollout, each).items()} for each in members]
    if rows:
        values: dict[str, Any] = {name: sa.bindparam(f"at_{name}") for name in columns}
        wanted = {"at_gateway", *(f"at_{name}" for name in columns)}
        tx.execute(
            rollout_members.update().where(*here).values(values),
            [{name: value for name, value in row.items() if name in wanted} for row in rows],
        )


def _advance(tx: sa.Connection, rollout: str, now_us: int, sign: Sign) -> RolloutRecord | None:
    """None: nothing is otherwise."""
    record = _one(tx, rollout)
    if record.state is not RolloutState.RUNNING:  # somebody was faster
        return None
    known = _members(tx, rollout)
    step = look(record.wave, record.pace, known, _seen(tx, record.tenant, known), record.confirm_s, now_us)
    sent = _send(tx, record, step, now_us, sign)
    _update(tx, rollout, [*step.members, *sent])
    if (step.wave, step.state) == (record.wave, record.state):
        return None
    if step.state is RolloutState.DONE and record.selector is not None:
        keep(tx, _standing(record))
    if step.state is RolloutState.HALTED:
        touch(tx, record.tenant, [each.gateway for each in known if each.phase in OPEN], now_us)
    values = {"wave": step.wave, "state": step.state.value, "why": step.why}
    tx.execute(rollouts.update().where(rollouts.c.id == rollout).values(**values))
    return record._replace(wave=step.wave, state=step.state, why=step.why)


def _send(tx: sa.Connection, record: RolloutRecord, step: Step, now_us: int, sign: Sign) -> list[Member]:
    sent: list[Member] = []
    held = held_in(tx, record.tenant) if step.send else {}
    for member in step.send:
        _, decided_at = held.get(member.gateway, (None, 0))
        if decided_at > record.made_at:
            why = "something else was said for it since the roll-out began"
            sent.append(member._replace(phase=Phase.SUPERSEDED, since=now_us, why=why))
            continue
        wanted = Wanted(
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
            sent.append(member._replace(phase=Phase.FAILED, since=now_us, why=str(error)))
        else:
            sent.append(member._replace(phase=Phase.SENT, since=now_us, version=made.version))
    return sent


def _standing(record: RolloutRecord) -> SelectorRecord:
    """What its selector has from now on, said when it began."""
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


def _seen(tx: sa.Connection, tenant: str, members: Sequence[Member]) -> dict[str, Seen]:
    there = sa.select(gateways.c.name, gateways.c.connected).where(gateways.c.tenant == tenant)
    connected = {row.name: bool(row.connected) for row in tx.execute(there)}
    known = gateways_in(tx, tenant)
    return {each.gateway: _of(known.get(each.gateway), connected.get(each.gateway, False)) for each in members}


def _of(record: GatewayRecord | None, connected: bool) -> Seen:
    if record is None:
        return Seen(connected, 0, 0)
    version = record.report.version if record.report is not None else 0
    if record.updating:
        return Seen(connected, record.wanted, 0, updating=True)
    if not record.failed:
        return Seen(connected, record.wanted, version)
    return Seen(connected, record.wanted, version, record.wanted, record.why or "it has decided about a later one")


def _previous(tx: sa.Connection, record: RolloutRecord, member: Member, by: str) -> Wanted:
    """What a gateway confirmed before this roll-out; nothing, where it confirmed nothing."""
    mine = (configurations.c.tenant == record.tenant, configurations.c.gateway == member.gateway)
    before = (configurations.c.version < member.version, configurations.c.confirmed_at.is_not(None))
    columns = (configurations.c.content, configurations.c.selector, configurations.c.decided_at)
    query = sa.select(*columns).where(*mine, *before).order_by(configurations.c.version.desc()).limit(1)
    row = tx.execute(query).first()
    resources = msgspec.json.decode(row.content)["resources"] if row is not None else []
    note = f"takes back roll-out {record.id}"
    wanted = Wanted(record.tenant, member.gateway, resources, record.confirm_s, record.restart, by, note)
    said_for, decided_at = (row.selector, row.decided_at) if row is not None else (None, None)
    return wanted._replace(selector=said_for, decided_at=decided_at or 0)


def _forget_old(tx: sa.Connection) -> None:
    ended = sa.select(rollouts.c.id).where(rollouts.c.state.in_(ENDED)).order_by(rollouts.c.made_at.desc())
    for rollout in list(tx.execute(ended).scalars())[ROLLOUTS_KEPT:]:
        tx.execute(rollout_members.delete().where(rollout_members.c.rollout == rollout))
        tx.execute(rollouts.delete().where(rollouts.c.id == rollout))


def _text(resources: list[dict[str, Any]]) -> str:
    return msgspec.json.encode(resources).decode()
