"""OAUTHBEARER (RFC 7628) and the older XOAUTH2: a client's message with its token, and the answer to an invalid one.

Both have the same form after their first field; rhea and Qpid JMS support only XOAUTH2."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bridge.hidden import hides

MECHANISM: Final = "OAUTHBEARER"
OLDER_MECHANISM: Final = "XOAUTH2"
REFUSAL: Final = b'{"status":"invalid_token"}'
"""The server's challenge after an invalid token (section 3.2.2)."""
_SEPARATOR: Final = b"\x01"
_HEADER: Final = re.compile(rb"[ny],(?:a=([^,\x00]+))?,")
_OLDER_HEADER: Final = re.compile(rb"user=([^\x00]*)")
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")


class BearerError(ValueError):
    """The message does not follow the mechanism. The text contains no secret."""


@hides("token")
class BearerMessage(NamedTuple):
    """A client's message: the token, and the authorization identity (empty: the subject of the token)."""

    token: bytes
    authority: str


def read(message: bytes) -> BearerMessage:
    """Parse a client's message of either mechanism (section 3.1). Raises BearerError."""
    head, separator, rest = message.partition(_SEPARATOR)
    older = _OLDER_HEADER.fullmatch(head)
    header = older or _HEADER.fullmatch(head)
    if header is None or not separator or not rest.endswith(_SEPARATOR * 2):
        raise BearerError("not a message of OAUTHBEARER; channel binding is not supported")
    values = [pair[5:] for pair in rest[:-2].split(_SEPARATOR) if pair.startswith(b"auth=")]
    found = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if found is None:
        raise BearerError("OAUTHBEARER without one bearer token")
    try:
        authority = (header[1] or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise BearerError("an authorization identity that is not UTF-8") from None
    return BearerMessage(found[1], authority if older else authority.replace("=2C", ",").replace("=3D", "="))


def message(token: str, authority: str = "") -> bytes:
    """Return a client's message of OAUTHBEARER."""
    escaped = authority.replace("=", "=3D").replace(",", "=2C")
    header = f"n,a={escaped}," if authority else "n,,"
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()
