"""Accepting without TLS: many connections a turn of the loop.

The loop's own server accepts one a turn. Where those that are open make every turn long, whoever comes then waits in
the kernel behind everybody who came before; here the stillest gives way (`places`) as soon as the next is there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from edge.broker.listeners.secure import NO_DESCRIPTOR_WAIT_S

log = logging.getLogger(__name__)

A_TURN: Final = 64
"""Connections accepted in one turn: some 15 ms of it."""


class Acceptor:
    """Accepts on a listening socket until it is stopped."""

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Takes ownership of the socket, which listens and is non-blocking. `make` makes who gets a connection. Made
        inside a running loop."""
        self._listening = listening
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    def stop(self) -> None:
        """Accept no more. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(A_TURN):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the client went away again
                continue
            except OSError as error:  # no file descriptor is left: some will be freed
                log.warning("http: cannot accept: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(
                    NO_DESCRIPTOR_WAIT_S, self._loop.add_reader, self._listening, self._accept
                )
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._arrive(connection))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _arrive(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # the client went away again
            connection.close()
