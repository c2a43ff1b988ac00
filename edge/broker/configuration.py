"""What the broker is told to be: plain values, no YAML, no files, no defaults of a product.

`edge.configuration.effective` makes one out of resources, a hub makes one out of its own settings, a test
writes one down. Units are in the names: seconds, bytes. Everything here is immutable; a change of configuration is a
new `BrokerConfiguration`, compared with the old one by ``==``, part by part.

What is a `ResourcePart` here is a part of the resources as well: `edge.configuration.resources` holds it as it is.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.connectors.settings import AmqpSettings, HttpSettings, KafkaSettings, MqttSettings
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
    """What a connector speaks with its peer."""

    WAYPOST = "waypost"
    """Batches to a hub; one AMQP message a delivery to a peer that takes no batches."""
    AMQP = "amqp"
    """AMQP 1.0, addresses as the peer has them."""
    MQTT = "mqtt"
    """MQTT 3.1.1, both ways."""
    HTTP = "http"
    """Batches as POST requests, out only."""
    KAFKA = "kafka"
    """Records, out only."""


PORTS: Final = {
    ConnectorType.WAYPOST: (AMQP_PORT, AMQPS_PORT),
    ConnectorType.AMQP: (AMQP_PORT, AMQPS_PORT),
    ConnectorType.MQTT: (1883, 8883),
    ConnectorType.HTTP: (80, 443),
    ConnectorType.KAFKA: (9092, 9093),
}
"""Where a peer listens unless the connector says otherwise: without and with TLS."""


class Protocol(enum.Enum):
    """What clients speak."""

    MQTT = "mqtt"
    AMQP = "amqp"
    HTTP = "http"


class Listener(msgspec.Struct, frozen=True):
    """Where a protocol is spoken, in frames of WebSocket or not, over TLS or not. Of each there is one at most."""

    protocol: Protocol
    endpoint: ListenEndpoint
    websocket: bool = False
    tls: bool = False

    @property
    def name(self) -> str:
        """As the `ready` line has it: ``mqtt``, ``mqtts``, ``mqtt-ws``, ``mqtt-wss`` and so on."""
        return f"{self.protocol.value}{'-ws' if self.websocket else ''}{'s' if self.tls else ''}"

    @property
    def web(self) -> bool:
        """A browser may speak there."""
        return self.websocket or self.protocol is Protocol.HTTP


class AuthenticationMode(enum.Enum):
    """How clients of a space say who they are (EnMasse's authentication services)."""

    NONE = "none"
    STANDARD = "standard"
    EXTERNAL = "external"


class AddressConfiguration(msgspec.Struct, frozen=True):
    """One `Address` resource: the rule for its names and the policy of what falls under it.

    `topic` is the topic a subscription belongs to; empty for every other type.
    """

    rule: AddressRule
    policy: AddressPolicy = AddressPolicy()
    topic: str = ""


@hides("password")
class PeerCredentials(ResourcePart, frozen=True, kw_only=True):
    """User name and password at a remote peer. The password is hidden in `repr`, so it reaches no log."""

    username: Live[str]
    """Who we are there."""
    password: Live[str]
    """In the clear; `get -o yaml` shows it, `describe` and `diff` do not."""
    plain_without_tls: Live[bool] = msgspec.field(default=False, name="plainWithoutTls")
    """Send the password unencrypted where the connector has no `tls`. Without it a connector of type `amqp` uses only
    SCRAM-SHA-256 there, and the other types accept credentials without `tls` for peers on this machine alone."""


@hides("password")
class ConfiguredUser(msgspec.Struct, frozen=True):
    """A user the configuration describes. Without a password only TLS can say that somebody is this user."""

    name: str
    password: str | None = None
    rules: tuple[AccessRule, ...] = ()


class TokenIssuer(ResourcePart, frozen=True, kw_only=True):
    """An OpenID Connect issuer whose bearer tokens say who a client is and what it may do."""

    issuer: Live[Text]
    """Its URL, as tokens name it in `iss`."""
    audience: Live[Text]
    """What tokens have to name in `aud`."""
    user_claim: Live[Text] = "sub"
    """Claim with the user's name."""
    rights_claim: Live[Text] = "scope"
    """Claim with what is allowed, ``operation:filter`` each."""
    ca: Live[str | None] = msgspec.field(default=None, name="caCert")
    """PEM file of the authority its server's certificate is of; without it the system's authorities count."""
    key_hosts: Live[tuple[str, ...]] = ()
    """Hosts its keys may be at beside its own."""
    grace_s: Live[Seconds] = msgspec.field(default=7 * 86_400.0, name="offlineGrace")
    """How long its keys go on counting while it cannot be reached."""


class TlsFiles(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files for TLS towards a remote peer."""

    ca: Live[str | None] = msgspec.field(default=None, name="caCert")
    """Authority of the peer's certificate; without it the system's authorities count."""
    certificate: Live[str | None] = msgspec.field(default=None, name="clientCert")
    """Our certificate; it needs `clientKey`."""
    key: Live[str | None] = msgspec.field(default=None, name="clientKey")
    """Our key."""
    crl: Live[str | None] = None
    """What the authority of the peer's certificate has revoked (RFC 5280 section 5): without a list that is good at the
    moment of a handshake there is no connection. A gateway that has enrolled fetches its hub's itself."""


class TlsVersion(enum.Enum):
    """Lowest version of TLS a listener speaks."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class TlsListener(ResourcePart, frozen=True, kw_only=True):
    """Paths of PEM files for the listeners with TLS. The files are read again when they change, without a restart."""

    certificate: Restart[Text]
    """Our certificate chain."""
    key: Restart[Text]
    """Its key."""
    client_ca: Restart[str | None] = None
    """Authority of client certificates; without it clients are not asked for one."""
    client_required: Restart[bool] = False
    """A client without a certificate is not let in."""
    minimum: Restart[TlsVersion] = TlsVersion.TLS_1_2
    """Lowest version of TLS."""


class DeviceTls(TlsListener, frozen=True, kw_only=True):
    """Those of a gateway's listeners."""

    client_crl: Live[str | None] = None
    """Lists of what the authorities of client certificates have revoked (RFC 5280 section 5), PEM or DER, read again
    when the file changes. Whose certificate is on it is not let in, and has to leave. Without a list that is good
    nobody is let in by certificate, from 24 h behind its end."""


class EndpointHost(ResourcePart, frozen=True, kw_only=True):
    """One address of a remote peer; further ones are for failover."""

    host: Live[Host]
    """Name or address."""
    port: Live[Port | None] = None
    """TCP port; 5672 unless given, with TLS 5671, over WebSocket 80 and 443."""
    websocket: Live[UrlPath | None] = None
    """AMQP is spoken there over WebSocket, at this path of a URL: `/`. On the way it looks like HTTPS, which is all
    that some networks let out."""


class Connector(ResourcePart, frozen=True, kw_only=True):
    """A named remote peer of the space."""

    name: Live[Name]
    """What forwarders call it."""
    hosts: Live[Annotated[tuple[EndpointHost, ...], msgspec.Meta(min_length=1)]] = msgspec.field(name="endpointHosts")
    """Where it is; tried in order, the first being preferred. While links come from a further one, a reconnect begins
    with that, and the first is tried again a quarter of an hour after it has failed."""
    type: Live[ConnectorType] = ConnectorType.WAYPOST
    """What it speaks."""
    container: Live[str] = ""
    """The name we go by there (AMQP container-id; towards a hub the gateway's name); empty: the node's own."""
    tls: Live[TlsFiles | None] = None
    """Without it, plain TCP; `{}` is TLS with the system's authorities."""
    credentials: Live[PeerCredentials | None] = None
    """Who we are, where the peer asks for a password."""
    idle_timeout_s: Live[Seconds | None] = msgspec.field(default=None, name="idleTimeout")
    """AMQP idle timeout we announce."""
    frame_bytes_max: Live[Bytes | None] = msgspec.field(default=None, name="maxFrameSize")
    """AMQP max-frame-size we announce."""
    interface: Live[str | None] = None
    """Network interface its connections leave by; without it as the routes of the system say."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy its connections go through, of type `waypost` or `amqp`."""
    amqp: Live[AmqpSettings | None] = None
    """More of a connector of type `amqp`."""
    mqtt: Live[MqttSettings | None] = None
    """More of a connector of type `mqtt`."""
    http: Live[HttpSettings | None] = None
    """More of a connector of type `http`."""
    kafka: Live[KafkaSettings | None] = None
    """More of a connector of type `kafka`."""
    pace: Live[PaceSettings | None] = None
    """Of a connector to a hub: what it may send of the messages, and when; without it as the link allows."""

    @property
    def endpoints(self) -> tuple[ListenEndpoint, ...]:
        """Where it is, each with its port."""
        usual, framed = (ports[self.tls is not None] for ports in (PORTS[self.type], PORTS[ConnectorType.HTTP]))
        return tuple(
            ListenEndpoint(
                each.host, each.port if each.port is not None else usual if each.websocket is None else framed
            )
            for each in self.hosts
        )

    @property
    def ways(self) -> tuple[PeerRoute, ...]:
        """How it is reached."""
        return tuple(PeerRoute(each, self.proxy) for each in self.endpoints)


class Only(ResourcePart, frozen=True, kw_only=True):
    """What a forwarder carries of what its address has: what all three say. The rest is settled, and no loss."""

    address: Live[str | None] = None
    """Filter of addresses."""
    properties: Live[str | None] = None
    """Selector: the SQL of JMS on application and user properties, as AMQP receivers use it."""
    body: Live[str | None] = None
    """Condition on a JSON body: ``$.temperature > 30 && $.unit == "C"``."""


class ForwarderPart(ResourcePart, frozen=True, kw_only=True):
    """Binds an address to ``<connector>/<address>`` (or ``<connector>``: the same address there)."""

    name: Live[Name]
    """Told apart from other forwarders of the address by it; its place in the store is kept under it."""
    remote_address: Live[Text]
    """``<connector>/<address at the far side>``: a name, a pattern with the wildcards of the address in the same order,
    or a template of ``{address}``, ``{device}`` and ``{gateway}``."""
    direction: Live[Direction] = Direction.OUT
    """Which way messages go, seen from here."""
    priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)]] = 0
    """Higher goes first where several forwarders of a connector have something to send."""
    only: Live[Only | None] = None
    """What it carries; without it everything."""
    qos: Live[Annotated[int, msgspec.Meta(ge=0, le=2)] | None] = None
    """0: sent without an answer, at most once; otherwise until the far side has said that it has it."""
    ttl_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl")
    """How long after its arrival a message is of use at the far side; what is older does not go."""
    message_priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)] | None] = None
    """Priority the far side is told; without it the message's own."""
    backfill: Live[Annotated[str, msgspec.Meta(pattern=PATTERN)]] = "oldest"
    """Of a connector to a hub: in which order goes what was there when its link came up, ``oldest`` or ``newest``
    first; or ``interleave:<live share>``, oldest first, with that share of the link for what comes (``0.8``) and the
    rest for what was there, where both have more than it carries. Otherwise what comes always goes first."""


