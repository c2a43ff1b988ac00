"""Sending links of an AMQP connection to a peer: one per target address.

Messages of the outbox are queued per address and sent as far as that link has credit. A link that the peer refuses is
attached again after `RETRY_S`, and its messages wait; other addresses are not affected.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from bridge import plain
from bridge.engine import Condition, DeliveryState, Detached, Dispositions, Engine, Link, describe_condition
from bridge.engine.terminus import target
from bridge.forwarders.claims import Claims, NoClaims
from bridge.forwarders.conditions import FORCED, is_temporary, wait_s
from bridge.forwarders.outbox import ForwarderOutbox, Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import SENDER_LINKS_MAX, SENDERS_UNSETTLED_MAX, SENDERS_WAITING_BYTES_MAX
from bridge.message import Run
from bridge.plain import Heading

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Seconds until an address that the peer has refused is tried again."""
RUN_MESSAGES_MAX: Final = 512
RUN_BYTES_MAX: Final = 256 << 10
"""Messages and bytes taken from the outbox at a time."""

DURABLE: Final = 2
"""`unsettled-state` (AMQP 1.0 section 3.5.5): a terminus keeps its messages over the connection and a restart."""

_OUTCOMES: Final = {
    DeliveryState.ACCEPTED: ForwardOutcome.ACCEPTED,
    DeliveryState.REJECTED: ForwardOutcome.REJECTED,
    DeliveryState.MODIFIED_UNDELIVERABLE: ForwardOutcome.REJECTED,
}
"""Outcome by delivery state; every other state means `RELEASED`."""


class _Transfer:
    """One run on its way: the number of messages sent, and their outcomes."""

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.sent = 0
        self.settled = 0
        """Number of first messages with an outcome that was reported to the outbox."""
        self.outcomes: list[tuple[ForwardOutcome, str] | None] = [None] * len(outgoing)

    @property
    def size(self) -> int:
        return self.outgoing.stored.run.size

    def prefix(self) -> tuple[int, ForwardOutcome, str] | None:
        """Return the number and the outcome of the next messages with the same outcome; None before the first."""
        first = self.outcomes[self.settled] if self.settled < len(self.outcomes) else None
        if first is None:
            return None
        end = self.settled + 1
        while end < len(self.outcomes) and self.outcomes[end] == first:
            end += 1
        count = end - self.settled
        self.settled = end
        return count, *first


