"""Places of every field, a document that has them all, and another value for each."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import inspect

from bridge.artefacts.keys import ArtefactAlgorithm, MakerPrivateKey
from bridge.resources import schema
from bridge.resources.declaration import Field, alternative, fields_of, marked, part_in, reader_of
from bridge.resources.endpoint import ListenEndpoint, valid_host, valid_port
from bridge.resources.errors import ResourceOrigin
from bridge.resources.fields import ResourcePart
from bridge.resources.resource import OWN_VERSION, Resource, ResourceKinds
from bridge.resources.values import duration, size
from edge.broker.model.address_policy import Durability
from edge.configuration.kinds import KINDS
from tests.support.mosquitto_passwords import mosquitto_hash

Steps = tuple[str | int, ...]


MAKERS: Final = [MakerPrivateKey.generate(ArtefactAlgorithm.ED25519).public.pem for _ in range(2)]
"""Public keys of two makers of artefacts."""

Documents = dict[str, dict[str, Any]]
"""The spec of each resource, by ``Kind/name``."""


class Place(NamedTuple):
    """A field and its path in the spec of a kind."""

    kind: str
    steps: Steps
    field: Field

    @property
    def text(self) -> str:
        """The path in text form, without the indices of lists."""
        return f"{self.kind} {'.'.join(step for step in self.steps if isinstance(step, str))}"


def places(kinds: ResourceKinds) -> list[Place]:
    """Return every field of every kind, parts before their fields."""
    return [place for kind in kinds for place in _places(kind.name, kind.spec, ())]


def _places(kind: str, part: type[ResourcePart], steps: Steps) -> Iterator[Place]:
    for field in fields_of(part):
        way = (*steps, *field.path)
        yield Place(kind, way, field)
        inner = part_in(field.type)
        if inner is not None:
            yield from _places(kind, inner, (*way, 0) if _is_list(field.type) else way)


def _is_list(type_: inspect.Type) -> bool:
    plain = marked(type_).type
    return isinstance(plain, inspect.VarTupleType) or (
        isinstance(plain, inspect.UnionType) and _is_list(alternative(plain))
    )


def _has_another(field: Field) -> bool:
    """Return True when the field can have more than one value."""
    plain = marked(field.type).type
    return not isinstance(plain, inspect.EnumType) or len(plain.cls) > 1


OF_OWN_SPACE: Final = "TenantSpace connectors.router"
"""Prefix of fields that the gateway's own space has alone."""


EVERY: Final = [
    place for place in places(KINDS) if _has_another(place.field) and not place.text.startswith(OF_OWN_SPACE)
]


Edit = dict[tuple[str, str], Any]
"""New values by resource and path."""


PEERS: Final = ("mqtt", "http", "kafka", "router")
"""Types of connectors with settings of their own; each has one, after `peer`, which is of type `amqp`."""


SETTINGS: Final = (
    ("amqp", "token", "sharedAccess"),
    ("amqp", "tokenLifetime", "777s"),
    ("amqp", "partitionKey", "address"),
    ("mqtt", "keepAlive", "77s"),
    ("mqtt", "maxInFlight", 9),
    ("mqtt", "tokenLifetime", "777s"),
    ("http", "path", "/other"),
    ("http", "format", "ndjson"),
    ("http", "signingSecret", "whsec_" + base64.b64encode(bytes(32)).decode()),
    ("http", "maxMessages", 9),
    ("http", "maxBytes", "2Ki"),
    ("http", "maxAge", "77s"),
    ("kafka", "key", "address"),
    ("kafka", "mechanism", "SCRAM-SHA-256"),
    ("kafka", "maxMessageBytes", "2Ki"),
    ("kafka", "group", "other"),
    ("kafka", "schemas", [{"topic": "t", "registry": "apicurio", "id": "7"}]),
    ("router", "cost", 7),
    ("router", "helloInterval", "7s"),
)
"""Another value of each."""


