"""Reports clients that speak another protocol than the listener they came to, and names the port for what they speak.

Lines of one peer, and of all peers together, are limited by the log (`edge.output.repetition`): the peer's address is
the first value of the line.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class WrongPortReporter:
    """Knows the listeners of one process, and logs who came to the wrong one."""

    def __init__(self) -> None:
        self._ports: dict[str, list[str]] = {}
        """Ports by the protocol that a client's first bytes are of: a WebSocket begins as HTTP."""

    def add_listener(self, name: str, port: int, *, protocol: str, tls: bool) -> None:
        """Remember a listener; `protocol` is the one inside TLS where there is TLS."""
        self._ports.setdefault("TLS" if tls else protocol.upper(), []).append(f"{port} ({name})")

    def report(self, listener: str, address: str, spoken: str) -> None:
        """Log that a client at `address` speaks this protocol to a listener of another one."""
        ports = self._ports.get(spoken)
        step = f"{spoken} is at port {', '.join(ports)}" if ports else f"no listener here speaks {spoken}"
        log.warning("%s: wrong port: the client speaks %s to listener %s; %s", address, spoken, listener, step)
