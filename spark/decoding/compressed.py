"""Bodies in gzip, as devices on slow links send them (Content-Encoding in AMQP, a convention in MQTT).

The first bytes identify them: no other supported format begins like that. A named encoding changes nothing, as with
content types.
"""

from __future__ import annotations

import zlib
from typing import Final

from spark.decoding import reasons
from spark.decoding.limits import BODY_BYTES_MAX, GZIP_MEMBERS_MAX
from spark.decoding.value import UnreadableBody

GZIP: Final = b"\x1f\x8b\x08"
"""RFC 1952 section 2.3.1: identification, and the only method."""
_GZIP_WINDOW: Final = 31
"""Argument of `zlib.decompressobj`: a gzip header and trailer, and the largest window."""


def decompress(body: bytes) -> bytes:
    """Return the content of a gzip body, one member or several. Raises UnreadableBody.

    The result never takes more than `BODY_BYTES_MAX` and one byte while it grows.
    """
    parts: list[bytes] = []
    size = 0
    while body:
        if len(parts) == GZIP_MEMBERS_MAX:
            raise UnreadableBody(reasons.NOT_GZIP)
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = member.decompress(body, BODY_BYTES_MAX + 1 - size)
        except zlib.error:
            raise UnreadableBody(reasons.NOT_GZIP) from None
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise UnreadableBody(reasons.TOO_LARGE)
        if not member.eof:
            raise UnreadableBody(reasons.NOT_GZIP)
        parts.append(part)
        body = member.unused_data
    return b"".join(parts)
