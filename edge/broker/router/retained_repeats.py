"""Retained messages that a peer sends again after a new subscription: those that are retained here already are skipped.

A broker sends each of them once after a subscription, and live messages with the same content are new. So one message
of an address is skipped in each connection, and only if it equals the one that is retained here.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.limits import INBOX_NAMES_MAX
from bridge.message import Run
from edge.broker.router.recent_names import digest


class RetainedRepeats:
    """Repeated retained messages of one incoming forwarder."""

    def __init__(self, retained: Callable[[str], Run | None]) -> None:
        """`retained` returns the retained message of an address."""
        self._retained = retained
        self._seen: set[bytes] = set()
        """Digests of addresses with a skipped message in this connection."""

    def begin(self) -> None:
        """Start a connection."""
        self._seen.clear()

    def is_repeat(self, run: Run) -> bool:
        """Return True when a retained message of the peer is stored here already; called once for each message. Beyond
        `INBOX_NAMES_MAX` addresses it counts as new."""
        name = digest(run.address.encode())
        if name in self._seen or len(self._seen) >= INBOX_NAMES_MAX:
            return False
        local = self._retained(run.address)
        if local is None or local.bodies != run.bodies:
            return False
        self._seen.add(name)
        return True
