"""Resources of a gateway as types: Kubernetes-style YAML with EnMasse's kinds and field names.

`bridge.resources` reads these types, so they are the whole definition. Parts that the broker gets unchanged are in
`edge.broker.configuration`. Types check single values; `validate` checks rules between resources; `kinds` registers
both.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.artefacts.limits import NAME_LENGTH_MAX
from bridge.hidden import hides
from bridge.pace import HOURS, PaceSettings
from bridge.proxy import Proxy
from bridge.resources.fields import Bytes, Host, HostPort, Kept, Live, Name, ResourcePart, Restart, Seconds, Text
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

HOSTS_MAX: Final = 16
"""Host names of one address space: a name and some aliases."""

AddressName = Annotated[str, msgspec.Meta(min_length=1, max_length=65535)]


# --- AddressSpace ----------------------------------------------------------------------------------------------------


class SpaceType(enum.Enum):
    """EnMasse's two types of space. Here both support all protocols, and both keep order."""

    STANDARD = "standard"
    BROKERED = "brokered"


class AuthenticationService(ResourcePart, frozen=True, kw_only=True):
    """Authentication of clients."""

    name: Live[AuthenticationMode]
    """`none`, `standard` (name and password) or `external`: by client certificate, by bearer token, or either."""
    oidc: Live[TokenIssuer | None] = None
    """With `external`: issuer of accepted tokens."""


class AddressSpaceSpec(ResourcePart, frozen=True, kw_only=True):
    """Group of addresses that are reachable over one connection."""

    type: Kept[SpaceType] = SpaceType.STANDARD
    """Type of EnMasse; here both are equal."""
    plan: Kept[str] = ""
    """Plan of EnMasse, not used."""
    authentication_service: Live[AuthenticationService | None] = None
    """Authentication of clients; the default requires it on listeners that other machines can reach."""
    default_type: Live[AddressType] = AddressType.TOPIC
    """Type of every address that no `Address` describes."""
    device_api: Restart[DeviceApiPart | None] = None
    """Hono's device API; without it devices use the addresses of the space directly."""
    quota_bytes: Live[Bytes | None] = msgspec.field(default=None, name="quota.bytes")
    """Store space of all addresses of the address space together, with their reserves; the default is the free space of
    the medium above `limits.freeFloorBytes`."""
    connectors: Live[tuple[Connector, ...]] = ()
    """Remote peers for forwarders."""


class TenantSpaceSpec(ResourcePart, frozen=True, kw_only=True):
    """Further address space of the gateway, isolated from all others: with addresses, users, connectors and a store of
    its own. Its name is that of its folder in the data directory, so another name is another space."""

    hosts: Live[Annotated[tuple[Host, ...], msgspec.Meta(min_length=1, max_length=HOSTS_MAX)]]
    """Host names by which clients choose this space: as server name of TLS, as host name of AMQP, or after an ``@`` in
    the user name. No other space has them."""
    default_type: Live[AddressType] = AddressType.TOPIC
    """Type of every address that no `Address` describes."""
    quota_bytes: Live[Bytes] = msgspec.field(name="quota.bytes")
    """Store space of all its addresses together, with their reserves. It is required: without it one space could take
    the room of all others."""
    connectors: Live[tuple[Connector, ...]] = ()
    """Remote peers for its forwarders."""


# --- Address ---------------------------------------------------------------------------------------------------------


class AddressSpec(AddressPolicy, frozen=True, kw_only=True):
    """Address, or pattern of addresses with MQTT wildcards, with its type and policy."""

    address: Live[AddressName]
    """Address or pattern."""
    type: Live[AddressType]
    """Type of the address."""
    plan: Kept[str] = ""
    """Plan of EnMasse, not used."""
    topic: Live[str] = ""
    """Topic of a subscription."""
    address_space: Live[Name | None] = None
    """`TenantSpace` that the address belongs to; without it the gateway's own space."""
    forwarders: Live[tuple[ForwarderPart, ...]] = ()
    """Forwarders to or from remote peers."""


# --- MessagingUser, Device -------------------------------------------------------------------------------------------


class UserAuthenticationType(enum.Enum):
    """Authentication type of a user."""

    PASSWORD = "password"  # noqa: S105 - a word of the format
    SERVICEACCOUNT = "serviceaccount"


