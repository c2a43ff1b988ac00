"""Extension points between the links of an AMQP connection and the router.

The session calls a `LinkInterceptor` before it processes an attach. The classes here change nothing. They are the
default, and the base classes of those that do (`edge.broker.hono.amqp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from bridge.engine import Engine, Link, Transfers
from edge.broker.amqp.addressing import local_address
from edge.broker.amqp.incoming import MessageRelay
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.scheduler import Scheduler
from edge.broker.model.authorization import OWN_ADDRESSES, Grant
from edge.broker.model.interfaces import Origin


class InterceptedOrigin(Origin):
    """Link on which a peer sends requests, which the gateway answers itself."""

    message_bytes_max: ClassVar[int]
    """Most bytes of a message on it."""

    delivered: int
    """Messages received since the attach."""

    @property
    def unsettled(self) -> int:
        """Number of unanswered messages."""
        raise NotImplementedError

    def received(self, event: Transfers) -> None:
        """Process messages of the peer."""
        raise NotImplementedError

    def top_up(self) -> None:
        """Grant credit."""
        raise NotImplementedError

    def ended(self) -> None:
        """Forget the ended link; further answers are dropped."""
        raise NotImplementedError


class LinkInterceptor:
    """Interceptor of one connection; this one changes nothing."""

    def relay(self, address: str | None) -> MessageRelay | None:
        """Return a translator for messages of a sending link; None: they are published unchanged."""
        return None

    def sender(self, engine: Engine, link: Link, driver: Scheduler, name: str) -> InterceptedOrigin | None:
        """Return the owner of a sending link; None leaves it to the session. `name`: that of the publisher. Raises
        AttachRefused."""
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

    def links(self, grant: Grant | None) -> LinkInterceptor:
        """Return the interceptor for a connection with these rights, None without authentication. Raises
        AttachRefused."""
        return PASS_THROUGH


NO_INTERCEPTION: Final = LinkInterception()


class OwnNodes(LinkInterception):
    """Nodes below `OWN_ADDRESSES`, served by the gateway itself, also to connections that were open before."""

    def __init__(self) -> None:
        self.served: LinkInterception | None = None
        """Serves them; None: they are not found."""

    def serve(self, served: LinkInterception | None) -> None:
        """Serve the nodes by this interception from now on; None: by none."""
        self.served = served

    def links(self, grant: Grant | None) -> LinkInterceptor:
        return _OwnNodeLinks(self, grant)


class _OwnNodeLinks(LinkInterceptor):
    """Interceptor of one connection, which finds what serves the nodes at its first attach to one of them."""

    def __init__(self, nodes: OwnNodes, grant: Grant | None) -> None:
        self._nodes = nodes
        self._grant = grant
        self._found: LinkInterceptor | None = None

    def sender(self, engine: Engine, link: Link, driver: Scheduler, name: str) -> InterceptedOrigin | None:
        found = self._find(link.target.address)
        return None if found is None else found.sender(engine, link, driver, name)

    def receiver(
        self, engine: Engine, link: Link, driver: Scheduler, name: str, clock_ns: Callable[[], int]
    ) -> OutgoingLink | None:
        found = self._find(link.source.address)
        return None if found is None else found.receiver(engine, link, driver, name, clock_ns)

    def _find(self, address: str | None) -> LinkInterceptor | None:
        if address is None or not local_address(address).startswith(OWN_ADDRESSES):
            return None
        if self._found is None and self._nodes.served is not None:
            self._found = self._nodes.served.links(self._grant)
        return self._found
