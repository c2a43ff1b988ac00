"""The resources of a gateway: Kubernetes-style YAML with EnMasse's kinds and field names, as types.

`bridge.resources` reads these types, so what is written here is all there is. Types know one value at a time: what
holds between resources is in `validate`; `kinds` registers both.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec

from bridge.hidden import hides
from bridge.resources.fields import Bytes, HostPort, Name, Part, Port, Seconds, read_by
from edge.broker.configuration import Authentication, Direction
from edge.broker.model.address_policy import Durability, WhenFull
from edge.broker.model.addresses import AddressType

DurabilityWord = Annotated[Durability, read_by(Durability.parse, str)]
AddressName = Annotated[str, msgspec.Meta(min_length=1, max_length=65535)]


# --- AddressSpace ----------------------------------------------------------------------------------------------------


class SpaceType(enum.Enum):
    """EnMasse's two kinds of space. Here both speak both protocols, and both keep order."""

    STANDARD = "standard"
    BROKERED = "brokered"


class OidcPart(Part, frozen=True, kw_only=True):
    """An OpenID Connect issuer: clients show its bearer tokens."""

    issuer: Annotated[str, msgspec.Meta(min_length=1)]
    audience: Annotated[str, msgspec.Meta(min_length=1)]
    user_claim: Annotated[str, msgspec.Meta(min_length=1)] = "sub"
    rights_claim: Annotated[str, msgspec.Meta(min_length=1)] = "scope"
    ca_cert: str | None = None
    key_hosts: tuple[str, ...] = ()
    offline_grace: Seconds = 7 * 86_400.0


class AuthenticationService(Part, frozen=True, kw_only=True):
    """`none`, `standard` or `external`: by client certificate, by bearer token (`oidc`), or either."""

    name: Authentication
    oidc: OidcPart | None = None


class EndpointHost(Part, frozen=True, kw_only=True):
    """One address of a remote peer; further ones are for failover."""

    host: Annotated[str, msgspec.Meta(min_length=1)]
    port: Port | None = None


class TlsPart(Part, frozen=True, kw_only=True):
    """TLS towards a remote peer: paths of PEM files; an empty part means the system's authorities."""

    ca_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


@hides("password")
class CredentialsPart(Part, frozen=True, kw_only=True):
    """SASL PLAIN towards a remote peer."""

    username: str
    password: str


class ConnectorPart(Part, frozen=True, kw_only=True):
    """A named remote peer of the space."""

    name: Name
    endpoint_hosts: Annotated[tuple[EndpointHost, ...], msgspec.Meta(min_length=1)]
    container: str = ""
    tls: TlsPart | None = None
    credentials: CredentialsPart | None = None
    idle_timeout: Seconds | None = None
    max_frame_size: Bytes | None = None


class DeviceApiType(enum.Enum):
    """Whose way devices speak beside the protocols' own."""

    HONO = "hono"


class DeviceApiPart(Part, frozen=True, kw_only=True):
    """Eclipse Hono's device API: its topics, paths and addresses for one tenant."""

    type: DeviceApiType
    tenant: Name
    command_ttl: Seconds = 3600.0
    cors_allowed_origins: tuple[str, ...] = ()


class SpaceQuota(Part, frozen=True, kw_only=True):
    """Room in the store for all addresses of the space together, their reserves included."""

    bytes: Bytes


class AddressSpaceSpec(Part, frozen=True, kw_only=True):
    """A group of addresses reachable over one connection."""

    type: SpaceType = SpaceType.STANDARD
    plan: str = ""
    authentication_service: AuthenticationService | None = None
    default_type: AddressType = AddressType.TOPIC
    device_api: DeviceApiPart | None = None
    quota: SpaceQuota | None = None
    connectors: tuple[ConnectorPart, ...] = ()


# --- Address ---------------------------------------------------------------------------------------------------------


class MessageTtl(Part, frozen=True, kw_only=True):
    """Bounds on a message's time to live."""

    minimum: Seconds | None = None
    maximum: Seconds | None = None


class MessageRedelivery(Part, frozen=True, kw_only=True):
    """How often and how soon an unsuccessful delivery is tried again."""

    maximum_delivery_attempts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    redelivery_delay: Seconds = 0.0
    redelivery_delay_multiplier: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    maximum_delivery_delay: Seconds | None = None


class Quota(Part, frozen=True, kw_only=True):
    """Room in the store: at most `bytes`, of which `reserve` is kept free of everybody else."""

    bytes: Bytes | None = None
    reserve: Bytes = 0


class ForwarderPart(Part, frozen=True, kw_only=True):
    """Binds the address to ``<connector>/<address>`` (or ``<connector>``: the same address there)."""

    name: Name
    remote_address: Annotated[str, msgspec.Meta(min_length=1)]
    direction: Direction = Direction.OUT
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0


