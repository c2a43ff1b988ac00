"""Codes of links that sign a browser in once: `waypost open`.

The command makes a link with the operator token, and the console exchanges the code for a session. The code stands
behind the ``#`` of the link, so that no browser sends it in a request line or a Referer.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from edge.broker.http.limits import SESSION_LINK_S, SESSION_LINKS_MAX

_CODE_BYTES: Final = 16
"""128 random bits cannot be guessed within a minute, and the QR code of the link stays small."""


class SignInLinks:
    """Unused codes of one node, by their SHA-256."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}
        """End of each code, the oldest first."""

    def make(self, now: float) -> str:
        """Return a new code, which is valid for `SESSION_LINK_S`."""
        while len(self._until_s) >= SESSION_LINKS_MAX:
            del self._until_s[next(iter(self._until_s))]
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._until_s[_digest(code)] = now + SESSION_LINK_S
        return code

    def take(self, code: str, now: float) -> bool:
        """Use up a code. Return False if it is unknown, used or too old."""
        return now < self._until_s.pop(_digest(code), float("-inf"))


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
