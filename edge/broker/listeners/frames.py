"""WebSocket around the connections of a listener that speaks it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

from bridge.transport.connection import ConnectionMachine
from edge.broker.security.site import ForeignRequest, Site


class Frames:
    """Puts machines into WebSocket connections. The library is loaded with the first, or by `load`: it takes 1 MiB."""

    def __init__(self, protocol: str, *, message_bytes_max: int, site: Site, guarded: Callable[[], bool]) -> None:
        """`protocol`: ``mqtt`` or ``amqp``; `message_bytes_max`: of one message of the peer; `site`: the names we are
        reached under; `guarded`: everybody has to say who he is now."""
        self._protocol = protocol
        self._message_bytes_max = message_bytes_max
        self._site = site
        self._guarded = guarded

    @staticmethod
    def load() -> None:
        """Now rather than while devices are served."""
        importlib.import_module("bridge.transport.websocket")

    def around(self, inner: ConnectionMachine, identity: str | None = None) -> ConnectionMachine:
        """`inner`, whose bytes go in frames; `identity`: the name in the client's certificate."""
        from bridge.transport import websocket  # noqa: PLC0415 - see the class

        return websocket.WebSocketConnection(
            inner,
            websocket.MQTT if self._protocol == "mqtt" else websocket.AMQP,
            message_bytes_max=self._message_bytes_max,
            objection=partial(self._objection, identity),
        )

    def _objection(self, identity: str | None, host: str, origin: str | None) -> str | None:
        """Why such a client may not connect. Pages of any site may where everybody has to say who he is, but not by
        the certificate alone: a browser shows that for any page."""
        guarded = self._guarded()
        try:
            if guarded and identity is None:
                self._site.check_host(host, guarded=True)
            else:
                self._site.check_page_of_this_host(host, origin, guarded=guarded)
        except ForeignRequest as why:
            return str(why)
        return None


class PlainFrames:
    """What a listener without WebSocket puts around its connections: nothing."""

    @staticmethod
    def load() -> None:
        """Nothing to load."""

    def around(self, inner: ConnectionMachine, identity: str | None = None) -> ConnectionMachine:
        return inner
