"""Configuration of a broker as plain values: no YAML, no files, no defaults of a product.

`edge.configuration.effective` derives it from resources, a hub from its own settings, and tests write it directly.
Units are in the names: seconds, bytes. All values are immutable. A change is a new `BrokerConfiguration`, which is
compared with the old one by ``==``, part by part.

A class that is a `ResourcePart` is also a part of the resources: `edge.configuration.resources` uses it unchanged.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.connectors.settings import AmqpSettings, HttpSettings, KafkaSettings, MqttSettings, RouterSettings
from bridge.hidden import hides
from bridge.pace import PaceSettings
from bridge.proxy import PeerRoute, Proxy
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.fields import Bytes, Host, Live, Name, Port, ResourcePart, Restart, Seconds, Text, UrlPath
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.authorization import AccessRule
from edge.broker.model.backfill import PATTERN

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671


class Direction(enum.Enum):
    """Which way a forwarder carries messages, seen from this node."""

    OUT = "out"
    IN = "in"


class ConnectorType(enum.Enum):
    """Protocol that a connector uses with its peer."""

    WAYPOST = "waypost"
    """Batches to a hub; single AMQP messages to a peer that takes no batches."""
    AMQP = "amqp"
    """AMQP 1.0, with the addresses of the peer."""
    MQTT = "mqtt"
    """MQTT 3.1.1, both ways."""
    HTTP = "http"
    """Batches as POST requests, out only."""
    KAFKA = "kafka"
    """Records, out only."""
    ROUTER = "router"
    """Neighbour in a network of routers, for direct messages. It has no forwarders."""


PORTS: Final = {
    ConnectorType.WAYPOST: (AMQP_PORT, AMQPS_PORT),
    ConnectorType.AMQP: (AMQP_PORT, AMQPS_PORT),
    ConnectorType.MQTT: (1883, 8883),
    ConnectorType.HTTP: (80, 443),
    ConnectorType.KAFKA: (9092, 9093),
    ConnectorType.ROUTER: (AMQP_PORT, AMQPS_PORT),
}
"""Default ports of peers: without and with TLS."""


class Protocol(enum.Enum):
    """Protocol of clients."""

    MQTT = "mqtt"
    AMQP = "amqp"
    HTTP = "http"


class Listener(msgspec.Struct, frozen=True):
    """Endpoint for one protocol, with or without WebSocket and TLS. There is at most one of each combination."""

    protocol: Protocol
    endpoint: ListenEndpoint
    websocket: bool = False
    tls: bool = False

    @property
    def name(self) -> str:
        """Name in the `ready` line: ``mqtt``, ``mqtts``, ``mqtt-ws``, ``mqtt-wss`` and so on."""
        return f"{self.protocol.value}{'-ws' if self.websocket else ''}{'s' if self.tls else ''}"

    @property
    def web(self) -> bool:
        """Return True when browsers can connect."""
        return self.websocket or self.protocol is Protocol.HTTP


class AuthenticationMode(enum.Enum):
    """Authentication of the clients of a space (EnMasse's authentication services)."""

    NONE = "none"
    STANDARD = "standard"
    EXTERNAL = "external"


class AddressConfiguration(msgspec.Struct, frozen=True):
    """One `Address` resource: the rule for its names, and their policy.

    `topic` is the topic that a subscription belongs to; empty for every other type.
    """

    rule: AddressRule
    policy: AddressPolicy = AddressPolicy()
    topic: str = ""


@hides("password")
class PeerCredentials(ResourcePart, frozen=True, kw_only=True):
    """User name and password at a remote peer. The password is hidden in `repr`, so it reaches no log."""

    username: Live[str]
    """User name at the peer."""
    password: Live[str]
    """Password in plain text; `get -o yaml` shows it, `describe` and `diff` do not."""
    plain_without_tls: Live[bool] = msgspec.field(default=False, name="plainWithoutTls")
    """Send the password unencrypted where the connector has no `tls`. Otherwise a connector of type `amqp` without
    `tls` uses only SCRAM-SHA-256, and the other types accept credentials without `tls` only for peers on this
    machine."""


@hides("password", "password_hash")
class ConfiguredUser(msgspec.Struct, frozen=True):
    """User in the configuration. A user without a password authenticates by TLS only."""

    name: str
    password: str | None = None
    rules: tuple[AccessRule, ...] = ()
    password_hash: str | None = None
    """Hash of the password by another broker (`edge.broker.security.password_hashes`)."""


@hides("client_secret")
class TokenIntrospection(ResourcePart, frozen=True, kw_only=True):
    """Questions to the issuer whether a token is still active (RFC 7662). Without them a token counts until it expires,
    also if the issuer has ended it. Tokens that are not signed (opaque ones) are accepted with them only."""

    client_id: Live[Text]
    """Client that may ask; at Keycloak any confidential client of the realm."""
    client_secret: Live[Text]
    """Secret of this client."""
    interval: Live[Seconds] = 60.0
    """Time for which an answer counts. The connections of a token that was ended at the issuer end within it."""
    grace_s: Live[Seconds] = msgspec.field(default=7 * 86_400.0, name="offlineGrace")
    """Time for which a token is accepted after its last positive answer while the issuer cannot be reached, at most
    until it expires. A token that was never active here is then asked to come again."""


@hides("client_secret")
class TokenIssuer(ResourcePart, frozen=True, kw_only=True):
    """OpenID Connect issuer of bearer tokens, which give a client its user and its rights."""

    issuer: Live[Text]
    """URL of the issuer, as in the claim `iss` of its tokens."""
    audience: Live[Text]
    """Required value of the claim `aud`."""
    user_claim: Live[Text] = "sub"
    """Claim with the user's name."""
    rights_claim: Live[Text] = "scope"
    """Claim with the rights, ``operation:filter`` each."""
    ca: Live[str | None] = msgspec.field(default=None, name="caCert")
    """PEM file of the authority of its server's certificate; without it the authorities of the system."""
    key_hosts: Live[tuple[str, ...]] = ()
    """Further hosts that may serve its keys, in addition to its own."""
    grace_s: Live[Seconds] = msgspec.field(default=7 * 86_400.0, name="offlineGrace")
    """Time for which its keys stay valid while it cannot be reached."""
    client_id: Live[str | None] = None
    """Client by which people sign in at the console: code flow with PKCE. Without it they enter a token. Register
    ``https://NODE/api/v1/session/oidc/callback`` as its redirect URI, and ``…/oidc/logout`` as its backchannel logout
    URL."""
    client_secret: Live[str | None] = None
    """Secret of this client, if the issuer gave it one."""
    scope: Live[Text] = "openid"
    """Scopes that a sign-in requests, separated by spaces; with ``offline_access`` some issuers renew for longer."""
    introspection: Live[TokenIntrospection | None] = None
    """Client that asks the issuer whether tokens are still active; without it only signature and expiry count."""


class TlsFiles(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files for TLS towards a remote peer."""

    ca: Live[str | None] = msgspec.field(default=None, name="caCert")
    """Authority of the peer's certificate; without it the authorities of the system."""
    certificate: Live[str | None] = msgspec.field(default=None, name="clientCert")
    """Our certificate; it needs `clientKey`."""
    key: Live[str | None] = msgspec.field(default=None, name="clientKey")
    """Our key."""
    crl: Live[str | None] = None
    """Revocation list of the authority of the peer's certificate (RFC 5280 section 5). Without a list that is valid at
    the time of a handshake the connection is refused. An enrolled gateway fetches the list of its hub itself."""


class TlsVersion(enum.Enum):
    """Lowest version of TLS that a listener accepts."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class TlsListener(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files for the listeners with TLS. The files are read again when they change, without a restart."""

    certificate: Restart[Text]
    """Certificate chain of the listeners."""
    key: Restart[Text]
    """Its key."""
    client_ca: Restart[str | None] = None
    """Authority of client certificates; without it none is requested."""
    client_required: Restart[bool] = False
    """Refuse clients without a certificate."""
    minimum: Restart[TlsVersion] = TlsVersion.TLS_1_2
    """Lowest version of TLS."""


class OcspMode(enum.Enum):
    """Treatment of a certificate without an answer."""

    SOFT = "soft"
    HARD = "hard"


class ClientOcsp(ResourcePart, frozen=True, kw_only=True):
    """Questions about client certificates to the OCSP responder of their authority (RFC 6960)."""

    mode: Live[OcspMode] = OcspMode.SOFT
    """A certificate without an answer, now or within `offlineGrace`: `soft` accepts it, `hard` refuses it."""
    responder: Live[str | None] = None
    """URL of the responder; without it the one that the certificate names (authority information access)."""
    interval: Live[Seconds] = 3_600.0
    """Longest time for which an answer counts; the responder can name a shorter one (`nextUpdate`). The connection of a
    certificate that was revoked ends within it."""
    grace_s: Live[Seconds] = msgspec.field(default=7 * 86_400.0, name="offlineGrace")
    """Time for which the last positive answer counts after its end while no responder answers, also after a restart."""


class DeviceTls(TlsListener, frozen=True, kw_only=True):
    """TLS files of a gateway's listeners."""

    client_crl: Live[str | None] = None
    """Revocation lists of the authorities of client certificates (RFC 5280 section 5), PEM or DER, read again when the
    file changes. A client with a revoked certificate is refused, and disconnected. From 24 h after the end of the last
    valid list, all clients with certificates are refused."""
    client_ocsp: Live[ClientOcsp | None] = None
    """Ask the authorities of client certificates whether they were revoked; with a list in addition both apply."""


class EndpointHost(ResourcePart, frozen=True, kw_only=True):
    """One endpoint of a remote peer; further ones are for failover."""

    host: Live[Host]
    """Host name or IP address."""
    port: Live[Port | None] = None
    """TCP port; by default 5672, with TLS 5671, over WebSocket 80 and 443."""
    websocket: Live[UrlPath | None] = None
    """Path of a URL for AMQP or MQTT over WebSocket: `/`. To firewalls it looks like HTTPS, which is all that some
    networks let out."""


class Connector(ResourcePart, frozen=True, kw_only=True):
    """Named remote peer of the space."""

    name: Live[Name]
    """Name of the connector, for forwarders."""
    hosts: Live[Annotated[tuple[EndpointHost, ...], msgspec.Meta(min_length=1)]] = msgspec.field(name="endpointHosts")
    """Endpoints of the peer, tried in order; the first is preferred. While another one is in use, reconnects try that
    one first, and the first endpoint again a quarter of an hour after it failed."""
    type: Live[ConnectorType] = ConnectorType.WAYPOST
    """Protocol of the peer."""
    container: Live[str] = ""
    """Our name at the peer (AMQP container-id; at a hub the gateway's name); empty: the node's own name, in a
    `TenantSpace` followed by ``-`` and its name."""
    tls: Live[TlsFiles | None] = None
    """Without it, plain TCP; `{}` is TLS with the system's authorities."""
    credentials: Live[PeerCredentials | None] = None
    """User name and password, where the peer requires them."""
    idle_timeout_s: Live[Seconds | None] = msgspec.field(default=None, name="idleTimeout")
    """AMQP idle timeout that we announce."""
    frame_bytes_max: Live[Bytes | None] = msgspec.field(default=None, name="maxFrameSize")
    """AMQP max-frame-size that we announce."""
    interface: Live[str | None] = None
    """Network interface for its connections; without it the routes of the system decide."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy for its connections; types `waypost`, `amqp` and `router` only."""
    amqp: Live[AmqpSettings | None] = None
    """Further settings of a connector of type `amqp`."""
    mqtt: Live[MqttSettings | None] = None
    """Further settings of a connector of type `mqtt`."""
    http: Live[HttpSettings | None] = None
    """Further settings of a connector of type `http`."""
    kafka: Live[KafkaSettings | None] = None
    """Further settings of a connector of type `kafka`."""
    router: Live[RouterSettings | None] = None
    """Further settings of a connector of type `router`."""
    pace: Live[PaceSettings | None] = None
    """Rates and times for sending messages to a hub; without it as fast as the link allows."""

    @property
    def endpoints(self) -> tuple[ListenEndpoint, ...]:
        """Endpoints of the peer with their ports."""
        usual, framed = (ports[self.tls is not None] for ports in (PORTS[self.type], PORTS[ConnectorType.HTTP]))
        return tuple(
            ListenEndpoint(
                each.host, each.port if each.port is not None else usual if each.websocket is None else framed
            )
            for each in self.hosts
        )

    @property
    def ways(self) -> tuple[PeerRoute, ...]:
        """Endpoints of the peer, each with the proxy that leads to it."""
        return tuple(PeerRoute(each, self.proxy) for each in self.endpoints)


class Only(ResourcePart, frozen=True, kw_only=True):
    """Conditions on the messages that a forwarder sends; all three have to hold. Other messages are settled, which is
    not a loss."""

    address: Live[str | None] = None
    """Filter of addresses."""
    properties: Live[str | None] = None
    """Selector: the SQL of JMS on application and user properties, as AMQP receivers use it."""
    body: Live[str | None] = None
    """Condition on a JSON body: ``$.temperature > 30 && $.unit == "C"``."""


class ForwarderPart(ResourcePart, frozen=True, kw_only=True):
    """Binds an address to ``<connector>/<address>`` (or to ``<connector>``: the same address at the peer)."""

    name: Live[Name]
    """Name that is unique among the forwarders of the address; its cursor in the store is kept under it."""
    remote_address: Live[Text]
    """``<connector>/<address at the far side>``: a name, a pattern with the wildcards of the address in the same order,
    or a template of ``{address}``, ``{device}`` and ``{gateway}``."""
    direction: Live[Direction] = Direction.OUT
    """Direction of the messages, seen from this node."""
    priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)]] = 0
    """Order among the forwarders of a connector that have messages to send: higher goes first."""
    only: Live[Only | None] = None
    """Conditions on messages; without it all are sent."""
    qos: Live[Annotated[int, msgspec.Meta(ge=0, le=2)] | None] = None
    """0: sent without an answer, at most once; otherwise sent until the far side confirms it."""
    ttl_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl")
    """Time after its arrival for which a message is useful at the far side; older messages are not sent."""
    message_priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)] | None] = None
    """Priority of its messages at the far side; without it their own."""
    backfill: Live[Annotated[str, msgspec.Meta(pattern=PATTERN)]] = "oldest"
    """Order in which a connector to a hub sends the messages that were stored when its link came up: ``oldest`` or
    ``newest`` first, after new messages. ``interleave:<live share>`` is oldest first, with that share of a full link
    for new messages and the rest for stored ones (``0.8``)."""


