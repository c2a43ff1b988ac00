"""Parse topic names and filters of Hono's MQTT adapter, and the property bag at the end of a name, without I/O.

Devices publish to ``t``, ``telemetry/<tenant>/<device>``, ``e//<device>/?hono-ttl=30``, ``c///s/<request>/<status>``.
They subscribe to ``c///q/#``, ``error/<tenant>/<device>/#``. Addresses of AMQP messages have the same form, without a
property bag.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from edge.broker.hono.errors import bad_request
from edge.broker.hono.limits import BAG_FIELDS_MAX, CONTENT_TYPE_CHARACTERS_MAX, TTL_S_MAX

BAG: Final = "/?"
ANY_DEVICE: Final = "+"


class DeviceEndpoint(enum.Enum):
    """Type of a device's message; the value is used in error topics."""

    TELEMETRY = "telemetry"
    EVENT = "event"
    RESPONSE = "command-response"


_UPLOADS: Final[Mapping[str, DeviceEndpoint]] = {
    "t": DeviceEndpoint.TELEMETRY,
    "telemetry": DeviceEndpoint.TELEMETRY,
    "e": DeviceEndpoint.EVENT,
    "event": DeviceEndpoint.EVENT,
}
_SHORT: Final[Mapping[DeviceEndpoint, str]] = {
    DeviceEndpoint.TELEMETRY: "t",
    DeviceEndpoint.EVENT: "e",
    DeviceEndpoint.RESPONSE: "c-s",
}
_COMMAND: Final = ("c", "command")


class OnError(enum.Enum):
    """Action that a device requests if its message is refused."""

    DEFAULT = "default"
    DISCONNECT = "disconnect"
    IGNORE = "ignore"
    SKIP_ACK = "skip-ack"


class Upload(msgspec.Struct, frozen=True):
    """A parsed topic name of a device. `tenant` and `device` are empty if absent."""

    endpoint: DeviceEndpoint
    short: bool
    tenant: str = ""
    device: str = ""
    request: str = ""
    """Request identifier of a response."""
    status: int = 0
    """HTTP status of a response."""

    @property
    def word(self) -> str:
        """Name of the endpoint in an error topic, in the short form if the device used it."""
        return _SHORT[self.endpoint] if self.short else self.endpoint.value


class PropertyBag(msgspec.Struct, frozen=True):
    """Properties of a message in its topic name."""

    content_type: str | None = None
    ttl_s: int | None = None
    on_error: OnError = OnError.DEFAULT
    correlation: str | None = None


class DeviceFilter(msgspec.Struct, frozen=True):
    """A parsed filter for commands or errors. `prefix` and `middle` are as the device wrote them."""

    errors: bool
    prefix: str
    middle: str
    tenant: str
    device: str
    """Empty: the subscriber itself; `ANY_DEVICE`: all its devices."""

    def topic(self, device: str, own: str, rest: str) -> str:
        """Return the topic of a message for `device` to the subscriber `own`."""
        named = "" if device == own and device != self.device else device
        middle = f"/{self.middle}" if self.middle else ""
        return f"{self.prefix}/{self.tenant}/{named}{middle}/{rest}"


def split_bag(topic: str) -> tuple[str, str]:
    """Return the name and the text after the last ``/?``."""
    name, mark, bag = topic.rpartition(BAG)
    return (name, bag) if mark else (topic, "")


def read_upload(name: str) -> Upload | None:
    """Parse a topic name of a device; return None for other names. Raises DeviceError for a malformed one."""
    levels = name.split("/")
    first = levels[0]
    endpoint = _UPLOADS.get(first)
    if endpoint is not None:
        if len(levels) == 1:
            return Upload(endpoint, len(first) == 1)
        if len(levels) == 3:
            return Upload(endpoint, len(first) == 1, levels[1], levels[2])
        raise bad_request(f"{name[:100]!r} must be {first} or {first}/<tenant>/<device>")
    if first not in _COMMAND:
        return None
    if len(levels) == 6 and levels[3] in ("s", "res"):
        status = status_of(levels[5])
        return Upload(DeviceEndpoint.RESPONSE, len(first) == 1, levels[1], levels[2], levels[4], status)
    raise bad_request(f"{name[:100]!r}: send a response to {first}/<tenant>/<device>/res/<request>/<status>")


def status_of(text: str) -> int:
    """Parse the status of a response: a final HTTP status (RFC 9110 section 15). Raises DeviceError."""
    if len(text) == 3 and text.isascii() and text.isdigit() and 200 <= int(text) < 600:
        return int(text)
    raise bad_request(f"{text[:20]!r} is not a status from 200 to 599")


def read_bag(text: str) -> PropertyBag:
    """Parse a property bag. Unknown properties are ignored, as in Hono. Raises DeviceError."""
    if not text:
        return PropertyBag()
    try:
        fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=BAG_FIELDS_MAX, errors="strict"))
    except (ValueError, UnicodeError):
        raise bad_request(f"a property bag has up to {BAG_FIELDS_MAX} URL encoded names and values") from None
    word = fields.get("on-error", OnError.DEFAULT.value)
    if word not in [member.value for member in OnError]:
        raise bad_request(f"on-error is {', '.join(member.value for member in OnError)}, not {word[:20]!r}")
    correlation = fields.get("correlation-id")
    if correlation is not None and not is_level(correlation):
        raise bad_request("a correlation-id is a topic level: up to 255 characters without / + #")
    return PropertyBag(
        content_type_of(fields.get("content-type")),
        None if "hono-ttl" not in fields else seconds_of(fields["hono-ttl"], "hono-ttl"),
        OnError(word),
        correlation,
    )


def content_type_of(text: str | None) -> str | None:
    """Return a valid content type, or None. Raises DeviceError."""
    if not text:
        return None
    if len(text) > CONTENT_TYPE_CHARACTERS_MAX or not (text.isascii() and text.isprintable()):
        raise bad_request(f"a content type has up to {CONTENT_TYPE_CHARACTERS_MAX} printable ASCII characters")
    return text


def seconds_of(text: str, name: str) -> int:
    """Parse a whole number of seconds. Raises DeviceError."""
    if text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= TTL_S_MAX:
        return int(text)
    raise bad_request(f"{name} must be a whole number of seconds up to {TTL_S_MAX}, not {text[:20]!r}")


def is_level(text: str) -> bool:
    """Return True if the text can be a level of a topic name."""
    return 0 < len(text) <= 255 and text.isprintable() and not any(mark in text for mark in "/+#")


def read_filter(pattern: str) -> DeviceFilter | None:
    """Parse a filter for commands or errors; return None for others."""
    levels = pattern.split("/")
    if levels[-1] != "#" or any(level in ("+", "#") for level in (*levels[:2], *levels[3:-1])):
        return None
    if len(levels) == 5 and levels[0] in _COMMAND and levels[3] in ("q", "req") and levels[2] != "#":
        return DeviceFilter(False, levels[0], levels[3], levels[1], levels[2])
    if len(levels) == 4 and levels[0] in ("e", "error") and levels[2] != "#":
        return DeviceFilter(True, levels[0], "", levels[1], levels[2])
    return None
