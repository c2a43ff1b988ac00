"""Configuration of a hub process, and opening of its data directory: registry, lake, authority."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.data import writer_id
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority
from cloud.hub.enrolment.files import (
    AuthorityFileError,
    Enroller,
    ServerCertificate,
    connect_registration,
    load_authority,
)
from cloud.hub.enrolment.registration import Registration
from cloud.hub.limits import DRAIN_S
from cloud.hub.messaging.settings import BrokerSettings
from cloud.hub.older_copy import OlderCopyNotice, OlderCopySign
from cloud.hub.registry.commit_states import TELEMETRY
from cloud.hub.registry.faults import RegistryUnreachable
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.hub.tap.job import TapJob
from cloud.hub.tap.service import HubTap
from cloud.hub.tap.topic_settings import TopicSettings
from cloud.hub.tenants import Tenants
from cloud.hub.webhooks.reach import ReachableNetwork
from cloud.lake.contract import contract
from cloud.lake.delta import DeltaLake
from cloud.lake.faults import CannotLand
from cloud.lake.landing import Landing
from cloud.lake.limits import GATHER_MS_DEFAULT
from cloud.place.place import LakePlace, place_of
from edge.broker.configuration import TlsListener, TokenIssuer
from edge.broker.http.forwarded import ProxyNetwork

REGISTRY = "registry.db"
"""Registry file in the data directory, if no other registry is configured."""

LAKE = "lake"
"""Folder of the lake in the data directory, if no other place is configured."""


class HubError(Exception):
    """The hub cannot start; the message says why and what to do, on one line."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        """`unreachable`: a server that the hub needs does not answer."""
        super().__init__(message)
        self.unreachable = unreachable


@hides("registry")
@dataclass(frozen=True, slots=True)
class HubConfiguration:
    """Configuration of a hub process. `registry`: None for SQLite in the data directory."""

    data: Path
    amqp: ListenEndpoint
    http: ListenEndpoint
    dev: bool
    gather_ms: int = GATHER_MS_DEFAULT
    registry: sa.URL | None = None
    tls: TlsListener | None = None
    """Certificate of the listeners; None without TLS, or for the hub's own certificate."""
    enroller: Enroller | None = None
    """None if gateways cannot enrol: development mode, or certificates of another authority."""
    tenants: Tenants = field(default_factory=Tenants)
    """Quotas of the tenants."""
    lake: LakePlace | None = None
    """None for a folder of the data directory."""
    oidc: TokenIssuer | None = None
    """Issuer of the users' tokens; None if they have passwords."""
    applications: bool = True
    """Serve address spaces to applications."""
    drain_s: float = DRAIN_S
    """Maximum time to close connections at the end while other hubs serve."""
    kafka: TopicSettings | None = None
    """Topic that landed messages are passed on to."""
    messaging: BrokerSettings | None = None
    """Message broker for applications."""
    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    """HTTP proxies that tell the addresses of their clients."""
    bundles: str | None = None
    """Folder with the update bundles of gateways; None for a folder of the data directory."""
    webhook_networks: tuple[ReachableNetwork, ...] = ()
    """Networks that webhooks of tenants may reach, besides public addresses."""

    @property
    def registry_url(self) -> sa.URL:
        """URL of the registry: the configured one, or the file in the data directory."""
        return self.registry or sqlite_url(self.data / REGISTRY)

    @property
    def lake_place(self) -> LakePlace:
        """Place of the lake: the configured one, or the folder of the data directory."""
        return self.lake or place_of(self.data / LAKE)


class ListenerCredentials(NamedTuple):
    """Authority, certificate and registration of a hub with enrolment."""

    enroller: Enroller
    authority: KnownAuthority
    """An `OwnAuthority` if the key is here."""
    server: ServerCertificate
    registration: Registration | None
    """None if the hub's own authority signs the gateways' certificates."""


class OpenedHub(NamedTuple):
    """Open data directory. Registry and landing are for the thread that opened them."""

    registry: Registry
    landing: Landing
    lake: str
    """Identity of the lake."""
    own: ListenerCredentials | None = None
    """Set if gateways can enrol."""


def open_data(configuration: HubConfiguration) -> OpenedHub:
    """Open and recover registry and lake of a data directory. Raises `HubError`, `DataError`. Blocks."""
    data = configuration.data
    try:
        own = own_credentials(data, configuration.enroller) if configuration.enroller is not None else None
        registry = Registry(configuration.registry_url, writer_id(data))
        try:
            versions = {table: registry.commits.confirmed_version(table) for table in contract().tables}
            checkpoints = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
            lake = DeltaLake(configuration.lake_place, durable_versions=versions, start=checkpoints.submit)
            registry.commits.write_to(lake, partial(OlderCopyNotice(data).add, OlderCopySign.LAKE))
            registry.directory.mark_all_disconnected()
            registry.directory.admission.limit_to(lambda tenant: configuration.tenants.of(tenant).gateways)
            landing = Landing(lake, registry.commits)
            return OpenedHub(registry, landing, lake.identity, own)
        except BaseException:
            registry.close()
            raise
    except AuthorityFileError as error:
        raise HubError(str(error)) from error
    except CannotLand as error:
        raise HubError(f"{data}: {error}", unreachable=isinstance(error, RegistryUnreachable)) from error


def make_tap(configuration: HubConfiguration, lake: str, hub: str, now_us: Callable[[], int]) -> HubTap:
    """Return the tap of a hub; without a topic in the configuration it does nothing.

    `lake`: its identity; `hub`: writer id; `now_us`: UTC microseconds.
    """
    registry, topic = configuration.registry_url, configuration.kafka
    if topic is None:
        return HubTap(None, lake, registry, now_us)
    place = configuration.lake_place.uri
    url = registry.render_as_string(hide_password=False)
    return HubTap(TapJob(hub, place, TELEMETRY, url, topic), lake, registry, now_us)


def own_credentials(data: Path, enroller: Enroller) -> ListenerCredentials:
    """Load the authority and the hub's own certificate; create missing ones. Raises `AuthorityFileError`."""
    authority = load_authority(data, enroller.authority_files, time.time())
    if isinstance(authority, OwnAuthority):
        authority.name_hub(frozenset(str(name).lower() for name in enroller.names), enroller.ocsp_url)
    registration = connect_registration(data, authority, enroller.est) if enroller.est is not None else None
    clients = registration.file if registration is not None else None
    server = ServerCertificate(data, authority, enroller.names, clients)
    server.keep(time.time())
    return ListenerCredentials(enroller, authority, server, registration)
