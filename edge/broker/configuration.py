"""What the broker is told to be: plain values, no YAML, no files, no defaults of a product.

`edge.appliance.configuration` makes one of these out of resources, a hub makes one out of its own settings, a test
writes one down. Units are in the names: seconds, bytes. Everything here is immutable; a change of configuration is a
new `BrokerConfiguration`, compared with the old one by ``==``, part by part.
"""

from __future__ import annotations

import enum

import msgspec

from bridge.hidden import hides
from bridge.resources.endpoint import Endpoint
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.authorization import Rule


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
    HTTP = "http"
    KAFKA = "kafka"


class Authentication(enum.Enum):
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
class Credentials(msgspec.Struct, frozen=True):
    """SASL PLAIN towards a remote peer. The password does not show in `repr`, so not in a log either."""

    username: str
    password: str


@hides("password")
class ConfiguredUser(msgspec.Struct, frozen=True):
    """A user the configuration describes. Without a password only TLS can say that somebody is this user."""

    name: str
    password: str | None = None
    rules: tuple[Rule, ...] = ()


class TokenIssuer(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenID Connect issuer whose bearer tokens say who a client is and what it may do."""

    issuer: str
    """Its URL, as tokens name it in `iss`."""
    audience: str
    """What tokens have to name in `aud`."""
    user_claim: str = "sub"
    """Claim with the user's name."""
    rights_claim: str = "scope"
    """Claim with what is allowed, ``operation:filter`` each."""
    ca: str | None = None
    """PEM file of the authority its server's certificate is of; None: the system's."""
    key_hosts: tuple[str, ...] = ()
    """Hosts its keys may be at beside its own."""
    grace_s: float = 7 * 86_400.0
    """How long its keys go on counting while it cannot be reached."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files for TLS towards a remote peer; without `ca` the system's authorities count."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


class TlsListener(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files for the listeners with TLS: our certificate chain, its key, and who signs clients."""

    certificate: str
    key: str
    client_ca: str | None = None
    """Authority of client certificates; None: clients are not asked for one."""
    client_required: bool = False
    """A client without a certificate is not let in."""
    minimum: str = "1.2"
    """Lowest TLS version, ``1.2`` or ``1.3``."""


class Connector(msgspec.Struct, frozen=True, kw_only=True):
    """A named remote peer. Endpoints are tried in order, the first being preferred."""

    name: str
    endpoints: tuple[Endpoint, ...]
    type: ConnectorType = ConnectorType.WAYPOST
    container: str = ""
    """The name we go by there (AMQP container-id; towards a hub the gateway's name); empty: the node's own."""
    tls: TlsFiles | None = None
    """None for plain TCP."""
    credentials: Credentials | None = None
    idle_timeout_s: float | None = None
    """AMQP idle timeout we announce; None: the limit's."""
    frame_bytes_max: int | None = None
    """AMQP max-frame-size we announce; None: the engine's."""
    interface: str | None = None
    """Network interface its connections leave by; None: as the routes of the system say."""


class Only(msgspec.Struct, frozen=True, kw_only=True):
    """What a forwarder carries of what its address has: what all three say. The rest is settled, and no loss."""

    address: str | None = None
    """Filter of addresses."""
    properties: str | None = None
    """Selector (`edge.broker.message.selector`)."""
    body: str | None = None
    """Condition on a JSON body (`edge.broker.message.json_condition`)."""


class Forwarder(msgspec.Struct, frozen=True, kw_only=True):
    """Binds one address, or every name of a filter, to an address over a connector."""

    name: str
    """Unique in a configuration and the same over restarts: what a forwarder's place in its log is kept under."""
    filter: str
    """Local address or filter, for example ``plant/#``."""
    connector: str
    """Name of a `Connector`."""
    remote_address: str
    """Address at the far side; equal to `filter` when names are kept as they are."""
    direction: Direction = Direction.OUT
    priority: int = 0
    """Higher goes first where several forwarders of a connector have something to send."""
    only: Only | None = None
    """None: everything."""
    qos: int | None = None
    """0: sent without an answer, at most once; None: until the far side has said that it has it."""
    ttl_s: float | None = None
    """How long after its arrival a message is of use at the far side; what is older does not go."""
    message_priority: int | None = None
    """Priority the far side is told, 0 to 9; None: the message's own."""


class DeviceIdentity(msgspec.Struct, frozen=True):
    """A user that is a device of the device API."""

    user: str
    """``auth-id@tenant``."""
    device: str
    acts_for: tuple[str, ...] = ()
    """Devices a gateway may speak for; ``*`` for every one of the tenant."""


class DeviceApi(msgspec.Struct, frozen=True, kw_only=True):
    """Eclipse Hono's device API on the space."""

    tenant: str
    command_ttl_s: float = 3600.0
    """Longest time a command waits for its device."""
    identities: tuple[DeviceIdentity, ...] = ()
    """Users whose device is called otherwise than they, or that act for others."""
    devices: frozenset[str] = frozenset()
    """Devices that are described; empty: none is, and nobody knows which there are."""
    disabled: frozenset[str] = frozenset()
    """Devices nothing is taken from."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may send over HTTP as a device; ``*``: of all pages. Empty: of none."""


class BrokerConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker is told. The default serves nothing to nobody."""

    space: str = "default"
    gateway: str = ""
    """Name of this node towards others; empty: nobody gave it one."""
    authentication: Authentication = Authentication.NONE
    issuer: TokenIssuer | None = None
    """With EXTERNAL: whose tokens are taken."""
    users: tuple[ConfiguredUser, ...] = ()
    """Users described by the configuration; others may have been made by hand."""
    device_api: DeviceApi | None = None
    """None: devices use the space's addresses as they are."""
    default_type: AddressType = AddressType.TOPIC
    """Type of every name no rule matches."""
    addresses: tuple[AddressConfiguration, ...] = ()
    quota_bytes: int | None = None
    """Bytes of bodies the space may keep; None: as many as the medium holds above `Limits.free_floor_bytes`."""
    mqtt: Endpoint | None = None
    amqp: Endpoint | None = None
    http: Endpoint | None = None
    https: Endpoint | None = None
    mqtts: Endpoint | None = None
    amqps: Endpoint | None = None
    mqtt_ws: Endpoint | None = None
    amqp_ws: Endpoint | None = None
    mqtt_wss: Endpoint | None = None
    amqp_wss: Endpoint | None = None
    host_names: tuple[str, ...] = ()
    """Further names the listeners for HTTP and WebSocket are reached under: of a proxy, or in the DNS."""
    tls: TlsListener | None = None
    """Of the listeners whose name ends with s (https, mqtts, amqps, mqtt_wss, amqp_wss)."""
    legacy_dollar_topics: bool = False
    """A filter of an MQTT 3.1 client that begins with a wildcard matches names that begin with ``$`` too, which MQTT
    3.1 does not set apart; for later versions it must not [MQTT-4.7.2-1]."""
    endurance_bytes: float | None = None
    """What may be written to the medium of the store by its data sheet; None: nobody said."""
    connectors: tuple[Connector, ...] = ()
    forwarders: tuple[Forwarder, ...] = ()
    limits: Limits = Limits()

    @property
    def web_endpoints(self) -> tuple[Endpoint | None, ...]:
        """Where HTTP and WebSocket are spoken."""
        return (self.http, self.https, self.mqtt_ws, self.amqp_ws, self.mqtt_wss, self.amqp_wss)

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
