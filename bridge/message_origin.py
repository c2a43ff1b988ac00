"""Origin of a relayed message: the gateway that accepted it first, its name there, and the device that sent it.

A gateway that forwards to another gateway names each message: in message annotations over AMQP, in user properties of
the same names over MQTT. Read it only where the publisher is a relay (`bridge.publisher.is_relay`): any client can
write these names. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bridge import sections as s
from bridge.amqp_values import DecodeError
from bridge.message import AMQP
from bridge.plain import ADDRESS, CLIENT, DEVICE, EPOCH, GATEWAY, PREFIX, RECEIVED_AT, SEQUENCE, contents
from bridge.publish_properties import read

_INT64_MAX: Final = 2**63 - 1
_PREFIX_BYTES: Final = PREFIX.encode()


class MessageOrigin(NamedTuple):
    """Name of a message at the gateway that accepted it first, and its publisher there."""

    gateway: str
    epoch: str
    address: str
    sequence: int
    device: str | None
    client: str | None
    """None where the client has the name of the device."""
    received_at: int | None
    """UTC nanoseconds since 1970, by the clock of that gateway."""


def find_origin(flags: int, properties: bytes, body: bytes) -> MessageOrigin | None:
    """Return the origin that one message of a run names; None when it names none, or only parts of a name."""
    if flags & AMQP:
        return _from_names(_annotations(body)) if _PREFIX_BYTES in body else None
    return _from_names(dict(read(properties).users)) if _PREFIX_BYTES in properties else None


def _annotations(body: bytes) -> Mapping[Any, Any]:
    try:
        found = [content for _, content in contents(body, (s.MESSAGE_ANNOTATIONS,))]
    except DecodeError:
        return {}
    return found[0] if found and isinstance(found[0], dict) else {}


def _from_names(names: Mapping[Any, Any]) -> MessageOrigin | None:
    gateway, epoch, address = (_text(names.get(key)) for key in (GATEWAY, EPOCH, ADDRESS))
    sequence = _number(names.get(SEQUENCE))
    if not gateway or not epoch or not address or sequence is None:
        return None
    device, client = _text(names.get(DEVICE)), _text(names.get(CLIENT))
    return MessageOrigin(gateway, epoch, address, sequence, device, client, _number(names.get(RECEIVED_AT)))


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    """Return a number that fits into 63 bits, from AMQP's integers or from the digits of a user property."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _INT64_MAX else None