class Forwarder(ForwarderPart, frozen=True, kw_only=True):
    """A forwarder with what its address adds to it. `name` is unique in a configuration and the same over restarts;
    `remote_address` is the address alone, equal to `filter` when names are kept as they are."""

    filter: str
    """Local address or filter, for example ``plant/#``."""
    connector: str
    """Name of a `Connector`."""


class DeviceIdentity(msgspec.Struct, frozen=True):
    """A user that is a device of the device API."""

    user: str
    """``auth-id@tenant``."""
    device: str
    acts_for: tuple[str, ...] = ()
    """Devices a gateway may speak for; ``*`` for every one of the tenant."""


class DeviceApiType(enum.Enum):
    """Whose way devices speak beside the protocols' own."""

    HONO = "hono"


class DeviceApiPart(ResourcePart, frozen=True, kw_only=True):
    """Eclipse Hono's device API on the space: its topics, paths and addresses for one tenant."""

    type: Restart[DeviceApiType]
    """Whose API it is."""
    tenant: Restart[Name]
    """The tenant all devices of the space belong to."""
    command_ttl_s: Live[Seconds] = msgspec.field(default=3600.0, name="commandTtl")
    """Longest time a command waits for its device."""
    cors_origins: Live[tuple[str, ...]] = msgspec.field(default=(), name="corsAllowedOrigins")
    """Origins of web pages that may send over HTTP as a device; ``*``: of all pages. Empty: of none."""


