"""Configuration from the hub: the operator who requests versions, the registry of versions, and the gateway's files.

Product code makes, offers, tries, confirms and rolls back versions: the tables of `cloud.hub.registry` in an SQLite
database in memory, `cloud.hub.desired.service`, and `edge.configuration.trials` with the real repository over files on
the simulated card. Each version has a *mark*, a number in its content. The history distinguishes versions by their
marks, independent of version numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from unittest import mock

import msgspec
import sqlalchemy as sa

from bridge.desired import DesiredError, DesiredReport, SignedDesired, VerifiedDesired, read
from cloud.hub.desired import service
from cloud.hub.desired.making import ConfigurationTables
from cloud.hub.desired.service import DesiredConfigurations, make_signer
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.groups import Key
from cloud.hub.registry.configurations import (
    ConfigurationOffer,
    ConfigurationRecord,
    Configurations,
    VersionRecord,
    WantedConfiguration,
    gateway_in,
)
from cloud.hub.registry.gateway_pages import GatewayPages
from cloud.hub.registry.rollouts import Rollouts
from cloud.hub.registry.schema import gateways, open_schema
from cloud.hub.registry.selectors import Selectors
from cloud.lake.faults import RegistryError
from edge.configuration import following, repository, trials
from edge.configuration.file import Mark, RepositoryError
from edge.configuration.hub_versions import HubVersions, Version
from tests.simulation.environment import wall_ns
from tests.simulation.gateway import NAME, OWN, managed
from tests.simulation.history import History
from tests.simulation.medium import Card
from tests.simulation.registry import Database
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sql import SqlDatabase, empty, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bridge.resources.resource import Resource
    from edge.broker.configuration import BrokerConfiguration
    from edge.configuration.options import RunOptions

TENANT: Final = "default"
CONFIRM_S: Final = 2.0
LOOKED_AT_S: Final = 0.3
"""Polling interval of a hub: shorter than the product's, so that a run sees more than one version."""
CLOCK_NS: Final = -3_600_000_000_000
"""Offset of the operator's clock, which is independent of the hub's clock."""
AGAIN_S: Final = 0.5
"""Interval in which the operator checks that the last requested version is in force."""

SOUND: Final = ("a forwarder", "another forwarder", "nothing", "a restart")
"""Kinds of versions that a gateway can confirm."""
KINDS: Final = (*SOUND, "no uplink", "no connector", "no start", "no leave to restart")


def resources_of(kind: str, mark: int) -> list[dict[str, Any]]:
    """Return the resources of a version of this kind."""
    documents = [_address("mark", f"unused/{mark}", [])]
    if kind == "a forwarder":
        documents.append(_address("managed", "plant/a/#", [{"name": "a", "remoteAddress": "hub"}]))
    elif kind == "another forwarder":
        documents.append(_address("managed", "plant/b/1", [{"name": "b", "remoteAddress": "hub"}]))
    elif kind == "no connector":
        documents.append(_address("managed", "plant/a/#", [{"name": "a", "remoteAddress": "elsewhere"}]))
    elif kind == "no uplink":
        documents.append(_gateway({"hub": {"url": "amqp://nowhere:5672"}}))
    elif kind in ("a restart", "no leave to restart"):
        documents.append(_gateway({"listeners": {"hostNames": [f"host{mark}"]}}))
    elif kind == "no start":
        documents.append(_gateway({"listeners": {"http": f"{NAME}:1"}}))
    return documents


