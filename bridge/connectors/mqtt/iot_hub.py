"""MQTT as Azure IoT Hub speaks it: version 3.1.1 with fixed topics, and the properties of a message in its topic.

IoT Hub ends the connection of a client that tries MQTT 5 or the bridge bit, sends QoS 2, or sends a message that is too
large. It does not keep retained messages, so none is sent as retained. The names of a message (gateway, epoch, address
and sequence) are application properties, and `$.mid` is a digest of them, so a consumer can drop a repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from math import ceil
from typing import Final
from urllib.parse import quote, unquote

from bridge.connectors.limits import (
    IOT_HUB_IDENTIFIER_CHARACTERS_MAX,
    IOT_HUB_MESSAGE_BYTES_MAX,
    TOKEN_LIFETIME_USED,
)
from bridge.connectors.messages import ConnectorMessage
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.dialects import Mqtt311, MqttDialect
from bridge.connectors.mqtt.iot_hub_names import IotHubNames, names_of
from bridge.connectors.mqtt.service_terms import ServiceTerms
from bridge.connectors.settings import ClientIdentity, MqttSettings
from bridge.forwarders.shared_access import device_key, device_token
from bridge.plain import PREFIX
from bridge.publish_properties import PublishProperties, write

_NS: Final = 1_000_000_000
_ID, _CORRELATION, _CONTENT_TYPE, _ENCODING = "$.mid", "$.cid", "$.ct", "$.ce"
_CREATED: Final = "iothub-creation-time-utc"
_RESERVED: Final = ("$", "iothub-")
"""Beginnings of names that IoT Hub interprets; those of devices get a `_` in front."""
_OURS: Final = "waypost-"
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that MQTT does not allow in strings (section 1.5.4)."""
_IDENTIFIER: Final = re.compile(rf"[A-Za-z0-9\-:.+%_#*?!(),=@;$']{{1,{IOT_HUB_IDENTIFIER_CHARACTERS_MAX}}}")
"""Message and correlation identifiers of IoT Hub."""
_CONTENT_TYPE_TEXT: Final = re.compile(r"[\x20-\x7e]{1,256}")
_CLOCK_SET_NS: Final = 1_577_836_800 * _NS
"""Beginning of 2020: an earlier time of reception is that of a clock that was not set."""
_REFUSED: Final = (
    "Azure IoT Hub does not accept this device; check its device id, that it is enabled, its sharedAccessKey or "
    "certificate, and this gateway's clock"
)


class IotHubDialect(Mqtt311):
    """`bridge.connectors.mqtt.dialects.MqttDialect` for one device or module."""

    refusals: Mapping[int, str] = {2: _REFUSED, 4: _REFUSED, 5: _REFUSED}

    def __init__(self, names: IotHubNames) -> None:
        super().__init__(bridge=False)
        self._names = names
        self.peer = f"Azure IoT Hub, as {'device' if names.module is None else 'module'} {names.client_id}"

    def publish(
        self, message: ConnectorMessage, packet_id: int, *, dup: bool, terms: packets.ConnackTerms, now_ns: int
    ) -> bytes:
        if message.target.removesuffix("/") != self._names.events:
            raise ValueError(f"Azure IoT Hub takes messages only at {self._names.events}")
        properties = _properties(message)
        size = len(message.payload) + sum(
            len(value.encode()) + (0 if name.startswith("$") else len(name.encode()))
            for name, value in properties.items()
        )
        if size > IOT_HUB_MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a message of {size} bytes with its properties; Azure IoT Hub accepts {IOT_HUB_MESSAGE_BYTES_MAX}"
            )
        topic = f"{self._names.events}/{encode_properties(properties)}"
        if len(topic) > packets.TOPIC_BYTES_MAX:
            raise ValueError(
                f"properties of {len(topic)} bytes in their encoding; a topic has {packets.TOPIC_BYTES_MAX}"
            )
        return packets.publish(topic, message.payload, packet_id, dup=dup, retain=False)

    def decode(self, frame: bytes) -> packets.Packet:
        packet = packets.decode(frame)
        if not isinstance(packet, packets.PublishReceived):
            return packet
        levels, properties = packet.topic.split("/", self._names.properties_level), b""
        if len(levels) > self._names.properties_level:
            properties = write(_read(decode_properties(levels.pop())))
        topic = self._names.inbound_topic(levels)
        return packet if topic is None else packet._replace(topic=topic, properties=properties)


