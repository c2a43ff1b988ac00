"""Who is at the other end of a connection, and what it may do."""

from __future__ import annotations

from typing import Final

from bridge.engine import Condition
from bridge.publisher import publisher_name
from edge.broker.amqp.addressing import CONDITIONS, AttachRefused
from edge.broker.amqp.interception import PASS_THROUGH, LinkInterceptor
from edge.broker.model.authorization import Grant
from edge.broker.model.interfaces import Refusal

NOT_AUTHORIZED: Final = CONDITIONS[Refusal.NOT_AUTHORIZED]


class AmqpPeer:
    """One container; known from its open on, and again from each token it puts to `$cbs`."""

    __slots__ = ("closing", "container_id", "grant", "interceptor", "name")

    def __init__(self) -> None:
        self.name = "-"
        """Device: the user that it authenticated as, or its container id."""
        self.container_id = ""
        self.grant: Grant | None = None
        """What the user may do; None where everybody may do everything."""
        self.interceptor: LinkInterceptor = PASS_THROUGH
        """Who steps in between its links and the router."""
        self.closing = False
        """It has to go, or the user has other rights now: what comes before our close is answered is dropped."""

    @property
    def publisher(self) -> str:
        """Publisher of the messages that it sends. Without authentication no peer is a relay."""
        relay = self.grant is not None and self.grant.may_relay
        return publisher_name(self.name, self.container_id or self.name, relay=relay)

    @property
    def subscriber(self) -> str:
        """Whom durable subscriptions belong to: nobody gets at those of another user by taking its container id."""
        return self.container_id if self.grant is None else f"{self.grant.user}/{self.container_id}"

    @property
    def user(self) -> str:
        """Whose quotas pay for the names it makes."""
        return "" if self.grant is None else self.grant.user

    def require(self, allowed: bool, what: str, address: str) -> None:
        """Raises `AttachRefused` unless it is allowed."""
        if not allowed or self.closing:
            raise AttachRefused(NOT_AUTHORIZED, f"{self.name} must not {what} {address!r}")


def denied(description: str) -> Condition:
    """Why a link or a connection ends that was allowed before."""
    return Condition(NOT_AUTHORIZED, description)
