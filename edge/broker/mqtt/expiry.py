"""Message expiry: what is left of a message's lifetime when it is delivered (MQTT 5 section 3.3.2.3.3).

The interval stands in the properties as the publisher wrote it; the age of a run counts from `Run.received_at`. Both
are the same for all messages of a run, so this is looked at once a run.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.message import Run
from edge.broker.message.mqtt_properties import message_expiry_s, with_message_expiry
from edge.broker.model.clock import MessageClock
from edge.broker.mqtt.limits import HEAD_BYTES_MAX, HEADS_CACHED_MAX

EXPIRY_IDENTIFIER: Final = b"\x02"
"""First byte of a Message Expiry Interval: properties without this byte anywhere have none."""

NS_PER_S: Final = 1_000_000_000


class Lifetime:
    """Counts message expiry down, by the gateway's clock."""

    def __init__(self, clock: MessageClock) -> None:
        """`clock` stamps `Run.received_at`."""
        self.expired = 0
        """Messages not delivered because their time was over, one a subscriber."""
        self._clock = clock
        self._intervals: dict[bytes, int | None] = {}

    def left(self, run: Run) -> Run | None:
        """The run with what is left of its interval [MQTT-3.3.2-6]; None when nothing is [MQTT-3.3.2-5].

        Only for runs whose properties contain `EXPIRY_IDENTIFIER`, to keep the others free of a call.
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
        """Whole seconds since the run came."""
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
