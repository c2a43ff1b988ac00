"""Where a first gateway listens when nobody says otherwise."""

from __future__ import annotations

from typing import Final

NONE: Final = "none"
"""The word for a listener that is not wanted."""
MQTT: Final = "0.0.0.0:1883"
AMQP: Final = "0.0.0.0:5672"
HTTP: Final = "127.0.0.1:8080"
