"""Reasons for which an artefact is refused."""

from __future__ import annotations

import enum


class ArtefactFault(enum.Enum):
    """Reason for which an artefact is refused, at the hub, at a gateway and at a device."""

    FORGED = "forged"
    """The signature or the checksum is wrong."""
    TRUNCATED = "truncated"
    """Bytes are missing at the end."""
    MALFORMED = "malformed"
    """The file is not a signed manifest, or has fields that are not allowed."""
    TOO_LARGE = "too-large"
    """The manifest or the image has more bytes than stated or allowed."""
    UNKNOWN_KEY = "unknown-key"
    """Signed with a key that is not trusted."""
    UNSUPPORTED_VERSION = "unsupported-version"
    """The manifest has a format that this version does not know."""
    NOT_YET_VALID = "not-yet-valid"
    """Its first day has not come, or the clock is wrong."""
    DOWNGRADED = "downgraded"
    """A later artefact of this name is known already."""
    WRONG_BOARD = "wrong-board"
    """Made for other boards."""
    WRONG_FROM_VERSION = "wrong-from-version"
    """Cannot be installed over the present version."""
    TOO_MANY_NAMES = "too-many-names"
    """The gateway remembers as many names of artefacts, against downgrades, as it can."""


class ArtefactRefused(ValueError):
    """The artefact is refused; `fault` says why, the message explains it."""

    def __init__(self, fault: ArtefactFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
