"""Grants by the token that they come from, so that connections end with a token that the issuer has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge.broker.model.authorization import Ended, Grant
from edge.broker.model.isolation import report
from edge.broker.security.proof import TokenOrigin

log = logging.getLogger(__name__)


class TokenGrants:
    """Grants of connections and sessions that were opened with a token."""

    def __init__(self) -> None:
        self._origins: dict[Grant, TokenOrigin] = {}

    def hold(self, grant: Grant, origin: TokenOrigin | None) -> None:
        """Set the origin of a grant; None: it comes from no token."""
        if origin is not None:
            self._origins[grant] = origin

    def release(self, grant: Grant) -> None:
        """Forget a grant. Idempotent."""
        self._origins.pop(grant, None)

    def digests(self) -> set[str]:
        """Return the digests of the tokens that the issuer is asked about."""
        return {origin.digest for origin in self._origins.values() if origin.digest}

    def end(self, ended: Callable[[TokenOrigin], bool]) -> int:
        """Close the connections, and end the sessions, of tokens that the issuer has ended; return their number."""
        found = [grant for grant, origin in self._origins.items() if ended(origin)]
        for grant in found:
            if grant not in self._origins:
                continue  # the end of another one has closed it
            log.info("user %s: the issuer has ended the token of %s", grant.user, grant.client or "-")
            revoke_grant(grant, Ended.TOKEN)
        return len(found)


def revoke_grant(grant: Grant, why: Ended) -> None:
    """Close one connection. If that fails, take its rights away, so that the caller can go on with others."""
    try:
        grant.revoke(why)
    except Exception as error:
        report(f"user {grant.user!r}, client {grant.client!r}", "its connection stays open without rights", error)
        grant.replace(grant.user, ())
