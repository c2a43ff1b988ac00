"""Address spaces that are configured but not served: each of their clients is refused as by a wrong password.

Otherwise a client that names such a space would be in the gateway's own one, where the same credentials may be valid.
"""

from __future__ import annotations

from edge.broker.listeners.mqtt import MqttDrivers
from edge.broker.security.authenticator import Authenticator


class ClosedSpace:
    """Refuses the clients of all spaces that are not served."""

    def __init__(self, gate: Authenticator, mqtt: MqttDrivers) -> None:
        """`gate` knows no user, and takes as long for a password as that of a served space. `mqtt` uses it, and accepts
        no certificate."""
        self.gate = gate
        self.mqtt = mqtt
