"""What gateways are to be configured with: the versions somebody has made, and what the gateways say of them.

For the hub, in a thread of its own, and for commands beside it, as `enrolments` is. Times are UTC microseconds since
1970. A version is never changed; it is signed in the transaction that gives it its number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.desired import (
    ApplyFailure,
    ApplyOutcome,
    Desired,
    DesiredReport,
    SignedDesired,
    SystemPhase,
    SystemReport,
    digest_of,
    read,
    written,
)
from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.limits import VERSIONS_KEPT, WHY_CHARACTERS_MAX
from cloud.hub.registry.database import Database
from cloud.hub.registry.names import is_known, known
from cloud.hub.registry.schema import (
    configurations,
    configured,
    rollouts,
    selectors,
)
from cloud.hub.rollout import RolloutState
from edge.output.text import line

TIES_US = 10_000_000
"""How much further back than the last change seen the next ones are looked for: a transaction may end later than one
that began after it."""

Sign = Callable[[str], str]
"""The authority's signature over the text of a document, as `SignedDesired` has it."""

_SENT = (RolloutState.RUNNING.value, RolloutState.DONE.value)
"""Roll-outs in these states withhold nothing."""


class UnknownGateway(Exception):
    """There is no gateway of that name; the message says so."""


@hides("resources")
class Wanted(NamedTuple):
    """What somebody wants a gateway to be configured with."""

    tenant: str
    gateway: str
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool
    made_by: str
    note: str
    rollout: str | None = None
    selector: str | None = None
    """The gateway has it as one of those this chooses; None: it was said for the gateway by name."""
    decided_at: int | None = None
    """When somebody said so, in the order of `in_order`; None: now."""


@hides("content")
class VersionRecord(NamedTuple):
    """A version as the registry has it."""

    tenant: str
    gateway: str
    version: int
    made_at: int
    made_by: str
    note: str
    content: str
    signature: str
    rollout: str | None = None
    confirmed_at: int | None = None
    """When the gateway first said that it is confirmed there."""
    failure: str | None = None
    """What the gateway said, when it has not taken it."""
    selector: str | None = None
    """As in `Wanted`."""
    decided_at: int | None = None
    """As in `Wanted`; None: an older program made it, before everything else."""

    @property
    def desired(self) -> Desired:
        return read(self.content)


class GatewayRecord(NamedTuple):
    """A gateway, what is wanted of it, and what it says."""

    tenant: str
    gateway: str
    wanted: int
    changed_at: int
    """When somebody changed what is wanted; later than every change before it, whatever clocks say."""
    report: DesiredReport | None
    reported_at: int | None

    @property
    def state(self) -> str:
        """``confirmed``, ``trying``, ``updating`` (the gateway has taken it, and changes its system for it),
        ``refused``, ``rolled-back``, ``waiting`` (for the gateway to take it) or ``none`` (the hub wants nothing)."""
        report = self.report
        if not self.wanted:
            return "none"
        if report is None:
            return "waiting"
        if report.trying == self.wanted:
            return "trying"
        if report.failure is not None and report.failure.version >= self.wanted:
            return report.failure.outcome.value
        if report.version == self.wanted:
            return _state_of(report.system)
        return ApplyOutcome.REFUSED.value if self.failed else "waiting"

    @property
    def failed(self) -> bool:
        """The gateway has not taken what is wanted of it, and takes it no more; or could read nothing that was sent."""
        report = self.report
        if report is None or not self.wanted or self.wanted == report.trying:
            return False
        if self.wanted == report.version:
            return report.system is not None and report.system.failed
        return report.newest >= self.wanted or (report.failure is not None and report.failure.version == 0)

    @property
    def why(self) -> str:
        """What the gateway says about its failure; while it changes its system, what that waits for."""
        report = self.report
        if report is None:
            return ""
        if report.failure is not None:
            return f"{report.failure.outcome.value}: {report.failure.why}"
        return _words_of(report.system) if report.version == self.wanted else ""

    @property
    def updating(self) -> bool:
        """The gateway has taken what is wanted of it, and changes its system for it."""
        return self.state == "updating"


