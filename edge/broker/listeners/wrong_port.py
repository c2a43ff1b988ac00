"""Report clients that connect to a listener of another protocol, with the right port, or fail at TLS.

The log limits the lines of one peer and of all peers (`edge.output.repetition`) by the first value of the line, the
address of the peer.
"""

from __future__ import annotations

import logging

from edge.broker.model.refusals import RefusalCause, RefusalJournal

log = logging.getLogger(__name__)


class WrongPortReporter:
    """Reports clients that no listener of this process can serve as they connect."""

    def __init__(self, refusals: RefusalJournal | None = None) -> None:
        """`refusals` records them."""
        self._refusals = RefusalJournal() if refusals is None else refusals
        self._ports: dict[str, list[str]] = {}
        """Ports by the protocol of a client's first bytes; WebSocket counts as HTTP."""

    def add_listener(self, name: str, port: int, *, protocol: str, tls: bool) -> None:
        """Add a listener; `protocol` is the one inside TLS."""
        self._ports.setdefault("TLS" if tls else protocol.upper(), []).append(f"{port} ({name})")

    def report(self, listener: str, address: str, spoken: str) -> None:
        """Log that a client at `address` speaks this protocol to a listener of another one."""
        ports = self._ports.get(spoken)
        step = f"{spoken} is at port {', '.join(ports)}" if ports else f"there is no listener for {spoken}"
        self._refusals.add(RefusalCause.WRONG_PORT, address, detail=f"{spoken} to listener {listener}; {step}")
        log.warning("%s: wrong port: the client speaks %s to listener %s; %s", address, spoken, listener, step)

    def record_tls_failure(self, address: str, why: str, *, of_certificate: bool) -> None:
        """Record that the TLS handshake with a client failed. `of_certificate`: its own certificate is the reason."""
        self._refusals.add(RefusalCause.CERTIFICATE if of_certificate else RefusalCause.TLS, address, detail=why)
