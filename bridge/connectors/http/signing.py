"""Signature and id of a request: Standard Webhooks 1.0, and the name of a batch.

The signature is the HMAC-SHA256 of ``<webhook-id>.<webhook-timestamp>.<body>`` with the shared secret, sent as
``webhook-signature: v1,<Base64>``. The id is the name of the batch, so a repeated request has the same id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:  # every gateway imports `secret_of`, and few need the rest
    from bridge.connectors.messages import ConnectorMessage
    from bridge.plain import Hop

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a word of the format
SECRET_BYTES_MIN: Final = 24
"""Standard Webhooks requires 24 to 64 bytes."""
_NAME_CHARACTERS_MAX: Final = 200


class Span(NamedTuple):
    """Consecutive messages of one address, by sequence."""

    hop: Hop
    address: str
    first: int
    last: int


def secret_of(text: str) -> bytes:
    """Return the key in ``whsec_<Base64>``. Raises `ValueError` with the fault and the next step."""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"not Base64; create one: echo {SECRET_PREFIX}$(openssl rand -base64 32)") from None
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"{len(key)} bytes; a key needs at least {SECRET_BYTES_MIN}: openssl rand -base64 32")
    return key


def spans(messages: Sequence[ConnectorMessage]) -> list[Span]:
    """Return the messages of a batch as spans of sequences, in order."""
    found: list[Span] = []
    for hop, address, sequence in (message.name for message in messages):
        if found and found[-1][:2] == (hop, address) and found[-1].last + 1 == sequence:
            found[-1] = found[-1]._replace(last=sequence)
        else:
            found.append(Span(hop, address, sequence, sequence))
    return found


def batch_name(messages: Sequence[ConnectorMessage]) -> str:
    """Return a name that is unique for these messages: ``gateway/epoch/address/first-last``, percent-encoded. For
    several spans, or a long address, a digest replaces epoch and address."""
    found = spans(messages)
    first, last = found[0], found[-1]
    name = "/".join(quote(part, safe="").replace(".", "%2E") for part in (*first.hop, first.address))
    name = f"{name}/{first.first}-{first.last}"
    if len(found) == 1 and len(name) <= _NAME_CHARACTERS_MAX:
        return name
    digest = hashlib.blake2b(digest_size=16)
    for (gateway, epoch), address, low, high in found:
        digest.update(f"{gateway}\0{epoch}\0{address}\0{low}-{high}\n".encode())
    gateway = quote(last.hop.gateway, safe="").replace(".", "%2E")[:64]
    return f"{gateway}/{digest.hexdigest()}/{len(messages)}"


def signature(key: bytes, name: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``; `timestamp`: seconds since 1970."""
    signed = hmac.digest(key, b"%b.%d.%b" % (name.encode(), timestamp, body), "sha256")
    return f"v1,{base64.b64encode(signed).decode()}"