def _address(name: str, address: str, forwarders: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {"address": address, "type": "topic", "forwarders": forwarders}
    return {"apiVersion": "waypost/v1", "kind": "Address", "metadata": {"name": name}, "spec": spec}


def _gateway(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "waypost/v1", "kind": "Gateway", "metadata": {"name": NAME}, "spec": spec}


def mark_in(documents: Sequence[Mapping[str, Any]]) -> int:
    """Return the mark of a version's content, or 0 for no version."""
    found = [each["spec"]["address"] for each in documents if each["metadata"]["name"] == "mark"]
    return int(found[0].removeprefix("unused/")) if found else 0


# --- the hub's registry -----------------------------------------------------------------------------------------------


def _fill(tx: sa.Connection) -> None:
    """Create a registry in which one gateway has connected once."""
    open_schema(tx)
    row = {column.name: nothing(column) for column in gateways.columns}
    tx.execute(gateways.insert().values({**row, "tenant": TENANT, "name": NAME}))


class VersionsDatabase(SqlDatabase):
    """Database of a registry with one gateway."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, empty(_fill))


class RecordedConfigurations(Configurations):
    """Records what the hub knows of its gateway."""

    def __init__(self, database: VersionsDatabase, history: History) -> None:
        super().__init__(cast(Any, database))
        self._versions = database
        self._history = history

    def reported(self, reports: Sequence[tuple[Key, DesiredReport]], now_us: int) -> list[ConfigurationOffer | None]:
        def work(tx: sa.Connection) -> tuple[ConfigurationRecord | None, str | None]:
            known = gateway_in(tx, TENANT, NAME)
            return known, _content(tx, known.wanted) if known is not None else None

        offers = super().reported(reports, now_us)
        known, content = self._versions.transaction(work)
        if known is not None:
            for _, report in reports:
                self._history.record("told", report.trying or 0)
            mark = mark_in(read(content).resources) if content is not None else 0
            self._history.record("known of versions", mark, known.state)
        return offers


def _content(tx: sa.Connection, version: int) -> str | None:
    query = sa.text("SELECT content FROM configurations WHERE version = :version")
    return cast("str | None", tx.execute(query, {"version": version}).scalar())


class SimulatedAuthority(OwnAuthority):
    """Signs documents that the gateway of this world trusts. The same in each process, unlike a generated key."""

    def __init__(self) -> None:
        """Make one without a certificate."""

    def sign(self, statement: bytes) -> bytes:
        return hashlib.sha256(b"authority" + statement).digest()


AUTHORITY: Final = SimulatedAuthority()


def desired_of_a_hub(scheduler: Scheduler) -> DesiredConfigurations:
    """Return the configuration service of one hub process; the caller opens it."""
    return DesiredConfigurations(AUTHORITY, sa.make_url("sqlite://"), now=lambda: wall_ns(scheduler) / 1e9)


def verified(signed: SignedDesired) -> VerifiedDesired:
    """Verify a document in place of `edge.appliance.identity.signature.verify`."""
    if signed.signature != make_signer(AUTHORITY)(signed.content):
        raise DesiredError("its signature is not from the authority at which this gateway enrolled")
    return VerifiedDesired(read(signed.content), "authority")


class Operator:
    """Operator who requests configurations of the gateway with `waypost config apply`, outside of the hub."""

    def __init__(self, scheduler: Scheduler, database: VersionsDatabase, history: History) -> None:
        self.kinds: dict[int, str] = {}
        """Kind of each version, by mark."""
        self._scheduler = scheduler
        self._database = database
        self._configurations = RecordedConfigurations(database, history)
        self._history = history
        self._process = Process("operator")
        self._process.clock_offset_ns = CLOCK_NS
        self._at_last = False

    def want(self, kind: str) -> None:
        """Request a version of this kind."""
        self._scheduler.enter(self._process)
        mark = len(self.kinds) + 1
        self.kinds[mark] = kind
        wanted = WantedConfiguration(
            TENANT, NAME, resources_of(kind, mark), CONFIRM_S, kind != "no leave to restart", "anna", ""
        )
        self._database.back_up()
        self._history.record("wanted", mark, kind)
        try:
            [made] = self._configurations.set_wanted(
                [wanted], wall_ns(self._scheduler) // 1_000, make_signer(AUTHORITY)
            )
        except RegistryError:
            return  # it may be stored nevertheless
        self._history.record("version", made.version, mark)

    def want_nothing_more(self) -> None:
        """Request from now on only valid versions; request the last one again if the gateway rejected it."""
        if self.kinds and not self._at_last:
            self._at_last = True
            self._want_again()

    @property
    def unsettled(self) -> str:
        """Describe what is pending; empty when the requested version is in force and the hub knows it."""
        known = self._known() if self.kinds else None
        settled = not self.kinds or (known is not None and known.state == "confirmed")
        return "" if settled else "the hub's configuration is not in force"

    def newest(self) -> int:
        """Return the mark of the requested version, or 0 without one."""
        if not self.kinds:
            return 0
        versions: list[VersionRecord] = self._configurations.versions(TENANT, NAME)
        return mark_in(versions[0].desired.resources)

    def _known(self) -> ConfigurationRecord | None:
        found = self._configurations.gateways(TENANT)
        return found[0] if found else None

    def _want_again(self) -> None:
        known = self._known()
        if known is None or not known.wanted or known.failed or self.kinds[self.newest()] != "nothing":
            self.want("nothing")
        self._scheduler.after(AGAIN_S, self._process, self._want_again)


# --- the gateway's files ----------------------------------------------------------------------------------------------


class CardFile:
    """Replaces `edge.configuration.file.ConfigurationFile` with the card of one world."""

    def __init__(self, card: Card, path: Path, content: type[Any], layout: int, *, damaged: str) -> None:
        self.path = path
        self._card = card
        self._content = content

    def mark(self) -> Mark | None:
        kept = self._card.contents.files.get(self.path.name)
        return None if kept is None else (kept[0], 0, 0)

    def read(self) -> Any:
        kept = self._card.contents.files.get(self.path.name)
        return None if kept is None else msgspec.json.decode(kept[1], type=self._content)

    def write(self, content: Any) -> None:
        if self._card.failure is not None:
            raise RepositoryError(str(self._card.failure))
        files = self._card.contents.files
        files[self.path.name] = (len(files) + sum(number for number, _ in files.values()), msgspec.json.encode(content))
        if self.path.name == "hub.json":
            self._record(content.versions)

    def failed(self, verb: str, why: OSError) -> RepositoryError:
        return RepositoryError(f"cannot {verb}: {why}")

    def _record(self, known: HubVersions) -> None:
        self._card.history.record("versions", known.newest, *_of(known.confirmed), *_of(known.trial))


def _of(version: Version | None) -> tuple[int, int]:
    """Return (number, mark)."""
    return (0, 0) if version is None else (version.number, mark_in(version.resources))


@contextmanager
def simulated_configurations(card: Card, database: VersionsDatabase, history: History) -> Iterator[None]:
    """Give hubs this registry of versions, and put the gateway's files on this card."""

    def opened(_url: sa.URL) -> Any:
        database.transaction(lambda _tx: None)
        kept = cast(Any, database)
        configurations = RecordedConfigurations(database, history)
        tables = ConfigurationTables(configurations, Rollouts(kept), Selectors(kept), GatewayPages(kept))
        return service._Registry(kept, tables)

    def configuration_of(_options: RunOptions, resources: Sequence[Resource]) -> BrokerConfiguration:
        return managed(resources)

    card.contents.files["resources.json"] = (0, msgspec.json.encode({"format": 1, "version": 1, "resources": OWN}))
    with ExitStack() as patches:
        for owner, attribute, replacement in (
            (service, "_open", opened),
            (service, "CONFIGURATIONS_CHECK_INTERVAL_S", LOOKED_AT_S),
            (repository, "ConfigurationFile", partial(CardFile, card)),
            (repository.Repository, "_locked", lambda _self: nullcontext()),
            (trials, "is_held", lambda _data: False),
            (following, "configuration_of", configuration_of),
        ):
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
