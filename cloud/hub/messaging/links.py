"""Links of one connection to a message broker: senders for each address, and receivers of commands.

A message that the broker has not confirmed when the connection ends is reported as such; received messages that are not
settled then come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from bridge.amqp_connection import AmqpConnection
from bridge.engine import (
    Accepted,
    Condition,
    DeliveryState,
    Detached,
    Dispositions,
    Engine,
    Link,
    LinkFlow,
    Transfers,
    describe_condition,
)
from bridge.uplink import UplinkShell
from cloud.hub.messaging.limits import RETRY_S, SENDERS_MAX

log = logging.getLogger(__name__)


class BrokerAway(Exception):
    """The broker has not confirmed the message, and perhaps has not got it; it may be sent again."""


class BrokerRefusal(Exception):
    """The broker does not take the message at this address."""


class _Outgoing(NamedTuple):
    message: bytes
    confirmed: asyncio.Future[None]


class _Sender:
    """Link to one address."""

    def __init__(self, address: str, link: Link) -> None:
        self.address = address
        self.link = link
        self.up = False
        self.waiting: deque[_Outgoing] = deque()
        self.unconfirmed: dict[int, asyncio.Future[None]] = {}

    def fail(self, error: Exception) -> None:
        """Report everything on its way as not confirmed."""
        futures = [*self.unconfirmed.values(), *(each.confirmed for each in self.waiting)]
        self.waiting.clear()
        self.unconfirmed.clear()
        for future in futures:
            if not future.done():
                future.set_exception(error)


class _Receiver:
    """Link from one queue."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.retry_at: float | None = None
        self.refused: str | None = None


class ReceivedCommand:
    """Message from a queue, to be settled once."""

    def __init__(self, links: BrokerLinks, link: Link, delivery: int, address: str, message: bytes) -> None:
        """`address`: queue that it came from."""
        self.address = address
        self.message = message
        self._links, self._link, self._delivery = links, link, delivery

    @property
    def over(self) -> bool:
        """True when its link has ended: the broker delivers it again."""
        return self._link.closed or self._links.ended

    def settle(self, why: str | None) -> None:
        """Accept the message; with `why`, reject it for this reason."""
        self._links.settle(self._link, self._delivery, why)


