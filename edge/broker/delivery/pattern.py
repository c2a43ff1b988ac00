"""A consumer of every queue (or anycast address) that a filter matches.

A filter may match thousands of queues. So the consumer joins them, and is served from them, in slices of time, one in
each turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from edge.broker.delivery.ready import ReadySet
from edge.broker.limits import PATTERN_SLICE_S
from edge.broker.model.interfaces import Consumer, DeliveryOutcome, Subscription
from edge.broker.model.isolation import call_isolated, end_consumer


class Joinable(Subscription, Protocol):
    """Subscription that consumers join and leave."""

    def join(self, consumer: Consumer) -> None:
        """Deliver to `consumer` as well. Idempotent."""
        ...

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        """Deliver nothing more to `consumer`. With `keep`, its outstanding messages wait for its return."""
        ...


class Slices:
    """Runs long work in slices of `limits.PATTERN_SLICE_S`, one in each turn of the loop."""

    __slots__ = ("_now_s", "_ready")

    def __init__(self, ready: ReadySet, now_s: Callable[[], float]) -> None:
        """Later slices run in `ready`. `now_s` is monotonic, in seconds."""
        self._ready = ready
        self._now_s = now_s

    def run(self, name: str, steps: Iterator[object]) -> None:
        """Run these steps, the first slice at once. An exception of a later slice ends the steps and is logged under
        `name`."""
        end_s = self._now_s() + PATTERN_SLICE_S
        for _ in steps:
            if self._ready.has_turns and self._now_s() >= end_s:
                self._ready.add(partial(call_isolated, name, self.run, name, steps))
                return


class PatternSubscription:
    """All subscriptions that a filter matches as one, including future ones (the router joins their consumers)."""

    __slots__ = ("_consumer", "_ended", "_joined", "_parts", "_pumping", "_rest", "_slices", "_waiting", "pattern")
    attempts = 0

    def __init__(
        self, pattern: str, consumer: Consumer, parts: Callable[[], Iterator[Joinable | None]], slices: Slices
    ) -> None:
        """`parts` yields the present matches, and None for each address that does not match."""
        self.pattern = pattern
        self._consumer = consumer
        self._parts = parts
        self._slices = slices
        self._joined = self._ended = self._pumping = False
        self._waiting: list[Callable[[], None]] = []
        """Called once the consumer has joined everything, or has left. Before that it gets nothing; then it is
        served."""
        self._rest: Iterator[Joinable | None] | None = None
        """Parts that were not served when the consumer's credit ended: they come first the next time."""

    def begin(self, joining: Iterable[object]) -> None:
        """Join the consumer, by these steps."""
        self._slices.run(f"joining {self.pattern!r}", self._join(iter(joining)))

    def when_joined(self, call: Callable[[], None]) -> None:
        """Call this function once the consumer has joined everything, or has left. Nothing is delivered before."""
        if self._joined or self._ended:
            call()
        else:
            self._waiting.append(call)

    def join(self, consumer: Consumer) -> None:
        for part in self._parts():
            if part is not None:
                part.join(consumer)

    def leave(self, consumer: Consumer, *, keep: bool) -> None:
        self._ended, self._rest = True, None
        for part in self._parts():
            if part is not None:
                part.leave(consumer, keep=keep)
        self._call_waiting()

    def pump(self) -> None:
        """Deliver waiting messages, starting where the consumer's credit ended last, so that each part is served."""
        if not (self._pumping or self._ended or self._waiting):
            self._pumping = True
            self._slices.run(f"serving {self.pattern!r}", self._pump())

    @property
    def idle_now(self) -> bool:
        if self._pumping or not (self._joined or self._ended):
            return False
        return all(part.idle_now for part in self._parts() if part is not None)

    def settle(self, consumer: Consumer, first: int, last: int, outcome: DeliveryOutcome) -> None:
        """Raise TypeError: deliveries are settled on the queue they came from."""
        raise TypeError("settle on the subscription a delivery was made for")

    # --- inside -----------------------------------------------------------------------------------------------

    def _join(self, steps: Iterator[object]) -> Iterator[object]:
        at_once = True
        for step in steps:
            yield step
            if self._ended:
                return
            at_once = False
        self._joined = True
        if self._waiting:
            self._call_waiting()
        elif not at_once:
            self.pump()

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call_isolated(f"joining {self.pattern!r}", call)

    def _pump(self) -> Iterator[object]:
        try:
            for walk in (self._parts(),) if self._rest is None else (self._rest, self._parts()):
                for part in walk:
                    if part is not None:
                        part.pump()
                    yield None
                    if self._ended:
                        return
                    if not self._has_credit():
                        self._rest = walk
                        return
            self._rest = None
        finally:
            self._pumping = False
        self._consumer.exhausted()

    def _has_credit(self) -> bool:
        try:
            return self._consumer.credit > 0
        except Exception as error:
            end_consumer(self._consumer, error)
            return False