def of_peer(kind: str, setting: str, value: object) -> Edit:
    """Return an edit of one setting of the connector of this type, or of all."""
    place = PEERS.index(kind) + 1 if kind in PEERS else 0
    return {("AddressSpace/default", f"connectors.{place}.{kind}{setting}"): value}


IOT_HUB: Final = {"service": "azureIotHub", "device": "gw1", "sharedAccessKey": "a2V5"}


def of_iot_hub(setting: str, value: object) -> Edit:
    """Return an edit that makes the MQTT connector one to an IoT hub, with this setting."""
    place = f"connectors.{PEERS.index('mqtt') + 1}"
    settings = {f"{place}.mqtt.{name}": each for name, each in {**IOT_HUB, setting: value}.items()}
    return {("AddressSpace/default", path): each for path, each in {f"{place}.tls": {}, **settings}.items()}


def of_bearer(setting: str, value: object) -> Edit:
    """Return an edit that makes the Kafka connector one with tokens of an issuer, with this setting."""
    place = f"connectors.{PEERS.index('kafka') + 1}"
    settings = {"mechanism": "OAUTHBEARER", "tokenUrl": "https://issuer.example/t", setting: value}
    edit: Edit = {("AddressSpace/default", f"{place}.kafka.{name}"): each for name, each in settings.items()}
    edit["AddressSpace/default", f"{place}.credentials"] = {"username": "c", "password": "s"}
    return edit


def whole(pki: Path) -> Documents:
    """Return resources that set every field."""
    files = {"clientCert": str(pki / "gw.pem"), "clientKey": str(pki / "gw.key")}
    peer = {"caCert": str(pki / "ca.pem"), **files, "crl": str(pki / "revoked.pem")}
    through = {"host": "127.0.0.1", "port": 1, "username": "gw", "password": "word"}
    anywhere = "127.0.0.1:0"
    names = ("mqtt", "amqp", "http", "https", "mqtts", "amqps", "mqttWs", "amqpWs", "mqttWss", "amqpWss")
    files = {"certificate": str(pki / "gw.pem"), "key": str(pki / "gw.key"), "clientCa": str(pki / "ca.pem")}
    files["clientCrl"] = str(pki / "revoked.pem")
    asked = {"mode": "hard", "responder": "http://127.0.0.1:1/", "interval": "1h", "offlineGrace": "1d"}
    return {
        "Gateway/gw": {
            "listeners": {**dict.fromkeys(names, anywhere), "hostNames": ["gw.example"]}
            | {"tls": {**files, "clientOcsp": asked}},
            "hub": {"url": "amqps://127.0.0.1:1", "gateway": "north", "tls": peer, "failover": ["wss://127.0.0.1:1"]}
            | {"proxy": through, "pace": {"rate": "1Mi", "quietHours": "22:00-06:00"}},
            "storage": {"enduranceTerabytes": 1},
        },
        "AddressSpace/default": {
            "authenticationService": {"name": "standard"},
            "deviceApi": {"type": "hono", "tenant": "T", "corsAllowedOrigins": ["https://a.example"]},
            "quota": {"bytes": "1Gi"},
            "connectors": [
                {
                    "name": "peer",
                    "type": "amqp",
                    "endpointHosts": [{"host": "127.0.0.1", "port": 1}],
                    "tls": peer,
                    "proxy": through,
                    "credentials": {"username": "gw", "password": "word"},
                    "pace": {"rate": "1Mi", "quietHours": "22:00-06:00"},
                },
                *({"name": kind, "type": kind, "endpointHosts": [{"host": "127.0.0.1", "port": 1}]} for kind in PEERS),
            ],
        },
        "Address/q": {
            "address": "q",
            "type": "queue",
            "deadletter": "dead",
            "expiry": "dead",
            "quota": {"bytes": "1Mi", "reserve": "1Ki"},
            "forwarders": [
                {
                    "name": "f",
                    "remoteAddress": "peer/q",
                    "priority": 3,
                    "only": {"address": "q", "properties": "a > 1", "body": "$.a"},
                },
                {"name": "g", "remoteAddress": "peer/g", "priority": 2},
            ],
        },
        "Address/s": {"address": "s", "type": "subscription", "topic": "t"},
        "Address/t": {"address": "t", "type": "topic"},
        "Address/dead": {"address": "dead", "type": "deadletter"},
        "Address/dead2": {"address": "dead2", "type": "deadletter"},
        "MessagingUser/u": {
            "username": "u@T",
            "authentication": {"type": "password", "password": base64.b64encode(b"one").decode()},
            "authorization": [{"addresses": ["q"], "operations": ["send"]}],
            "device": {"id": "d1", "actsFor": ["d2"]},
        },
        "Device/d1": {},
        "Device/d2": {"via": ["d1"]},
        "Device/d3": {},
        "Artefacts/gw": {"trustedKeys": [MAKERS[0]], "artefacts": [{"name": "blinker", "version": "1"}]},
        "System/gw": {
            "version": "2",
            "build": "a" * 64,
            "url": "https://localhost/2.raucb",
            "sha256": "b" * 64,
            "size": 1,
            "quietHours": "06:00-22:00",
        },
    }