class DeviceApiConfiguration(DeviceApiPart, frozen=True, kw_only=True):
    """The device API with the devices of its tenant."""

    type: DeviceApiType = DeviceApiType.HONO
    identities: tuple[DeviceIdentity, ...] = ()
    """Users whose device is called otherwise than they, or that act for others."""
    devices: frozenset[str] = frozenset()
    """Devices that are described; empty: none is, and nobody knows which there are."""
    disabled: frozenset[str] = frozenset()
    """Devices nothing is taken from."""


class BrokerConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker is told. The default serves nothing to nobody."""

    space: str = "default"
    gateway: str = ""
    """Name of this node towards others; empty: nobody gave it one."""
    authentication: AuthenticationMode = AuthenticationMode.NONE
    issuer: TokenIssuer | None = None
    """With EXTERNAL: whose tokens are taken."""
    users: tuple[ConfiguredUser, ...] = ()
    """Users described by the configuration; others may have been made by hand."""
    device_api: DeviceApiConfiguration | None = None
    """None: devices use the space's addresses as they are."""
    default_type: AddressType = AddressType.TOPIC
    """Type of every name no rule matches."""
    addresses: tuple[AddressConfiguration, ...] = ()
    quota_bytes: int | None = None
    """Bytes of bodies the space may keep; None: as many as the medium holds above `Limits.free_floor_bytes`."""
    listeners: tuple[Listener, ...] = ()
    """Where clients are served."""
    host_names: tuple[str, ...] = ()
    """Further names the listeners for HTTP and WebSocket are reached under: of a proxy, or in the DNS."""
    tls: DeviceTls | None = None
    """Of the listeners with TLS."""
    legacy_dollar_topics: bool = False
    """A filter of an MQTT 3.1 client that begins with a wildcard matches names that begin with ``$`` too, which MQTT
    3.1 does not set apart; for later versions it must not [MQTT-4.7.2-1]."""
    endurance_bytes: float | None = None
    """What may be written to the medium of the store by its data sheet; None: nobody said."""
    connectors: tuple[Connector, ...] = ()
    forwarders: tuple[Forwarder, ...] = ()
    limits: Limits = Limits()

    def endpoint(self, name: str) -> ListenEndpoint | None:
        """Where the listener of this name is; None where there is none."""
        return next((listener.endpoint for listener in self.listeners if listener.name == name), None)

    @property
    def rules(self) -> list[AddressRule]:
        """The rule of every address, for `addresses.AddressTable`."""
        return [address.rule for address in self.addresses]

    @property
    def policies(self) -> dict[str, AddressPolicy]:
        """The policy of every address that has one, by its rule's pattern; of a subscription by ``topic::name``."""
        return {
            f"{address.topic}::{address.rule.pattern}" if address.topic else address.rule.pattern: address.policy
            for address in self.addresses
            if address.policy != AddressPolicy()
        }

    @property
    def default_rule(self) -> AddressRule:
        """The rule of names nothing else matches."""
        return AddressRule("#", self.default_type)

    def connector(self, name: str) -> Connector:
        """The connector called `name`; `KeyError` when there is none."""
        for connector in self.connectors:
            if connector.name == name:
                return connector
        raise KeyError(name)
