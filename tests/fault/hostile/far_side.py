"""TLS server that a gateway dials: friendly at first, then an attacker on the test's request."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from tests.support.certificates import Authority
from tests.support.tls_peer import TlsPeer, TrafficKeys

WAIT_S: Final = 20.0
SEND_S: Final = 1.0
"""Time that an attacker waits for a peer that does not read."""

Attack = Callable[[TlsPeer, Path], None]
"""Function that attacks a connection, given the key log of its TLS context."""


class FarSide:
    """TLS server with a trusted certificate.

    It forwards connections in the clear to a server of this machine, or attacks its clients.
    """

    def __init__(self, folder: Path, authority: Authority, target_port: int) -> None:
        self.attack: Attack | None = None
        self.attacked = 0
        """Number of completed attacks."""
        self._issued = authority.issue("far", file=folder.name)
        self._folder = folder
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._numbers = itertools.count()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        keys = self._folder / f"keys-{next(self._numbers)}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._issued.certificate, self._issued.key)
        context.num_tickets = 0  # the first record after the handshake belongs to the attack
        context.keylog_filename = str(keys)
        connection.settimeout(WAIT_S)
        self._open.add(connection)
        attack = self.attack
        with connection, contextlib.suppress(OSError):
            if attack is None:
                self._pass(context.wrap_socket(connection, server_side=True))
            else:
                peer = TlsPeer(connection, context, server_side=True)
                connection.settimeout(SEND_S)
                with contextlib.suppress(OSError):
                    attack(peer, keys)
                self.attacked += 1
        self._open.discard(connection)

    def _pass(self, near: ssl.SSLSocket) -> None:
        self._open.add(near)
        near.settimeout(None)
        with near, socket.create_connection(("127.0.0.1", self._target_port)) as far:
            self._open.add(far)
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            self._open.discard(far)
        self._open.discard(near)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def keys_of(log: Path) -> TrafficKeys:
    """Return the keys with which a server writes."""
    return TrafficKeys(log, "SERVER")
