"""Configuration versions of gateways in the registry, and the gateways' reports.

For the hub, in a thread of its own, and for commands of the CLI, like `enrolments`. Times are UTC microseconds since
1970. A version never changes; it is signed in the transaction that assigns its number. Where the authority's key is in
a process of its own, that process signs it afterwards, and no gateway gets it before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.names import is_known, known_gateways
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import (
    LATE_SIGNATURES,
    PARAMETERS_MAX,
    UNSIGNED,
    configurations,
    configured,
    hubs,
    rollouts,
    selectors,
)
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.rollback import fit_versions
from cloud.hub.rollout import RolloutState
from cloud.lake.faults import RegistryError
from edge.output.text import line

TIES_US = 10_000_000
"""Margin of the query for changes after the last one seen: a transaction may end after one that began later."""

Sign = Callable[[str], str]
"""Signs the text of a document with the authority's key, as in `SignedDesired`; `sign_late` leaves it to the process
with the key."""

LATE = "late "
"""Begin of what `sign_late` returns; no signature in Base64 begins so."""

OLDER_SEEN_US = 120_000_000
"""Age of the last word of an older hub after which it counts as ended: hubs write every few seconds, clocks differ."""

_SENT = (RolloutState.RUNNING.value, RolloutState.DONE.value)
"""States of roll-outs that do not withhold versions."""


def sign_late(authority: str) -> Sign:
    """Return a `Sign` that leaves the signature to the process with the key of this authority, a fingerprint."""
    return lambda _content: f"{LATE}{authority}"


class UnknownGateway(Exception):
    """The gateway is unknown; the message says so."""


class UnknownVersion(UnknownGateway):
    """The gateway has no such version; the message says so."""


@hides("resources")
class WantedConfiguration(NamedTuple):
    """Wanted configuration of a gateway."""

    tenant: str
    gateway: str
    resources: list[dict[str, Any]]
    confirm_s: float
    restart: bool
    made_by: str
    note: str
    rollout: str | None = None
    selector: str | None = None
    """Selector that chose the gateway; None if it was set for the gateway by name."""
    decided_at: int | None = None
    """Time of the decision, in the order of `in_order`; None for now."""
    repeats: int | None = None
    """Earlier version with the same content, of a roll-back."""


@hides("content")
class VersionRecord(NamedTuple):
    """Version of a configuration in the registry."""

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
    """Time when the gateway first reported it as confirmed."""
    failure: str | None = None
    """Reason that the gateway reported for a failure."""
    selector: str | None = None
    """Same as in `WantedConfiguration`."""
    decided_at: int | None = None
    """Same as in `WantedConfiguration`; None for versions of older programs, before all others."""
    repeats: int | None = None
    """Same as in `WantedConfiguration`."""

    @property
    def desired(self) -> Desired:
        return read(self.content)

    @property
    def resources(self) -> list[dict[str, Any]]:
        return self.desired.resources


class ConfigurationRecord(NamedTuple):
    """Gateway with its wanted version and its last report."""

    tenant: str
    gateway: str
    wanted: int
    changed_at: int
    """Time of the last change of the wanted version; later than earlier changes, also after a step of the clock."""
    report: DesiredReport | None
    reported_at: int | None

    @property
    def state(self) -> str:
        """State of the wanted version.

        ``confirmed``, ``trying``, ``updating`` (accepted, the gateway is changing its system for it), ``refused``,
        ``rolled-back``, ``waiting`` (for the gateway to fetch it) or ``none`` (no version is wanted).
        """
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
        """True if the gateway failed or refused the wanted version for good, or could read no version at all."""
        report = self.report
        if report is None or not self.wanted or self.wanted == report.trying:
            return False
        if self.wanted == report.version:
            return report.system is not None and report.system.failed
        return report.newest >= self.wanted or (report.failure is not None and report.failure.version == 0)

    @property
    def why(self) -> str:
        """Failure that the gateway reported; during a change of its system, the reason of the wait."""
        report = self.report
        if report is None:
            return ""
        if report.failure is not None:
            return f"{report.failure.outcome.value}: {report.failure.why}"
        return _words_of(report.system) if report.version == self.wanted else ""

    @property
    def updating(self) -> bool:
        """True while the gateway changes its system for the wanted version."""
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


class _PastRow(NamedTuple):
    """Version without its content."""

    version: int
    confirmed_at: int | None
    failure: str | None
    repeats: int | None


class _Content(msgspec.Struct):
    resources: msgspec.Raw


@hides("signed")
class ConfigurationOffer(NamedTuple):
    """Version that a gateway should get next."""

    version: int
    signed: SignedDesired


class Configurations:
    """Versions and reports in the registry, for the thread that creates it. Every method is one transaction, durable on
    return; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_wanted(
        self,
        wanted: Sequence[WantedConfiguration],
        now_us: int,
        sign: Sign,
        check: Callable[[int], None] = lambda _version: None,
    ) -> list[VersionRecord]:
        """Make the next version for each of these gateways. `check` gets the wanted version of each before, and raises
        to prevent the change. Raises `UnknownGateway`, `DesiredError`; then none is made."""

        def work(tx: sa.Connection) -> list[VersionRecord]:
            for each in wanted:
                require_tenant(tx, each.tenant)
                before = gateway_in(tx, each.tenant, each.gateway)
                check(before.wanted if before is not None else 0)
            return make_versions(tx, wanted, now_us, sign)

        return self._database.transaction(work)

    def versions(self, tenant: str, gateway: str) -> list[VersionRecord]:
        """Return the versions kept of a gateway, the newest first."""
        query = (
            sa.select(*_VERSION)
            .where(configurations.c.tenant == tenant, configurations.c.gateway == gateway)
            .order_by(configurations.c.version.desc())
        )
        return [VersionRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def gateways(self, tenant: str | None = None, since_us: int | None = None) -> list[ConfigurationRecord]:
        """Return gateways with a wanted version or a report, by name. `since_us`: those changed since, including
        forgotten ones."""
        query = sa.select(*_GATEWAY).order_by(configured.c.tenant, configured.c.gateway)
        if tenant is not None:
            query = query.where(configured.c.tenant == tenant)
        if since_us is not None:
            query = query.where(configured.c.changed_at >= since_us - TIES_US)
        else:
            query = query.where((configured.c.wanted > 0) | configured.c.reported_at.is_not(None))
        return [configuration_of(row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def one(self, tenant: str, gateway: str) -> ConfigurationRecord | None:
        """Return a gateway with a wanted version or a report; None for any other."""
        query = sa.select(*_GATEWAY).where(configured.c.tenant == tenant, configured.c.gateway == gateway)
        query = query.where((configured.c.wanted > 0) | configured.c.reported_at.is_not(None))
        row = self._database.transaction(lambda tx: tx.execute(query).first())
        return None if row is None else configuration_of(row)

    def wanted_resources(self, tenant: str, gateways: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the resources of the wanted versions of these gateways; those without one are left out."""
        names = sorted(gateways)
        query = (
            sa.select(configurations.c.gateway, configurations.c.content)
            .join(configured, NEWEST)
            .where(configured.c.tenant == tenant)
        )

        def work(tx: sa.Connection) -> dict[str, list[dict[str, Any]]]:
            found: dict[str, list[dict[str, Any]]] = {}
            for start in range(0, len(names), PARAMETERS_MAX - 10):
                some = names[start : start + PARAMETERS_MAX - 10]
                for name, content in tx.execute(query.where(configured.c.gateway.in_(some))):
                    found[name] = msgspec.json.decode(bytes(msgspec.json.decode(content, type=_Content).resources))
            return found

        return self._database.transaction(work)

    def contents(self, tenant: str, but: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """Return the wanted resources of a tenant's gateways, without `but`. Of gateways with equal resources only the
        first by name is returned."""
        return self._database.transaction(lambda tx: contents_in(tx, tenant, but))

    def last_change(self) -> int:
        """Return the newest `ConfigurationRecord.changed_at`; 0 without any."""
        return self._database.transaction(_changed_last)

    def known(self, tenant: str) -> list[tuple[str, bool]]:
        """Return (name, connected) of every known gateway of a tenant, by name."""
        return self._database.transaction(lambda tx: list(known_gateways(tx, tenant).items()))

    def reported(self, reports: Sequence[tuple[Key, DesiredReport]], now_us: int) -> list[ConfigurationOffer | None]:
        """Store reports; return the version that each gateway should get next, if any."""

        def work(tx: sa.Connection) -> list[ConfigurationOffer | None]:
            made: list[FleetEvent] = []
            offers = [_reported(tx, *each, now_us, made) for each in reports]
            append_events(tx, made)
            return offers

        return self._database.transaction(work)

    def due(self, key: Key, report: DesiredReport) -> ConfigurationOffer | None:
        """Return the version that a gateway with this report should get next, if any."""
        return self._database.transaction(lambda tx: _due(tx, key, report))


NEWEST = sa.and_(
    configurations.c.tenant == configured.c.tenant,
    configurations.c.gateway == configured.c.gateway,
    configurations.c.version == configured.c.wanted,
)
"""Join condition: the wanted version of a gateway."""

_VERSION = [configurations.c[name] for name in VersionRecord._fields]
_NAMES = sa.select(configurations.c.gateway, configurations.c.version)
_GATEWAY = [configured.c[name] for name in ConfigurationRecord._fields]


def make_versions(
    tx: sa.Connection, wanted: Sequence[WantedConfiguration], now_us: int, sign: Sign
) -> list[VersionRecord]:
    """Make versions within a transaction, see `Configurations.set_wanted`."""
    made = []
    at = in_order(tx, now_us)
    for each in wanted:
        before = gateway_in(tx, each.tenant, each.gateway)
        if not is_known(tx, each.tenant, each.gateway):
            raise UnknownGateway(f"tenant {each.tenant} has no gateway {each.gateway}")
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
        source = {"rollout": each.rollout, "selector": each.selector, "decided_at": decided_at, "repeats": each.repeats}
        signature = sign(content)
        signer = signature.removeprefix(LATE) if signature.startswith(LATE) else None
        if signer is not None:
            _require_no_older_hub(tx, now_us)
            signature = UNSIGNED
        record = VersionRecord(*head, content, signature, **source)  # type: ignore[arg-type]
        tx.execute(configurations.insert().values(**record._asdict(), signer=signer))
        _set(tx, (each.tenant, each.gateway), before, wanted=number, changed_at=at)
        _forget_old(tx, each.tenant, each.gateway, number)
        made.append(record)
    if made:
        notify(tx, NoticeTopic.CONFIGURATIONS)
    if any(each.signature == UNSIGNED for each in made):
        notify(tx, NoticeTopic.SIGNATURES)
    return made


def _require_no_older_hub(tx: sa.Connection, now_us: int) -> None:
    """Check that each hub holds back a version until it is signed. Raises `RegistryError`."""
    name = older_hub(tx, LATE_SIGNATURES, now_us)
    if name is not None:
        what = f"hub {name} has an older version, which sends configurations before they are signed"
        raise RegistryError(f"{what}; try again when it is updated or has ended")


def older_hub(tx: sa.Connection, schema: int, now_us: int) -> str | None:
    """Return the name of a hub that is there with an older `SCHEMA_VERSION`; None without one."""
    old = hubs.c.schema.is_(None) | (hubs.c.schema < schema)
    there = (hubs.c.state.in_(("serving", "draining")), hubs.c.seen_at > now_us - OLDER_SEEN_US)
    name: str | None = tx.execute(sa.select(hubs.c.name).where(old, *there).limit(1)).scalar()
    return name


def unsigned_versions(tx: sa.Connection, tenant: str, rollout: str) -> set[tuple[str, int]]:
    """Return gateway and version of each version of a roll-out that waits for its signature."""
    mine = (
        configurations.c.tenant == tenant,
        configurations.c.rollout == rollout,
        configurations.c.signer.is_not(None),
    )
    return {(row.gateway, row.version) for row in tx.execute(_NAMES.where(*mine))}


def gateway_in(tx: sa.Connection, tenant: str, gateway: str) -> ConfigurationRecord | None:
    """Return the configuration record of a gateway; None without one."""
    query = sa.select(*_GATEWAY).where(configured.c.tenant == tenant, configured.c.gateway == gateway)
    row = tx.execute(query).first()
    return None if row is None else configuration_of(row)


def gateways_in(tx: sa.Connection, tenant: str) -> dict[str, ConfigurationRecord]:
    """Return the configuration records of a tenant's gateways by name."""
    rows = tx.execute(sa.select(*_GATEWAY).where(configured.c.tenant == tenant))
    return {row.gateway: configuration_of(row) for row in rows}


def touch(tx: sa.Connection, tenant: str, names: Iterable[str], now_us: int) -> None:
    """Mark gateways as changed, so that the hub sends them their due version again."""
    mine = (configured.c.tenant == tenant, configured.c.gateway == sa.bindparam("at"))
    rows = [{"at": name} for name in names]
    if rows:
        tx.execute(configured.update().where(*mine).values(changed_at=in_order(tx, now_us)), rows)
        notify(tx, NoticeTopic.CONFIGURATIONS)


def contents_in(tx: sa.Connection, tenant: str, but: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return wanted resources within a transaction, see `Configurations.contents`."""
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
    """Return a time for a decision about configurations, later than earlier ones also after a step of the clock."""
    decisions = (sa.func.max(selectors.c.decided_at), sa.func.max(rollouts.c.made_at))
    last = [_changed_last(tx), *(tx.execute(sa.select(each)).scalar() or 0 for each in decisions)]
    return max(now_us, max(last) + 1)


def _changed_last(tx: sa.Connection) -> int:
    last: int | None = tx.execute(sa.select(sa.func.max(configured.c.changed_at))).scalar()
    return last or 0


def configuration_of(row: Sequence[Any]) -> ConfigurationRecord:
    """Return the record of a row with the columns of `ConfigurationRecord`."""
    found = ConfigurationRecord(*row)
    return found._replace(report=_report_of(str(found.report)) if found.report is not None else None)


def _report_of(text: str) -> DesiredReport | None:
    """Decode a report; None if an older version stored an invalid one."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.json.decode(text, type=DesiredReport)
    return None


def _set(tx: sa.Connection, key: Key, before: ConfigurationRecord | None, **values: Any) -> None:
    if before is None:
        whole = {"tenant": key[0], "gateway": key[1], "wanted": 0, "changed_at": 0, **values}
        tx.execute(configured.insert().values(**whole))
    else:
        mine = (configured.c.tenant == key[0], configured.c.gateway == key[1])
        tx.execute(configured.update().where(*mine).values(**values))


def _forget_old(tx: sa.Connection, tenant: str, gateway: str, newest: int) -> None:
    """Delete old versions except the last confirmed one, the last one fit for a roll-back, and the roll-back that
    passed over the first."""
    mine = (configurations.c.tenant == tenant, configurations.c.gateway == gateway)
    light = [configurations.c[name] for name in _PastRow._fields]
    known = [_PastRow(*row) for row in tx.execute(sa.select(*light).where(*mine).order_by(light[0].desc()))]
    confirmed = [each.version for each in known if each.confirmed_at is not None][:1]
    passed = [
        each.version for each in known if any((each.repeats or each.version) < one < each.version for one in confirmed)
    ]
    kept = {*confirmed, *passed[:1], *(each.version for each in fit_versions(known)[:1])}
    old = [each.version for each in known if each.version < newest - VERSIONS_KEPT and each.version not in kept]
    if old:
        tx.execute(configurations.delete().where(*mine, configurations.c.version.in_(old)))


def _reported(
    tx: sa.Connection, key: Key, report: DesiredReport, now_us: int, made: list[FleetEvent]
) -> ConfigurationOffer | None:
    before = gateway_in(tx, *key)
    known = _of_our_versions(tx, key, _with_short_texts(report))
    if before is None or before.reported_at is None or before.report != known:
        _set(tx, key, before, report=msgspec.json.encode(known).decode(), reported_at=now_us)
        made += _note_outcomes(tx, key, known, now_us)
    return _due(tx, key, report)


def _with_short_texts(report: DesiredReport) -> DesiredReport:
    """Return the report with its texts shortened, and without characters that a database refuses."""
    failure, system = report.failure, report.system
    if failure is not None:
        failure = msgspec.structs.replace(failure, why=_shorten(failure.why))
    if system is not None:
        system = msgspec.structs.replace(system, version=_shorten(system.version), why=_shorten(system.why))
    return msgspec.structs.replace(report, failure=failure, system=system)


def _shorten(words: str) -> str:
    shown = line(words)
    return shown if len(shown) <= WHY_CHARACTERS_MAX else f"{shown[:WHY_CHARACTERS_MAX]} …"


def _of_our_versions(tx: sa.Connection, key: Key, report: DesiredReport) -> DesiredReport:
    """Adjust a report to the versions of this registry. In an older copy of the registry, a version of the gateway may
    be another one with the same number; then the wanted one is not in force."""
    number = report.trying or report.version
    mine = (configurations.c.tenant == key[0], configurations.c.gateway == key[1], configurations.c.version == number)
    content = tx.execute(sa.select(configurations.c.content).where(*mine)).scalar()
    # Old versions in force may be deleted here; a version on trial was sent just now.
    is_ours = report.trying is None if content is None else digest_of(content) == report.digest
    if is_ours or not report.digest:
        return report
    why = (
        "the gateway has another version with this number: this registry is an older copy; send the configuration again"
    )
    # The digest is that of the version on trial: if that is unknown here, the one in force may be foreign too.
    in_force = 0 if report.trying is None or content is None else report.version
    return msgspec.structs.replace(
        report, trying=None, version=in_force, failure=ApplyFailure(number, ApplyOutcome.REFUSED, why)
    )


def _note_outcomes(tx: sa.Connection, key: Key, report: DesiredReport, now_us: int) -> Iterator[FleetEvent]:
    """Note what a report says about versions; yield the events about what was not noted yet."""
    mine = configurations.update().where(configurations.c.tenant == key[0], configurations.c.gateway == key[1])
    settled = report.system is None or report.system.phase is SystemPhase.KEPT
    if report.version and settled:
        first = mine.where(configurations.c.version == report.version, configurations.c.confirmed_at.is_(None))
        if tx.execute(first.values(confirmed_at=now_us)).rowcount:
            yield make_event(now_us, EventType.CONFIGURATION_CONFIRMED, *key, str(report.version))
    failed: list[tuple[int, str, str]] = []
    if (failure := report.failure) is not None:
        failed.append((failure.version, failure.outcome.value, f"{failure.outcome.value}: {failure.why}"))
    if (system := report.system) is not None and system.failed:
        failed.append((report.version, system.phase.value, _words_of(system)))
    for version, outcome, words in failed:
        other = configurations.c.failure.is_(None) | (configurations.c.failure != words)
        changed = mine.where(configurations.c.version == version, other).values(failure=words)
        if tx.execute(changed).rowcount:
            yield make_event(now_us, EventType(f"configuration.{outcome}"), *key, str(version), why=words)


def _due(tx: sa.Connection, key: Key, report: DesiredReport) -> ConfigurationOffer | None:
    """Return the newest version that is not withheld, if it is newer than all the gateway has decided about and it
    tries none."""
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
    if row is None or row.version <= report.newest or row.signature == UNSIGNED:
        return None
    return ConfigurationOffer(row.version, SignedDesired(row.content, row.signature))
