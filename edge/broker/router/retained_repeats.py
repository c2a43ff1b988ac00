"""Retained messages that a peer sends again at a new subscription: those that are retained here already are not new.

A broker sends each of them once after a subscription, and live messages with the same content are new. So one message
of an address is left out after a connection begins, and only where it says what is retained here.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.limits import INBOX_NAMES_MAX
from bridge.message import Run
from edge.broker.router.known_names import digest


class RetainedRepeats:
    """Finds them for one incoming forwarder."""

    def __init__(self, retained: Callable[[str], Run | None]) -> None:
        """`retained`: what is retained here of an address."""
        self._retained = retained
        self._seen: set[bytes] = set()
        """Digests of addresses that had a message left out over this connection."""

    def begin(self) -> None:
        """A connection begins."""
        self._seen.clear()

    def is_repeat(self, run: Run) -> bool:
        """Return whether a retained message of the peer is here already; asked once a message. Beyond
        `INBOX_NAMES_MAX` addresses it counts as a new one."""
        name = digest(run.address.encode())
        if name in self._seen or len(self._seen) >= INBOX_NAMES_MAX:
            return False
        here = self._retained(run.address)
        if here is None or here.bodies != run.bodies:
            return False
        self._seen.add(name)
        return True