class AddressSpec(Part, frozen=True, kw_only=True):
    """A name, or a pattern of MQTT's wildcards, and what is promised there."""

    address: AddressName
    type: AddressType
    plan: str = ""
    topic: str = ""
    max_consumers: Annotated[int, msgspec.Meta(ge=1)] | None = None
    message_ttl: MessageTtl | None = None
    message_redelivery: MessageRedelivery | None = None
    deadletter: str | None = None
    expiry: str | None = None
    quota: Quota | None = None
    when_full: WhenFull = WhenFull.REJECT
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 4
    durability: DurabilityWord = Durability()
    forwarders: tuple[ForwarderPart, ...] = ()


# --- MessagingUser, Device -------------------------------------------------------------------------------------------


class UserAuthenticationType(enum.Enum):
    """How a user proves to be one."""

    PASSWORD = "password"  # noqa: S105 - a word of the format
    SERVICEACCOUNT = "serviceaccount"


@hides("password")
class UserAuthentication(Part, frozen=True, kw_only=True):
    """`password` is Base64, as in EnMasse."""

    type: UserAuthenticationType
    password: str | None = None


class Operation(enum.Enum):
    """What may be done with an address."""

    SEND = "send"
    RECV = "recv"
    VIEW = "view"
    MANAGE = "manage"


class AuthorizationPart(Part, frozen=True, kw_only=True):
    """Operations allowed on addresses; without `addresses` on the space as a whole."""

    addresses: tuple[AddressName, ...] = ()
    operations: Annotated[tuple[Operation, ...], msgspec.Meta(min_length=1)]


class DevicePart(Part, frozen=True, kw_only=True):
    """The device a user ``auth-id@tenant`` is, where that is not called as its auth-id, and whom it acts for."""

    id: str = ""
    acts_for: tuple[str, ...] = ()


class MessagingUserSpec(Part, frozen=True, kw_only=True):
    """A user of a space."""

    username: Annotated[str, msgspec.Meta(min_length=1)]
    authentication: UserAuthentication
    authorization: tuple[AuthorizationPart, ...] = ()
    device: DevicePart | None = None


class DeviceSpec(Part, frozen=True, kw_only=True):
    """A device the gateway knows. `via` names the devices that may speak for it."""

    enabled: bool = True
    description: str = ""
    via: tuple[Name, ...] = ()


# --- Gateway ---------------------------------------------------------------------------------------------------------


class TlsVersion(enum.Enum):
    """Lowest version of TLS a listener speaks."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class ListenerTlsPart(Part, frozen=True, kw_only=True):
    """Paths of PEM files for the listeners with TLS. They are read again when they change, without a restart."""

    certificate: Annotated[str, msgspec.Meta(min_length=1)]
    key: Annotated[str, msgspec.Meta(min_length=1)]
    client_ca: str | None = None
    client_required: bool = False
    minimum: TlsVersion = TlsVersion.TLS_1_2


class Listeners(Part, frozen=True, kw_only=True):
    """Where the gateway listens. What is not named is not served.

    `https`, `mqtts`, `amqps` are TLS; `mqttWs`, `amqpWs` WebSocket; `mqttWss`, `amqpWss` WebSocket over TLS.
    `hostNames`: names HTTP and WebSocket are reached under, beside addresses and the machine's own name.
    """

    mqtt: HostPort | None = None
    amqp: HostPort | None = None
    http: HostPort | None = None
    https: HostPort | None = None
    mqtts: HostPort | None = None
    amqps: HostPort | None = None
    mqtt_ws: HostPort | None = None
    amqp_ws: HostPort | None = None
    mqtt_wss: HostPort | None = None
    amqp_wss: HostPort | None = None
    host_names: tuple[str, ...] = ()
    tls: ListenerTlsPart | None = None


class HubPart(Part, frozen=True, kw_only=True):
    """The hub this gateway belongs to. It makes a connector called `hub` that forwarders can name."""

    url: str
    gateway: Name | None = None
    tls: TlsPart | None = None


class MqttPart(Part, frozen=True, kw_only=True):
    """How MQTT is spoken. `legacyDollarTopics`: wildcards of MQTT 3.1 clients match names that begin with ``$`` too, as
    that version says; for 3.1.1 and 5 they never do."""

    legacy_dollar_topics: bool = False


class StoragePart(Part, frozen=True, kw_only=True):
    """The card or disk the data directory is on. `enduranceTerabytes`: what may be written to it by its data sheet."""

    endurance_terabytes: Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None = None


class GatewaySpec(Part, frozen=True, kw_only=True):
    """This node. `limits` may name any field of `edge.broker.limits.Limits`, in camelCase."""

    listeners: Listeners = Listeners()
    hub: HubPart | None = None
    mqtt: MqttPart = MqttPart()
    storage: StoragePart = StoragePart()
    limits: dict[str, Any] = msgspec.field(default_factory=dict)