class _Sender:
    """Link to one address of the peer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.up = False
        self.retry_at: float | None = None
        self.waiting: deque[_Transfer] = deque()
        """Runs that are not completely sent."""
        self.unsettled = 0
        """Unsettled messages."""

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.unsettled


class Senders:
    """Sending links of one connection; created for each."""

    def __init__(
        self, outbox: ForwarderOutbox, claims: Claims | None = None, partition_key: Callable[[Run], str] | None = None
    ) -> None:
        """`claims`: authorization of links. `partition_key`: key of messages that the peer keeps in order."""
        self.wait_s = 0.0
        """Shortest time until the next connection, as the peer requests."""
        self._outbox = outbox
        self._claims = claims or NoClaims()
        self._partition_key = partition_key
        self._engine: Engine | None = None
        self._senders: dict[str, _Sender] = {}
        """Links by address, the most recently used last."""
        self._by_tag: dict[int, tuple[_Sender, _Transfer, int]] = {}
        self._next_tag = 0
        self._waiting_bytes = 0

    def begin(self, engine: Engine, wake: Callable[[], None], disconnect: Callable[[str], None]) -> None:
        """Attach the outbox: the connection is open."""
        self._engine = engine
        self._outbox.attached(wake, disconnect)

    def end(self) -> None:
        """Handle the end of the connection: unsettled messages return to the outbox."""
        if self._engine is not None:
            self._engine = None
            self._outbox.detached()

    @property
    def deadline(self) -> float | None:
        """Time of the next attempt at a refused address."""
        return min((one.retry_at for one in self._senders.values() if one.retry_at is not None), default=None)

    def attached(self, link: Link) -> bool:
        """Handle a link that the peer attached; return False when it is not one of these."""
        sender = self._of(link)
        if sender is None:
            return False
        sender.up = True
        return True

    def detached(self, event: Detached, now: float) -> bool:
        """Handle a link that the peer ended; return False when it is not one of these."""
        sender = self._of(event.link)
        if sender is None:
            return False
        sender.link, sender.up = None, False
        self.wait_s = max(self.wait_s, wait_s(event.condition))
        why = f"{sender.address!r}: {describe_condition(event.condition)}"
        if sender.unsettled:
            self._outbox.disconnect(f"the peer ended the link to {why}")
        elif event.condition is not None and event.condition.name == FORCED:
            log.info("the peer ended the link to %s; it is attached again when there is something to send", why)
        else:
            after_s = max(RETRY_S, wait_s(event.condition))
            log.warning("the peer refuses the link to %s; next attempt in %g s", why, after_s)
            sender.retry_at = now + after_s
        return True

    def settled(self, event: Dispositions) -> None:
        """Handle the peer's dispositions."""
        touched: dict[_Transfer, None] = {}
        for tag, state, remotely_settled, detail in event.items:
            if not remotely_settled and self._engine is not None:
                self._engine.settle_sent(event.link, tag)
            found = self._by_tag.pop(tag, None)
            if found is None:
                continue
            sender, transfer, i = found
            sender.unsettled -= 1
            why = describe_condition(detail) if isinstance(detail, Condition) else state.name.lower()
            outcome = _OUTCOMES.get(state, ForwardOutcome.RELEASED)
            if outcome is ForwardOutcome.REJECTED and is_temporary(detail):
                outcome, self.wait_s = ForwardOutcome.RELEASED, max(self.wait_s, wait_s(detail))
            transfer.outcomes[i] = (outcome, why)
            touched[transfer] = None
        for transfer in touched:
            self._report(transfer)

    def flush(self) -> None:
        """Send as many messages as there is credit for."""
        if self._engine is None:
            return
        while self._waiting_bytes < SENDERS_WAITING_BYTES_MAX:
            outgoing = self._outbox.take(RUN_MESSAGES_MAX, RUN_BYTES_MAX)
            if outgoing is None:
                break
            sender = self._senders.pop(outgoing.address, None) or _Sender(outgoing.address)
            self._senders[outgoing.address] = sender
            transfer = _Transfer(outgoing)
            sender.waiting.append(transfer)
            self._waiting_bytes += transfer.size
        for sender in [one for one in self._senders.values() if one.waiting or (one.link and one.link.draining)]:
            self._send(self._engine, sender)

    def retry(self, now: float) -> None:
        """Allow another attempt at refused addresses when it is time."""
        for sender in self._senders.values():
            if sender.retry_at is not None and sender.retry_at <= now:
                sender.retry_at = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _of(self, link: Link) -> _Sender | None:
        sender = link.context
        return sender if isinstance(sender, _Sender) else None

    def _send(self, engine: Engine, sender: _Sender) -> None:
        if sender.link is None:
            if sender.retry_at is None and self._claims.authorize(sender.address):
                self._attach(engine, sender)
            return
        link = sender.link
        while sender.up and sender.waiting and self._engine is not None:
            room = min(link.credit, SENDERS_UNSETTLED_MAX - len(self._by_tag))
            if room <= 0:
                break
            transfer = sender.waiting[0]
            start = transfer.sent
            transfer.sent = min(len(transfer.outcomes), start + room)
            if transfer.sent == len(transfer.outcomes):
                sender.waiting.popleft()
                self._waiting_bytes -= transfer.size
            self._send_part(engine, sender, link, transfer, start)
        if link.draining and not sender.waiting:
            engine.drained(link)

    def _send_part(self, engine: Engine, sender: _Sender, link: Link, transfer: _Transfer, start: int) -> None:
        """Send the messages of a transfer from `start` to `transfer.sent`."""
        _, address, (_, sequence, run), hop, sending = transfer.outgoing
        end, settled = transfer.sent, sending.qos == 0
        elapsed_ms = self._outbox.elapsed_ms(run)
        ttl_ms = None if sending.ttl_s is None else int(sending.ttl_s * 1000) - elapsed_ms
        # an acknowledgement must mean on disk at the peer, not in its memory
        heading = Heading(address, sending.priority, ttl_ms, elapsed_ms, durable=not settled)
        if self._partition_key is not None:
            heading = heading._replace(partition_key=self._partition_key(run))
        messages = plain.messages(hop, sequence + start, run.part(start, end), heading)
        most = link.max_message_size
        large = [i for i, message in enumerate(messages) if len(message) > most] if most else []
        for i in large:
            why = f"{len(messages[i])} bytes; the peer accepts {most}"
            transfer.outcomes[start + i] = (ForwardOutcome.REJECTED, why)
        fitting = [i for i in range(len(messages)) if i not in large] if large else range(len(messages))
        first, self._next_tag = self._next_tag, self._next_tag + len(fitting)
        for tag, i in enumerate(fitting, first):
            if settled:
                transfer.outcomes[start + i] = (ForwardOutcome.ACCEPTED, "")
            else:
                self._by_tag[tag] = (sender, transfer, start + i)
        engine.send_all(link, first, [messages[i] for i in fitting], settled=settled)
        if not settled:
            sender.unsettled += len(fitting)
        if settled or large:
            self._report(transfer)

    def _attach(self, engine: Engine, sender: _Sender) -> None:
        if sum(1 for one in self._senders.values() if one.link is not None) >= SENDER_LINKS_MAX:
            unused = next((one for one in self._senders.values() if one.link is not None and one.idle), None)
            if unused is None or unused.link is None:
                return  # all links are in use: wait until one is idle
            engine.detach(unused.link)
            del self._senders[unused.address]
        # durable: RabbitMQ declares a missing queue, and a transient one unless the terminus says otherwise
        terminus = target(sender.address, durability=DURABLE, expiry="never")
        sender.link = engine.attach_sender(f"{engine.container_id}>{sender.address}", terminus)
        sender.link.bind(sender)

    def _report(self, transfer: _Transfer) -> None:
        while (found := transfer.prefix()) is not None:
            count, outcome, why = found
            self._outbox.settle(transfer.outgoing.ticket, outcome, why, count)
            if outcome is ForwardOutcome.RELEASED:
                return
