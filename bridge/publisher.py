"""Name of a message's publisher: its device, and the client by which the device sent it.

The device is the user that the client authenticated as (the subject of its certificate, its token or its password);
without credentials it is the client identifier (MQTT) or the container id (AMQP). One user may have many clients, and a
client may change its identifier at each connection, so both are kept: as one text, for `Run.device` and every place
where messages of one publisher are alike.
"""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = "\x1f"
"""Unit separator (ISO/IEC 646), between device and client. No user name has a control character."""

ANONYMOUS: Final = "anonymous"
"""Device of a client without credentials that has the gateway choose its identifier: the next connection has another
identifier, so it names no device."""


def publisher_name(device: str, client: str) -> str:
    """Return the name of a publisher; it is the device alone where the client has the same name."""
    device = device.replace(SEPARATOR, "_")
    return device if device == client else f"{device}{SEPARATOR}{client}"


def device_of(publisher: str) -> str:
    """Return the device of a publisher."""
    return publisher.partition(SEPARATOR)[0]


def client_of(publisher: str) -> str:
    """Return the client of a publisher."""
    device, _, client = publisher.partition(SEPARATOR)
    return client or device
