"""A bound socket for the console, created before its server is imported."""

from __future__ import annotations

import socket
from typing import NamedTuple

from edge.broker.listeners.tls import Certificates


class BoundSocket(NamedTuple):
    """A bound socket, with certificates for TLS."""

    sock: socket.socket
    certificates: Certificates | None = None
