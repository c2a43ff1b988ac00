"""Refuse connections beyond `connections_max` with an error of their protocol.

They have no session and no authentication. Their number and time are limited (`limits.TURNED_AWAY_MAX`,
`limits.TURNED_AWAY_S`); beyond that connections are closed without an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bridge.transport.driver import ConnectionDriver
from edge.broker.limits import TURNED_AWAY_S, Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.refusals import RefusalCause, RefusalJournal
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import ConnectEvent

NO_ROOM: Final = "connection limit of the gateway reached"


class MqttRefusal:
    """Refuses an MQTT connection at the limit: CONNACK 0x97 (MQTT 5) or return code 3."""

    def __init__(self, limits: Limits, now: float, refusals: RefusalJournal) -> None:
        """`refusals` records the client."""
        self.connection = MqttConnection(brief_limits(limits), now)
        self._refusals = refusals
        self._remote = ""

    def connected(self, driver: ConnectionDriver) -> MqttRefusal:
        """Set the driver of the connection; return the owner."""
        self._remote = driver.address
        return self

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ConnectEvent):
                user, client = event.username or "", event.client_id
                self._refusals.add(RefusalCause.TOO_MANY_CONNECTIONS, self._remote, user=user, client=client)
                self.connection.refuse(ReasonCode.QUOTA_EXCEEDED, NO_ROOM)

    def writable(self) -> None:
        """Do nothing: a CONNACK always fits."""


def brief_limits(limits: Limits) -> Limits:
    """Return the limits of a connection that is only refused."""
    return msgspec.structs.replace(limits, handshake_s=min(limits.handshake_s, TURNED_AWAY_S))
