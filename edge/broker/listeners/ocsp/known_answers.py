"""Answers about client certificates, also after a restart: a small file in the data directory.

Without a loop and without a responder. Certificates are named by the SHA-256 of their DER.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from edge.broker.listeners.ocsp.answer import StatusAnswer, StatusVerdict
from edge.broker.listeners.ocsp.limits import OCSP_ANSWERS_MAX

log = logging.getLogger(__name__)

FILE: Final = "ocsp.json"


class KnownAnswers:
    """Table of answers by the digest of their certificate, the oldest answer first."""

    def __init__(self, file: Path | None) -> None:
        """Read the file. None: answers do not outlive the process. Blocks for the time of a small file."""
        self.changed = False
        """The file lacks an answer."""
        self.urgent = False
        """The file lacks a revocation."""
        self._file = file
        self._by_digest: dict[str, StatusAnswer] = {}
        if file is not None:
            self._read(file)

    def find(self, digest: str) -> StatusAnswer | None:
        """Return the last answer about a certificate; None without one."""
        return self._by_digest.get(digest)

    def add(self, digest: str, answer: StatusAnswer) -> None:
        """Note an answer in place of the one before."""
        before = self._by_digest.pop(digest, None)
        if before is None and len(self._by_digest) >= OCSP_ANSWERS_MAX:
            del self._by_digest[next(iter(self._by_digest))]
        self._by_digest[digest] = answer
        self.changed = True
        if answer.verdict is StatusVerdict.REVOKED and (before is None or before.verdict is not answer.verdict):
            self.urgent = True

    def content(self) -> bytes:
        """Return the content of the file, which then lacks nothing."""
        self.changed = self.urgent = False
        return msgspec.json.encode(self._by_digest)

    def write(self, content: bytes) -> None:
        """Write the file; blocks. An error is logged: the answers then end with the process."""
        if self._file is None:
            return
        try:
            replace_file(self._file, content)
        except OSError as error:
            log.warning("answers about client certificates are not stored: %s", error)

    def _read(self, file: Path) -> None:
        try:
            self._by_digest = msgspec.json.decode(file.read_bytes(), type=dict[str, StatusAnswer])
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("answers about client certificates are asked for anew: %s: %s", file, error)