class Forwarder(ForwarderPart, frozen=True, kw_only=True):
    """Forwarder with the settings of its address. `name` is unique in a configuration and the same over restarts.
    `remote_address` is the address alone; it equals `filter` when names are kept."""

    filter: str
    """Local address or filter, for example ``plant/#``."""
    connector: str
    """Name of a `Connector`."""


class DeviceIdentity(msgspec.Struct, frozen=True):
    """User that is a device of the device API."""

    user: str
    """``auth-id@tenant``."""
    device: str
    acts_for: tuple[str, ...] = ()
    """Devices that a gateway may act for; ``*`` for all of the tenant."""


class DeviceApiType(enum.Enum):
    """Device APIs that are supported on top of the protocols."""

    HONO = "hono"


class DeviceApiPart(ResourcePart, frozen=True, kw_only=True):
    """Eclipse Hono's device API on the space: its topics, paths and addresses for one tenant."""

    type: Restart[DeviceApiType]
    """Type of the API."""
    tenant: Restart[Name]
    """Tenant of all devices of the space."""
    command_ttl_s: Live[Seconds] = msgspec.field(default=3600.0, name="commandTtl")
    """Longest time that a command waits for its device."""
    cors_origins: Live[tuple[str, ...]] = msgspec.field(default=(), name="corsAllowedOrigins")
    """Origins of web pages that may send over HTTP as a device; ``*``: all pages. Empty: none."""


