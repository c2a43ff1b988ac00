"""Isolation of sessions: an exception in one is logged once and ends only its own connection.

The text of an exception is not logged, because it may quote a message. Its type and traceback are logged instead.
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
    """Log an exception raised on behalf of `name`, and its consequence."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s raised %s: %s", name, type(error).__name__, outcome, extra={"frames": frames})


def deliver_to(consumer: Consumer, subscription: Subscription, batch: Collection[Stored]) -> bool:
    """Deliver to a consumer. Return False when it raised: its connection ends, and the caller must not deliver to it
    again."""
    try:
        consumer.deliver(subscription, batch)
    except Exception as error:
        end_consumer(consumer, error)
        return False
    return True


def end_consumer(consumer: Consumer, error: Exception) -> None:
    """End the connection of a consumer that raised. The caller must not call it again."""
    _end(consumer, f"consumer {consumer.name!r}", error)


def end_party(party: Consumer | Origin, error: Exception) -> None:
    """End the connection of a consumer or origin that raised while it was notified of a commit."""
    _end(party, repr(party.name), error)


def send_answer(origin: Origin, tokens: Sequence[int], answer: Refusal | Acceptance) -> bool:
    """Give an origin one answer for these messages. Return False when it raised: its connection ends, and the caller
    must not call it again."""
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


def call_origin(origin: Origin, call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> bool:
    """Call a method of an origin. Return False when it raised: its connection ends."""
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


def call_isolated(name: str, call: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
    """Call one of several functions and log its exception under `name`, so that the others still run."""
    try:
        call(*arguments, **named)
    except Exception as error:
        report(name, "the others continue", error)


class EventListeners(Generic[P]):
    """Callbacks for one event. An exception in one does not affect the others."""

    __slots__ = ("_event", "_listeners")

    def __init__(self, event: str) -> None:
        """`event` is its name in the log."""
        self._event = event
        self._listeners: dict[Callable[P, None], None] = {}

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Callable[P, None]]:
        return iter(list(self._listeners))

    def add(self, listener: Callable[P, None]) -> None:
        """Add a listener; idempotent."""
        self._listeners[listener] = None

    def remove(self, listener: Callable[P, None]) -> None:
        """Remove a listener; idempotent."""
        self._listeners.pop(listener, None)

    def notify(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call every listener."""
        for listener in self:
            call_isolated(f"a listener to {self._event}", listener, *arguments, **named)
