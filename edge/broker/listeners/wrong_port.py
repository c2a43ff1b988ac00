"""Log clients that connect to a listener of another protocol, with the right port.

The log limits the lines of one peer and of all peers (`edge.output.repetition`) by the first value of the line, the
address of the peer.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class WrongPortReporter:
    """Logs clients that connect to the wrong listener of this process."""

    def __init__(self) -> None:
        self._ports: dict[str, list[str]] = {}
        """Ports by the protocol of a client's first bytes; WebSocket counts as HTTP."""

    def add_listener(self, name: str, port: int, *, protocol: str, tls: bool) -> None:
        """Add a listener; `protocol` is the one inside TLS."""
        self._ports.setdefault("TLS" if tls else protocol.upper(), []).append(f"{port} ({name})")

    def report(self, listener: str, address: str, spoken: str) -> None:
        """Log that a client at `address` speaks this protocol to a listener of another one."""
        ports = self._ports.get(spoken)
        step = f"{spoken} is at port {', '.join(ports)}" if ports else f"there is no listener for {spoken}"
        log.warning("%s: wrong port: the client speaks %s to listener %s; %s", address, spoken, listener, step)
