"""AWS Signature Version 4 in the query of a URL: a request is signed with a secret access key, which is never sent.

Specified in https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html. Pure functions.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple
from urllib.parse import quote

from bridge.hidden import hides

ALGORITHM: Final = "AWS4-HMAC-SHA256"
EMPTY_BODY: Final = hashlib.sha256(b"").hexdigest()


@hides("secret")
class AccessKey(NamedTuple):
    """Long-term access key of a user."""

    identifier: str
    secret: str


class SigningScope(NamedTuple):
    """Region and service that a signature is for."""

    region: str
    service: str


def signed_query(
    key: AccessKey, scope: SigningScope, host: str, path: str, date: str, expires_s: int, body: str = EMPTY_BODY
) -> str:
    """Return the query that signs a GET request for `path` at `host`.

    `date` is UTC, such as `20130524T000000Z`; `body` is the hash of the body. The signature ends `expires_s` after it.
    """
    credential = f"{date[:8]}/{scope.region}/{scope.service}/aws4_request"
    fields = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{key.identifier}/{credential}",
        "X-Amz-Date": date,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": "host",
    }
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())
    request = f"GET\n{quote(path)}\n{query}\nhost:{host}\n\nhost\n{body}"
    text = f"{ALGORITHM}\n{date}\n{credential}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.new(signing_key(key.secret, date[:8], scope), text.encode(), hashlib.sha256).hexdigest()
    return f"{query}&X-Amz-Signature={signature}"


def signing_key(secret: str, day: str, scope: SigningScope) -> bytes:
    """Derive the key of one day for a region and a service."""
    key = f"AWS4{secret}".encode()
    for part in (day, scope.region, scope.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