@hides("password", "password_hash")
class UserAuthentication(ResourcePart, frozen=True, kw_only=True):
    """Credentials of a user."""

    type: Kept[UserAuthenticationType]
    """Type of EnMasse; a user with a password always needs it."""
    password: Live[str | None] = None
    """Password in Base64, as in EnMasse. A user without password and hash can authenticate only by TLS."""
    password_hash: Live[str | None] = None
    """Hash of the password by another broker, instead of `password`: ``$7$…`` or ``$6$…`` of Mosquitto, ``ENC(…)`` of
    ActiveMQ Artemis. It serves MQTT, HTTP and SASL PLAIN, not SCRAM."""


class AuthorizationPart(ResourcePart, frozen=True, kw_only=True):
    """Operations allowed on addresses."""

    addresses: Live[tuple[AddressName, ...]] = ()
    """Topic filters, with `%u` for the user and `%c` for the client; the default is the whole space."""
    operations: Live[Annotated[tuple[Operation, ...], msgspec.Meta(min_length=1)]]
    """Allowed operations."""


class DevicePart(ResourcePart, frozen=True, kw_only=True):
    """Device of a user ``auth-id@tenant``, and the devices it acts for."""

    id: Live[str] = ""
    """Device identifier; the default is the auth-id."""
    acts_for: Live[tuple[str, ...]] = ()
    """Devices it may act for; `*`: all of the tenant."""


class MessagingUserSpec(ResourcePart, frozen=True, kw_only=True):
    """User of a space."""

    username: Live[Text]
    """Login name."""
    address_space: Live[Name | None] = None
    """`TenantSpace` that the user belongs to; without it the gateway's own space."""
    authentication: Live[UserAuthentication]
    """Credentials of the user."""
    authorization: Live[tuple[AuthorizationPart, ...]] = ()
    """Rights of the user; everything else is denied."""
    device: Live[DevicePart | None] = None
    """Device of the user, where the space has the device API."""


class DeviceSpec(ResourcePart, frozen=True, kw_only=True):
    """Device that the gateway knows."""

    enabled: Live[bool] = True
    """Messages of a disabled device are refused."""
    description: Kept[str] = ""
    """Description for people."""
    via: Live[tuple[Name, ...]] = ()
    """Devices that may act for it."""


# --- Gateway ---------------------------------------------------------------------------------------------------------


class ListenerSpec(ResourcePart, frozen=True, kw_only=True):
    """Listeners of the gateway; a listener without an endpoint does not exist."""

    mqtt: Restart[HostPort | None] = None
    """MQTT 3.1, 3.1.1 and 5."""
    amqp: Restart[HostPort | None] = None
    """AMQP 1.0."""
    http: Restart[HostPort | None] = None
    """Console, API and metrics."""
    https: Restart[HostPort | None] = None
    """Console, API and metrics over TLS."""
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
    """Host names for HTTP and WebSocket, in addition to addresses and the machine's own name."""
    tls: Restart[DeviceTls | None] = None
    """Certificate and key of the listeners with TLS; the default is the gateway's own certificate: its identity from
    the hub, else a self-signed one."""


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
"""(Protocol, WebSocket?, TLS?) by the field of `ListenerSpec`."""


class HubPart(ResourcePart, frozen=True, kw_only=True):
    """Hub of this gateway. It creates a connector called `hub` for forwarders."""

    url: Live[str]
    """URL: ``amqps://host:port``, or ``wss://host:port`` over WebSocket, which passes as HTTPS; `amqp` and `ws` are
    without TLS."""
    failover: Live[tuple[str, ...]] = ()
    """More URLs of the same hub, tried in order. While one of them works, a reconnect starts with it, and `url` is
    tried again 15 minutes after it has failed."""
    proxy: Live[Proxy | None] = None
    """HTTP proxy on the way to the hub, also for enrolment and certificate renewal."""
    gateway: Live[Name | None] = None
    """Name of the gateway at the hub; the default is the name of the resource."""
    tls: Live[TlsFiles | None] = None
    """Certificates, for `amqps` and `wss`."""
    pace: Live[PaceSettings | None] = None
    """Rates and times for sending to it; without it as fast as the link allows."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs, in order."""
        return (self.url, *self.failover)


