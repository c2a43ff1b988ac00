"""Paho's network thread: it runs while a test uses the client, and ends with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from paho.mqtt.client import Client


@contextlib.contextmanager
def running_loop(client: Client) -> Iterator[None]:
    """Run the network thread of a client while the body runs; then disconnect."""
    client.loop_start()
    try:
        yield
    finally:
        close_client(client)


def close_client(client: Client) -> None:
    """Disconnect, and stop the network thread."""
    client.disconnect()
    stop_loop(client)
    client._reset_sockets()  # Paho leaves its wake-up pair open after a refusal


def stop_loop(client: Client) -> None:
    """Stop the thread as `Client.loop_stop` does. Paho 2.2 forgets its ending thread, even between its own two checks;
    then no wait is needed.
    """
    with contextlib.suppress(AttributeError):
        client.loop_stop()