def _state_of(system: SystemReport | None) -> str:
    if system is None or system.phase is SystemPhase.KEPT:
        return "confirmed"
    return "updating" if system.under_way else system.phase.value


def _words_of(system: SystemReport | None) -> str:
    if system is None or system.phase is SystemPhase.KEPT:
        return ""
    share = f" ({system.percent} %)" if system.phase is SystemPhase.FETCHING else ""
    why = f": {system.why}" if system.why else ""
    return f"system {system.version} {system.phase.value}{share}{why}"


class _Content(msgspec.Struct):
    resources: msgspec.Raw


@hides("signed")
class Offer(NamedTuple):
    """A version a gateway is to take next."""

    version: int
    signed: SignedDesired


class Configurations:
    """For the thread that makes it. Every method is one transaction, durable on return; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def want(self, wanted: Sequence[Wanted], now_us: int, sign: Sign) -> list[VersionRecord]:
        """Make the next version of each of these gateways' configurations. Raises `UnknownGateway`, `DesiredError`;
        then none is made."""
        return self._database.transaction(lambda tx: make_versions(tx, wanted, now_us, sign))

    def versions(self, tenant: str, gateway: str) -> list[VersionRecord]:
        """Those kept, the newest first."""
        query = (
            sa.select(*_VERSION)
            .where(configurations.c.tenant == tenant, configurations.c.gateway == gateway)
            .order_by(configurations.c.version.desc())
        )
        return [VersionRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def gateways(self, tenant: str | None = None, since_us: int | None = None) -> list[GatewayRecord]:
        """Gateways somebody wants something of, or that have reported; by name. `since_us`: changed since, with those
        that were forgotten."""
        query = sa.select(*_GATEWAY).order_by(configured.c.tenant, configured.c.gateway)
        if tenant is not None:
            query = query.where(configured.c.tenant == tenant)
        if since_us is not None:
            query = query.where(configured.c.changed_at >= since_us - TIES_US)
        else:
            query = query.where((configured.c.wanted > 0) | configured.c.reported_at.is_not(None))
        return [_gateway(row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def contents(self, tenant: str, but: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """What is wanted of a tenant's gateways but of these: of those with the same resources, of the first by
        name."""
        return self._database.transaction(lambda tx: contents_in(tx, tenant, but))

    def changed_last(self) -> int:
        """The newest `GatewayRecord.changed_at`; 0: nobody has wanted anything."""
        return self._database.transaction(_changed_last)

    def known(self, tenant: str) -> list[tuple[str, bool]]:
        """(name, connected) of every gateway of a tenant, by name."""
        return self._database.transaction(lambda tx: list(known(tx, tenant).items()))

    def reported(self, reports: Sequence[tuple[Key, DesiredReport]], now_us: int) -> list[Offer | None]:
        """Keep what gateways say; returns the version each is to take next, if any."""
        return self._database.transaction(lambda tx: [_reported(tx, *each, now_us) for each in reports])

    def due(self, key: Key, report: DesiredReport) -> Offer | None:
        """The version a gateway that says this is to take next, if any."""
        return self._database.transaction(lambda tx: _due(tx, key, report))


NEWEST = sa.and_(
    configurations.c.tenant == configured.c.tenant,
    configurations.c.gateway == configured.c.gateway,
    configurations.c.version == configured.c.wanted,
)
"""The version that is wanted of a gateway."""

_VERSION = [configurations.c[name] for name in VersionRecord._fields]
_GATEWAY = [configured.c[name] for name in GatewayRecord._fields]


def make_versions(tx: sa.Connection, wanted: Sequence[Wanted], now_us: int, sign: Sign) -> list[VersionRecord]:
    """As `Configurations.want`, within a transaction."""
    made = []
    at = in_order(tx, now_us)
    for each in wanted:
        before = gateway_in(tx, each.tenant, each.gateway)
        if not is_known(tx, each.tenant, each.gateway):
            raise UnknownGateway(f"there is no gateway {each.gateway} of tenant {each.tenant}")
        seen = before.report.newest if before is not None and before.report is not None else 0
        number = max(before.wanted if before is not None else 0, seen) + 1
        content = written(
            Desired(
                tenant=each.tenant,
                gateway=each.gateway,
                version=number,
                made_at=now_us,
                confirm_s=each.confirm_s,
                restart=each.restart,
                resources=each.resources,
            )
        )
        head = (each.tenant, each.gateway, number, now_us, each.made_by, each.note)
        decided_at = at if each.decided_at is None else each.decided_at
        whence = {"rollout": each.rollout, "selector": each.selector, "decided_at": decided_at}
        record = VersionRecord(*head, content, sign(content), **whence)  # type: ignore[arg-type]
        tx.execute(configurations.insert().values(**record._asdict()))
        _set(tx, (each.tenant, each.gateway), before, wanted=number, changed_at=at)
        _forget_old(tx, each.tenant, each.gateway, number)
        made.append(record)
    return made


def gateway_in(tx: sa.Connection, tenant: str, gateway: str) -> GatewayRecord | None:
    """What is known of a gateway's configuration."""
    query = sa.select(*_GATEWAY).where(configured.c.tenant == tenant, configured.c.gateway == gateway)
    row = tx.execute(query).first()
    return None if row is None else _gateway(row)