def external(pki: Path) -> Documents:
    """Return the same resources for clients with tokens."""
    documents = whole(pki)
    asking = {"clientId": "node", "clientSecret": "s3cret"}
    oidc: Any = {"issuer": "http://127.0.0.1:1/a", "audience": "gw", "caCert": str(pki / "ca.pem")}
    oidc["introspection"] = asking
    documents["AddressSpace/default"]["authenticationService"] = {"name": "external", "oidc": oidc}
    return documents


def with_tenant(pki: Path) -> Documents:
    """Return the same resources with a further address space."""
    documents = whole(pki)
    own = copy.deepcopy(documents["AddressSpace/default"]["connectors"])
    connectors = [each for each in own if each["type"] != "router"]
    documents["TenantSpace/acme"] = {"hosts": ["acme"], "quota": {"bytes": "1Mi"}, "connectors": connectors}
    return documents


def base_of(place: Place) -> Callable[[Path], Documents]:
    """Return the function that makes the resources for changes of a field."""
    if place.text.startswith(EXTERNAL):
        return external
    return with_tenant if place.kind == "TenantSpace" or place.field.attribute == "address_space" else whole


EXTERNAL: Final = "AddressSpace authenticationService.oidc"
"""Prefix of fields that need a gateway with bearer tokens."""


