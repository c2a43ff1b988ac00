"""Notice that the registry is an older copy of itself: restored from a backup, or a standby that took over.

The notice is a file in the hub's data directory, so it outlives a restart of the hub and of the registry, whichever
database that is. The operator removes the file after a check.
"""

from __future__ import annotations

import enum
import logging
import os
from pathlib import Path
from typing import Final

from bridge.durable_file import replace_file

log = logging.getLogger(__name__)

FILE: Final = "registry.older"


class OlderCopySign(enum.Enum):
    """Evidence that the registry is an older copy."""

    LAKE = "the lake has commits that the registry does not know"
    CERTIFICATES = "gateways connect with certificates of this hub's authority that the registry does not know"
    REVOCATIONS = "certificates were revoked and the registry did not know; they are revoked again"


class OlderCopyNotice:
    """Keeps the signs seen for one data directory."""

    def __init__(self, data: Path) -> None:
        self.file: Final = data / FILE

    def add(self, sign: OlderCopySign) -> None:
        """Record a sign. Raises nothing: a notice that cannot be written is logged."""
        found = self.signs()
        if sign in found:
            return
        log.error("the registry is an older copy: %s", sign.value)
        try:
            replace_file(self.file, "".join(f"{each.name}\n" for each in (*found, sign)).encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self.file, error.strerror)

    def signs(self) -> list[OlderCopySign]:
        """Return the signs seen since the operator last removed the file."""
        try:
            descriptor = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
            names = {line.strip() for line in file}
        return [each for each in OlderCopySign if each.name in names]
