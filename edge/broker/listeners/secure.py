"""Handshakes of accepted connections: so many at a time, each with the certificates of its moment.

Until its handshake is done a connection costs two transports, and once it has begun what OpenSSL has for it; only then
something of ours is made for it. Who sends nothing is ended after a time, sooner while others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from bridge.transport.tls import TlsTransport, WrongProtocolError
from edge.broker.limits import ACCOUNT_SHARE_MAX, TLS_HANDSHAKES_MAX, TLS_PARKED_MAX, TLS_STALLED_S
from edge.broker.listeners.tls import Certificates, subject_name
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.remote import remote_of
from edge.broker.model.tracing import UNTRACED, Tracer

log = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""How long `stop` waits until the last connection is closed: 1 000 take some 50 ms."""

CERTIFIED_MIN: Final = 64
"""Connections with a certificate that are known before it is looked which of them are closed."""

Identify: TypeAlias = Callable[[Mapping[str, Any] | None], str | None]
"""Who a verified client certificate, as `ssl` gives it, says that a peer is; None: nobody we know."""
Admit: TypeAlias = Callable[[str | None], asyncio.Protocol | None]
"""Makes who gets a connection of that identity; None when there is no room."""


class PendingHandshakes:
    """Connections that wait for their handshake, in the order they came, by remote address."""

    def __init__(self) -> None:
        self.count = 0
        self._by_remote: dict[str, deque[TlsTransport]] = {}

    def add(self, remote: str, transport: TlsTransport) -> None:
        self._by_remote.setdefault(remote, deque()).append(transport)
        self.count += 1

    def next(self, under_way: Mapping[str, int], each_max: int) -> tuple[str, TlsTransport] | None:
        """Of the address with the fewest handshakes under way the one that came first; None where all have
        `each_max`."""
        remote = min(self._by_remote, key=lambda each: under_way.get(each, 0), default=None)
        if remote is None or under_way.get(remote, 0) >= each_max:
            return None
        return remote, self._pop(remote, first=True)

    def drop_last(self) -> None:
        """Close the one that came last of the address with most."""
        remote = max(self._by_remote, key=lambda each: len(self._by_remote[each]))
        self._pop(remote, first=False).abort()

    def abort(self) -> None:
        for waiting in self._by_remote.values():
            for transport in waiting:
                transport.abort()

    def _pop(self, remote: str, *, first: bool) -> TlsTransport:
        waiting = self._by_remote[remote]
        transport = waiting.popleft() if first else waiting.pop()
        self.count -= 1
        if not waiting:
            del self._by_remote[remote]
        return transport


