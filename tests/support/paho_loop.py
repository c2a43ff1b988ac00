"""Stop of Paho's network thread."""

from __future__ import annotations

from contextlib import suppress

from paho.mqtt.client import Client


def stop_loop(client: Client) -> None:
    """Stop the thread as `Client.loop_stop` does. Paho 2.2 forgets its ending thread, even between its own two checks;
    then no wait is needed.
    """
    with suppress(AttributeError):
        client.loop_stop()
