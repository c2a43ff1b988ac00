"""What became of commands: a receipt for each command of a hub whose device has taken it, or that is given up.

A receipt is a stored message. It joins the group of the commit that takes the command out of its queue: a power cut
sees both or neither, and a command that is delivered twice has two receipts, of which the hub takes the first.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from bridge.command import RECEIPTS, Receipt, identifier_of, receipt_body
from bridge.message import AMQP, Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.dead_letters import Reason
from edge.broker.limits import RECEIPTS_WAITING_MAX
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.topics import matches
from edge.broker.router.commands.addresses import CommandAddresses
from edge.broker.router.router import Router
from edge.broker.store.contract import MessageLog

log = logging.getLogger(__name__)

_JSON: Final = encode_run(Properties(content_type="application/json"))


class CommandReceipts(Origin):
    """Of one space."""

    name = "commands"

    def __init__(self, router: Router, store: MessageLog, addresses: CommandAddresses) -> None:
        self.addresses: Final = addresses
        self.figures: Counter[Receipt] = Counter()
        """Commands of hubs since the start."""
        self._router = router
        self._store = store
        self._token = 0
        self._stored: dict[int, Run] = {}
        """Receipts that wait for their commit."""
        self._again: deque[Run] = deque()
        """Those there was no room for."""
        router.deadletters.listeners.append(self._given_up)
        router.queues.watched_by(self._watch)
        router.tick_listeners.add(self._try_again)

    # --- what becomes of commands -------------------------------------------------------------------------------------

    def _watch(self, address: str, queue: LogSubscription) -> _Deliveries | None:
        """Who hears what becomes of the messages in a queue; None: nobody."""
        if not matches(self.addresses.commands, address):
            return None
        device = self.addresses.device(address)
        self._store.move_with_each_commit(queue.cursor)
        return _Deliveries(lambda identifier: self._tell(device, identifier, Receipt.DELIVERED))

    def _given_up(self, run: Run, reason: Reason) -> None:
        """Of a run there may be more than one command, and some of them applications' of this gateway."""
        if not run.flags & AMQP or not matches(self.addresses.commands, run.address):
            return
        receipt = Receipt.EXPIRED if reason is Reason.EXPIRED else Receipt.REJECTED
        for body in run.bodies:
            identifier = identifier_of(body)
            if identifier is not None:
                self._tell(self.addresses.device(run.address), identifier, receipt, reason.value)

    def _tell(self, device: str, identifier: str, receipt: Receipt, why: str = "") -> None:
        self.figures[receipt] += 1
        self._publish(Run(f"{RECEIPTS}/{device}", device, 1, _JSON, [receipt_body(identifier, receipt, why)]))

    # --- origin -------------------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._stored.pop(token, None)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        runs = [run for token in tokens if (run := self._stored.pop(token, None)) is not None]
        if not self._again:
            log.warning("receipts of commands cannot be stored now (%s); they are tried again", why.value)
        self._again.extend(runs)
        while len(self._again) > RECEIPTS_WAITING_MAX:
            log.error("a receipt of a command is lost: %s", self._again.popleft().address)

    def _publish(self, run: Run) -> None:
        token, self._token = self._token, self._token + 1
        self._stored[token] = run
        self._router.publish(self, run, (token,))

    def _try_again(self) -> None:
        for _ in range(len(self._again)):
            self._publish(self._again.popleft())


class _Deliveries:
    """What of one queue is with its consumers, as far as hubs sent it (`edge.broker.delivery.log.Watcher`)."""

    def __init__(self, delivered: Callable[[str], None]) -> None:
        """`delivered` is called with the identifier of a command."""
        self._delivered = delivered
        self._with_consumers: dict[int, str] = {}
        """Identifiers by position."""

    def handed(self, stored: Stored) -> None:
        if not stored.run.flags & AMQP:
            return
        for position, body in enumerate(stored.run.bodies, stored.position):
            identifier = identifier_of(body)
            if identifier is not None:
                self._with_consumers[position] = identifier

    def settled(self, parts: Sequence[tuple[int, int]], *, accepted: bool) -> None:
        for first, last in parts:
            for position in range(first, last + 1):
                identifier = self._with_consumers.pop(position, None)
                if accepted and identifier is not None:
                    self._delivered(identifier)
