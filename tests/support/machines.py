"""Machines of connections (`bridge.transport.connection.Connection`), driven without a driver."""

from __future__ import annotations

from typing import Any

from bridge.transport.connection import Connection


def take_all(connection: Connection, data: bytes, now: float) -> list[Any]:
    """The events of these bytes, in as many calls as the machine takes for them."""
    found = list(connection.receive_data(data, now))
    while connection.more:
        found += connection.receive_data(b"", now)
    return found