class Handshakes:
    """Those of one listener. Made inside a running loop."""

    def __init__(
        self,
        name: str,
        certificates: Certificates,
        admit: Admit,
        *,
        handshake_s: float,
        identify: Identify = subject_name,
        others: Mapping[str, Admit] | None = None,
        wrong_port: WrongPortReporter | None = None,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """`admit` gets what `identify` makes of the verified client certificate. `others` get connections whose client
        asked for their protocol by name (ALPN, RFC 7301), which the certificates have to offer. `handshake_s`: the time
        a handshake has, less while others wait. `wrong_port`: see `TcpListener`."""
        self.under_way: dict[TlsTransport, tuple[str, float]] = {}
        """Of which remote address, since when."""
        self.parked = PendingHandshakes()
        self._by_remote: Counter[str] = Counter()
        """Under way."""
        self._open = 0
        """Connections whose handshake is not done, whatever they wait for."""
        self._name = name
        self._certificates = certificates
        self._admit = admit
        self._identify = identify
        self._others = others or {}
        self._handshake_s = handshake_s
        self._wrong_port = wrong_port or WrongPortReporter()
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._certified: set[TlsTransport] = set()
        """Connections whose peers have shown a certificate; of those that are closed no more than of others."""
        self._certified_max = CERTIFIED_MIN
        certificates.reviewers.append(self.review)

    def make(self) -> asyncio.Protocol:
        """For `bridge.transport.listening`: whose a connection is that was accepted."""
        self._open += 1
        return TlsTransport(self)

    async def stop(self) -> None:
        """Drop those under way, and those that wait. Accept no more before."""
        with contextlib.suppress(ValueError):  # it was stopped before
            self._certificates.reviewers.remove(self.review)
        parked, self.parked = self.parked, PendingHandshakes()
        parked.abort()
        for transport in list(self.under_way):
            transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._open:  # they end in turns
                    await asyncio.sleep(0)

    # --- bridge.transport.tls.Handshaking ---------------------------------------------------------------------

    def arrived(self, transport: TlsTransport) -> None:
        """It waits, or begins."""
        self.parked.add(_remote(transport), transport)
        self._begin()
        if self.parked.count > TLS_PARKED_MAX:
            self.parked.drop_last()
        if self.parked.count:
            self._end_the_stalled()

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        """Who gets a connection whose handshake is done."""
        self._over(transport)
        if not self._let_in(transport):
            return None
        identity = self._identify(transport.get_extra_info("peercert"))
        admit = self._admit
        if self._others:
            admit = self._others.get(transport.get_extra_info("ssl_object").selected_alpn_protocol() or "", admit)
        return admit(identity)

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        """There is no TLS with this peer."""
        if isinstance(error, WrongProtocolError):
            self._wrong_port.report(self._name, _remote(transport), error.spoken)
            self._trace_refusal(transport, f"the client speaks {error.spoken}, not TLS")
        elif transport in self.under_way:
            peer = transport.get_extra_info("peername")
            log.info("%s: no TLS with %s: %s", self._name, peer, error or "it closed the connection")
            self._trace_refusal(transport, str(error or "the client closed the connection"))
        self._over(transport)

    def review(self) -> None:
        """Other certificates may be revoked now: who has shown one of those leaves."""
        self._drop_closed()
        for transport in list(self._certified):
            certificate = _certificate_of(transport)
            if certificate is not None and self._certificates.revocations.is_revoked(certificate):
                log.warning("%s: %s has to leave: its certificate was revoked", self._name, _remote(transport))
                transport.abort()

    # --- inside -----------------------------------------------------------------------------------------------

    def _let_in(self, transport: TlsTransport) -> bool:
        certificate = _certificate_of(transport)
        if certificate is None:
            return True
        why = self._certificates.revocations.refusal(certificate)
        if why is not None:
            log.warning("%s: the certificate of %s does not let it in: %s", self._name, _remote(transport), why)
            self._trace_refusal(transport, f"its certificate does not let it in: {why}")
            return False
        self._certified.add(transport)
        if len(self._certified) >= self._certified_max:
            self._drop_closed()
        return True

    def _trace_refusal(self, transport: TlsTransport, why: str) -> None:
        if self._tracer.active:
            peer = transport.get_extra_info("peername")
            remote = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "-"
            self._tracer.tls_refused(self._name, remote, why)

    def _drop_closed(self) -> None:
        self._certified = {transport for transport in self._certified if not transport.is_closing()}
        self._certified_max = max(CERTIFIED_MIN, 2 * len(self._certified))

    def _begin(self) -> None:
        """Begin what there is room for, in turns of the addresses: one that stalls delays itself."""
        each_max = TLS_HANDSHAKES_MAX // ACCOUNT_SHARE_MAX
        while len(self.under_way) < TLS_HANDSHAKES_MAX:
            found = self.parked.next(self._by_remote, each_max)
            if found is None:
                return
            remote, transport = found
            now = self._loop.time()
            self.under_way[transport] = remote, now
            self._by_remote[remote] += 1
            transport.begin(self._certificates.context, now + self._handshake_s)

    def _end_the_stalled(self) -> None:
        """Others wait: who has had the time for a handshake over a slow link has no more of it."""
        begun_before = self._loop.time() - TLS_STALLED_S
        for transport, (_, begun_at) in self.under_way.items():
            if begun_at > begun_before:
                return
            transport.abort()

    def _over(self, transport: TlsTransport) -> None:
        """Its handshake is, and another one may begin."""
        self._open -= 1
        found = self.under_way.pop(transport, None)
        if found is not None:
            remote, _ = found
            self._by_remote[remote] -= 1
            if not self._by_remote[remote]:
                del self._by_remote[remote]
            self._begin()


def _certificate_of(transport: TlsTransport) -> bytes | None:
    """What the peer has shown and was verified, DER."""
    secured = transport.get_extra_info("ssl_object")
    found: bytes | None = secured.getpeercert(binary_form=True) if secured is not None else None
    return found


def _remote(transport: TlsTransport) -> str:
    peer = transport.get_extra_info("peername")
    return remote_of(peer[0] if isinstance(peer, tuple) else "")
