"""Limit the work of one session's deliveries in a turn of the loop; the rest waits for the next turn.

AMQP messages have to be translated, and a long topic name is written with each message, though its publisher may have
sent it once for thousands. While deliveries wait, the subscribers of the session have no credit, so the order is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.delivery.consumer_group import part_of
from edge.broker.limits import TOPIC_BYTES_A_TURN, TRANSLATED_BYTES_A_TURN
from edge.broker.message.mqtt_translator import MqttTranslator


class PendingDelivery(NamedTuple):
    """A delivery of AMQP messages, or the rest of one."""

    stored: Stored
    write: Callable[[int, Sequence[Run]], None]
    """Sends the translated runs, from this position on."""
    return_unsent: Callable[[int, int], None]
    """Returns positions that will not be sent to the subscription."""


class DeliveryBudget:
    """Budget of one session while it is connected."""

    __slots__ = ("_continue_soon", "_topic_bytes", "_translated_bytes", "_translator", "_waiting", "over")

    def __init__(self, translator: MqttTranslator, continue_soon: Callable[[], None]) -> None:
        """`continue_soon` requests a call of `start` in the next turn of the loop."""
        self.over = False
        """The budget of this turn is used up."""
        self._translator = translator
        self._continue_soon = continue_soon
        self._waiting: deque[PendingDelivery] = deque()
        self._translated_bytes = 0
        self._topic_bytes = 0

    def start(self) -> None:
        """Start a turn: reset the budget and continue with waiting deliveries."""
        self.over = False
        self._translated_bytes = self._topic_bytes = 0
        while self._waiting and not self.over:
            part = self._waiting.popleft()
            try:
                self._translate(part)
            except Exception:
                self._waiting.appendleft(part)  # the connection ends, and `end` returns the part
                raise

    def end(self) -> None:
        """Return waiting messages, which were not sent, to their subscriptions when the connection ends."""
        waiting, self._waiting = self._waiting, deque()
        for (position, _, run), _, return_unsent in waiting:
            return_unsent(position, position + len(run.bodies) - 1)

    def translate(self, part: PendingDelivery) -> None:
        """Translate and send a delivery, as far as the budget allows."""
        if self._waiting:
            self._waiting.append(part)
        else:
            self._translate(part)

    def write_topics(self, run: Run) -> None:
        """Count the topic name of a run, which is written with each message."""
        self._topic_bytes += len(run.address) * len(run.bodies)
        if self._topic_bytes >= TOPIC_BYTES_A_TURN:
            self._end()

    def _translate(self, part: PendingDelivery) -> None:
        position, _, run = part.stored
        made = self._translator.part(run, 0, max(1, TRANSLATED_BYTES_A_TURN - self._translated_bytes))
        self._translated_bytes += made.decoded
        if made.end < len(run.bodies):
            self._waiting.appendleft(part._replace(stored=part_of(part.stored, made.end, len(run.bodies))))
        if self._waiting or self._translated_bytes >= TRANSLATED_BYTES_A_TURN:
            self._end()
        part.write(position, made.runs)

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._continue_soon()