OTHER: Final[dict[str, Edit]] = {
    "Gateway hub.url": {("Gateway/gw", "hub.url"): "amqps://127.0.0.1:2"},
    "Gateway hub.failover": {("Gateway/gw", "hub.failover"): ["wss://127.0.0.1:2"]},
    "Gateway hub.proxy": {("Gateway/gw", "hub.proxy"): None},
    "Gateway hub.tls": {("Gateway/gw", "hub.tls"): {}},
    "Gateway hub.tls.clientCert": {("Gateway/gw", "hub.tls.clientCert"): "other.pem"},
    "Gateway hub.tls.clientKey": {("Gateway/gw", "hub.tls.clientKey"): "other.key"},
    "Gateway hub.pace": {("Gateway/gw", "hub.pace"): None},
    "Gateway hub.pace.quietHours": {("Gateway/gw", "hub.pace.quietHours"): "08:00-18:00"},
    "Gateway hub": {("Gateway/gw", "hub"): None},
    "Gateway listeners": {("Gateway/gw", "listeners.mqtt"): None},
    "Gateway listeners.tls": {
        ("Gateway/gw", f"listeners.{name}"): None for name in ("tls", "https", "mqtts", "amqps", "mqttWss", "amqpWss")
    },
    "Gateway limits": {("Gateway/gw", "limits.connectionsMax"): 7},
    "Gateway limits.packetBytesMax": {("Gateway/gw", "limits.packetBytesMax"): 1_000_000},
    "AddressSpace authenticationService": {("AddressSpace/default", "authenticationService"): {"name": "none"}},
    "AddressSpace authenticationService.name": {("AddressSpace/default", "authenticationService.name"): "none"},
    EXTERNAL: {("AddressSpace/default", "authenticationService"): {"name": "external"}},
    f"{EXTERNAL}.clientSecret": {
        ("AddressSpace/default", "authenticationService.oidc.clientId"): "console",
        ("AddressSpace/default", "authenticationService.oidc.clientSecret"): "other",
    },
    f"{EXTERNAL}.scope": {("AddressSpace/default", "authenticationService.oidc.scope"): "openid groups"},
    f"{EXTERNAL}.introspection": {("AddressSpace/default", "authenticationService.oidc.introspection"): None},
    f"{EXTERNAL}.issuer": {("AddressSpace/default", "authenticationService.oidc.issuer"): "http://127.0.0.1:1/b"},
    "AddressSpace deviceApi": {("AddressSpace/default", "deviceApi"): None},
    "AddressSpace deviceApi.tenant": {
        ("AddressSpace/default", "deviceApi.tenant"): "U",
        ("MessagingUser/u", "username"): "u@U",
    },
    "AddressSpace deviceApi.corsAllowedOrigins": {("AddressSpace/default", "deviceApi.corsAllowedOrigins"): ["*"]},
    "AddressSpace connectors": {
        ("AddressSpace/default", "connectors.5"): {"name": "more", "endpointHosts": [{"host": "h"}]}
    },
    "AddressSpace connectors.name": {
        ("AddressSpace/default", "connectors.0.name"): "renamed",
        ("Address/q", "forwarders"): [],
    },
    "AddressSpace connectors.endpointHosts": {
        ("AddressSpace/default", "connectors.0.endpointHosts.1"): {"host": "standby"}
    },
    "AddressSpace connectors.type": {
        ("AddressSpace/default", "connectors.0.type"): "waypost",
        ("Address/q", "forwarders"): [{"name": "f", "remoteAddress": "peer/q", "priority": 3}],
    },
    "AddressSpace connectors.endpointHosts.websocket": {
        ("AddressSpace/default", "connectors.0.endpointHosts.0.websocket"): "/amqp"
    },
    "AddressSpace connectors.proxy": {("AddressSpace/default", "connectors.0.proxy"): None},
    "AddressSpace connectors.tls": {("AddressSpace/default", "connectors.0.tls"): {}},
    "AddressSpace connectors.credentials": {("AddressSpace/default", "connectors.0.credentials"): None},
    **{f"AddressSpace connectors.{kind}": of_peer(kind, "", {setting: value}) for kind, setting, value in SETTINGS},
    **{
        f"AddressSpace connectors.{kind}.{setting}": of_peer(kind, f".{setting}", value)
        for kind, setting, value in SETTINGS
    },
    **{
        f"AddressSpace connectors.mqtt.{setting}": of_iot_hub(setting, value)
        for setting, value in (*IOT_HUB.items(), ("module", "m1"), ("hubHost", "hub.example"))
    },
    **{
        f"AddressSpace connectors.kafka.schemas.{setting}": of_peer(
            "kafka", ".schemas", [{"topic": "t", "registry": "apicurio", "id": "7"}]
        )
        for setting in ("topic", "registry", "id")
    },
    **{
        f"AddressSpace connectors.kafka.{setting}": of_bearer(setting, value)
        for setting, value in (("tokenUrl", "https://other.example/t"), ("scope", "a"), ("tokenCaCert", "/ca.pem"))
    },
    "AddressSpace connectors.mqtt.region": {
        ("AddressSpace/default", f"connectors.1.{path}"): value
        for path, value in {
            "tls": {},
            "credentials": {"username": "AKIDEXAMPLE", "password": "secret"},
            "mqtt.service": "awsIotCore",
            "mqtt.region": "eu-west-1",
        }.items()
    },
    "Gateway listeners.tls.clientOcsp": {("Gateway/gw", "listeners.tls.clientOcsp"): None},
    "Gateway listeners.tls.clientOcsp.responder": {
        ("Gateway/gw", "listeners.tls.clientOcsp.responder"): "http://127.0.0.1:2/"
    },
    **{
        f"AddressSpace connectors.mqtt.downlink{field}": {
            ("AddressSpace/default", "connectors.1.mqtt.service"): "chirpstack",
            ("AddressSpace/default", "connectors.1.mqtt.downlink"): value,
        }
        for field, value in (
            ("", {}),
            (".fPort", {"fPort": 9}),
            (".confirmed", {"confirmed": True}),
            (".newestWins", {"newestWins": True}),
            (".receiveWindow", {"receiveWindow": "7s"}),
        )
    },
    "AddressSpace connectors.pace": {("AddressSpace/default", "connectors.0.pace"): None},
    "AddressSpace connectors.pace.quietHours": {
        ("AddressSpace/default", "connectors.0.pace.quietHours"): "08:00-18:00"
    },
    "Address type": {("Address/t", "type"): "multicast"},
    "Address addressSpace": {("Address/t", "addressSpace"): "acme"},
    "MessagingUser addressSpace": {("MessagingUser/u", "addressSpace"): "acme", ("MessagingUser/u", "device"): None},
    "Address topic": {("Address/s", "topic"): "other"},
    "Address deadletter": {("Address/q", "deadletter"): "dead2"},
    "Address expiry": {("Address/q", "expiry"): "dead2"},
    "Address forwarders": {("Address/q", "forwarders.1"): None},
    "Address forwarders.remoteAddress": {("Address/q", "forwarders.0.remoteAddress"): "peer/other"},
    "Address forwarders.backfill": {("Address/q", "forwarders.0.backfill"): "newest"},
    "Address messageRedelivery": {("Address/q", "messageRedelivery"): {"maximumDeliveryAttempts": 9}},
    "Address messageRedelivery.countOnLinkLoss": {("Address/q", "messageRedelivery.countOnLinkLoss"): False},
    "Address forwarders.only": {("Address/q", "forwarders.0.only"): None},
    "Address forwarders.only.properties": {("Address/q", "forwarders.0.only.properties"): "a > 2"},
    "Address forwarders.only.body": {("Address/q", "forwarders.0.only.body"): "$.b"},
    "MessagingUser username": {("MessagingUser/u", "username"): "v@T"},
    "MessagingUser authentication": {("MessagingUser/u", "authentication"): {"type": "password"}},
    "MessagingUser authentication.password": {
        ("MessagingUser/u", "authentication.password"): base64.b64encode(b"two").decode()
    },
    "MessagingUser authentication.passwordHash": {
        ("MessagingUser/u", "authentication"): {"type": "password", "passwordHash": mosquitto_hash("two")}
    },
    "MessagingUser authorization": {("MessagingUser/u", "authorization"): []},
    "MessagingUser authorization.operations": {("MessagingUser/u", "authorization.0.operations"): ["recv"]},
    "MessagingUser device": {("MessagingUser/u", "device"): None},
    "MessagingUser device.id": {("MessagingUser/u", "device.id"): "d3"},
    "Device via": {("Device/d3", "via"): ["d1"]},
    "Artefacts trustedKeys": {("Artefacts/gw", "trustedKeys"): [MAKERS[1]]},
    "Artefacts artefacts": {("Artefacts/gw", "artefacts"): [{"name": "blinker", "version": "2"}]},
    "Artefacts artefacts.boards": {("Artefacts/gw", "artefacts.0.boards"): ["pico-w"]},
    "Artefacts artefacts.devices": {("Artefacts/gw", "artefacts.0.devices"): ["pump-*"]},
    "Artefacts reportAddress": {("Artefacts/gw", "reportAddress"): "reports/%u"},
    "Artefacts quietHours": {("Artefacts/gw", "quietHours"): "08:00-18:00"},
    "System build": {("System/gw", "build"): "c" * 64},
    "System url": {("System/gw", "url"): "http://localhost/2.raucb"},
    "System sha256": {("System/gw", "sha256"): "c" * 64},
    "System quietHours": {("System/gw", "quietHours"): "08:00-18:00"},
    "Device enabled": {("Device/d2", "enabled"): False},
}


