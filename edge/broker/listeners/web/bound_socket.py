"""A socket the console listens on, bound before anything that serves it is imported."""

from __future__ import annotations

import socket
from typing import NamedTuple

from edge.broker.listeners.tls import Certificates


class BoundSocket(NamedTuple):
    """A bound socket, and what it presents where it is for TLS."""

    sock: socket.socket
    certificates: Certificates | None = None
