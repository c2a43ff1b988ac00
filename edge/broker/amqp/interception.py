"""Extension points between the links of an AMQP connection and the router.

The session calls a `LinkInterceptor` before it processes an attach. The classes here change nothing. They are the
default, and the base classes of those that do (`edge.broker.hono.amqp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bridge.engine import Engine, Link
from edge.broker.amqp.incoming import MessageRelay
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Scheduler


class LinkInterceptor:
    """Interceptor of one connection; this one changes nothing."""

    def relay(self, address: str | None) -> MessageRelay | None:
        """Return a translator for messages of a sending link; None: they are published unchanged."""
        return None

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> OutgoingLink | None:
        """Return the consumer of a receiving link; None leaves it to the session. Raises AttachRefused or
        AddressError."""
        return None


PASS_THROUGH: Final = LinkInterceptor()


class LinkInterception:
    """Interception of one broker; this one changes nothing."""

    def links(self, user: str | None) -> LinkInterceptor:
        """Return the interceptor for a connection of this user, None without authentication. Raises AttachRefused."""
        return PASS_THROUGH


NO_INTERCEPTION: Final = LinkInterception()