OTHER.update(
    {
        name.replace("AddressSpace", "TenantSpace"): {
            ("TenantSpace/acme", path): value
            for (resource, path), value in edit.items()
            if resource == "AddressSpace/default"
        }
        for name, edit in OTHER.items()
        if name.startswith("AddressSpace connectors")
    }
)
OTHER["TenantSpace connectors.type"]["TenantSpace/acme", "connectors.0.container"] = "gw-acme"
OTHER["TenantSpace connectors"] = {
    ("TenantSpace/acme", "connectors.4"): {"name": "more", "endpointHosts": [{"host": "h"}], "container": "gw-acme"}
}


def edit_of(place: Place, documents: Documents) -> Edit:
    """Return an edit that changes the field."""
    if place.text in OTHER:
        return OTHER[place.text]
    resource = next(name for name in documents if name.startswith(f"{place.kind}/"))
    return {(resource, ".".join(map(str, place.steps))): another(place.field, _at(documents[resource], place.steps))}


def another(field: Field, now: Any) -> Any:
    """Return a value of the field's type that is neither the present value nor the default."""
    plain, extra, _ = marked(field.type)
    if isinstance(plain, inspect.UnionType):
        plain, inner, _ = marked(alternative(plain))
        extra = {**extra, **inner}
    reader = reader_of(extra)
    if reader is not None:
        return _WRITTEN[reader.read]
    if isinstance(plain, inspect.EnumType):
        current = getattr(field.default, "value", None) if now is None else now
        return next(member.value for member in plain.cls if member.value != current)
    if isinstance(plain, inspect.BoolType):
        return not (field.default if now is None else now)
    if isinstance(plain, inspect.IntType | inspect.FloatType):
        before = field.default if now is None else now
        return before + 1 if isinstance(before, int | float) else 2
    if isinstance(plain, inspect.VarTupleType):
        return ["other"]
    assert isinstance(plain, inspect.StrType), f"{field.path}: say another value in OTHER"
    return "other"


