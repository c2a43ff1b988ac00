"""The resources of a gateway: Kubernetes-style YAML with EnMasse's kinds and field names, as types.

`bridge.resources` reads these types, so what is written here is all there is. Parts the broker is told as they are
belong to it (`edge.broker.configuration`). Types know one value at a time: what holds between resources is in
`validate`; `kinds` registers both.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.hidden import hides
from bridge.pace import HOURS
from bridge.proxy import Proxy
from bridge.resources.fields import Bytes, HostPort, Kept, Live, Name, ResourcePart, Restart, Seconds, Text
from edge.broker.configuration import (
    AuthenticationMode,
    Connector,
    DeviceApiPart,
    DeviceTls,
    ForwarderPart,
    Protocol,
    TlsFiles,
    TokenIssuer,
)
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressType
from edge.broker.model.authorization import Operation

AddressName = Annotated[str, msgspec.Meta(min_length=1, max_length=65535)]


# --- AddressSpace ----------------------------------------------------------------------------------------------------


class SpaceType(enum.Enum):
    """EnMasse's two kinds of space. Here both speak both protocols, and both keep order."""

    STANDARD = "standard"
    BROKERED = "brokered"


class AuthenticationService(ResourcePart, frozen=True, kw_only=True):
    """How clients say who they are."""

    name: Live[AuthenticationMode]
    """`none`, `standard` (name and password) or `external`: by client certificate, by bearer token, or either."""
    oidc: Live[TokenIssuer | None] = None
    """With `external`: whose tokens are taken."""


class AddressSpaceSpec(ResourcePart, frozen=True, kw_only=True):
    """A group of addresses reachable over one connection."""

    type: Kept[SpaceType] = SpaceType.STANDARD
    """As EnMasse has it; here both are alike."""
    plan: Kept[str] = ""
    """As EnMasse has it."""
    authentication_service: Live[AuthenticationService | None] = None
    """How clients say who they are; without it they have to where a listener is reached from other machines."""
    default_type: Live[AddressType] = AddressType.TOPIC
    """Type of every name no address describes."""
    device_api: Restart[DeviceApiPart | None] = None
    """Without it devices use the space's addresses as they are."""
    quota_bytes: Live[Bytes | None] = msgspec.field(default=None, name="quota.bytes")
    """Room in the store for all addresses of the space together, their reserves included; without it as much as the
    medium holds above `limits.freeFloorBytes`."""
    connectors: Live[tuple[Connector, ...]] = ()
    """Remote peers that forwarders can name."""


# --- Address ---------------------------------------------------------------------------------------------------------


class AddressSpec(AddressPolicy, frozen=True, kw_only=True):
    """A name, or a pattern of MQTT's wildcards, and what is promised there."""

    address: Live[AddressName]
    """The name or pattern."""
    type: Live[AddressType]
    """What kind of promise it is."""
    plan: Kept[str] = ""
    """As EnMasse has it."""
    topic: Live[str] = ""
    """The topic a subscription belongs to."""
    forwarders: Live[tuple[ForwarderPart, ...]] = ()
    """Where its messages go on to, or come from."""


# --- MessagingUser, Device -------------------------------------------------------------------------------------------


class UserAuthenticationType(enum.Enum):
    """How a user proves to be one."""

    PASSWORD = "password"  # noqa: S105 - a word of the format
    SERVICEACCOUNT = "serviceaccount"


@hides("password")
class UserAuthentication(ResourcePart, frozen=True, kw_only=True):
    """How a user proves to be one."""

    type: Kept[UserAuthenticationType]
    """As EnMasse has it; a user with a password is asked for it."""
    password: Live[str | None] = None
    """In Base64, as in EnMasse. Without one only TLS can say that somebody is this user."""


class AuthorizationPart(ResourcePart, frozen=True, kw_only=True):
    """Operations allowed on addresses."""

    addresses: Live[tuple[AddressName, ...]] = ()
    """Topic filters in which `%u` stands for the user and `%c` for the client; without any, the space as a whole."""
    operations: Live[Annotated[tuple[Operation, ...], msgspec.Meta(min_length=1)]]
    """What is allowed."""


class DevicePart(ResourcePart, frozen=True, kw_only=True):
    """The device a user ``auth-id@tenant`` is, and whom it acts for."""

    id: Live[str] = ""
    """The device, where it is not called as its auth-id."""
    acts_for: Live[tuple[str, ...]] = ()
    """Devices it may speak for; `*`: every one of the tenant."""


class MessagingUserSpec(ResourcePart, frozen=True, kw_only=True):
    """A user of a space."""

    username: Live[Text]
    """The name it logs in with."""
    authentication: Live[UserAuthentication]
    """How it proves to be the user."""
    authorization: Live[tuple[AuthorizationPart, ...]] = ()
    """What it may do; everything else is denied."""
    device: Live[DevicePart | None] = None
    """The device it is, where the space has the device API."""


class DeviceSpec(ResourcePart, frozen=True, kw_only=True):
    """A device the gateway knows."""

    enabled: Live[bool] = True
    """Nothing is taken from a device that is not."""
    description: Kept[str] = ""
    """For people."""
    via: Live[tuple[Name, ...]] = ()
    """Devices that may speak for it."""


