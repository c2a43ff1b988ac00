"""WebSocket framing of the connections of a listener."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

from bridge.transport.connection import ConnectionMachine
from edge.broker.security.site import ForeignRequest, Site


class Frames:
    """Adds WebSocket framing to connections. `load` or the first one loads the library (1 MiB)."""

    def __init__(self, protocol: str, *, message_bytes_max: int, site: Site, guarded: Callable[[], bool]) -> None:
        """`protocol`: ``mqtt`` or ``amqp``. `message_bytes_max`: size of a WebSocket message. `site`: names of this
        node. `guarded` returns True if clients have to authenticate."""
        self._protocol = protocol
        self._message_bytes_max = message_bytes_max
        self._site = site
        self._guarded = guarded

    @staticmethod
    def load() -> None:
        """Load the library at start, rather than while devices are served."""
        importlib.import_module("bridge.transport.websocket")

    def around(self, inner: ConnectionMachine, identity: str | None = None) -> ConnectionMachine:
        """Return `inner` in WebSocket frames; `identity`: name in the client's certificate."""
        from bridge.transport import websocket  # noqa: PLC0415 - see the class

        return websocket.WebSocketConnection(
            inner,
            websocket.MQTT if self._protocol == "mqtt" else websocket.AMQP,
            message_bytes_max=self._message_bytes_max,
            objection=partial(self._objection, identity),
        )

    def _objection(self, identity: str | None, host: str, origin: str | None) -> str | None:
        """Return why a client may not connect, or None.

        With authentication pages of any site may connect, but not with a client certificate: a browser sends that for
        any page.
        """
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
    """No framing, for a listener without WebSocket."""

    @staticmethod
    def load() -> None:
        """Do nothing."""

    def around(self, inner: ConnectionMachine, identity: str | None = None) -> ConnectionMachine:
        return inner
