"""What one session's deliveries take of a turn of the loop: what is beyond its share waits for the next one.

AMQP messages have to be translated, and a long topic name, which a publisher says once for thousands of messages, is
written out with each. While something waits the session's subscribers have no credit, so nothing overtakes it.
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
    """A delivery of AMQP messages, or what is left of one."""

    stored: Stored
    write: Callable[[int, Sequence[Run]], None]
    """Sends the runs that were made of its messages, from this position on."""
    give_back: Callable[[int, int], None]
    """These positions were not sent, and will not be."""


class DeliveryBudget:
    """Of one session, while it has a connection."""

    __slots__ = ("_go_on_soon", "_topic_bytes", "_translated_bytes", "_translator", "_waiting", "over")

    def __init__(self, translator: MqttTranslator, go_on_soon: Callable[[], None]) -> None:
        """`go_on_soon` has `begin` called in the next turn of the loop."""
        self.over = False
        """The session has had its share."""
        self._translator = translator
        self._go_on_soon = go_on_soon
        self._waiting: deque[PendingDelivery] = deque()
        self._translated_bytes = 0
        self._topic_bytes = 0

    def begin(self) -> None:
        """The next turn has come: go on with what waits."""
        self.over = False
        self._translated_bytes = self._topic_bytes = 0
        while self._waiting and not self.over:
            part = self._waiting.popleft()
            try:
                self._translate(part)
            except Exception:
                self._waiting.appendleft(part)  # the connection ends, and with it this turn
                raise

    def end(self) -> None:
        """The connection is gone. What waits was not sent, so the session knows nothing of it: it goes back to where it
        came from."""
        waiting, self._waiting = self._waiting, deque()
        for (position, _, run), _, give_back in waiting:
            give_back(position, position + len(run.bodies) - 1)

    def translate(self, part: PendingDelivery) -> None:
        """Send this delivery, as far as this turn allows."""
        if self._waiting:
            self._waiting.append(part)
        else:
            self._translate(part)

    def write_topics(self, run: Run) -> None:
        """The topic name of this run is written out with each of its messages."""
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
            self._go_on_soon()
