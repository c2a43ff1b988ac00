"""Tokens that the issuer was asked about: the active ones with the time of the last answer, and inactive ones.

Active tokens outlive a restart in a small file, readable by its owner only, so that clients can connect again while the
issuer cannot be reached. It has the SHA-256 of tokens, not the tokens. Without a loop, and without the issuer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from bridge.durable_file import replace_file
from edge.broker.security.limits import (
    INACTIVE_TOKENS_MAX,
    KNOWN_TOKEN_LIFE_S_MIN,
    KNOWN_TOKENS_MAX,
)
from edge.broker.security.proof import VerifiedIdentity

log = logging.getLogger(__name__)

FILE: Final = "introspection.json"


class _StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """One active token in the file. Times are UTC seconds."""

    digest: str
    active_at: float
    expires_at: float
    proven: VerifiedIdentity | None = None


class _StoredTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file."""

    issuer: str
    audience: str
    tokens: tuple[_StoredToken, ...] = ()


class KnownToken:
    """An active token."""

    __slots__ = ("active_at_s", "answered_at", "expires_at_s", "fails", "proven", "stored_at_s")

    def __init__(
        self, active_at_s: float, answered_at: float, expires_at_s: float, proven: VerifiedIdentity | None
    ) -> None:
        """`answered_at`: monotonic seconds of the last answer; minus infinity for one of an earlier process."""
        self.active_at_s = active_at_s
        """Last positive answer, UTC seconds."""
        self.answered_at = answered_at
        self.expires_at_s = expires_at_s
        self.proven = proven
        """Identity that the issuer gave an opaque token; None for a signed one."""
        self.fails = False
        """The last question about it had no answer."""
        self.stored_at_s = float("-inf")
        """`active_at_s` as the file has it."""


class KnownTokens:
    """Table of tokens by their digest."""

    def __init__(self, issuer: str, audience: str, data: Path, grace_s: float) -> None:
        """`grace_s`: seconds for which a positive answer counts without a further one."""
        self._issuer = issuer
        self._audience = audience
        self._file = data / FILE
        self._grace_s = grace_s
        self._active: dict[str, KnownToken] = {}
        """The least recently confirmed first."""
        self._inactive: dict[str, float] = {}
        """Monotonic time until which a token counts as inactive; the oldest first."""
        self.changed = False
        """True while the file lacks a token."""
        self.revoked = False
        """True while the file has a token that the issuer has ended."""

    def __len__(self) -> int:
        return len(self._active)

    def find(self, digest: str) -> KnownToken | None:
        """Return an active token; None if it is not known."""
        return self._active.get(digest)

    def is_inactive(self, digest: str, now: float) -> bool:
        """Return True while a negative answer counts. `now`: monotonic seconds."""
        until = self._inactive.get(digest)
        return until is not None and now < until

    def is_valid_offline(self, known: KnownToken, at_s: float) -> bool:
        """Return True if a token counts without the issuer at a time, UTC seconds."""
        return known.expires_at_s > at_s and at_s - known.active_at_s <= self._grace_s

    def confirm(self, digest: str, fresh: KnownToken, in_use: Collection[str]) -> bool:
        """Note a positive answer. Return False without room: every token belongs to an open connection."""
        before = self._active.pop(digest, None)
        if before is None and len(self._active) >= KNOWN_TOKENS_MAX and not self._make_room(in_use):
            return False
        self._inactive.pop(digest, None)
        self._active[digest] = fresh
        if before is not None:
            fresh.stored_at_s = before.stored_at_s
        stored_late = fresh.active_at_s - fresh.stored_at_s > self._grace_s / 8
        if stored_late and fresh.expires_at_s - fresh.active_at_s >= KNOWN_TOKEN_LIFE_S_MIN:
            self.changed = True
        return True

    def end(self, digest: str, until: float) -> None:
        """Note a negative answer, which counts until a monotonic time."""
        known = self._active.get(digest)
        self.revoked = self.revoked or (known is not None and known.stored_at_s > 0)
        self.forget(digest)
        self._inactive.pop(digest, None)
        self._inactive[digest] = until
        if len(self._inactive) > INACTIVE_TOKENS_MAX:
            del self._inactive[next(iter(self._inactive))]

    def forget(self, digest: str) -> None:
        """Forget an active token. Idempotent."""
        self._active.pop(digest, None)

    def tidy(self, in_use: Collection[str], at_s: float, *, away: bool) -> None:
        """Forget what has ended.

        A token of an open connection is forgotten only if its last answer is too old and the issuer is `away`, or
        fails for it: its expiry ends the connection otherwise, and many tokens take longer than the interval.
        """
        for digest, known in list(self._active.items()):
            if digest not in in_use:
                if not self.is_valid_offline(known, at_s):
                    self.forget(digest)
            elif (away or known.fails) and at_s - known.active_at_s > self._grace_s:
                self.forget(digest)

    def _make_room(self, in_use: Collection[str]) -> bool:
        digest = next((each for each in self._active if each not in in_use), None)
        if digest is not None:
            self.forget(digest)
        return digest is not None

    # --- the file -------------------------------------------------------------------------------------------------

    def load(self, at_s: float) -> None:
        """Load the tokens that are still valid at a time, UTC seconds. A damaged file counts as empty."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_StoredTokens)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("cannot read %s (%s); asking the issuer", self._file, type(error).__name__)
            return
        if (found.issuer, found.audience) != (self._issuer, self._audience):
            return
        for each in found.tokens[:KNOWN_TOKENS_MAX]:
            known = KnownToken(each.active_at, float("-inf"), each.expires_at, each.proven)
            known.stored_at_s = each.active_at
            if self.is_valid_offline(known, at_s):
                self._active[each.digest] = known

    def to_store(self) -> Callable[[], int]:
        """Return the work that writes the file and returns its bytes, for a thread; it raises OSError. Later changes
        count towards the next write."""
        stored = []
        for digest, known in self._active.items():
            if known.expires_at_s - known.active_at_s >= KNOWN_TOKEN_LIFE_S_MIN or known.stored_at_s > 0:
                known.stored_at_s = known.active_at_s
                stored.append(
                    _StoredToken(
                        digest=digest,
                        active_at=known.active_at_s,
                        expires_at=known.expires_at_s,
                        proven=known.proven,
                    )
                )
        self.changed = self.revoked = False
        content = _StoredTokens(issuer=self._issuer, audience=self._audience, tokens=tuple(stored))

        def write() -> int:
            written = msgspec.json.encode(content)
            replace_file(self._file, written)
            return len(written)

        return write

    def not_stored(self) -> None:
        """Note that the file could not be written."""
        self.changed = True