# --- Gateway ---------------------------------------------------------------------------------------------------------


class ListenerSpec(ResourcePart, frozen=True, kw_only=True):
    """Where the gateway listens. What is not named is not served."""

    mqtt: Restart[HostPort | None] = None
    """MQTT 3.1, 3.1.1 and 5."""
    amqp: Restart[HostPort | None] = None
    """AMQP 1.0."""
    http: Restart[HostPort | None] = None
    """Console, API and metrics."""
    https: Restart[HostPort | None] = None
    """The same over TLS."""
    mqtts: Restart[HostPort | None] = None
    """MQTT over TLS."""
    amqps: Restart[HostPort | None] = None
    """AMQP over TLS."""
    mqtt_ws: Restart[HostPort | None] = None
    """MQTT over WebSocket."""
    amqp_ws: Restart[HostPort | None] = None
    """AMQP over WebSocket."""
    mqtt_wss: Restart[HostPort | None] = None
    """MQTT over WebSocket and TLS."""
    amqp_wss: Restart[HostPort | None] = None
    """AMQP over WebSocket and TLS."""
    host_names: Restart[tuple[str, ...]] = ()
    """Names HTTP and WebSocket are reached under, beside addresses and the machine's own name."""
    tls: Restart[DeviceTls | None] = None
    """Certificate and key of the listeners with TLS."""


SHORT_FORMS: Final = {
    "mqtt": (Protocol.MQTT, False, False),
    "amqp": (Protocol.AMQP, False, False),
    "http": (Protocol.HTTP, False, False),
    "mqtt_ws": (Protocol.MQTT, True, False),
    "amqp_ws": (Protocol.AMQP, True, False),
    "https": (Protocol.HTTP, False, True),
    "mqtts": (Protocol.MQTT, False, True),
    "amqps": (Protocol.AMQP, False, True),
    "mqtt_wss": (Protocol.MQTT, True, True),
    "amqp_wss": (Protocol.AMQP, True, True),
}
"""(Protocol, WebSocket?, TLS?) of the fields of `ListenerSpec` that are one."""


class HubPart(ResourcePart, frozen=True, kw_only=True):
    """The hub this gateway belongs to. It makes a connector called `hub` that forwarders can name."""

    url: Live[str]
    """``amqps://host:port``, or over WebSocket, which looks like HTTPS on the way, ``wss://host:port``; `amqp` and `ws`
    without TLS."""
    failover: Live[tuple[str, ...]] = ()
    """Further URLs of the same hub, tried in order where the one before gives no link. While links come from one of
    them, a reconnect begins with it, and `url` is tried again a quarter of an hour after it has failed."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy through which the hub is reached; the gateway enrols and renews its certificate through it, too."""
    gateway: Live[Name | None] = None
    """The gateway's name at the hub, where it is not the resource's."""
    tls: Live[TlsFiles | None] = None
    """Certificates, with `amqps` and `wss`."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, in order."""
        return (self.url, *self.failover)


class GatewaySpec(ResourcePart, frozen=True, kw_only=True):
    """This node."""

    listeners: Restart[ListenerSpec] = ListenerSpec()
    """Where it listens."""
    hub: Live[HubPart | None] = None
    """The hub it belongs to."""
    legacy_dollar_topics: Live[bool] = msgspec.field(default=False, name="mqtt.legacyDollarTopics")
    """Wildcards of MQTT 3.1 clients match names that begin with ``$`` too, as that version says; for 3.1.1 and 5 they
    never do."""
    endurance_terabytes: Live[Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None] = msgspec.field(
        default=None, name="storage.enduranceTerabytes"
    )
    """What may be written to the card or disk of the data directory, by its data sheet."""
    limits: Restart[Limits] = Limits()
    """Bounds that protect the gateway."""


# --- System ----------------------------------------------------------------------------------------------------------

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class SystemSpec(ResourcePart, frozen=True, kw_only=True):
    """The system a gateway from a card is to run: which one, and where its bundle is fetched. `waypost image bundle`
    writes it. Services of the machine follow it; the broker does not change by it."""

    version: Kept[Text]
    """Of Waypost in it."""
    build: Kept[Sha256]
    """SHA-256 of its root file system: a gateway that runs that has nothing to do."""
    url: Kept[Text]
    """Where the bundle is, ``https://`` or ``http://``: it is verified in either case, by its sum and its signature."""
    sha256: Kept[Sha256]
    """Of the bundle."""
    size: Kept[Annotated[Bytes, msgspec.Meta(gt=0)]]
    """Of the bundle."""
    rate: Kept[Annotated[Bytes, msgspec.Meta(gt=0)] | None] = None
    """Bytes a second at which it is fetched at most."""
    quiet_hours: Kept[Annotated[str, msgspec.Meta(pattern=HOURS)] | None] = None
    """``06:00-22:00``, UTC: nothing is fetched then, and nothing is installed or started anew."""
    start_jitter_s: Kept[Seconds] = msgspec.field(default=0.0, name="startJitter")
    """It is begun so long after it was wanted at most; how long, the gateway's name says: so a fleet does not storm."""
