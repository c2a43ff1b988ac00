"""MQTT client of one session, packet by packet: a test cuts it off at a chosen packet, and resumes the session."""

from __future__ import annotations

from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from tests.support.hostile import Raw
from tests.support.processes import Waypost

LASTING = Properties(session_expiry_interval_s=3600)


class SessionClient:
    """One connection of a client."""

    def __init__(self, gateway: Waypost, client_id: str, version: int = 5, *, lasting: bool = True) -> None:
        """Connect. With `lasting`, the session outlives the connection and is resumed; otherwise it is new."""
        self._peer = Raw(gateway, version)
        connect = packets.Connect(client_id, version, clean_start=not lasting)
        if version == 5 and lasting:
            connect = packets.Connect(client_id, version, clean_start=False, properties=LASTING)
        self.send(connect)
        connack = self.next()
        assert isinstance(connack, packets.ConnAck)
        self.session_present = connack.session_present

    def send(self, *sent: packets.Packet) -> None:
        self._peer.send(*sent)

    def next(self) -> packets.Packet:
        """Return the next packet; AssertionError when the gateway has closed."""
        packet = self._peer.receive()
        assert packet is not None, "the gateway closed"
        return packet

    def close(self) -> None:
        self._peer.close()
