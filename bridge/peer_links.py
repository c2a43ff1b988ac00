"""Links to an AMQP 1.0 peer other than a hub: senders, receivers, and the claims that authorize them.

Senders and receivers handle addresses that the peer does not know: a missing one does not block the others.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.amqp_connection import AmqpConnection
from bridge.engine import Accepted, Condition, Detached, Dispositions, Link, LinkFlow, Transfers
from bridge.forwarders.claims import Claims, NoClaims
from bridge.forwarders.conditions import wait_s
from bridge.forwarders.receivers import Receivers
from bridge.forwarders.senders import Senders
from bridge.uplink import UplinkShell


class PeerLinks:
    """`bridge.amqp_connection.ConnectionLinks` of one connection."""

    def __init__(self, senders: Senders, receivers: Receivers, claims: Claims | None = None) -> None:
        """`claims`: the object that senders and receivers use."""
        self._senders = senders
        self._receivers = receivers
        self._claims = claims or NoClaims()

    @property
    def deadline(self) -> float | None:
        every = (each.deadline for each in (self._senders, self._receivers, self._claims))
        return min((each for each in every if each is not None), default=None)

    def driven_by(self, driver: UplinkShell) -> None:
        """Do nothing: senders and receivers wake the connection themselves."""

    def count_bytes(self, size: int) -> None:
        """Do nothing: these bytes are not counted."""

    def opened(self, connection: AmqpConnection, now: float) -> None:
        engine, wake, disconnect = connection.engine, connection.wake, connection.disconnect
        connection.up(batching=False)
        self._claims.begin(engine, disconnect, now)
        self._senders.begin(engine, wake, disconnect)
        self._receivers.begin(engine, wake, disconnect)

    def attached(self, link: Link) -> bool:
        return any(each.attached(link) for each in (self._claims, self._senders, self._receivers))

    def detached(self, event: Detached, now: float) -> None:
        if not self._claims.detached(event):
            _ = self._senders.detached(event, now) or self._receivers.detached(event, now)

    def settled(self, event: Dispositions, now: float) -> None:
        if not self._claims.settled(event):
            self._senders.settled(event)

    def progressed(self, event: LinkFlow | Accepted) -> None:
        """Do nothing: each flush sends as far as there is credit."""

    def received(self, event: Transfers, now: float) -> bool:
        if self._claims.received(event, now):
            self._receivers.attach()  # another address may be authorized now
            return True
        return self._receivers.received(event)

    def handle_timeout(self, now: float) -> None:
        self._claims.retry(now)
        self._senders.retry(now)
        self._receivers.handle_timeout(now)

    def flush(self) -> None:
        self._claims.flush()
        self._senders.flush()

    def leave(self, left: Callable[[], None]) -> None:
        self._receivers.leave(left)

    def end(self) -> None:
        self._claims.end()
        self._senders.end()
        self._receivers.end()

    def wait_s(self, condition: Condition | None) -> float:
        return max(self._senders.wait_s, self._receivers.wait_s, wait_s(condition))
