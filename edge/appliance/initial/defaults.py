"""Default listeners of a new gateway."""

from __future__ import annotations

from typing import Final

NONE: Final = "none"
"""Value of an option for no listener."""
MQTT: Final = "0.0.0.0:1883"
AMQP: Final = "0.0.0.0:5672"
HTTP: Final = "127.0.0.1:8080"
HTTPS: Final = "0.0.0.0:8444"
"""Console for other machines. Port 8443 is the hub's, which may run on the same machine."""
