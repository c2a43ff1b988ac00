"""Commands of a hub for devices that it has taken away from this gateway: they leave their queues, and go back to it.

A returned command has a receipt, stored by the commit that takes it out of its queue. One that the device got and did
not acknowledge before it left is reported as rejected, as it might act twice. Commands of this gateway's own
applications stay. A queue is looked at until no command can come any more, so a commit under way escapes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from bridge.command import identifier_of
from bridge.message import AMQP, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.limits import RETURNED_COMMANDS_BYTES, RETURNED_DEVICES_MAX, RETURNED_KEPT_S
from edge.broker.router.commands.receipts import CommandReceipts
from edge.broker.router.router import Router
from edge.broker.store.contract import Cursors, MessageLogs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Departure:
    """Device that has left."""

    empty_since_s: float | None = None
    """Time since which it has no commands (monotonic seconds); None: it may have some."""
    clean_to: int = 0
    """Position in its queue below which no command is left; messages of local applications may be."""


class CommandReturns:
    """Returns commands of devices that have left. Methods run on the loop's thread."""

    def __init__(
        self,
        router: Router,
        logs: MessageLogs,
        cursors: Cursors,
        receipts: CommandReceipts,
        *,
        knows: Callable[[str], bool],
        arriving: Callable[[], bool],
        completed: Callable[[Collection[str]], None],
    ) -> None:
        """`knows` returns True for a name that a user of this gateway has: commands of that name are for it. `arriving`
        returns True while commands of a hub are on their way to their queues. `completed` gets devices
        that have nothing to return any more."""
        self._router = router
        self._logs = logs
        self._cursors = cursors
        self._receipts = receipts
        self._knows = knows
        self._arriving = arriving
        self._completed = completed
        self._departed: dict[str, _Departure] = {}
        """Departed devices in the order of looks."""
        self._reading: set[str] = set()

    def follow(self, departed: Collection[str]) -> None:
        """Return commands of these devices, and of no others, from now on."""
        wanted, before = set(departed), self._departed
        self._departed = {device: departure for device, departure in before.items() if device in wanted}
        self._departed.update((device, _Departure()) for device in departed if device not in before)
        if departed:
            self._router.tick_listeners.add(self._tick)
        else:
            self._router.tick_listeners.remove(self._tick)

    # --- inside -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Look at some devices in turn."""
        done, now_s = list[str](), self._router.now_s()
        for device in list(self._departed)[:RETURNED_DEVICES_MAX]:
            departure = self._departed[device] = self._departed.pop(device)
            if device in self._reading:
                continue
            if self._may_have_commands(device, departure):
                departure.empty_since_s = None
                self._look(device)
            elif departure.empty_since_s is None or self._arriving():
                departure.empty_since_s = now_s
            elif now_s - departure.empty_since_s >= RETURNED_KEPT_S:
                departure.empty_since_s = now_s  # a failed write is repeated after the same time
                done.append(device)
        if done:
            self._completed(done)

    def _may_have_commands(self, device: str, departure: _Departure) -> bool:
        queues, address = self._router.queues, self._receipts.addresses.queue(device)
        if address not in queues or self._knows(device) or queues.backlog(address) == 0:
            return False
        return queues.received(address) > departure.clean_to

    def _look(self, device: str) -> None:
        queue = self._router.queues[self._receipts.addresses.queue(device)]
        outstanding = [first for first, _ in queue.deliveries]
        self._read(device, queue, min([queue.lowest, *outstanding]), [])

    def _read(self, device: str, queue: LogSubscription, position: int, found: list[tuple[int, str]]) -> None:
        self._reading.add(device)
        have_read = partial(self._have_read, device, queue, found)
        self._logs.read(queue.log, position, RETURNED_COMMANDS_BYTES, have_read)

    def _have_read(
        self, device: str, queue: LogSubscription, found: list[tuple[int, str]], runs: Sequence[Stored]
    ) -> None:
        """Note positions and identifiers of commands, and take all out in one turn: some could otherwise stay for a
        device that comes back in between, and get to it before the others."""
        self._reading.discard(device)
        address = self._receipts.addresses.queue(device)
        departure = self._departed.get(device)
        if departure is None or self._router.queues.opened.get(address) is not queue:
            return  # it is back, or the queue was closed during the read
        end = queue.window.end
        for stored in runs:
            end = stored.position + len(stored.run.bodies)
            if stored.run.flags & AMQP:
                each = enumerate(map(identifier_of, stored.run.bodies), stored.position)
                found += [(position, identifier) for position, identifier in each if identifier is not None]
        if runs and end < queue.window.end:
            self._read(device, queue, end, found)
        elif not any(_is_held(queue, position) for position, _ in found):
            count = sum(self._take_out(queue, position, device, identifier) for position, identifier in found)
            departure.clean_to = end
            if count:
                log.info("%d commands of %s go back to the hub, as it has left this gateway", count, device)

    def _take_out(self, queue: LogSubscription, position: int, device: str, identifier: str) -> bool:
        """Take a command out of its queue, unless a consumer that is present has it, or it is settled already."""
        if queue.waiting(position, position):
            self._receipts.report_returned(device, identifier)
            queue.take(position, position)
        elif _take_from_absent(queue, position):
            self._receipts.report_unacknowledged(device, identifier)
        else:
            return False
        queue.forget_attempts(position, position)
        self._cursors.acknowledge(queue.cursor, position, position)
        return True


def _is_held(queue: LogSubscription, position: int) -> bool:
    """Return whether a present consumer has a message, or is about to get it. Earlier and later ones wait for it."""
    absent = queue.deliveries.absent()
    if any(first <= position <= last for first, last in queue.deliveries) and not any(
        queue.deliveries.holds(consumer, position) for consumer in absent
    ):
        return True
    waiting = queue.buffer.runs
    return any(stored.position <= position < stored.position + len(stored.run.bodies) for stored in waiting)


def _take_from_absent(queue: LogSubscription, position: int) -> bool:
    """Take a message from a consumer that left and did not settle it. Return False if no such
    consumer has it."""
    for consumer in queue.deliveries.absent():
        if queue.deliveries.remove(consumer, position, position):
            if queue.watcher is not None:
                queue.watcher.settled([(position, position)], accepted=False)
            return True
    return False
