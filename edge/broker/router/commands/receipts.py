"""Receipts of commands: one for each command of a hub that its device has taken, or that was dropped.

A receipt is a stored message. It joins the commit that takes the command out of its queue, so a power cut leaves both
or neither. A command that is delivered twice has two receipts; the hub takes the first.

A receipt that is refused, or that is in a failed commit, waits in the store's small state, which joins the next commit
of any kind: the command leaves its queue with that one. The receipt is published again at the next tick.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from bridge.command import RECEIPTS, Receipt, identifier_of, receipt_body
from bridge.message import AMQP, Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.dead_letters import LossReason
from edge.broker.limits import RECEIPTS_WAITING_MAX
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.topics import matches
from edge.broker.router.batch import Publication
from edge.broker.router.commands.addresses import CommandAddresses
from edge.broker.router.router import Router
from edge.broker.store.contract import Cursors, SmallState

log = logging.getLogger(__name__)

KIND: Final = "receipt"
"""Kind of the store's small state with receipts to be published again, by number and device."""
RETURNED: Final = "its device left the gateway before it got the command"
UNACKNOWLEDGED: Final = "its device got the command, and left the gateway before it acknowledged it"
_JSON: Final = encode_run(Properties(content_type="application/json"))


class CommandReceipts(Origin):
    """Receipts of one space."""

    name = "commands"

    def __init__(self, router: Router, state: SmallState, cursors: Cursors, addresses: CommandAddresses) -> None:
        self.addresses: Final = addresses
        self.figures: Counter[Receipt] = Counter()
        """Number of commands since the start, by receipt."""
        self._router = router
        self._state = state
        self._cursors = cursors
        waiting = sorted(
            (int(number), device, body) for key, body in state.items(KIND) for number, _, device in [key.partition("/")]
        )
        self._numbers = count(waiting[-1][0] + 1 if waiting else 0)
        self._published: dict[int, Run] = {}
        """Receipts that wait for their commit, by number."""
        self._waiting: dict[int, Run] = {number: _receipt(device, body) for number, device, body in waiting}
        """Refused receipts, and those in the small state at the start."""
        self._kept = set(self._waiting)
        """Numbers of receipts in the small state."""
        router.routes.reserve(f"{RECEIPTS}/", self)  # a client could send receipts of other devices
        router.deadletters.listeners.append(self._given_up)
        router.queues.set_watchers(self._watch)
        router.tick_listeners.add(self._try_again)

    # --- outcomes of commands ----------------------------------------------------------------------------------------

    def _watch(self, address: str, queue: LogSubscription) -> _Deliveries | None:
        """Return the watcher of a queue of commands; None for other queues."""
        if not matches(self.addresses.commands, address):
            return None
        device = self.addresses.device(address)
        self._cursors.move_with_each_commit(queue.cursor)
        return _Deliveries(lambda identifier: self._tell(device, identifier, Receipt.DELIVERED))

    def report_returned(self, device: str, identifier: str) -> None:
        """Report a command that the device has left behind; the caller takes it out of its queue in this commit."""
        body = receipt_body(identifier, Receipt.REJECTED, RETURNED, returned=True)
        self._publish(next(self._numbers), _receipt(device, body))

    def report_unacknowledged(self, device: str, identifier: str) -> None:
        """Report a command that the device got and did not acknowledge before it left; otherwise as `report_returned`:
        to deliver it elsewhere might let the device act twice."""
        self._tell(device, identifier, Receipt.REJECTED, UNACKNOWLEDGED)

    def _given_up(self, run: Run, reason: LossReason) -> None:
        """Publish receipts for a dropped run, which may have several commands, and some of them from this gateway's
        applications."""
        if not run.flags & AMQP or not matches(self.addresses.commands, run.address):
            return
        receipt = Receipt.EXPIRED if reason is LossReason.EXPIRED else Receipt.REJECTED
        for body in run.bodies:
            identifier = identifier_of(body)
            if identifier is not None:
                self._tell(self.addresses.device(run.address), identifier, receipt, reason.value)

    def _tell(self, device: str, identifier: str, receipt: Receipt, why: str = "") -> None:
        self.figures[receipt] += 1
        self._publish(next(self._numbers), _receipt(device, receipt_body(identifier, receipt, why)))

    # --- origin -------------------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for number in tokens:
            run = self._published.pop(number, None)
            if run is not None:
                self._forget(number, run)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if not self._waiting:
            log.warning("cannot store receipts of commands now (%s); they are retried", why.value)
        for number in tokens:
            run = self._published.pop(number, None)
            if run is not None:
                self._wait(number, run)
        while len(self._waiting) > RECEIPTS_WAITING_MAX:
            number = next(iter(self._waiting))
            run = self._waiting.pop(number)
            log.error("dropped a receipt of a command, as too many wait: %s", run.address)
            self._forget(number, run)

    def _publish(self, number: int, run: Run) -> None:
        self._published[number] = run
        self._router.publish(Publication(self, run, (number,)))

    def _wait(self, number: int, run: Run) -> None:
        self._waiting[number] = run
        if number not in self._kept:
            self._kept.add(number)
            self._state.put(KIND, _key(number, run), run.bodies[0])

    def _forget(self, number: int, run: Run) -> None:
        """Forget a receipt that is stored or lost."""
        if number in self._kept:
            self._kept.discard(number)
            self._state.delete(KIND, _key(number, run))

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for number, run in waiting.items():
            self._publish(number, run)


def _receipt(device: str, body: bytes) -> Run:
    return Run(f"{RECEIPTS}/{device}", device, 1, _JSON, [body])


def _key(number: int, run: Run) -> str:
    return f"{number}/{run.device}"


class _Deliveries:
    """Commands of hubs in one queue that are with consumers (`edge.broker.delivery.log.QueueWatcher`)."""

    def __init__(self, delivered: Callable[[str], None]) -> None:
        """`delivered` is called with the identifier of a command."""
        self._delivered = delivered
        self._with_consumers: dict[int, str] = {}
        """Identifiers by position."""

    def before_delivery(self, stored: Stored) -> None:
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
