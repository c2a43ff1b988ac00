"""The end of Paho's network thread."""

from __future__ import annotations

from contextlib import suppress

from paho.mqtt.client import Client


def stop_loop(client: Client) -> None:
    """Do what `Client.loop_stop` does. Paho 2.2 forgets its thread as that ends, also between its own two looks at it:
    then there is nothing left to wait for."""
    with suppress(AttributeError):
        client.loop_stop()