_WRITTEN: Final[dict[Any, Any]] = {
    duration: "77s",
    size: "2Ki",
    ListenEndpoint.parse: "127.0.0.2:0",
    valid_host: "localhost",
    valid_port: 9,
    Durability.parse: "batch:7",
}


def edited(documents: Documents, edit: Edit) -> Documents:
    documents = copy.deepcopy(documents)
    for (resource, path), value in edit.items():
        *way, last = path.split(".")
        into: Any = documents[resource]
        for step in way:
            into = into[int(step)] if isinstance(into, list) else into.setdefault(step, {})
        if isinstance(into, list):
            into[int(last) :] = [] if value is None else [value, *into[int(last) + 1 :]]
        elif value is None:
            del into[last]
        else:
            into[last] = value
    return documents


def _at(value: Any, steps: Steps) -> Any:
    for step in steps:
        if value is None:
            return None
        value = value[step] if isinstance(step, int) else value.get(step)
    return value


def resources_in(documents: Documents) -> list[Resource]:
    """Return these specs as valid resources."""
    built = [schema.build(KINDS, document, ResourceOrigin("test")) for document in documents_of(documents)]
    resources = [resource for resource in built if isinstance(resource, Resource)]
    assert resources == built
    assert KINDS.validate(resources) == []
    return resources


def documents_of(documents: Documents) -> list[dict[str, Any]]:
    return [
        {"apiVersion": OWN_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for (kind, _, name), spec in ((resource.partition("/"), spec) for resource, spec in documents.items())
    ]


def of_leaves(chosen: list[Place], documents: Documents) -> Documents:
    """Change every field at once that has no inner field and that can change alone."""
    ways = {(place.kind, place.steps) for place in chosen}
    for place in chosen:
        edit = edit_of(place, documents)
        inside = any(kind == place.kind and len(way) > len(place.steps) and way[: len(place.steps)] == place.steps
                     for kind, way in ways)  # fmt: skip
        if not inside and len(edit) == 1:
            documents = edited(documents, edit)
    return documents