def service_of(
    settings: MqttSettings, host: str, now_ns: Callable[[], int]
) -> tuple[ClientIdentity, Sequence[MqttDialect], ServiceTerms]:
    """Return our identity at an IoT hub, the version to speak, and the terms.

    `host`: the endpoint's; `now_ns` is UTC. Raises ValueError for settings that the configuration's rules refuse.
    """
    names = names_of(settings, host)
    identity, dialects = ClientIdentity(names.client_id, names.username), (IotHubDialect(names),)
    if settings.shared_access_key is None:
        return identity, dialects, ServiceTerms(disconnects=True)
    key, lifetime_s = device_key(settings.shared_access_key), settings.token_lifetime_s

    def sign(identity: ClientIdentity) -> ClientIdentity:
        expires_s = ceil(now_ns() / _NS + lifetime_s)
        return identity._replace(password=device_token(key, names.resource, expires_s))

    terms = ServiceTerms(sign=sign, renew_after_s=lifetime_s * TOKEN_LIFETIME_USED, disconnects=True)
    return identity, dialects, terms


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode properties for a topic: ``name=value&name=value``, percent-encoded, so that it is one level."""
    return "&".join(f"{quote(name, safe='$.')}={quote(value, safe='')}" for name, value in properties.items())


def decode_properties(text: str) -> Sequence[tuple[str, str]]:
    """Decode the properties in a topic. A name without a value, which is null at IoT Hub, gets an empty one."""
    pairs = (pair.partition("=") for pair in text.split("&") if pair)
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _properties(message: ConnectorMessage) -> dict[str, str]:
    """Return the properties of a message, those of the system first. Names that repeat keep their last value."""
    (gateway, epoch), address, sequence = message.name
    name = f"{gateway}/{epoch}/{address}/{sequence}".encode()
    properties = message.properties
    found = {_ID: blake2b(name, digest_size=16).hexdigest()}
    correlation = properties.correlation_data
    if correlation is not None and _IDENTIFIER.fullmatch(text := correlation.decode("ascii", "replace")):
        found[_CORRELATION] = text
    content_type = properties.content_type
    if content_type and _CONTENT_TYPE_TEXT.fullmatch(content_type):
        found[_CONTENT_TYPE] = content_type
        if _is_text(content_type) and _is_utf8(message.payload):
            found[_ENCODING] = "utf-8"  # without it IoT Hub does not route by the body
    for user, value in properties.users:
        if user and not user.startswith((PREFIX, _OURS)):
            found[f"_{user}" if user.startswith(_RESERVED) else user] = value
    ours = {
        "gateway": gateway,
        "epoch": epoch,
        "address": address,
        "sequence": str(sequence),
        "device": message.device,
        "hops": " ".join(message.hops),
    }
    found |= {f"{_OURS}{field}": value for field, value in ours.items() if value}
    if message.received_at >= _CLOCK_SET_NS:
        at = datetime.fromtimestamp(message.received_at // _NS, UTC)
        milliseconds = message.received_at % _NS // 1_000_000
        found[_CREATED] = f"{at:%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z"
    return found


def _read(pairs: Iterable[tuple[str, str]]) -> PublishProperties:
    """Return the properties of a message from the cloud. Control characters, which MQTT strings cannot contain, become
    spaces."""
    content_type: str | None = None
    correlation: bytes | None = None
    users: list[tuple[str, str]] = []
    for given_name, given_value in pairs:
        name, value = _UNFIT.sub(" ", given_name), _UNFIT.sub(" ", given_value)
        if name == _CONTENT_TYPE:
            content_type = value
        elif name == _CORRELATION:
            correlation = value.encode()
        elif name and not name.startswith(PREFIX):
            users.append((name, value))
    return PublishProperties(content_type=content_type, correlation_data=correlation, users=tuple(users))


def _is_text(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind.endswith(("/json", "+json"))


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
