"""What a session raises ends with it: it is logged once, its connection ends, and nobody else notices.

Nothing an exception says is logged, as it may quote a message: its type and where it was raised have to do.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, ParamSpec

from bridge.message import Stored
from edge.broker.model.interfaces import Acceptance, Consumer, Origin, Refusal, Subscription

log = logging.getLogger(__name__)

P = ParamSpec("P")


def report(name: str, outcome: str, error: Exception) -> None:
    """Log what was raised on behalf of `name`, and what becomes of it."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s raised %s: %s", name, type(error).__name__, outcome, extra={"frames": frames})


def delivered(consumer: Consumer, subscription: Subscription, batch: Collection[Stored]) -> bool:
    """Deliver to a consumer. Return False when it raised: its connection ends, and the caller delivers nothing more to
    it."""
    try:
        consumer.deliver(subscription, batch)
    except Exception as error:
        end_consumer(consumer, error)
        return False
    return True


def end_consumer(consumer: Consumer, error: Exception) -> None:
    """A call of a consumer raised: its connection ends, and the caller asks it nothing more."""
    _end(consumer, f"consumer {consumer.name!r}", error)


def end_party(party: Consumer | Origin, error: Exception) -> None:
    """As `end_consumer`, of whoever waited for a commit."""
    _end(party, repr(party.name), error)


def answered(origin: Origin, tokens: Sequence[int], answer: Refusal | Acceptance) -> bool:
    """Give an origin one answer for these messages. Return False when it raised: its connection ends, and the caller
    gives it no more answers."""
    try:
        if answer is Acceptance.ACCEPTED:
            origin.accepted(tokens)
        elif isinstance(answer, Acceptance):
            origin.accepted_unrouted(tokens)
        else:
            origin.refused(tokens, answer)
    except Exception as error:
        _end(origin, f"sender {origin.name!r}", error)
        return False
    return True


def origin_called(origin: Origin, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> bool:
    """Call a method of an origin. False when it raised: its connection ends."""
    try:
        call(*arguments, **named)
    except Exception as error:
        _end(origin, f"sender {origin.name!r}", error)
        return False
    return True


def _end(party: Consumer | Origin, name: str, error: Exception) -> None:
    report(name, "its connection ends", error)
    try:
        party.abort()
    except Exception as again:
        report(name, "its connection could not be ended", again)


def guarded(name: str, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
    """Call one of several, `name` in the log: what it raises keeps the others from nothing."""
    try:
        call(*arguments, **named)
    except Exception as error:
        report(name, "the others go on", error)


class EventListeners(Generic[P]):
    """Who wants to hear of something: all of them do, whatever one of them raises."""

    __slots__ = ("_event", "_listeners")

    def __init__(self, event: str) -> None:
        """`event` as the log names it."""
        self._event = event
        self._listeners: dict[Callable[P, None], None] = {}

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Callable[P, None]]:
        return iter(list(self._listeners))

    def add(self, listener: Callable[P, None]) -> None:
        """Idempotent."""
        self._listeners[listener] = None

    def remove(self, listener: Callable[P, None]) -> None:
        """Idempotent."""
        self._listeners.pop(listener, None)

    def tell(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call every one."""
        for listener in self:
            guarded(f"a listener to {self._event}", listener, *arguments, **named)
