"""Request identifiers, which a device receives with a command and returns with its response, without I/O.

An identifier contains all that the response needs, so the gateway keeps no state: it may restart, and a device may
respond days later. It is signed, so that a device cannot respond for another one, or without a command.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Any, Final, NamedTuple

from bridge.amqp_values import DecodeError, decode, encode
from bridge.hidden import hides
from edge.broker.hono.errors import bad_request
from edge.broker.hono.messages import message_id

KEY_BYTES: Final = 32
_TAG_BYTES: Final = 12
"""96 bits of the HMAC cannot be guessed, and keep the identifier short."""


@hides("correlation")
class CommandRequest(NamedTuple):
    """Recipient of a response."""

    reply: str
    """Part of the application's reply address after ``command_response/<tenant>/``."""
    correlation: Any
    """Correlation identifier of the command, in its original type."""


class CommandRequests:
    """Creates and verifies identifiers with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def identifier(self, device: str, request: CommandRequest) -> str:
        """Create an identifier of letters, digits, ``-`` and ``_``: one level of a topic name."""
        content = encode([request.reply, message_id(request.correlation)])
        return base64.urlsafe_b64encode(self._tag(device, content) + content).decode("ascii").rstrip("=")

    def read(self, device: str, identifier: str) -> CommandRequest:
        """Verify an identifier and return the request. Raises DeviceError if it is invalid or of another device."""
        try:
            raw = base64.b64decode(identifier + "=" * (-len(identifier) % 4), altchars=b"-_", validate=True)
            tag, content = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
            if not hmac.compare_digest(tag, self._tag(device, content)):
                raise bad_request(f"the request identifier is not one of a command to {device}")
            (reply, correlation), _ = decode(content)
        except (binascii.Error, ValueError, TypeError, DecodeError):
            raise bad_request(f"{identifier[:40]!r} is not a request identifier") from None
        return CommandRequest(reply, correlation)

    def _tag(self, device: str, content: bytes) -> bytes:
        return hmac.digest(self._key, device.encode() + b"\0" + content, hashlib.sha256)[:_TAG_BYTES]
