"""Shared access signatures of Azure: a token for one resource, signed with the key of a policy. The key never leaves.

https://learn.microsoft.com/azure/service-bus-messaging/service-bus-sas says how they are made. Pure.
"""

from __future__ import annotations

import base64
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
    """As the portal shows it; the signature takes its characters, not what they stand for in Base64."""


def token(policy: Policy, resource: str, expires_s: int) -> str:
    """The right to `resource`, a URI, until `expires_s` (seconds since 1970)."""
    encoded = quote_plus(resource)
    digest = hmac.new(policy.key.encode(), f"{encoded}\n{expires_s}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}&skn={quote_plus(policy.name)}"
