"""Answers about client certificates, also after a restart: a small file in the data directory.

Without a loop and without a responder. Certificates are named by the SHA-256 of their DER.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.durable_file import replace_file
from edge.broker.listeners.ocsp.answer import StatusAnswer, StatusVerdict
from edge.broker.listeners.ocsp.limits import OCSP_ANSWERS_MAX

log = logging.getLogger(__name__)

FILE: Final = "ocsp.json"


class AnswersContent(NamedTuple):
    """Content of the file at some time."""

    encoded: bytes
    changes: int
    """Changes of the table up to then."""


class KnownAnswers:
    """Table of answers by the digest of their certificate, the oldest answer first."""

    def __init__(self, file: Path | None) -> None:
        """Read the file. None: answers do not outlive the process. Blocks for the time of a small file."""
        self._file = file
        self._by_digest: dict[str, StatusAnswer] = {}
        self._changes = 0
        """Changes of the table so far."""
        self._revoked_at = 0
        """Number of the change that was the last new revocation."""
        self._written = 0
        """Changes that the file has."""
        if file is not None:
            self._read(file)

    @property
    def changed(self) -> bool:
        """True if the file lacks an answer."""
        return self._changes > self._written

    @property
    def urgent(self) -> bool:
        """True if the file lacks a revocation."""
        return self._revoked_at > self._written

    def find(self, digest: str) -> StatusAnswer | None:
        """Return the last answer about a certificate; None without one."""
        return self._by_digest.get(digest)

    def add(self, digest: str, answer: StatusAnswer) -> bool:
        """Note an answer in place of the one before. Return False for an answer that contradicts a newer one: a cache,
        a second responder or a replay gave it."""
        before = self._by_digest.get(digest)
        if before is not None and answer.this_update <= before.this_update:
            overruled = answer.verdict is StatusVerdict.GOOD or answer.this_update < before.this_update
            if answer.verdict is not before.verdict and overruled:
                return False
            answer = answer._replace(this_update=before.this_update)
        if before is None and len(self._by_digest) >= OCSP_ANSWERS_MAX and not self._make_room(answer.verdict):
            return True
        self._by_digest.pop(digest, None)
        self._by_digest[digest] = answer
        self._changes += 1
        if answer.verdict is StatusVerdict.REVOKED and (before is None or before.verdict is not answer.verdict):
            self._revoked_at = self._changes
        return True

    def content(self) -> AnswersContent:
        """Return the content of the file."""
        return AnswersContent(msgspec.json.encode(self._by_digest), self._changes)

    def write(self, content: AnswersContent) -> bool:
        """Write the file; blocks. Return False after an error, which is logged. For any thread."""
        if self._file is not None:
            try:
                replace_file(self._file, content.encoded)
            except OSError as error:
                log.warning("answers about client certificates are not stored: %s", error)
                return False
        return True

    def note_written(self, content: AnswersContent) -> None:
        """Note that the file has this content."""
        self._written = max(self._written, content.changes)

    def _make_room(self, verdict: StatusVerdict) -> bool:
        """Forget the oldest positive answer, for a revocation else the oldest one. Return False without room."""
        oldest = next((each for each, found in self._by_digest.items() if found.verdict is StatusVerdict.GOOD), None)
        if oldest is None and verdict is StatusVerdict.REVOKED:
            oldest = next(iter(self._by_digest))
        if oldest is None:
            return False
        del self._by_digest[oldest]
        return True

    def _read(self, file: Path) -> None:
        try:
            self._by_digest = msgspec.json.decode(file.read_bytes(), type=dict[str, StatusAnswer])
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("answers about client certificates are asked for anew: %s: %s", file, error)
