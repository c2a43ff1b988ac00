"""State machines of connections (`bridge.transport.connection.ConnectionMachine`) without a driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bridge.transport.connection import ConnectionMachine


def calls(connection: ConnectionMachine, data: bytes, now: float) -> Iterator[Sequence[Any]]:
    """Yield the events of each call that the machine takes for these bytes."""
    yield connection.receive_data(data, now)
    while connection.more:
        yield connection.receive_data(b"", now)


def take_all(connection: ConnectionMachine, data: bytes, now: float) -> list[Any]:
    """Return the events of these bytes."""
    return [event for events in calls(connection, data, now) for event in events]
