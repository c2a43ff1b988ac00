"""Configuration file of the hub: one YAML resource of kind `Hub`, parsed like a gateway's resources.

::

    apiVersion: waypost/v1
    kind: Hub
    spec:
      amqp: 127.0.0.1:5673
      http: 127.0.0.1:8081
      tls: {certificate: hub.pem, key: hub.key, clientCa: gateways.pem}
      gatherMilliseconds: 500
      tenantQuota: {connections: 500, waitingBytes: 32Mi}
      tenants: [{name: acme, quota: {gateways: 20000, bytesPerSecond: 1Mi}}]
      registry: postgresql+psycopg://waypost@db/waypost
      lake: s3://acme-fleet/lake
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import sqlalchemy as sa

from bridge.connectors.limits import KAFKA_MESSAGE_BYTES_MAX
from bridge.connectors.settings import Mechanism
from bridge.dialer import PeerEndpoint
from bridge.hidden import hides
from bridge.resources import parse as language
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.fields import Bytes, Effect, HostPort, ResourcePart, Restart, Text, read_by
from bridge.resources.resource import Errors, Resource, ResourceKind, ResourceKinds, error_at, of_kind
from cloud.hub.enrolment.est import EstServer, EstUrl
from cloud.hub.enrolment.files import GivenAuthority
from cloud.hub.enrolment.limits import GATEWAY_DAYS, GATEWAY_DAYS_MAX, GATEWAY_DAYS_MIN
from cloud.hub.limits import DRAIN_S, DRAIN_S_MAX
from cloud.hub.messaging.settings import TENANT, BrokerSettings
from cloud.hub.peers import DEFAULT_TENANT, tenant_fault
from cloud.hub.registry import location
from cloud.hub.tap.topic_settings import TopicSettings
from cloud.hub.tenants import DEFAULT_QUOTA, Quota, Tenants, quota_fault
from cloud.hub.webhooks.reach import ReachableNetwork
from cloud.lake.limits import GATHER_MS_DEFAULT, GATHER_MS_MAX
from edge.broker.configuration import TlsFiles, TlsListener, TokenIssuer
from edge.broker.http.forwarded import ProxyNetwork
from edge.configuration.issuer import issuer_faults

RegistryUrl = Annotated[sa.URL, read_by(location.parse, str)]


class AuthorityFiles(ResourcePart, frozen=True, kw_only=True):
    """PEM files of the authority that signs the gateways' certificates, instead of the hub's own."""

    certificate: Restart[str]
    """Certificate of the authority."""
    key: Restart[str | None] = None
    """Key of the authority, without a passphrase. Without it, a process ``waypost hub authority`` on the same registry
    signs."""


class EstAuthority(ResourcePart, frozen=True, kw_only=True):
    """Another authority that signs the gateways' certificates, reached by Enrollment over Secure Transport (RFC 7030).

    The hub is its registration authority; it authenticates with a certificate, or with user and password.
    """

    url: Restart[Annotated[EstUrl, read_by(EstUrl.parse, str)]]
    """``https://HOST[:PORT]/.well-known/est``, followed by ``/LABEL`` if the server has several authorities."""
    ca: Restart[str | None] = msgspec.field(default=None, name="caCert")
    """PEM file of the authority that signed the server's certificate; default: the system's authorities."""
    certificate: Restart[str | None] = msgspec.field(default=None, name="clientCert")
    """PEM file of the hub's client certificate; needs `clientKey`."""
    key: Restart[str | None] = msgspec.field(default=None, name="clientKey")
    """Key of the client certificate, without a passphrase."""
    user: Restart[str] = ""
    """User for HTTP Basic; needs `passwordFile`."""
    password_file: Restart[str | None] = None
    """File with the password in its first line."""


