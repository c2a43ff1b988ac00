"""Connections beyond `connections_max`: heard until they say who they are, told that there is no room, and closed.

They have no session, no identity is asked for, and their number and time are bounded (`limits.TURNED_AWAY_MAX`,
`limits.TURNED_AWAY_S`): whoever is beyond that is closed without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from edge.broker.limits import TURNED_AWAY_S, Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import ConnectEvent

NO_ROOM: Final = "the gateway has as many connections as it may have"


class MqttTurnedAway:
    """Owner of a driver over an MQTT connection there is no room for: CONNACK 0x97 (MQTT 5) or return code 3."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.connection = MqttConnection(brief(limits), now)

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ConnectEvent):
                self.connection.refuse(ReasonCode.QUOTA_EXCEEDED, NO_ROOM)

    def writable(self) -> None:
        """A CONNACK always fits."""


def brief(limits: Limits) -> Limits:
    """The limits of a connection that is only to be told something."""
    return msgspec.structs.replace(limits, handshake_s=min(limits.handshake_s, TURNED_AWAY_S))
