"""The container at the other end of a connection, and its rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bridge.engine import Condition
from bridge.publisher import publisher_name
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused
from edge.broker.amqp.interception import PASS_THROUGH, LinkInterceptor
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal
from edge.broker.model.refusals import RefusalCause

NOT_AUTHORIZED: Final = CONDITIONS[Refusal.NOT_AUTHORIZED]


class AmqpPeer:
    """Identity and rights of the peer, set by its open and by each token that it puts to `$cbs`."""

    __slots__ = ("closing", "container_id", "forbidden", "grant", "interceptor", "name")

    def __init__(self, forbidden: Callable[[RefusalCause, str], None]) -> None:
        """`forbidden` records that the peer has no right to an address."""
        self.forbidden = forbidden
        self.name = "-"
        """Name of the device: its authenticated user, or its container id."""
        self.container_id = ""
        self.grant: Grant | None = None
        """Rights of the user; None without authentication."""
        self.interceptor: LinkInterceptor = PASS_THROUGH
        """Interceptor of its links."""
        self.closing = False
        """The connection is being closed: what the peer sends before its close is dropped."""

    def end(self) -> None:
        """Release the session at the end of the connection, so that it is freed at once."""
        self.forbidden = _ignore

    @property
    def publisher(self) -> str:
        """Publisher name of its messages. Without authentication no peer is a relay."""
        relay = self.grant is not None and self.grant.may_relay
        return publisher_name(self.name, self.container_id or self.name, relay=relay)

    @property
    def subscriber(self) -> str:
        """Owner of durable subscriptions: the container id, qualified by the user."""
        return self.container_id if self.grant is None else f"{self.grant.user}/{self.container_id}"

    @property
    def user(self) -> str:
        """User with the quotas for the names that it creates."""
        return "" if self.grant is None else self.grant.user

    def require(self, allowed: bool, what: str, address: str) -> None:
        """Raise `AttachRefused` unless it is allowed."""
        if not allowed or self.closing:
            raise AttachRefused(NOT_AUTHORIZED, f"{self.name} must not {what} {address!r}")


def _ignore(_cause: RefusalCause, _address: str) -> None:
    """Do nothing: the connection has ended."""


def denied(description: str) -> Condition:
    """Return the condition for ending a link or connection that is no longer allowed."""
    return Condition(NOT_AUTHORIZED, description)