class BrokerTls(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files for TLS towards brokers."""

    ca: Restart[str | None] = msgspec.field(default=None, name="caCert")
    """Authority of the brokers' certificates; without it the authorities of the system."""
    certificate: Restart[str | None] = msgspec.field(default=None, name="clientCert")
    """Our certificate; it needs `clientKey`."""
    key: Restart[str | None] = msgspec.field(default=None, name="clientKey")
    """Our key."""
    crl: Restart[str | None] = None
    """Revocation list of the authority of the brokers' certificates (RFC 5280 section 5)."""

    @property
    def files(self) -> TlsFiles:
        """Return the paths as connectors use them."""
        return TlsFiles(ca=self.ca, certificate=self.certificate, key=self.key, crl=self.crl)


class KafkaTap(ResourcePart, frozen=True, kw_only=True):
    """Topic of a Kafka cluster that landed messages are passed on to, for consumers beyond the lake.

    Each commit of the lake is one transaction of the topic. The key of a record is ``tenant/gateway``.
    """

    brokers: Restart[Annotated[tuple[HostPort, ...], msgspec.Meta(min_length=1)]]
    """Brokers to ask first; they name the others."""
    topic: Restart[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")]] = "waypost-telemetry"
    """Topic; create it in the cluster. A new name begins with what lands from then on."""
    tls: Restart[BrokerTls | None] = None
    """Authority of the brokers' certificates, and a certificate of the hub; default: no TLS."""
    user: Restart[str | None] = None
    """User for SASL; needs `passwordFile`."""
    password_file: Restart[str | None] = None
    """File with the password in its first line."""
    mechanism: Restart[Mechanism] = Mechanism.PLAIN
    """SASL mechanism."""
    message_bytes_max: Restart[Bytes] = msgspec.field(default=KAFKA_MESSAGE_BYTES_MAX, name="maxMessageBytes")
    """Largest record with its headers, as the topic accepts it (``max.message.bytes``). A larger message is passed on
    without its body."""

    def settings(self) -> TopicSettings:
        """Return the settings with the password. Raises OSError when its file cannot be read."""
        given = Path(self.password_file).read_text("utf-8").splitlines() if self.password_file is not None else []
        brokers = tuple((each.host, each.port) for each in self.brokers)
        password = None if self.user is None else (given[0] if given else "")
        tls = self.tls.files if self.tls is not None else None
        return TopicSettings(brokers, self.topic, self.mechanism, self.message_bytes_max, self.user, password, tls)


class Messaging(ResourcePart, frozen=True, kw_only=True):
    """Message broker for applications (AMQP 1.0: RabbitMQ 4, ActiveMQ Artemis), in addition to the hub's own spaces.

    All hubs of a registry use the same queues. In an address, ``{tenant}`` stands for the name of the tenant.
    """

    url: Restart[Annotated[PeerEndpoint, read_by(PeerEndpoint.parse, str)]]
    """``amqps://HOST[:PORT]``, or ``amqp://`` without TLS."""
    failover: Restart[tuple[Annotated[PeerEndpoint, read_by(PeerEndpoint.parse, str)], ...]] = ()
    """URLs of further nodes of the broker."""
    tls: Restart[BrokerTls | None] = None
    """Authority of the broker's certificate, and a certificate of the hub; default: the system's authorities."""
    user: Restart[str | None] = None
    """User; needs `passwordFile`."""
    password_file: Restart[str | None] = None
    """File with the password in its first line."""
    tenants: Restart[Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]] = (DEFAULT_TENANT,)
    """Tenants with applications at the broker."""
    commands: Restart[Text] = "waypost.{tenant}.commands"
    """Queue from which commands are taken."""
    outcomes: Restart[Text] = "waypost.{tenant}.outcomes"
    """Queue for outcomes of commands."""
    replies: Restart[Text] = "waypost.{tenant}.replies."
    """Begin of the addresses that a command may name as `reply-to`."""
    copies: Restart[Text | None] = None
    """Address for live copies of messages; default: no copies."""

    @property
    def endpoints(self) -> tuple[PeerEndpoint, ...]:
        """All nodes, the preferred one first."""
        return (self.url, *self.failover)

    def settings(self) -> BrokerSettings:
        """Return the settings with the password. Raises OSError when its file cannot be read."""
        given = Path(self.password_file).read_text("utf-8").splitlines() if self.password_file is not None else []
        needs_tls = any(endpoint.tls for endpoint in self.endpoints)
        return BrokerSettings(
            endpoints=self.endpoints,
            tenants=self.tenants,
            commands=self.commands,
            outcomes=self.outcomes,
            replies=self.replies,
            copies=self.copies,
            user=self.user,
            password=given[0] if given else "",
            tls=(self.tls or BrokerTls()).files if needs_tls else None,
        )


class TenantSettings(ResourcePart, frozen=True, kw_only=True):
    """Tenant with a quota of its own."""

    name: Restart[Text]
    """Name as in the certificates of its gateways and the names of its users."""
    quota: Restart[Quota]
    """Quota that replaces `tenantQuota` as a whole."""


@hides("registry")
class HubSettings(ResourcePart, frozen=True, kw_only=True):
    """Fields of the configuration; options of the command line take precedence."""

    amqp: Restart[HostPort | None] = None
    """Listener for gateways."""
    http: Restart[HostPort | None] = None
    """Listener for console, API and metrics."""
    trusted_proxies: Restart[tuple[Annotated[ProxyNetwork, read_by(ProxyNetwork.parse, str)], ...]] = ()
    """Addresses and networks of HTTP proxies before the hub, as ``10.0.0.0/8``. The hub takes the addresses of their
    clients from ``X-Forwarded-For``: failed sign-ins and requests count for the client, not for the proxy."""
    gather_milliseconds: Restart[Annotated[int, msgspec.Meta(ge=0, le=GATHER_MS_MAX)]] = GATHER_MS_DEFAULT
    """Time to gather messages for one landing."""
    drain_seconds: Restart[Annotated[float, msgspec.Meta(ge=0, le=DRAIN_S_MAX)]] = DRAIN_S
    """Maximum time to close the connections of gateways in slices when the hub stops while other hubs of its registry
    serve; 0: all at once."""
    tls: Restart[TlsListener | None] = None
    """Certificate and key of the AMQP listener, and the authority of the gateways' certificates."""
    authority: Restart[AuthorityFiles | None] = None
    """Authority of the gateways' certificates; default: the hub creates its own in the data directory."""
    est: Restart[EstAuthority | None] = None
    """Another authority that signs the gateways' certificates; default: the hub's own."""
    certificate_days: Restart[Annotated[float, msgspec.Meta(ge=GATEWAY_DAYS_MIN, le=GATEWAY_DAYS_MAX)]] = GATEWAY_DAYS
    """Validity of a gateway's certificate in days."""
    names: Restart[tuple[str, ...]] = ()
    """Names and addresses of the hub for gateways, in addition to the machine's own."""
    applications: Restart[bool] = True
    """Serve address spaces to applications. Their messages are in the data directory: turn this off where the data
    directory does not outlive the hub, as in a pod."""
    ocsp_url: Restart[Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+$")] | None] = None
    """URL of the OCSP service, written into every certificate that the hub's authority signs:
    ``http://HOST/enrolment/ocsp``. For programs without the revocation list."""
    oidc: Restart[TokenIssuer | None] = None
    """Issuer of bearer tokens that name an application or person (``<name>@<tenant>``) and its rights; default:
    passwords (``waypost hub user``)."""
    kafka: Restart[KafkaTap | None] = None
    """Kafka topic that landed messages are passed on to; default: none."""
    messaging: Restart[Messaging | None] = None
    """Message broker for applications; default: none."""
    tenant_quota: Restart[Quota] = DEFAULT_QUOTA
    """Quota of each tenant."""
    tenants: Restart[tuple[TenantSettings, ...]] = ()
    """Tenants with a quota of their own."""
    lake: Restart[str | None] = None
    """Lake: a folder, or ``s3://BUCKET/FOLDER``; default: a folder of the data directory. Endpoint and credentials of
    an object store come from the environment (`cloud.place.options`)."""
    registry: Restart[RegistryUrl | None] = None
    """``postgresql+psycopg://USER@HOST/DATABASE`` or ``sqlite:////ABSOLUTE/PATH``; default: a SQLite file in the data
    directory."""
    bundles: Restart[str | None] = None
    """Folder with the update bundles of gateways (`waypost hub bundle add`), for example one that several hubs share;
    default: a folder of the data directory."""

    webhook_networks: Restart[tuple[Annotated[ReachableNetwork, read_by(ReachableNetwork.parse, str)], ...]] = ()
    """Addresses and networks that the webhooks of tenants may reach, as ``10.0.0.0/8``, besides public addresses.
    Webhooks of the whole fleet and receivers of alerts may reach every address."""

    @property
    def quotas(self) -> Tenants:
        """Quotas of all tenants."""
        return Tenants(self.tenant_quota, {tenant.name: tenant.quota for tenant in self.tenants})

    @property
    def est_server(self) -> EstServer | None:
        """Server of `est`. Raises OSError when its password file cannot be read."""
        if (est := self.est) is None:
            return None
        given = Path(est.password_file).read_text("utf-8").splitlines() if est.password_file is not None else []
        tls = TlsFiles(ca=est.ca, certificate=est.certificate, key=est.key)
        return EstServer(est.url, tls, est.user, given[0] if given else "")

    @property
    def authority_files(self) -> GivenAuthority | None:
        """Files of `authority`."""
        if (given := self.authority) is None:
            return None
        return GivenAuthority(Path(given.certificate), Path(given.key) if given.key is not None else None)


def _tenants(resources: Sequence[Resource]) -> Errors:
    """Report invalid tenants and quotas."""
    for resource, spec in of_kind(resources, HubSettings):
        parts: list[tuple[tuple[str | int, ...], Quota]] = [(("spec", "tenantQuota"), spec.tenant_quota)]
        seen: set[str] = set()
        for place, tenant in enumerate(spec.tenants):
            path = ("spec", "tenants", place)
            parts.append(((*path, "quota"), tenant.quota))
            if fault := tenant_fault(tenant.name):
                yield error_at(resource, (*path, "name"), fault)
            if tenant.name in seen:
                yield error_at(resource, (*path, "name"), f"tenant {tenant.name} is listed twice")
            seen.add(tenant.name)
        for path_, quota in parts:
            if fault := quota_fault(quota):
                yield error_at(resource, path_, fault)


def _oidc(resources: Sequence[Resource]) -> Errors:
    for resource, spec in of_kind(resources, HubSettings):
        if spec.oidc is not None:
            yield from issuer_faults(resource, ("spec", "oidc"), spec.oidc)


def _authority(resources: Sequence[Resource]) -> Errors:
    """Report a registry that the process with the key of the authority could not reach."""
    for resource, spec in of_kind(resources, HubSettings):
        if spec.authority is not None and spec.authority.key is None and spec.registry is None:
            what = "without `key`, `waypost hub authority` signs, which needs the same `registry`: set it"
            yield error_at(resource, ("spec", "authority"), what)


def _est(resources: Sequence[Resource]) -> Errors:
    """Report incomplete credentials of the hub."""
    for resource, spec in of_kind(resources, HubSettings):
        est, path = spec.est, ("spec", "est")
        if est is None:
            continue
        if (est.certificate is None) != (est.key is None):
            yield error_at(resource, path, "clientCert and clientKey belong together")
        if bool(est.user) != (est.password_file is not None):
            yield error_at(resource, path, "user and passwordFile belong together")
        if est.certificate is None and not est.user:
            yield error_at(
                resource, path, "credentials are missing: clientCert and clientKey, or user and passwordFile"
            )
        if spec.tls is not None:
            yield error_at(resource, path, "`est` needs enrolment, which `tls` turns off; remove one of them")


def _kafka(resources: Sequence[Resource]) -> Errors:
    """Report incomplete or unprotected credentials, and a missing client."""
    for resource, spec in of_kind(resources, HubSettings):
        kafka, path = spec.kafka, ("spec", "kafka")
        if kafka is None:
            continue
        if importlib.util.find_spec("aiokafka") is None:
            yield error_at(resource, path, "the client is not installed; install it with: pip install 'waypost[kafka]'")
        if kafka.mechanism is Mechanism.OAUTHBEARER:
            yield error_at(resource, (*path, "mechanism"), "a hub logs in at Kafka with PLAIN or SCRAM only")
        if (kafka.user is None) != (kafka.password_file is None):
            yield error_at(resource, path, "user and passwordFile belong together")
        if kafka.tls is not None and (kafka.tls.certificate is None) != (kafka.tls.key is None):
            yield error_at(resource, (*path, "tls"), "clientCert and clientKey belong together")
        if kafka.user is not None and kafka.tls is None and not all(each.loopback for each in kafka.brokers):
            yield error_at(
                resource,
                path,
                "a password needs `tls`, except for brokers on this machine; `tls: {}` uses "
                "the authorities of the system",
            )


def _messaging(resources: Sequence[Resource]) -> Errors:
    """Report incomplete or unprotected credentials, and addresses that tenants would share."""
    for resource, spec in of_kind(resources, HubSettings):
        broker, path = spec.messaging, ("spec", "messaging")
        if broker is None:
            continue
        if (broker.user is None) != (broker.password_file is None):
            yield error_at(resource, path, "user and passwordFile belong together")
        if broker.tls is not None and (broker.tls.certificate is None) != (broker.tls.key is None):
            yield error_at(resource, (*path, "tls"), "clientCert and clientKey belong together")
        local = ("127.0.0.1", "::1", "localhost")
        if broker.user is not None and not all(each.tls or each.host in local for each in broker.endpoints):
            yield error_at(resource, path, "a password needs amqps://, except for a broker on this machine")
        for tenant in broker.tenants:
            if fault := tenant_fault(tenant):
                yield error_at(resource, (*path, "tenants"), fault)
        named = {"commands": broker.commands, "outcomes": broker.outcomes, "replies": broker.replies}
        for name, template in {**named, "copies": broker.copies}.items():
            if len(broker.tenants) > 1 and template is not None and TENANT not in template:
                yield error_at(resource, (*path, name), f"several tenants need {TENANT} in the address")
        after = broker.replies.rpartition(TENANT)[2][:1]
        if TENANT in broker.replies and (after.isalnum() or after in ("", "-")):
            yield error_at(resource, (*path, "replies"), f"{TENANT} must be followed by a separator, for example a dot")


HUB: Final = ResourceKind("Hub", HubSettings, ("hub",), single=True, default_name="hub", renamed=Effect.RESTART)
KINDS: Final = ResourceKinds((HUB,), (_tenants, _oidc, _authority, _est, _kafka, _messaging))


def load(path: Path) -> HubSettings:
    """Read a configuration file. Raises `ConfigurationRejected`."""
    return _settings(read(path))


def parse(text: bytes, source: str) -> HubSettings:
    """Parse the text of a configuration; `source` is its name. Raises `ConfigurationRejected`."""
    return _settings(_only(language.parse(KINDS, text, source), source))


def read(path: Path) -> Resource:
    """Read the resource of a file. Raises `ConfigurationRejected`."""
    return _only(language.read(KINDS, [str(path)]), str(path))


def _settings(resource: Resource) -> HubSettings:
    if not isinstance(resource.spec, HubSettings):
        raise TypeError(resource.kind)
    return resource.spec


def _only(resources: Sequence[Resource], source: str) -> Resource:
    errors = KINDS.validate(resources)
    if not resources:
        errors = [ConfigurationError(source, 0, "", "expected one resource of kind Hub, found none")]
    if errors:
        raise ConfigurationRejected(errors)
    return resources[0]
