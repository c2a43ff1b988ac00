"""Message expiry: the remaining lifetime of a message when it is delivered (MQTT 5 section 3.3.2.3.3).

The properties contain the interval of the publisher; the age counts from `Run.received_at`. Both are equal for all
messages of a run, so they are evaluated once for each run.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.message import Run
from edge.broker.message.mqtt_properties import message_expiry_s, with_message_expiry
from edge.broker.model.clock import MessageClock
from edge.broker.mqtt.limits import HEAD_BYTES_MAX, HEADS_CACHED_MAX

EXPIRY_IDENTIFIER: Final = b"\x02"
"""First byte of a Message Expiry Interval. Properties that do not contain this byte have none."""

NS_PER_S: Final = 1_000_000_000


class Lifetime:
    """Computes the remaining message expiry with the clock of the gateway."""

    def __init__(self, clock: MessageClock) -> None:
        """`clock` stamps `Run.received_at`."""
        self.expired = 0
        """Expired messages that were not delivered, counted for each subscriber."""
        self._clock = clock
        self._intervals: dict[bytes, int | None] = {}

    def remaining(self, run: Run) -> Run | None:
        """Return the run with its remaining interval [MQTT-3.3.2-6]; None if it has expired [MQTT-3.3.2-5].

        Call it only for properties that contain `EXPIRY_IDENTIFIER`, to save the call for others.
        """
        interval_s = self._interval(run.properties)
        if interval_s is None:
            return run
        age_s = self._age_s(run)
        if age_s <= 0:
            return run
        if age_s >= interval_s:
            self.expired += len(run.bodies)
            return None
        return msgspec.structs.replace(run, properties=with_message_expiry(run.properties, interval_s - age_s))

    def _age_s(self, run: Run) -> int:
        """Return the whole seconds since the run was received."""
        return self._clock.age_ns(run) // NS_PER_S if run.received_at else 0

    def _interval(self, properties: bytes) -> int | None:
        try:
            return self._intervals[properties]
        except KeyError:
            pass
        interval_s = message_expiry_s(properties)
        if len(properties) <= HEAD_BYTES_MAX:
            if len(self._intervals) >= HEADS_CACHED_MAX:
                self._intervals.clear()
            self._intervals[properties] = interval_s
        return interval_s
