"""Ports chosen in advance, because a killed gateway must restart where its devices expect it."""

from __future__ import annotations

import random
import socket

FROM, TO = 20_000, 32_000
"""Below Linux's range for outgoing connections, so that none of those takes the port while its owner is down."""


def free_ports(count: int, *, seed: int | None = None) -> list[int]:
    """Return this many different free ports of the loopback. Raises OSError when there are too few."""
    candidates = random.Random(seed).sample(range(FROM, TO), min(TO - FROM, count * 50))
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"fewer than {count} free ports between {FROM} and {TO}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
