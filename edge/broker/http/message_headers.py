"""Header fields of every answer with a message, so that a browser does not run content of a device."""

from __future__ import annotations

from typing import Final

from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.messages import CONTENT_TYPE_CHARACTERS_MAX

OPAQUE: Final = "application/octet-stream"
_INERT: Final = {
    **NEVER_CACHED,
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


def message_headers(content_type: str | None) -> dict[str, str]:
    """Return the header fields for the body of a message.

    The sender chooses body and content type. With these fields a browser saves the body, runs no script in it, and
    guesses no other type. A content type that could end the header line is replaced.
    """
    return {"Content-Type": content_type if content_type and _is_plain(content_type) else OPAQUE, **_INERT}


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and len(text) <= CONTENT_TYPE_CHARACTERS_MAX
