"""Header fields that tests of several HTTP APIs check."""

from __future__ import annotations

from typing import Final

INERT: Final = {
    "cache-control": "no-store",
    "content-disposition": "attachment",
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
}
"""Fields that keep a browser from running a body written by a device."""
