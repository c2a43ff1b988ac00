"""Reports of devices about artefacts: from a gateway to its hub, as messages."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

REPORT_LEVEL: Final = "artefact-report"
"""Last level of the address of a report; the level before it is the device. A hub knows reports by it."""
REPORT_TYPE: Final = "application/vnd.waypost.artefact-report+json"
"""Content type of a report that is an event of Hono's device API; the address of an event names no device."""


class UpdateState(enum.Enum):
    """Progress of a device with an artefact."""

    DOWNLOADING = "downloading"
    VERIFIED = "verified"
    """The device has all bytes, and has verified them."""
    INSTALLED = "installed"
    HEALTHY = "healthy"
    """The device runs it without problems."""
    ROLLED_BACK = "rolled-back"
    """The device has refused it, or is back on the version before."""

    @property
    def final(self) -> bool:
        """True when the artefact is not offered again."""
        return self in (UpdateState.INSTALLED, UpdateState.HEALTHY, UpdateState.ROLLED_BACK)


class UpdateMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message about a report, for the hub."""

    device: str
    artefact: str
    version: str
    state: UpdateState
    reason: str