class BrokerLinks:
    """`bridge.amqp_connection.ConnectionLinks` of one connection."""

    def __init__(self, queues: Iterable[str], arrived: Callable[[ReceivedCommand], None], credit: int) -> None:
        """`queues` to receive from; `arrived` is called with each message; `credit` of each queue."""
        self.ended = False
        self._receivers = [_Receiver(address) for address in queues]
        self._arrived = arrived
        self._credit = credit
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        self._connection: AmqpConnection | None = None
        self._tag = 0

    # --- for the hub --------------------------------------------------------------------------------------------------

    def send(self, address: str, message: bytes) -> asyncio.Future[None]:
        """Send a message. The future ends when the broker has confirmed it; it raises `BrokerAway`, `BrokerRefusal`."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection = self._connection
        if connection is None or self.ended:
            confirmed.set_exception(BrokerAway("the broker is not connected"))
            return confirmed
        sender = self._senders.get(address)
        if sender is None:
            self._forget_idle(connection.engine)
            link = connection.engine.attach_sender(f"waypost-to-{self._tag}-{address}"[:255], address)
            sender = self._senders[address] = _Sender(address, link)
            self._tag += 1
        self._senders.move_to_end(address)
        while sender.waiting and sender.waiting[0].confirmed.done():  # its sender waits no longer
            sender.waiting.popleft()
        sender.waiting.append(_Outgoing(message, confirmed))
        connection.wake()
        return confirmed

    @property
    def waiting(self) -> int:
        """Number of messages that the broker has given no credit for yet."""
        return sum(len(each.waiting) for each in self._senders.values())

    @property
    def refused(self) -> str | None:
        """Return why a queue of commands cannot be received; None if all are."""
        return next((each.refused for each in self._receivers if each.refused is not None), None)

    def settle(self, link: Link, delivery: int, why: str | None) -> None:
        """Settle a received message; see `ReceivedCommand.settle`."""
        connection = self._connection
        if connection is None or self.ended or link.closed:
            return
        if why is None:
            connection.engine.settle(link, [delivery])
        else:
            connection.engine.settle(link, [delivery], DeliveryState.REJECTED, Condition("amqp:invalid-field", why))
        connection.engine.grant(link, 1)
        connection.wake()

    # --- ConnectionLinks ----------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return min((each.retry_at for each in self._receivers if each.retry_at is not None), default=None)

    def driven_by(self, driver: UplinkShell) -> None:
        """Do nothing: the connection is woken by `AmqpConnection.wake`."""

    def count_bytes(self, size: int) -> None:
        """Do nothing: these bytes are not counted."""

    def opened(self, connection: AmqpConnection, now: float) -> None:
        self._connection = connection
        connection.up(batching=False)
        for receiver in self._receivers:
            self._attach(receiver)

    def attached(self, link: Link) -> bool:
        for receiver in self._receivers:
            if receiver.link is link and self._connection is not None:
                receiver.refused = None
                self._connection.engine.grant(link, self._credit)
                return True
        for sender in self._senders.values():
            if sender.link is link:
                sender.up = True
                return True
        return False

    def detached(self, event: Detached, now: float) -> None:
        why = describe_condition(event.condition)
        for receiver in self._receivers:
            if receiver.link is event.link:
                receiver.link, receiver.retry_at = None, now + RETRY_S
                if receiver.refused is None:
                    log.warning("commands cannot be received from %s: %s", receiver.address, why)
                receiver.refused = f"commands cannot be received from {receiver.address}: {why}"
        for address, sender in list(self._senders.items()):
            if sender.link is event.link:
                del self._senders[address]
                sender.fail(BrokerRefusal(f"{address}: {why}"))

    def settled(self, event: Dispositions, now: float) -> None:
        sender = next((each for each in self._senders.values() if each.link is event.link), None)
        for tag, state, settled, detail in event.items:
            if not settled and self._connection is not None:
                self._connection.engine.settle_sent(event.link, tag)
            future = sender.unconfirmed.pop(tag, None) if sender is not None else None
            if future is None or future.done() or sender is None:
                continue
            if state is DeliveryState.ACCEPTED:
                future.set_result(None)
                continue
            said = describe_condition(detail) if isinstance(detail, Condition) else state.name.lower()
            future.set_exception(BrokerRefusal(f"{sender.address}: {said}"))

    def progressed(self, event: LinkFlow | Accepted) -> None:
        """Do nothing: each flush sends as far as there is credit."""

    def received(self, event: Transfers, now: float) -> bool:
        receiver = next((each for each in self._receivers if each.link is event.link), None)
        if receiver is None:
            return False
        if event.settled:  # the broker keeps no copy; each of these counts as a credit used
            for message in event.messages:
                self._arrived(ReceivedCommand(self, event.link, -1, receiver.address, message))
            return True
        for delivery, message in zip(event.deliveries, event.messages, strict=True):
            self._arrived(ReceivedCommand(self, event.link, delivery, receiver.address, message))
        return True

    def handle_timeout(self, now: float) -> None:
        for receiver in self._receivers:
            if receiver.retry_at is not None and now >= receiver.retry_at:
                self._attach(receiver)

    def flush(self) -> None:
        connection = self._connection
        if connection is None or self.ended:
            return
        for sender in self._senders.values():
            while sender.up and sender.waiting and sender.link.credit > 0:
                outgoing = sender.waiting.popleft()
                if outgoing.confirmed.done():
                    continue
                self._tag += 1
                sender.unconfirmed[self._tag] = outgoing.confirmed
                connection.engine.send(sender.link, self._tag, outgoing.message)

    def leave(self, left: Callable[[], None]) -> None:
        left()

    def end(self) -> None:
        self.ended = True
        senders, self._senders = list(self._senders.values()), OrderedDict()
        for sender in senders:
            sender.fail(BrokerAway("the connection to the broker ended"))

    def wait_s(self, condition: Condition | None) -> float:
        return 0.0

    # --- inside -------------------------------------------------------------------------------------------------------

    def _attach(self, receiver: _Receiver) -> None:
        if self._connection is not None:
            receiver.retry_at = None
            self._tag += 1
            name = f"waypost-from-{self._tag}-{receiver.address}"[:255]
            receiver.link = self._connection.engine.attach_receiver(name, receiver.address)

    def _forget_idle(self, engine: Engine) -> None:
        for address, sender in list(self._senders.items()):
            if len(self._senders) < SENDERS_MAX:
                return
            if not sender.waiting and not sender.unconfirmed:
                del self._senders[address]
                engine.detach(sender.link)
