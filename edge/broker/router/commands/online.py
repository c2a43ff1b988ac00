"""Online commands: each goes to a device that can take it now, or is rejected at once with a reason code.

An online command joins the queue of its device as others do, but only if a consumer has credit for it. It never waits
for room in the store. In the queue it lives until the time that its sender gave; then it is dropped and reported, as
every expired command. So a device never gets it later, whatever restarts or disconnects in between.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, NamedTuple

import msgspec

from bridge.command import HubCommand, OnlineReason, queued, refusal_text
from bridge.forwarders.inbox import Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run
from edge.broker.delivery.consumer_group import ConsumerGroup
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router

log = logging.getLogger(__name__)

_MS: Final = 1000
_NS_IN_MS: Final = 1_000_000


class _RefusedCommand(Exception):
    """The command is rejected; the message is a `refusal_text`."""

    def __init__(self, reason: OnlineReason, words: str) -> None:
        super().__init__(refusal_text(reason, words))


class _PublishedCommand(NamedTuple):
    """Command that waits for its commit."""

    token: int | None
    """Token of the connector; None when its connection has ended."""
    queue: str


class OnlineCommands(Origin):
    """Online commands of one connector to a hub, from their arrival to the commit that stores them."""

    def __init__(self, name: str, router: Router) -> None:
        """`name` of the publisher of commands."""
        self.name = name
        self._router = router
        self._settle: Settle | None = None
        self._numbers = count()
        self._published: dict[int, _PublishedCommand] = {}
        self._by_queue: Counter[str] = Counter()
        """Published commands by queue, which will use credit of its consumers."""
        self._left: Callable[[], None] | None = None

    def attached(self, settle: Settle) -> None:
        """Start with a connection."""
        self._settle = settle

    @property
    def is_empty(self) -> bool:
        """True if no command waits for its commit."""
        return not self._published

    def leave(self, left: Callable[[], None]) -> None:
        """Call `left` once all published commands are answered."""
        self._left = left
        self._finish_leaving()

    def detached(self) -> None:
        """Handle the end of the connection: published commands get no answer from now on."""
        self._settle = self._left = None
        self._published = {number: each._replace(token=None) for number, each in self._published.items()}

    def take(self, token: int | None, command: HubCommand, queue: str, reply_to: str, *, room: bool) -> None:
        """Publish a command to the queue of its device, or reject it. `room`: messages from the hub are taken now."""
        try:
            run = self._runnable(command, queue, reply_to, room=room)
        except _RefusedCommand as refused:
            log.info("online command %s for %s rejected: %s", command.id, command.device, refused)
            self._answer(token, ForwardOutcome.REJECTED, str(refused))
            return
        number = next(self._numbers)
        self._published[number] = _PublishedCommand(token, queue)
        self._by_queue[queue] += 1
        self._router.publish(Publication(self, run, (number,)))

    # --- Origin -----------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        self._finish(tokens, ForwardOutcome.ACCEPTED, "")

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        words = refusal_text(OnlineReason.GATEWAY_BUSY, f"the gateway cannot store it now: {why.value}")
        self._finish(tokens, ForwardOutcome.REJECTED, words)

    # --- inside -----------------------------------------------------------------------------------------------

    def _runnable(self, command: HubCommand, queue: str, reply_to: str, *, room: bool) -> Run:
        """Return the message for the queue, with the time to live that is left. Raises `_RefusedCommand`."""
        ttl_ms = self._left_ms(command)
        policy = self._router.addresses.policy(queue)
        if policy.ttl_min_s is not None and policy.ttl_min_s * _MS > ttl_ms:
            words = f"{queue} keeps messages for at least {policy.ttl_min_s:g} s (messageTtl.minimum of an Address)"
            raise _RefusedCommand(OnlineReason.ADDRESS_UNSUITABLE, words)
        run = queued(msgspec.structs.replace(command, ttl_ms=ttl_ms), queue, reply_to)
        run.device = self.name
        self._require_consumer(command.device, queue, run)
        if not room:
            raise _RefusedCommand(OnlineReason.GATEWAY_BUSY, "the gateway takes nothing from its hub now")
        return run

    def _left_ms(self, command: HubCommand) -> int:
        """Return the milliseconds that are left for the device. Raises `_RefusedCommand`.

        A command may have been under way for long. The gateway knows that only while its clock is right; otherwise the
        time counts from now.
        """
        clock, until_ms = self._router.clock, command.online_until_ms
        clock.read()
        if until_ms is None or not clock.good:
            return command.ttl_ms
        left_ms = min(command.ttl_ms, until_ms - clock.now_ns // _NS_IN_MS)
        if left_ms <= 0:
            words = f"it arrived {-left_ms / _MS:.1f} s after its time, by the clock of the gateway"
            raise _RefusedCommand(OnlineReason.COMMAND_LATE, words)
        return left_ms

    def _require_consumer(self, device: str, queue: str, run: Run) -> None:
        """Check that a consumer can take the command now. Raises `_RefusedCommand`."""
        queues = self._router.queues
        opened = queues.get(queue)
        group = ConsumerGroup() if opened is None else opened.group
        if opened is None:
            for consumer in queues.consumers.match(queue):  # it would join the queue with the first message
                group.join(consumer)
        busy = group.without_credit()
        takers = [each for each in group.consumers if each.selection is None or each.selection.wanted(run)[0]]
        if not takers:
            words = f"no client of device {device} is connected that receives this command"
            raise _RefusedCommand(OnlineReason.DEVICE_NOT_CONNECTED, words)
        credit = sum(each.credit for each in takers if each not in busy)
        waiting = self._by_queue[queue] + (0 if opened is None else opened.backlog)
        if credit <= waiting:
            words = f"device {device} takes {max(0, credit)} commands now, and {waiting} others come first"
            raise _RefusedCommand(OnlineReason.DEVICE_BUSY, words)

    def _finish(self, numbers: Sequence[int], outcome: ForwardOutcome, why: str) -> None:
        for number in numbers:
            published = self._published.pop(number, None)
            if published is not None:
                self._by_queue[published.queue] -= 1
                if not self._by_queue[published.queue]:
                    del self._by_queue[published.queue]
                self._answer(published.token, outcome, why)
        self._finish_leaving()

    def _answer(self, token: int | None, outcome: ForwardOutcome, why: str) -> None:
        if token is not None and self._settle is not None:
            self._settle((token,), outcome, why)

    def _finish_leaving(self) -> None:
        if not self._published and self._left is not None:
            left, self._left = self._left, None
            left()
