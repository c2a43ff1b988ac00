"""Name of a message's publisher: its device, and the client that the device used.

The device is the user that the client authenticated as (the subject of its certificate, its token or its password);
without credentials it is the client identifier (MQTT) or the container id (AMQP). One user may have many clients, and a
client may change its identifier at each connection, so both are kept: as one text, for `Run.device` and every place
where messages of one publisher are alike.

A third part marks a relay: a publisher that may send messages of other gateways and their devices. The origin that its
messages name (`bridge.message_origin`) is believed; that of all others is not.
"""

from __future__ import annotations

from typing import Final

SEPARATOR: Final = "\x1f"
"""Unit separator (ISO/IEC 646), between device and client. No user name has a control character."""

ANONYMOUS: Final = "anonymous"
"""Device of a client without credentials that has the gateway choose its identifier: the next connection has another
identifier, so it names no device."""


_RELAY: Final = "relay"
"""Third part of the name of a publisher that may send messages of other gateways."""


def publisher_name(device: str, client: str, *, relay: bool = False) -> str:
    """Return the name of a publisher: the device alone where the client has the same name and is not a `relay`.

    A separator in either name becomes an underscore, so no client can mark itself as a relay.
    """
    device, client = device.replace(SEPARATOR, "_"), client.replace(SEPARATOR, "_")
    if relay:
        return f"{device}{SEPARATOR}{client}{SEPARATOR}{_RELAY}"
    return device if device == client else f"{device}{SEPARATOR}{client}"


def device_of(publisher: str) -> str:
    """Return the device of a publisher."""
    return publisher.partition(SEPARATOR)[0]


def client_of(publisher: str) -> str:
    """Return the client of a publisher."""
    device, _, rest = publisher.partition(SEPARATOR)
    return rest.partition(SEPARATOR)[0] or device


def is_client(publisher: str, client: str) -> bool:
    """Return True when the publisher is this client."""
    return client_of(publisher) == client.replace(SEPARATOR, "_")


def is_relay(publisher: str) -> bool:
    """Return True when the origin that messages of this publisher name is believed."""
    return publisher.count(SEPARATOR) == 2 and publisher.endswith(SEPARATOR + _RELAY)
