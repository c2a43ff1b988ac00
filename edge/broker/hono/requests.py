"""Request identifiers: what a device is given with a command and gives back with its response. Pure.

An identifier holds all that the response needs, so nothing is remembered between the two: a gateway may restart, and a
device may answer days later. It is signed: a device cannot answer for another one, or to an application that has not
asked it.
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
"""96 bits of the HMAC: nobody guesses them, and the identifier stays short."""


@hides("correlation")
class CommandRequest(NamedTuple):
    """Whom a response goes to."""

    reply: str
    """What stands behind ``command_response/<tenant>/`` in the application's reply address."""
    correlation: Any
    """The correlation identifier of the command, typed as it came."""


class CommandRequests:
    """Makes and reads identifiers with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def identifier(self, device: str, request: CommandRequest) -> str:
        """Letters, digits, ``-`` and ``_``: one level of a topic name."""
        content = encode([request.reply, message_id(request.correlation)])
        return base64.urlsafe_b64encode(self._tag(device, content) + content).decode("ascii").rstrip("=")

    def read(self, device: str, identifier: str) -> CommandRequest:
        """What the identifier stands for. Raises DeviceError when it is none, or not of this device."""
        try:
            raw = base64.b64decode(identifier + "=" * (-len(identifier) % 4), altchars=b"-_", validate=True)
            tag, content = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
            if not hmac.compare_digest(tag, self._tag(device, content)):
                raise bad_request(f"the request identifier is not one of a command to {device}")
            (reply, correlation), _ = decode(content)
        except (binascii.Error, ValueError, TypeError, DecodeError):
            raise bad_request(f"{identifier[:40]!r} is no request identifier") from None
        return CommandRequest(reply, correlation)

    def _tag(self, device: str, content: bytes) -> bytes:
        return hmac.digest(self._key, device.encode() + b"\0" + content, hashlib.sha256)[:_TAG_BYTES]