class GatewaySpec(ResourcePart, frozen=True, kw_only=True):
    """This gateway."""

    listeners: Restart[ListenerSpec] = ListenerSpec()
    """Listeners of the gateway."""
    hub: Live[HubPart | None] = None
    """Hub of the gateway."""
    legacy_dollar_topics: Live[bool] = msgspec.field(default=False, name="mqtt.legacyDollarTopics")
    """Let wildcards of MQTT 3.1 clients also match names that begin with ``$``, as in that version; with 3.1.1 and 5
    they never do."""
    endurance_terabytes: Live[Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)] | None] = msgspec.field(
        default=None, name="storage.enduranceTerabytes"
    )
    """Endurance of the card or disk of the data directory in terabytes written, from its data sheet."""
    limits: Restart[Limits] = Limits()
    """Limits that protect the gateway."""


# --- Artefacts -------------------------------------------------------------------------------------------------------

ARTEFACTS_MAX: Final = 64
"""Artefacts of one gateway: a check looks at all of them, at some 0.1 ms each."""
TRUSTED_KEYS_MAX: Final = 16
"""Keys of makers that a gateway trusts: a maker has two while it replaces one."""
ArtefactName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=NAME_LENGTH_MAX)]
ArtefactVersion = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]*$", max_length=NAME_LENGTH_MAX)]
BoardName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=NAME_LENGTH_MAX)]


class ArtefactPart(ResourcePart, frozen=True, kw_only=True):
    """Artefact that the gateway holds for its devices."""

    name: Kept[ArtefactName]
    """Name of the artefact at the hub."""
    version: Kept[ArtefactVersion]
    """Its version."""
    boards: Kept[tuple[BoardName, ...]] = ()
    """Boards of the devices here: an artefact that is for none of them is refused. Empty: any."""
    devices: Kept[tuple[Text, ...]] = ()
    """Devices that may have it; a final ``*`` matches any characters. Empty: all."""

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return self.name, self.version

    def names(self, device: str) -> bool:
        """Return whether a device may have it."""
        return not self.devices or any(
            device.startswith(each[:-1]) if each.endswith("*") else device == each for each in self.devices
        )


class ArtefactsSpec(ResourcePart, frozen=True, kw_only=True):
    """Software for devices that the gateway fetches from its hub, verifies and holds."""

    trusted_keys: Kept[Annotated[tuple[Text, ...], msgspec.Meta(max_length=TRUSTED_KEYS_MAX)]] = ()
    """Public keys of makers, in PEM: what no other key has signed is refused."""
    artefacts: Kept[Annotated[tuple[ArtefactPart, ...], msgspec.Meta(max_length=ARTEFACTS_MAX)]] = ()
    """Artefacts to hold; all others are deleted."""
    report_address: Kept[AddressName] = "plant/%u/artefact-report"
    """Address of messages about reports of devices, with ``%u`` for the device; a user that may send to it is that
    device. With the device API, reports are events."""
    storage_bytes: Kept[Bytes] = msgspec.field(default=1 << 30, name="storage.bytes")
    """Bytes that all images together may have; the later ones of the list are not fetched beyond that."""
    rate: Kept[Annotated[Bytes, msgspec.Meta(gt=0)] | None] = None
    """Most bytes a second for fetching, besides the `pace` of the connector."""
    quiet_hours: Kept[Annotated[str, msgspec.Meta(pattern=HOURS)] | None] = None
    """Hours without fetching, UTC: ``06:00-22:00``."""


# --- System ----------------------------------------------------------------------------------------------------------

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class SystemSpec(ResourcePart, frozen=True, kw_only=True):
    """System version for a gateway from a card, and the URL of its bundle. `waypost image bundle` writes it. Services
    of the machine install it; the broker does not change."""

    version: Kept[Text]
    """Version of Waypost in the system."""
    build: Kept[Sha256]
    """SHA-256 of the root file system: a gateway that runs it does nothing."""
    url: Kept[Text]
    """URL of the bundle, ``https://`` or ``http://``, or ``hub:NAME`` for one that the hub serves; its checksum and
    signature are verified in each case."""
    sha256: Kept[Sha256]
    """SHA-256 of the bundle."""
    size: Kept[Annotated[Bytes, msgspec.Meta(gt=0)]]
    """Size of the bundle."""
    rate: Kept[Annotated[Bytes, msgspec.Meta(gt=0)] | None] = None
    """Most bytes a second for the download."""
    quiet_hours: Kept[Annotated[str, msgspec.Meta(pattern=HOURS)] | None] = None
    """Hours without download, installation or restart, UTC: ``06:00-22:00``."""
    start_jitter_s: Kept[Seconds] = msgspec.field(default=0.0, name="startJitter")
    """Longest delay of the update. The delay follows from the gateway's name, which spreads a fleet."""
