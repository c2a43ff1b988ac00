"""Shared access signatures of Azure: a token for one resource, signed with the key of a policy, which is never sent.

Specified in https://learn.microsoft.com/azure/service-bus-messaging/service-bus-sas and, for devices of IoT Hub, in
https://learn.microsoft.com/azure/iot-hub/authenticate-authorize-sas. Pure functions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import quote_plus

from bridge.hidden import hides


@hides("key")
class Policy(NamedTuple):
    """A shared access policy of a namespace or of an entity."""

    name: str
    key: str
    """Key as the portal shows it; the signature uses its characters, not their Base64 value."""


def token(policy: Policy, resource: str, expires_s: int) -> str:
    """Return a token for `resource`, a URI, valid until `expires_s` (seconds since 1970)."""
    encoded = quote_plus(resource)
    digest = hmac.new(policy.key.encode(), f"{encoded}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}&skn={quote_plus(policy.name)}"


def device_key(text: str) -> bytes:
    """Decode the key of a device of IoT Hub. Raises ValueError, which does not show the key."""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise ValueError("is not a key: copy the primary key of the device, which is Base64")
    return key


def device_token(key: bytes, resource: str, expires_s: int) -> str:
    """Return a token of a device of IoT Hub for `resource`, a URI without scheme. It names no policy, and it is signed
    with the decoded key, unlike a token for Service Bus."""
    encoded = quote_plus(resource)
    digest = hmac.new(key, f"{encoded}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}"