class DeviceApiConfiguration(DeviceApiPart, frozen=True, kw_only=True):
    """Device API with the devices of its tenant."""

    type: DeviceApiType = DeviceApiType.HONO
    identities: tuple[DeviceIdentity, ...] = ()
    """Users with another name than their device, or that act for other devices."""
    devices: frozenset[str] = frozenset()
    """Devices in the configuration; empty: none is configured, and any name is accepted."""
    disabled: frozenset[str] = frozenset()
    """Devices from which messages are refused."""


class BrokerConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Complete configuration of a broker. The default has no listeners and no users."""

    space: str = "default"
    hosts: tuple[str, ...] = ()
    """Names of hosts by which clients choose this space; empty for the gateway's own space, which has all others."""
    spaces: tuple[BrokerConfiguration, ...] = ()
    """Further address spaces of the gateway, each with its own name. They have the gateway's limits."""
    gateway: str = ""
    """Name of this node towards peers; empty: it has none."""
    authentication: AuthenticationMode = AuthenticationMode.NONE
    issuer: TokenIssuer | None = None
    """Issuer of accepted tokens, with `AuthenticationMode.EXTERNAL`."""
    users: tuple[ConfiguredUser, ...] = ()
    """Users in the configuration; others may have been added by command."""
    device_api: DeviceApiConfiguration | None = None
    """None: devices use the addresses of the space directly."""
    default_type: AddressType = AddressType.TOPIC
    """Type of every name that no rule matches."""
    addresses: tuple[AddressConfiguration, ...] = ()
    quota_bytes: int | None = None
    """Bytes of bodies that the space may store; None: as many as fit on the medium above `Limits.free_floor_bytes`."""
    listeners: tuple[Listener, ...] = ()
    """Endpoints for clients."""
    host_names: tuple[str, ...] = ()
    """Further host names of the listeners for HTTP and WebSocket: of a proxy, or in the DNS."""
    tls: DeviceTls | None = None
    """TLS of the listeners."""
    legacy_dollar_topics: bool = False
    """Let a filter of an MQTT 3.1 client that begins with a wildcard match names that begin with ``$``, which MQTT 3.1
    does not exclude. Later versions forbid it [MQTT-4.7.2-1]."""
    endurance_bytes: float | None = None
    """Bytes that may be written to the medium of the store by its data sheet; None: unknown."""
    connectors: tuple[Connector, ...] = ()
    forwarders: tuple[Forwarder, ...] = ()
    limits: Limits = Limits()

    def endpoint(self, name: str) -> ListenEndpoint | None:
        """Return the endpoint of the listener of this name, or None."""
        return next((listener.endpoint for listener in self.listeners if listener.name == name), None)

    @property
    def rules(self) -> list[AddressRule]:
        """Rules of all addresses, for `addresses.AddressTable`."""
        return [address.rule for address in self.addresses]

    @property
    def policies(self) -> dict[str, AddressPolicy]:
        """Policies of addresses that have one, by the pattern of their rule; of subscriptions by ``topic::name``."""
        return {
            f"{address.topic}::{address.rule.pattern}" if address.topic else address.rule.pattern: address.policy
            for address in self.addresses
            if address.policy != AddressPolicy()
        }

    @property
    def default_rule(self) -> AddressRule:
        """Rule of names that no other rule matches."""
        return AddressRule("#", self.default_type)

    def connector(self, name: str) -> Connector:
        """Return the connector called `name`. Raises KeyError for an unknown name."""
        for connector in self.connectors:
            if connector.name == name:
                return connector
        raise KeyError(name)
