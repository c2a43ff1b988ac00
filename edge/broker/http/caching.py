"""Header fields about caches."""

from __future__ import annotations

from typing import Final

NEVER_CACHED: Final = {"Cache-Control": "no-store"}
"""Fields of answers with data, which no cache keeps (RFC 9111 section 5.2.2.5)."""
