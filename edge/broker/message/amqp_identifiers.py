"""Translate message identifiers between AMQP and MQTT.

A message-id or correlation-id is text, binary, a number or a UUID (AMQP 1.0 sections 3.2.11 to 3.2.14). MQTT's
correlation data is bytes. A response must refer to its request by the same identifier.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from bridge.amqp_values import Ulong

_ULONG, _UUID = "ID:AMQP_ULONG:", "ID:AMQP_UUID:"
"""Prefixes of a number and a UUID as text, as JMS clients write them."""
_ULONG_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF

STRING_BYTES_MAX: Final = 65_535
"""Longest MQTT string or binary value; its length has two bytes."""


def correlation_data(value: Any) -> bytes | None:
    """Return an identifier as MQTT correlation data; None if it is absent or too long."""
    if value is None:
        return None
    raw = value if isinstance(value, bytes) else as_text(value).encode("utf-8", "replace")
    return raw if len(raw) <= STRING_BYTES_MAX else None


def identifier(data: bytes | None) -> str | bytes | Ulong | UUID | None:
    """Return MQTT's correlation data as an AMQP identifier.

    It is a number or UUID if `correlation_data` wrote one, and text if it is UTF-8, so that a requester finds its
    string in the response.
    """
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data
    return _typed(text) if text.startswith((_ULONG, _UUID)) else text


def as_text(value: Any) -> str:
    """Return an identifier as JMS clients write it."""
    if isinstance(value, UUID):
        return f"{_UUID}{value}"
    return f"{_ULONG}{int(value)}" if isinstance(value, int) else str(value)


def _typed(text: str) -> str | Ulong | UUID:
    """Return the number or UUID if the text is its exact form, else the text."""
    found: Ulong | UUID
    try:
        found = Ulong(text.removeprefix(_ULONG)) if text.startswith(_ULONG) else UUID(text.removeprefix(_UUID))
    except ValueError:
        return text
    if as_text(found) != text or (isinstance(found, int) and not 0 <= found <= _ULONG_MAX):
        return text
    return found
