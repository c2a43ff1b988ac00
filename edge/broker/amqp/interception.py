"""Where another layer steps in between the links of an AMQP connection and the router.

The session asks a `LinkInterceptor` before it takes an attach as it is. The classes here step in nowhere: they are the
default, and the base of those that do (`edge.broker.hono.amqp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bridge.engine import Engine, Link
from edge.broker.amqp.incoming import MessageRelay
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Scheduler


class LinkInterceptor:
    """Of one connection. Steps in nowhere."""

    def relay(self, address: str | None) -> MessageRelay | None:
        """How messages of a link the peer sends on are read; None: as they are."""
        return None

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> OutgoingLink | None:
        """The consumer behind a link the peer receives on; None leaves it to the session. Raises AttachRefused or
        AddressError."""
        return None


PASS_THROUGH: Final = LinkInterceptor()


class LinkInterception:
    """Of one broker. Changes nothing."""

    def links(self, user: str | None) -> LinkInterceptor:
        """For a connection of this user; None: nobody had to say who he is. Raises AttachRefused."""
        return PASS_THROUGH


NO_INTERCEPTION: Final = LinkInterception()
