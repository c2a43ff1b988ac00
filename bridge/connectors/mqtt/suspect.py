"""Find a message for which a service ends each connection, and reject it.

Azure IoT Hub and AWS IoT Core answer a PUBLISH that they do not take with the end of the connection. Such a message
would be the first again after each reconnect, and hold up all others. Ordinary breaks look alike, so a message is
rejected only after several ends in a row while it was the oldest one without a PUBACK: first with others in flight,
then alone.
"""

from __future__ import annotations

from typing import Final

from bridge.connectors.limits import SUSPECT_ENDS

REASON: Final = f"the service ended {2 * SUSPECT_ENDS} connections in a row instead of acknowledging it"


class SuspectMessage:
    """Oldest unacknowledged message at the ends of consecutive connections."""

    def __init__(self) -> None:
        self._key: object = None
        self._ends = 0

    @property
    def alone(self) -> bool:
        """True when messages have to be sent one by one, to find the one that the service does not take."""
        return self._ends >= SUSPECT_ENDS

    def is_rejected(self, key: object) -> bool:
        """Return True when this message has to be rejected instead of sent."""
        return self._ends >= 2 * SUSPECT_ENDS and key == self._key

    def settled(self, key: object) -> None:
        """Note the PUBACK or the rejection of a message."""
        if key == self._key:
            self._key, self._ends = None, 0

    def ended(self, oldest: object) -> None:
        """Note that the peer ended a connection; `oldest` identifies its oldest message without a PUBACK; None without
        one."""
        if oldest is None:
            return
        if oldest != self._key:
            self._key, self._ends = oldest, 0
        self._ends += 1
