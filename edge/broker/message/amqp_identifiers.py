"""Identifiers of messages between the two protocols.

A message-id or correlation-id is text, binary, a number or a UUID (AMQP 1.0 sections 3.2.11 to 3.2.14), MQTT's
correlation data is bytes, and an answer has to refer to its request as that called itself.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from bridge.amqp_values import Ulong

_ULONG, _UUID = "ID:AMQP_ULONG:", "ID:AMQP_UUID:"
"""What stands before a number and a UUID written as text: the words AMQP clients of JMS use for it."""
_ULONG_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF

STRING_BYTES_MAX: Final = 65_535
"""An MQTT string or binary value has a length of two bytes."""


def correlation_data(value: Any) -> bytes | None:
    """An identifier as MQTT carries it; None for none, and for one that is too long."""
    if value is None:
        return None
    raw = value if isinstance(value, bytes) else as_text(value).encode("utf-8", "replace")
    return raw if len(raw) <= STRING_BYTES_MAX else None


def identifier(data: bytes | None) -> str | bytes | Ulong | UUID | None:
    """MQTT's correlation data as an identifier: text where it is text, for a requester that gave a string must find its
    string in the answer, and a number or a UUID where `correlation_data` wrote one."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return _typed(text) if text.startswith((_ULONG, _UUID)) else text


def as_text(value: Any) -> str:
    """An identifier as AMQP clients of JMS write it."""
    if isinstance(value, UUID):
        return f"{_UUID}{value}"
    return f"{_ULONG}{int(value)}" if isinstance(value, int) else str(value)


def _typed(text: str) -> str | Ulong | UUID:
    """The number or UUID that is written just so; else the text."""
    found: Ulong | UUID
    try:
        found = Ulong(text.removeprefix(_ULONG)) if text.startswith(_ULONG) else UUID(text.removeprefix(_UUID))
    except ValueError:
        return text
    if as_text(found) != text or (isinstance(found, int) and not 0 <= found <= _ULONG_MAX):
        return text
    return found
