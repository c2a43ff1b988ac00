"""Problems of hubs and gateways in the registry, as they were last reported: every hub shows those of all.

A report replaces the one before it, and the transaction that stores the difference appends the events about it. Only
the hub that a gateway is connected to stores its reports, so a gateway that is away keeps its problems until it reports
again, is forgotten, or was away for so long that they say nothing any more. Times are UTC microseconds since 1970.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.limits import PROBLEM_CHARACTERS_MAX
from cloud.hub.registry.alerts import STOPPED_HUB_US
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.hubs import HubState
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import gateways, hubs, problems


class ProblemSource(NamedTuple):
    """Source of problems: a gateway, or a hub by its writer id."""

    tenant: str
    gateway: str
    hub: str = ""


class ReportedProblem(NamedTuple):
    """Problem as its gateway or hub reports it."""

    code: str
    """Name of the problem, which programs may compare."""
    severity: str
    what: str
    next_step: str
    since: int

    @property
    def digest(self) -> str:
        """Identity among the problems of its source."""
        return hashlib.sha256(f"{self.code}\0{self.what}".encode()).hexdigest()[:32]


class StoredProblems:
    """Writes problems, for the thread that creates it. Every method is one transaction, durable on return; raises
    `RegistryError`."""

    def __init__(self, url: sa.URL, hub: str) -> None:
        """Open the registry; create a missing one. `hub`: writer id of this hub."""
        self._database = open_registry(url).database
        self._hub = hub

    def close(self) -> None:
        self._database.close()

    def report(self, reports: Mapping[ProblemSource, Sequence[ReportedProblem]], now_us: int) -> set[ProblemSource]:
        """Store the problems that these have now; return those that were stored. Gateways that are not connected to
        this hub, as far as the registry knows, are left out."""

        def work(tx: sa.Connection) -> set[ProblemSource]:
            mine = _connected_to(tx, self._hub, [each for each in reports if each.gateway])
            stored = {each for each in reports if not each.gateway or each in mine}
            made = [event for each in sorted(stored) for event in _store(tx, each, reports[each], now_us)]
            append_events(tx, made)
            return stored

        return self._database.transaction(work)

    def end_of_stopped_hubs(self, now_us: int) -> int:
        """End the problems of hubs that have stopped, or have been gone, for `STOPPED_HUB_US`; return their number."""
        silent = hubs.c.state.in_((HubState.STOPPED.value, HubState.GONE.value))
        stopped = sa.select(hubs.c.id).where(silent, hubs.c.seen_at < now_us - STOPPED_HUB_US)
        left = (problems.c.hub != self._hub, problems.c.hub.in_(stopped))  # a hub that starts has no row yet
        return self._database.transaction(lambda tx: _end(tx, left, now_us, "its hub has stopped"))

    def end_of_silent_gateways(self, keys: Sequence[Key], seen_before: int, now_us: int) -> int:
        """End the problems of those of some gateways that are not connected and were seen before `seen_before`, or are
        not known any more; return their number."""
        seen = (gateways.c.connected == sa.true()) | (gateways.c.last_seen >= seen_before)

        def work(tx: sa.Connection) -> int:
            query = select_gateways(tx, keys).where(gateways.c.forgotten_at.is_(None), seen)
            back = {(row.tenant, row.name) for row in tx.execute(query)}
            return sum(
                _end(tx, _of_gateway(*key), now_us, "its gateway has been away for long")
                for key in keys
                if key not in back
            )

        return self._database.transaction(work)


def end_problems_of(tx: sa.Connection, tenant: str, gateway: str, now_us: int, why: str) -> None:
    """End the problems of a forgotten gateway."""
    _end(tx, _of_gateway(tenant, gateway), now_us, why)


def _of_gateway(tenant: str, gateway: str) -> Sequence[sa.ColumnElement[bool]]:
    return problems.c.tenant == tenant, problems.c.gateway == gateway


_COLUMNS: Final = [problems.c[name] for name in ("tenant", "gateway", "hub", *ReportedProblem._fields)]


def _connected_to(tx: sa.Connection, hub: str, wanted: Collection[ProblemSource]) -> set[ProblemSource]:
    """Return those of these gateways that are connected to a hub."""
    if not wanted:
        return set()
    there = (gateways.c.writer == hub, gateways.c.connected == sa.true(), gateways.c.forgotten_at.is_(None))
    query = select_gateways(tx, (each[:2] for each in wanted)).where(*there)
    return {ProblemSource(row.tenant, row.name) for row in tx.execute(query)}


def _store(
    tx: sa.Connection, source: ProblemSource, found: Sequence[ReportedProblem], now_us: int
) -> Iterable[FleetEvent]:
    """Store the problems of a source; yield the events about the difference."""
    mine = [problems.c[name] == value for name, value in source._asdict().items()]
    query = sa.select(problems.c.digest, *(problems.c[name] for name in ReportedProblem._fields)).where(*mine)
    before = {row[0]: ReportedProblem(*row[1:]) for row in tx.execute(query)}
    now = {each.digest: each for each in map(_shorten, found)}
    for digest in now.keys() - before.keys():
        tx.execute(problems.insert().values(digest=digest, **source._asdict(), **now[digest]._asdict()))
    for digest in now.keys() & before.keys():
        if now[digest] != before[digest]._replace(since=now[digest].since):
            values = now[digest]._replace(since=before[digest].since)._asdict()
            tx.execute(problems.update().where(*mine, problems.c.digest == digest).values(**values))
    over = sorted(before.keys() - now.keys())
    if over:
        tx.execute(problems.delete().where(*mine, problems.c.digest.in_(over)))
    for digest, each in now.items():
        if digest not in before:
            yield _event(EventType.PROBLEM_RAISED, source, each, now_us)
    for digest in over:
        yield _event(EventType.PROBLEM_ENDED, source, before[digest], now_us)


def _end(tx: sa.Connection, which: Sequence[sa.ColumnElement[bool]], now_us: int, why: str) -> int:
    rows = tx.execute(sa.select(*_COLUMNS).where(*which)).all()
    if not rows:
        return 0
    tx.execute(problems.delete().where(*which))
    ended = EventType.PROBLEM_ENDED
    found = [(ProblemSource(*row[:3]), ReportedProblem(*row[3:])) for row in rows]
    append_events(tx, [_event(ended, source, each, now_us, why=why) for source, each in found])
    return len(rows)


def _event(kind: EventType, source: ProblemSource, problem: ReportedProblem, now_us: int, **more: Any) -> FleetEvent:
    raised = kind is EventType.PROBLEM_RAISED
    about = {"severity": problem.severity, "what": problem.what, "hub": source.hub or None}
    about["next_step"] = (problem.next_step or None) if raised else None
    return make_event(now_us, kind, source.tenant, source.gateway, problem.code, **about, **more)


def _shorten(problem: ReportedProblem) -> ReportedProblem:
    most = PROBLEM_CHARACTERS_MAX
    return problem._replace(code=problem.code[:most], what=problem.what[:most], next_step=problem.next_step[:most])
