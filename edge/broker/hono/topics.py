"""The topic names and filters of Hono's MQTT adapter, and the property bag at the end of a name. Pure.

``t``, ``telemetry/<tenant>/<device>``, ``e//<device>/?hono-ttl=30``, ``c///s/<request>/<status>`` are what devices
publish to; ``c///q/#``, ``error/<tenant>/<device>/#`` what they subscribe to. Addresses of AMQP messages are written
the same way, without a bag.
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
    """What a device's message is; the value is the word of error topics."""

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
    """What a device wants done when its message is not taken."""

    DEFAULT = "default"
    DISCONNECT = "disconnect"
    IGNORE = "ignore"
    SKIP_ACK = "skip-ack"


class Upload(msgspec.Struct, frozen=True):
    """A topic name a device publishes to, read; `tenant` and `device` are empty where the name leaves them out."""

    endpoint: DeviceEndpoint
    short: bool
    tenant: str = ""
    device: str = ""
    request: str = ""
    """Request identifier of the command a response belongs to."""
    status: int = 0
    """HTTP status a response carries."""

    @property
    def word(self) -> str:
        """The endpoint in an error topic, short where the device's own topic was."""
        return _SHORT[self.endpoint] if self.short else self.endpoint.value


class PropertyBag(msgspec.Struct, frozen=True):
    """The properties of a message that its topic name carries."""

    content_type: str | None = None
    ttl_s: int | None = None
    on_error: OnError = OnError.DEFAULT
    correlation: str | None = None


class DeviceFilter(msgspec.Struct, frozen=True):
    """A filter for commands or for errors, read. `prefix` and `middle` are spelled as the device spells them."""

    errors: bool
    prefix: str
    middle: str
    tenant: str
    device: str
    """Empty: the subscriber itself; `ANY_DEVICE`: all it acts for."""

    def topic(self, device: str, own: str, rest: str) -> str:
        """Where a message for `device` is published to a subscriber that is `own` itself."""
        named = "" if device == own and device != self.device else device
        middle = f"/{self.middle}" if self.middle else ""
        return f"{self.prefix}/{self.tenant}/{named}{middle}/{rest}"


def split_bag(topic: str) -> tuple[str, str]:
    """(name, what stands behind the last ``/?``)."""
    name, mark, bag = topic.rpartition(BAG)
    return (name, bag) if mark else (topic, "")


def read_upload(name: str) -> Upload | None:
    """What a device publishes to; None for a name that is none of the device API's. Raises DeviceError for one that
    begins like it and goes on wrongly."""
    levels = name.split("/")
    first = levels[0]
    endpoint = _UPLOADS.get(first)
    if endpoint is not None:
        if len(levels) == 1:
            return Upload(endpoint, len(first) == 1)
        if len(levels) == 3:
            return Upload(endpoint, len(first) == 1, levels[1], levels[2])
        raise bad_request(f"{name[:100]!r}: neither {first} nor {first}/<tenant>/<device>")
    if first not in _COMMAND:
        return None
    if len(levels) == 6 and levels[3] in ("s", "res"):
        status = status_of(levels[5])
        return Upload(DeviceEndpoint.RESPONSE, len(first) == 1, levels[1], levels[2], levels[4], status)
    raise bad_request(f"{name[:100]!r}: a response goes to {first}/<tenant>/<device>/res/<request>/<status>")


def status_of(text: str) -> int:
    """The status of a response: an HTTP status that is final (RFC 9110 section 15). Raises DeviceError."""
    if len(text) == 3 and text.isascii() and text.isdigit() and 200 <= int(text) < 600:
        return int(text)
    raise bad_request(f"{text[:20]!r} is no status from 200 to 599")


def read_bag(text: str) -> PropertyBag:
    """The properties of a bag; what nobody knows is ignored, as Hono does. Raises DeviceError."""
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
        raise bad_request("a correlation-id is a level of the error's topic: no / + # in it, up to 255 characters")
    return PropertyBag(
        content_type_of(fields.get("content-type")),
        None if "hono-ttl" not in fields else seconds_of(fields["hono-ttl"], "hono-ttl"),
        OnError(word),
        correlation,
    )


def content_type_of(text: str | None) -> str | None:
    """A content type, None where there is none. Raises DeviceError."""
    if not text:
        return None
    if len(text) > CONTENT_TYPE_CHARACTERS_MAX or not (text.isascii() and text.isprintable()):
        raise bad_request(f"a content type has up to {CONTENT_TYPE_CHARACTERS_MAX} printable ASCII characters")
    return text


def seconds_of(text: str, name: str) -> int:
    """A whole number of seconds. Raises DeviceError."""
    if text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= TTL_S_MAX:
        return int(text)
    raise bad_request(f"{name} is a whole number of seconds up to {TTL_S_MAX}, not {text[:20]!r}")


def is_level(text: str) -> bool:
    """It can stand as one level of a topic name."""
    return 0 < len(text) <= 255 and text.isprintable() and not any(mark in text for mark in "/+#")


def read_filter(pattern: str) -> DeviceFilter | None:
    """The filter of a subscription to commands or errors; None for any other."""
    levels = pattern.split("/")
    if levels[-1] != "#" or any(level in ("+", "#") for level in (*levels[:2], *levels[3:-1])):
        return None
    if len(levels) == 5 and levels[0] in _COMMAND and levels[3] in ("q", "req") and levels[2] != "#":
        return DeviceFilter(False, levels[0], levels[3], levels[1], levels[2])
    if len(levels) == 4 and levels[0] in ("e", "error") and levels[2] != "#":
        return DeviceFilter(True, levels[0], "", levels[1], levels[2])
    return None
