"""Grants by the token that they come from, so that connections end with a token that the issuer has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from edge.broker.model.authorization import Ended, Grant
from edge.broker.model.isolation import report
from edge.broker.security.proof import TokenOrigin

log = logging.getLogger(__name__)


class TokenGrants:
    """Grants of connections and sessions that were opened with a token."""

    def __init__(self) -> None:
        self._origins: dict[Grant, TokenOrigin] = {}
        self._by_digest: dict[str, set[Grant]] = {}
        """Grants of tokens that the issuer is asked about."""
        self._texts: dict[str, bytes] = {}
        self.text_bytes = 0
        """Bytes of the tokens that are held to ask about them again."""

    def hold(self, grant: Grant, origin: TokenOrigin | None) -> None:
        """Set the origin of a grant; None: it comes from no token."""
        self.release(grant)
        if origin is None:
            return
        self._origins[grant] = origin
        if origin.digest:
            self._by_digest.setdefault(origin.digest, set()).add(grant)
            if origin.digest not in self._texts:
                self._texts[origin.digest] = origin.text
                self.text_bytes += len(origin.text)

    def release(self, grant: Grant) -> None:
        """Forget a grant. Idempotent."""
        origin = self._origins.pop(grant, None)
        grants = self._by_digest.get(origin.digest) if origin is not None else None
        if origin is None or grants is None:
            return
        grants.discard(grant)
        if not grants:
            del self._by_digest[origin.digest]
            self.text_bytes -= len(self._texts.pop(origin.digest))

    def origin_of(self, grant: Grant) -> TokenOrigin | None:
        """Return the origin of a grant; None if it is not held, or comes from no token."""
        return self._origins.get(grant)

    @property
    def texts(self) -> Mapping[str, bytes]:
        """Tokens of open connections that the issuer is asked about, by digest, as they are now."""
        return self._texts

    def end_digests(self, digests: Iterable[str]) -> int:
        """Close the connections, and end the sessions, of tokens; return their number."""
        return self._end([grant for digest in digests for grant in self._by_digest.get(digest, ())])

    def end(self, ended: Callable[[TokenOrigin], bool]) -> int:
        """Close the connections, and end the sessions, of the origins that have ended; return their number."""
        return self._end([grant for grant, origin in self._origins.items() if ended(origin)])

    def _end(self, found: Iterable[Grant]) -> int:
        count = 0
        for grant in found:
            if grant not in self._origins:
                continue  # the end of another one has closed it
            count += 1
            log.info("user %s: the issuer has ended the token of %s", grant.user, grant.client or "-")
            revoke_grant(grant, Ended.TOKEN)
            self.release(grant)
        return count


def revoke_grant(grant: Grant, why: Ended) -> None:
    """Close one connection. If that fails, take its rights away, so that the caller can go on with others."""
    try:
        grant.revoke(why)
    except Exception as error:
        report(f"user {grant.user!r}, client {grant.client!r}", "its connection stays open without rights", error)
        grant.replace(grant.user, ())