def gateways_in(tx: sa.Connection, tenant: str) -> dict[str, GatewayRecord]:
    """The same of all of a tenant."""
    rows = tx.execute(sa.select(*_GATEWAY).where(configured.c.tenant == tenant))
    return {row.gateway: _gateway(row) for row in rows}


def touch(tx: sa.Connection, tenant: str, names: Iterable[str], now_us: int) -> None:
    """Have it looked again what these gateways are to take."""
    here = (configured.c.tenant == tenant, configured.c.gateway == sa.bindparam("at"))
    rows = [{"at": name} for name in names]
    if rows:
        tx.execute(configured.update().where(*here).values(changed_at=in_order(tx, now_us)), rows)


def contents_in(tx: sa.Connection, tenant: str, but: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """As `Configurations.contents`, within a transaction."""
    query = (
        sa.select(configurations.c.gateway, configurations.c.content)
        .join(configured, NEWEST)
        .where(configured.c.tenant == tenant)
        .order_by(configurations.c.gateway)
    )
    found: dict[bytes, str] = {}
    for gateway, content in tx.execute(query).all():
        if gateway not in but:
            found.setdefault(bytes(msgspec.json.decode(content, type=_Content).resources), gateway)
    return {gateway: msgspec.json.decode(resources) for resources, gateway in found.items()}


def in_order(tx: sa.Connection, now_us: int) -> int:
    """When something is said of what gateways are to have: behind everything said before it, whatever the clock of
    who says it shows."""
    said = (sa.func.max(selectors.c.decided_at), sa.func.max(rollouts.c.made_at))
    last = [_changed_last(tx), *(tx.execute(sa.select(each)).scalar() or 0 for each in said)]
    return max(now_us, max(last) + 1)


def _changed_last(tx: sa.Connection) -> int:
    last: int | None = tx.execute(sa.select(sa.func.max(configured.c.changed_at))).scalar()
    return last or 0


def _gateway(row: Any) -> GatewayRecord:
    return GatewayRecord(*row)._replace(report=_report_of(row.report) if row.report is not None else None)


def _report_of(text: str) -> DesiredReport | None:
    """None: an older program has kept what no gateway can mean."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.json.decode(text, type=DesiredReport)
    return None


def _set(tx: sa.Connection, key: Key, before: GatewayRecord | None, **values: Any) -> None:
    if before is None:
        whole = {"tenant": key[0], "gateway": key[1], "wanted": 0, "changed_at": 0, **values}
        tx.execute(configured.insert().values(**whole))
    else:
        here = (configured.c.tenant == key[0], configured.c.gateway == key[1])
        tx.execute(configured.update().where(*here).values(**values))


def _forget_old(tx: sa.Connection, tenant: str, gateway: str, newest: int) -> None:
    """Keep the last versions, and the last that was confirmed: it is what a rollback goes to."""
    mine = (configurations.c.tenant == tenant, configurations.c.gateway == gateway)
    confirmed = sa.select(sa.func.max(configurations.c.version)).where(
        *mine, configurations.c.confirmed_at.is_not(None)
    )
    last = tx.execute(confirmed).scalar() or 0
    old = (configurations.c.version < newest - VERSIONS_KEPT, configurations.c.version != last)
    tx.execute(configurations.delete().where(*mine, *old))


def _reported(tx: sa.Connection, key: Key, report: DesiredReport, now_us: int) -> Offer | None:
    before = gateway_in(tx, *key)
    known = _of_our_versions(tx, key, _with_words_kept(report))
    if before is None or before.reported_at is None or before.report != known:
        _set(tx, key, before, report=msgspec.json.encode(known).decode(), reported_at=now_us)
        _note_outcomes(tx, key, known, now_us)
    return _due(tx, key, report)


def _with_words_kept(report: DesiredReport) -> DesiredReport:
    """A gateway's words as they are kept: not too many, and of none a character that a database does not take."""
    failure, system = report.failure, report.system
    if failure is not None:
        failure = msgspec.structs.replace(failure, why=_kept(failure.why))
    if system is not None:
        system = msgspec.structs.replace(system, version=_kept(system.version), why=_kept(system.why))
    return msgspec.structs.replace(report, failure=failure, system=system)


def _kept(words: str) -> str:
    shown = line(words)
    return shown if len(shown) <= WHY_CHARACTERS_MAX else f"{shown[:WHY_CHARACTERS_MAX]} …"


def _of_our_versions(tx: sa.Connection, key: Key, report: DesiredReport) -> DesiredReport:
    """What a report says of versions this registry has: where it is an older copy, the gateway's may be another one
    that had the same number, and what is wanted under it is not in force."""
    number = report.trying or report.version
    here = (configurations.c.tenant == key[0], configurations.c.gateway == key[1], configurations.c.version == number)
    content = tx.execute(sa.select(configurations.c.content).where(*here)).scalar()
    # Of those in force old ones are forgotten; what is tried was sent just now.
    is_ours = report.trying is None if content is None else digest_of(content) == report.digest
    if is_ours or not report.digest:
        return report
    why = "the gateway has another version of this number: this registry is an older copy; send what is wanted anew"
    # The digest is of what is tried: where that is unknown here, what is in force may be another one as well.
    in_force = 0 if report.trying is None or content is None else report.version
    return msgspec.structs.replace(
        report, trying=None, version=in_force, failure=ApplyFailure(number, ApplyOutcome.REFUSED, why)
    )


def _note_outcomes(tx: sa.Connection, key: Key, report: DesiredReport, now_us: int) -> None:
    mine = configurations.update().where(configurations.c.tenant == key[0], configurations.c.gateway == key[1])
    settled = report.system is None or report.system.phase is SystemPhase.KEPT
    if report.version and settled:
        first = mine.where(configurations.c.version == report.version, configurations.c.confirmed_at.is_(None))
        tx.execute(first.values(confirmed_at=now_us))
    if report.failure is not None:
        words = f"{report.failure.outcome.value}: {report.failure.why}"
        tx.execute(mine.where(configurations.c.version == report.failure.version).values(failure=words))
    if report.system is not None and report.system.failed:
        ours = mine.where(configurations.c.version == report.version)
        tx.execute(ours.values(failure=_words_of(report.system)))


def _due(tx: sa.Connection, key: Key, report: DesiredReport) -> Offer | None:
    """The newest version that is not withheld, where the gateway has decided about none as new, and tries none."""
    if report.trying is not None:
        return None
    withheld = configurations.c.rollout.is_not(None) & rollouts.c.state.not_in(_SENT)
    query = (
        sa.select(configurations.c.version, configurations.c.content, configurations.c.signature)
        .select_from(configurations.outerjoin(rollouts, configurations.c.rollout == rollouts.c.id))
        .where(configurations.c.tenant == key[0], configurations.c.gateway == key[1], ~withheld)
        .order_by(configurations.c.version.desc())
        .limit(1)
    )
    row = tx.execute(query).first()
    if row is None or row.version <= report.newest:
        return None
    return Offer(row.version, SignedDesired(row.content, row.signature))
