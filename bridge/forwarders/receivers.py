"""Receiving links of an AMQP connection to a peer: one per incoming forwarder.

A link has as much credit as its inbox, and the inbox's answer settles what arrives. A link that the peer refuses is
attached again after `RETRY_S`; the others are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bridge import plain
from bridge.amqp_values import DecodeError
from bridge.engine import Condition, DeliveryState, Detached, Engine, Link, Transfers, describe_condition
from bridge.engine.terminus import source
from bridge.forwarders.claims import Claims, NoClaims
from bridge.forwarders.conditions import wait_s
from bridge.forwarders.inbox import DescribedInbox, ForwarderInbox, Incoming, leave_all
from bridge.forwarders.outcome import ForwardOutcome
from bridge.forwarders.senders import DURABLE, RETRY_S
from bridge.limits import LEAVE_TIMEOUT_S
from bridge.plain import MessageError

log = logging.getLogger(__name__)

_STATES: Final = {
    ForwardOutcome.ACCEPTED: DeliveryState.ACCEPTED,
    ForwardOutcome.REJECTED: DeliveryState.REJECTED,
    ForwardOutcome.RELEASED: DeliveryState.RELEASED,
}


class _Receiver:
    """Link of one incoming forwarder."""

    def __init__(self, inbox: ForwarderInbox) -> None:
        self.inbox = inbox
        self.link: Link | None = None
        self.up = False
        self.retry_at: float | None = None


class Receivers:
    """Receiving links of one connection; created for each."""

    def __init__(self, inboxes: Sequence[ForwarderInbox], claims: Claims | None = None, *, again: bool = True) -> None:
        """`inboxes`: the list may grow until the connection opens. `claims`: authorization of links. `again`: attach a
        refused link again; False for a peer that may not know the address, where a refusal is not a fault."""
        self._inboxes = inboxes
        self._claims = claims or NoClaims()
        self._again = again
        self.wait_s = 0.0
        """Shortest time until the next connection, as the peer requests."""
        self._receivers: list[_Receiver] = []
        self._engine: Engine | None = None
        self._wake: Callable[[], None] = _ignore
        self._disconnect: Callable[[str], None] = _ignore
        self._leaving = False
        self._left: Callable[[], None] | None = None
        self._leave_by: float | None = None

    def begin(self, engine: Engine, wake: Callable[[], None], disconnect: Callable[[str], None]) -> None:
        """Attach links: the connection is open."""
        self._engine, self._wake, self._disconnect = engine, wake, disconnect
        self._receivers = [_Receiver(inbox) for inbox in self._inboxes]
        self.attach()

    def attach(self) -> None:
        """Attach the links that are authorized and not waiting for a retry."""
        for receiver in self._receivers:
            idle = receiver.link is None and receiver.retry_at is None and not self._leaving
            if self._engine is not None and idle and self._claims.authorize(receiver.inbox.remote):
                self._attach(self._engine, receiver)

    def leave(self, left: Callable[[], None]) -> None:
        """Take nothing more, and call `left` when all taken messages are answered, or `LEAVE_TIMEOUT_S` is over."""
        self._leaving, self._left = True, left
        leave_all([one.inbox for one in self._receivers if one.up and one.link is not None], self._call_left)

    def end(self) -> None:
        """Handle the end of the connection: unanswered messages come again over the next one."""
        self._left = None
        self._engine, self._wake, self._disconnect = None, _ignore, _ignore
        for receiver in self._receivers:
            self._detach(receiver)

    @property
    def deadline(self) -> float | None:
        """Time of the next attempt to attach a link, or the end of the time for leaving."""
        if self._leaving:
            return None if self._left is None else self._leave_by or 0.0  # 0: call handle_timeout at once, for the time
        return min((one.retry_at for one in self._receivers if one.retry_at is not None), default=None)

    def attached(self, link: Link) -> bool:
        """Handle a link that the peer attached; return False when it is not one of these."""
        receiver = link.context
        if not isinstance(receiver, _Receiver):
            return False
        receiver.up = True
        receiver.inbox.attached(partial(self._settle, link), partial(self._top_up, receiver))
        self._top_up(receiver)
        return True

    def detached(self, event: Detached, now: float) -> bool:
        """Handle a link that the peer ended; return False when it is not one of these.

        The peer may keep unsettled messages of the link for the session (RabbitMQ does), and send them again only over
        another connection. So the end of a link that was up ends the connection.
        """
        receiver = event.link.context
        if not isinstance(receiver, _Receiver):
            return False
        why = f"the peer sends nothing from {receiver.inbox.remote!r}: {describe_condition(event.condition)}"
        receiver.link = None
        self.wait_s = max(self.wait_s, wait_s(event.condition))
        if receiver.up:
            self._disconnect(why)
            return True
        if not self._again:
            log.debug("%s: %s", receiver.inbox.name, why)
            return True
        after_s = max(RETRY_S, wait_s(event.condition))
        log.warning("%s: %s; next attempt in %g s", receiver.inbox.name, why, after_s)
        receiver.retry_at = now + after_s
        return True

    def handle_timeout(self, now: float) -> None:
        """Attach refused links again when it is time; end waiting for answers after `LEAVE_TIMEOUT_S`."""
        if self._leaving:
            if self._leave_by is None:
                self._leave_by = now + LEAVE_TIMEOUT_S
            elif self._leave_by <= now:
                self._call_left()
            return
        for receiver in self._receivers:
            if receiver.retry_at is not None and receiver.retry_at <= now:
                receiver.retry_at = None
        self.attach()

    def received(self, event: Transfers) -> bool:
        """Handle messages; return False when their link is not one of these."""
        receiver = event.link.context
        if not isinstance(receiver, _Receiver) or not receiver.up:
            return False
        if self._leaving and not event.settled and self._engine is not None:
            # the peer may send it to another receiver at once
            self._engine.settle(event.link, event.deliveries, DeliveryState.RELEASED)
            return True
        arrived: list[Incoming] = []
        for i, message in enumerate(event.messages):
            token = None if event.settled else event.deliveries[i]
            try:
                if self._engine is not None:
                    self._engine.check_message(message)
                parsed = plain.parse(message)
            except (DecodeError, MessageError) as error:
                log.error("%s: the peer sent an invalid message: %s", receiver.inbox.name, error)  # noqa: TRY400
                if token is not None and self._engine is not None:
                    condition = Condition(MessageError.condition, str(error))
                    self._engine.settle(event.link, (token,), DeliveryState.REJECTED, condition)
                continue
            unique = parsed.sequence is not None
            arrived.append(Incoming(token, parsed.destinations, parsed.name, parsed.hops, parsed.run, unique))
        if arrived:
            receiver.inbox.receive(arrived)
        self._top_up(receiver)
        return True

    # --- inside -----------------------------------------------------------------------------------------------

    def _attach(self, engine: Engine, receiver: _Receiver) -> None:
        inbox = receiver.inbox
        mode = 1 if inbox.qos == 0 else 2
        terminus = source(inbox.remote, durability=DURABLE, expiry="never")
        properties = inbox.link_properties() if isinstance(inbox, DescribedInbox) else None
        name = f"{engine.container_id}<{inbox.name}"
        receiver.link = engine.attach_receiver(name, terminus, properties=properties, snd_settle_mode=mode)
        receiver.link.bind(receiver)

    def _call_left(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()

    def _detach(self, receiver: _Receiver) -> None:
        if receiver.up:
            receiver.up = False
            receiver.inbox.detached()

    def _settle(self, link: Link, tokens: Sequence[int], outcome: ForwardOutcome, why: str) -> None:
        if self._engine is None or link.closed:
            return
        condition = Condition("amqp:not-allowed", why) if outcome is ForwardOutcome.REJECTED else None
        self._engine.settle(link, tokens, _STATES[outcome], condition)
        self._wake()

    def _top_up(self, receiver: _Receiver) -> None:
        """Grant credit once all granted messages have arrived. Not before: RabbitMQ counts the credit of a flow from
        its arrival, whatever is on the way (section 2.6.7 says otherwise), and would send more than was granted."""
        link = receiver.link
        if link is None or self._engine is None or not receiver.up or link.closed:
            return
        window = receiver.inbox.credit
        if window > 0 and link.credit == 0:
            self._engine.grant(link, window)
            self._wake()


def _ignore(_: str = "") -> None:
    """Do nothing without a connection."""
