"""WebSocket around the connections of a listener that speaks it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from bridge.transport.connection import Connection


class Frames:
    """Puts machines into WebSocket connections. The library is loaded with the first, or by `load`: it takes 1 MiB."""

    def __init__(self, protocol: str, *, message_bytes_max: int, any_origin: Callable[[], bool]) -> None:
        """`protocol`: ``mqtt`` or ``amqp``; `message_bytes_max`: of one message of the peer; `any_origin`: pages of
        other sites may connect now, as everybody has to say who he is."""
        self._protocol = protocol
        self._message_bytes_max = message_bytes_max
        self._any_origin = any_origin

    @staticmethod
    def load() -> None:
        """Now rather than while devices are served."""
        importlib.import_module("bridge.transport.websocket")

    def around(self, inner: Connection) -> Connection:
        """`inner`, whose bytes go in frames."""
        from bridge.transport import websocket  # noqa: PLC0415 - see the class

        return websocket.WebSocketConnection(
            inner,
            websocket.MQTT if self._protocol == "mqtt" else websocket.AMQP,
            message_bytes_max=self._message_bytes_max,
            any_origin=self._any_origin(),
        )


class Bare:
    """What a listener without WebSocket puts around its connections: nothing."""

    @staticmethod
    def load() -> None:
        """Nothing to load."""

    def around(self, inner: Connection) -> Connection:
        return inner
