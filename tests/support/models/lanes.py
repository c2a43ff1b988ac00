"""Model of `edge.broker.mqtt.arrivals.MqttLanes`: no connection gets a lane, so the machine reads everything."""

from __future__ import annotations

from typing import Any


class NoLanes:
    """Fast path that accepts no connection."""

    def learn(self, *_: Any) -> None:
        """Leave the connection to its machine."""

    def close(self) -> None:
        """Close nothing."""
