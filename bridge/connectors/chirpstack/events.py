"""Events and commands of ChirpStack's MQTT integration, in its JSON encoding.

The names are those of `integration.proto` of ChirpStack 4 in camel case. Fields with their default value are left out
there, so each has a default here.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from bridge.connectors.limits import LORAWAN_PAYLOAD_BYTES_MAX

EVENT_TOPIC: Final = re.compile(r"application/(?P<application>[^/]+)/device/(?P<device>[^/]+)/event/(?P<event>[^/]+)")
COMMAND_TOPIC: Final = re.compile(r"application/[^/+#]+/device/(?P<device>[^/]+)/command/down")
DEV_EUI: Final = re.compile(r"[0-9a-f]{16}")
PORT_MAX: Final = 223
"""Highest FPort of applications (LoRaWAN 1.0.4 section 4.3.2)."""


class DeviceClass(enum.Enum):
    """Class of a device: when it listens."""

    A = "CLASS_A"
    """Receives in two short windows after each of its uplinks."""
    B = "CLASS_B"
    """At times that the network knows."""
    C = "CLASS_C"
    """Always."""


class DeviceInfo(msgspec.Struct, rename="camel"):
    """Device of an event."""

    device_class_enabled: DeviceClass = DeviceClass.A


class DeviceEvent(msgspec.Struct, rename="camel"):
    """Fields of all kinds of events that concern downlinks."""

    device_info: DeviceInfo = msgspec.field(default_factory=DeviceInfo)
    queue_item_id: str = ""
    """Downlink of an `ack` or `txack`."""
    acknowledged: bool = False
    """`ack`: the device has acknowledged it; otherwise its time was over."""
    code: str = ""
    """`log`: the reason, such as ``DOWNLINK_PAYLOAD_SIZE``."""
    context: Mapping[str, str] = {}
    """`log`: has ``queue_item_id`` if a downlink was discarded."""


class EventName(NamedTuple):
    """Topic of an event."""

    device: str
    """DevEUI."""
    kind: str
    """``up``, ``join``, ``status``, ``ack``, ``txack``, ``log``, ``location`` or ``integration``."""


class DownlinkCommand(msgspec.Struct, rename="camel", omit_defaults=True):
    """Downlink that ChirpStack puts into its queue of the device."""

    dev_eui: str = ""
    f_port: int = 0
    confirmed: bool = False
    data: str | None = None
    values: dict[str, Any] | None = msgspec.field(default=None, name="object")
    """Values that the codec of the device's profile encodes."""
    id: str = ""
    expires_at: str | None = None


class _GivenDownlink(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Payload of a command that names its fields itself."""

    f_port: int | None = None
    confirmed: bool | None = None
    data: str | None = None
    values: dict[str, Any] | None = msgspec.field(default=None, name="object")


class EventError(ValueError):
    """The payload is not an event; the text says why."""


class DownlinkError(ValueError):
    """The payload is not a downlink; the text says why."""


_EVENTS: Final = msgspec.json.Decoder(DeviceEvent)
_GIVEN: Final = msgspec.json.Decoder(_GivenDownlink)
_COMMANDS: Final = msgspec.json.Encoder()


def name_of(topic: str) -> EventName | None:
    """Return device and kind of an event's topic; None for another topic."""
    found = EVENT_TOPIC.fullmatch(topic)
    return None if found is None else EventName(found["device"], found["event"])


def read_event(payload: bytes) -> DeviceEvent:
    """Return an event. Raises EventError."""
    try:
        return _EVENTS.decode(payload)
    except msgspec.ValidationError as error:
        raise EventError(f"has a value that is not known: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EventError("is not JSON: set json=true in [integration.mqtt] there") from None


def downlink_of(payload: bytes, port: int, *, confirmed: bool) -> DownlinkCommand:
    """Return the downlink of a command's payload: an object with `data` (Base64) or `object`, or the bytes themselves.

    `port` and `confirmed` are used where the payload names none. Raises DownlinkError.
    """
    try:
        given = _GIVEN.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        given = _GivenDownlink()
    if given.data is None and given.values is None:
        given = _GivenDownlink(data=base64.b64encode(payload).decode())
    elif given.data is not None and given.values is not None:
        raise DownlinkError("has data and object; ChirpStack takes one of them")
    if given.data is not None:
        try:
            size = len(base64.b64decode(given.data, validate=True))
        except binascii.Error:
            raise DownlinkError("data is not Base64") from None
        if size > LORAWAN_PAYLOAD_BYTES_MAX:
            raise DownlinkError(f"{size} bytes; LoRaWAN carries {LORAWAN_PAYLOAD_BYTES_MAX} at most")
    chosen = port if given.f_port is None else given.f_port
    if not 1 <= chosen <= PORT_MAX:
        raise DownlinkError(f"fPort {chosen}; applications have 1 to {PORT_MAX}")
    wanted = confirmed if given.confirmed is None else given.confirmed
    return DownlinkCommand(f_port=chosen, confirmed=wanted, data=given.data, values=given.values)


def encode_command(command: DownlinkCommand) -> bytes:
    """Return a downlink as ChirpStack reads it."""
    return _COMMANDS.encode(command)
