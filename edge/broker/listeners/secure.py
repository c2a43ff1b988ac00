"""TLS handshakes of accepted connections, a limited number at a time, with the current certificates.

Until its handshake is done a connection takes two transports, and the memory of OpenSSL once it has started. Only then
its driver is created. A silent client is closed after a timeout, earlier while others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bridge.transport.tls import TlsTransport, WrongProtocolError
from edge.broker.limits import ACCOUNT_SHARE_MAX, TLS_HANDSHAKES_MAX, TLS_PARKED_MAX, TLS_STALLED_S
from edge.broker.listeners.ocsp.held_connection import HeldConnection
from edge.broker.listeners.tls import Certificates, subject_name
from edge.broker.listeners.wrong_port import WrongPortReporter
from edge.broker.model.remote import remote_of
from edge.broker.model.tracing import UNTRACED, Tracer
from edge.broker.security.certified_devices import DeviceCandidate

if TYPE_CHECKING:
    from edge.broker.listeners.ocsp.certificate_status import CertificateStatus

log = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""Seconds that `stop` waits for connections to close: 1 000 take some 50 ms."""

CERTIFIED_MIN: Final = 64
"""Connections with a certificate before closed ones are removed from the set."""

CERTIFICATE_FAILURES: Final = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED")
"""Words in OpenSSL's errors about the certificate of a client."""

Identify: TypeAlias = Callable[[Mapping[str, Any] | None], str | None]
"""Returns the name in a verified client certificate, as `ssl` returns it; None without one."""
Admit: TypeAlias = Callable[[str | None], asyncio.Protocol | None]
"""Creates the protocol of a connection with this identity; None at a limit."""


class PendingHandshakes:
    """Connections that wait for their handshake, by remote address, oldest first."""

    def __init__(self) -> None:
        self.count = 0
        self._by_remote: dict[str, deque[TlsTransport]] = {}

    def add(self, remote: str, transport: TlsTransport) -> None:
        self._by_remote.setdefault(remote, deque()).append(transport)
        self.count += 1

    def next(self, in_progress: Mapping[str, int], each_max: int) -> tuple[str, TlsTransport] | None:
        """Remove and return the oldest connection of the address with the fewest handshakes in progress.

        Return None if all addresses have `each_max`.
        """
        remote = min(self._by_remote, key=lambda each: in_progress.get(each, 0), default=None)
        if remote is None or in_progress.get(remote, 0) >= each_max:
            return None
        return remote, self._pop(remote, first=True)

    def drop_last(self) -> None:
        """Close the newest connection of the address with the most."""
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


class HandshakeRate:
    """Token bucket of handshakes: a burst, then a number a second."""

    def __init__(self, per_second: float, burst: int = TLS_HANDSHAKES_MAX) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = self._burst
        self._at_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next handshake may begin; 0 for now."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._tokens = min(self._burst, self._tokens + passed_s * self._per_second)
        self._at_s = now_s
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self._per_second

    def begin(self) -> None:
        """Count a handshake that begins."""
        self._tokens -= 1.0


class Handshakes:
    """Handshakes of one listener. Create it inside a running loop."""

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
        rate: HandshakeRate | None = None,
    ) -> None:
        """`admit` gets the name that `identify` returns for the client certificate. `others`: by ALPN protocol (RFC
        7301), which the certificates have to offer. `handshake_s`: time limit of a handshake, less while others wait.
        `wrong_port`: see `TcpListener`. `rate`: limit of handshakes that begin; None without one."""
        self.in_progress: dict[TlsTransport, tuple[str, float]] = {}
        """Handshakes in progress: remote address and start."""
        self.parked = PendingHandshakes()
        self._by_remote: Counter[str] = Counter()
        """Handshakes in progress by remote address."""
        self._open = 0
        """Connections before the end of their handshake."""
        self._name = name
        self._certificates = certificates
        self._admit = admit
        self._identify = identify
        self._others = others or {}
        self._handshake_s = handshake_s
        self._wrong_port = wrong_port or WrongPortReporter()
        self._tracer = tracer
        self._loop = asyncio.get_running_loop()
        self._certified: dict[TlsTransport, str] = {}
        """Connections with a client certificate and its digest; at most half of them are closed."""
        self._certified_max = CERTIFIED_MIN
        self._devices: dict[TlsTransport, str] = {}
        """Connections of devices of the hub among them."""
        self._rate = rate
        self._later: asyncio.TimerHandle | None = None
        """Timer until the rate allows the next one."""
        certificates.reviewers.append(self)

    def make(self) -> asyncio.Protocol:
        """Create the protocol of an accepted connection, for `bridge.transport.listening`."""
        self._open += 1
        return TlsTransport(self)

    async def stop(self) -> None:
        """Close all handshakes. Stop accepting connections before."""
        with contextlib.suppress(ValueError):  # already stopped
            self._certificates.reviewers.remove(self)
        if self._later is not None:
            self._later.cancel()
        parked, self.parked = self.parked, PendingHandshakes()
        parked.abort()
        for transport in list(self.in_progress):
            transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._open:  # they end over several turns of the loop
                    await asyncio.sleep(0)

    # --- bridge.transport.tls.Handshaking -----------------------------------------------------------------------

    def arrived(self, transport: TlsTransport) -> None:
        """Queue a new connection, and start its handshake if possible."""
        self.parked.add(_remote(transport), transport)
        self._begin()
        if self.parked.count > TLS_PARKED_MAX:
            self.parked.drop_last()
        if self.parked.count:
            self._close_stalled()

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        """Return the protocol of a connection after its handshake."""
        self._over(transport)
        certificate = _certificate_of(transport)
        if certificate is None:
            return self._admitted(transport, None)
        recognized = self._certificates.recognize(certificate)
        if recognized.by_hub and not recognized.configured:  # lists and responders of `clientCa` do not know it
            return self._admitted_with_certificate(transport, certificate, _digest(certificate))
        why = self._certificates.revocations.refusal(certificate)
        if why is not None:
            self._refuse(transport, why)
            return None
        status = self._certificates.status
        if status is None:
            return self._admitted_with_certificate(transport, certificate, _digest(certificate))
        return self._asked(transport, certificate, status)

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        """Process a failed handshake."""
        if isinstance(error, WrongProtocolError):
            self._wrong_port.report(self._name, _remote(transport), error.spoken)
            self._trace_refusal(transport, f"the client speaks {error.spoken}, not TLS")
        elif transport in self.in_progress:
            peer = transport.get_extra_info("peername")
            log.info("%s: TLS handshake with %s failed: %s", self._name, peer, error or "it closed the connection")
            if error is not None:
                of_certificate = any(mark in str(error).upper() for mark in CERTIFICATE_FAILURES)
                self._wrong_port.record_tls_failure(_remote(transport), str(error), of_certificate=of_certificate)
            self._trace_refusal(transport, str(error or "the client closed the connection"))
        self._over(transport)

    # --- edge.broker.listeners.tls.CertificateReviewer ----------------------------------------------------------

    def review(self) -> None:
        """Close connections with a certificate that a list revokes now."""
        self._drop_closed()
        for transport in list(self._certified):
            certificate = _certificate_of(transport)
            if certificate is not None and self._certificates.revocations.is_revoked(certificate):
                self._close_revoked(transport)

    def close_revoked(self, digest: str) -> None:
        """Close connections with a certificate that an OCSP answer revokes."""
        for transport in [each for each, own in self._certified.items() if own == digest]:
            self._close_revoked(transport)

    def close_untrusted(self) -> None:
        """Close connections of devices that their certificates no longer prove."""
        self.close_unproven(frozenset(self._devices.values()))

    def close_unproven(self, identities: Set[str]) -> None:
        """Close connections with these identities if their certificates prove another one now, or none."""
        self._drop_closed()
        for transport, identity in list(self._devices.items()):
            certificate = _certificate_of(transport)
            if identity in identities and (
                certificate is None or self._certificates.recognize(certificate).identity != identity
            ):
                log.warning(
                    "%s: closing the connection of %s: its certificate is not trusted now",
                    self._name,
                    _remote(transport),
                )
                transport.abort()

    def refresh(self, status: CertificateStatus) -> None:
        """Ask about certificates again after the end of their OCSP answer. Called every few seconds: it takes two
        look-ups for each connection."""
        self._drop_closed()
        for transport, digest in list(self._certified.items()):
            if status.is_revoked(digest):  # as OCSP was not configured before
                self._close_revoked(transport)
            else:
                status.refresh(digest, partial(_certificate_of, transport))

    # --- inside -------------------------------------------------------------------------------------------------

    def _asked(self, transport: TlsTransport, certificate: bytes, status: CertificateStatus) -> asyncio.Protocol | None:
        """Return the protocol of a connection with a certificate that OCSP decides about: at once if the answer is
        known, else one that waits for it."""
        held, known, digest = HeldConnection(), list[str | None](), _digest(certificate)

        def admitted(transport: TlsTransport) -> asyncio.Protocol | None:
            return self._admitted_with_certificate(transport, certificate, digest)

        def decided(why: str | None) -> None:
            if not later:
                known.append(why)
            elif why is None:
                held.release(admitted)
            else:
                self._refuse(transport, why)
                held.refuse()

        later = False
        later = not status.decide(digest, certificate, decided)
        if later:
            return held
        if known[0] is None:
            return admitted(transport)
        self._refuse(transport, known[0])
        return None

    def _admitted_with_certificate(
        self, transport: TlsTransport, certificate: bytes, digest: str
    ) -> asyncio.Protocol | None:
        self._certified[transport] = digest
        if len(self._certified) >= self._certified_max:
            self._drop_closed()
        recognized = self._certificates.recognize(certificate)
        if recognized.candidate is not None:
            return self._provisioned(transport, certificate, recognized.candidate)
        if recognized.by_hub:
            return self._admitted_device(transport, recognized.identity)
        return self._admitted(transport, self._identify(transport.get_extra_info("peercert")))

    def _provisioned(
        self, transport: TlsTransport, certificate: bytes, candidate: DeviceCandidate
    ) -> asyncio.Protocol | None:
        """Return the protocol of a device that is not registered. It waits until the device is let in."""
        held, known = HeldConnection(), list[bool]()
        later = False

        def admitted(transport: TlsTransport, *, let_in: bool) -> asyncio.Protocol | None:
            # what the certificate proves now: a page may have come while the device was written
            return self._admitted_device(
                transport, self._certificates.recognize(certificate).identity if let_in else None
            )

        def decided(let_in: bool) -> None:
            if later:
                held.release(partial(admitted, let_in=let_in))
            else:
                known.append(let_in)

        self._certificates.provision(candidate, decided)
        if known:
            return admitted(transport, let_in=known[0])
        later = True
        return held

    def _admitted_device(self, transport: TlsTransport, identity: str | None) -> asyncio.Protocol | None:
        """Return the protocol of a device; None as its identity: its certificate proves nothing."""
        if identity is not None:
            self._devices[transport] = identity
        return self._admitted(transport, identity)

    def _admitted(self, transport: TlsTransport, identity: str | None) -> asyncio.Protocol | None:
        admit = self._admit
        if self._others:
            admit = self._others.get(transport.get_extra_info("ssl_object").selected_alpn_protocol() or "", admit)
        return admit(identity)

    def _close_revoked(self, transport: TlsTransport) -> None:
        if not transport.is_closing():
            log.warning("%s: closing the connection of %s: its certificate was revoked", self._name, _remote(transport))
            transport.abort()

    def _refuse(self, transport: TlsTransport, why: str) -> None:
        """Record that the certificate of a connection is refused."""
        log.warning("%s: the certificate of %s is refused: %s", self._name, _remote(transport), why)
        self._wrong_port.record_tls_failure(_remote(transport), why, of_certificate=True)
        self._trace_refusal(transport, f"its certificate is refused: {why}")

    def _trace_refusal(self, transport: TlsTransport, why: str) -> None:
        if self._tracer.active:
            peer = transport.get_extra_info("peername")
            remote = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "-"
            self._tracer.tls_refused(self._name, remote, why)

    def _drop_closed(self) -> None:
        self._certified = {each: digest for each, digest in self._certified.items() if not each.is_closing()}
        self._certified_max = max(CERTIFIED_MIN, 2 * len(self._certified))
        self._devices = {each: identity for each, identity in self._devices.items() if each in self._certified}

    def _begin(self) -> None:
        """Start handshakes up to the limit, fairly by address, so that a stalled address delays only itself."""
        each_max = TLS_HANDSHAKES_MAX // ACCOUNT_SHARE_MAX
        while self.parked.count and len(self.in_progress) < TLS_HANDSHAKES_MAX and self._may_begin():
            found = self.parked.next(self._by_remote, each_max)
            if found is None:
                return
            remote, transport = found
            if self._rate is not None:
                self._rate.begin()
            now = self._loop.time()
            self.in_progress[transport] = remote, now
            self._by_remote[remote] += 1
            transport.begin(self._certificates.context, now + self._handshake_s)

    def _may_begin(self) -> bool:
        """Return whether the rate allows a handshake now; else begin the next one when it does."""
        wait_s = self._rate.wait_s(self._loop.time()) if self._rate is not None else 0.0
        if wait_s and self._later is None:
            self._later = self._loop.call_later(wait_s, self._begin_later)
        return not wait_s

    def _begin_later(self) -> None:
        self._later = None
        self._begin()

    def _close_stalled(self) -> None:
        """Close handshakes that take longer than over a slow link, while others wait."""
        started_before = self._loop.time() - TLS_STALLED_S
        for transport, (_, started_at) in self.in_progress.items():
            if started_at > started_before:
                return
            transport.abort()

    def _over(self, transport: TlsTransport) -> None:
        """Remove a finished handshake and start another one."""
        self._open -= 1
        found = self.in_progress.pop(transport, None)
        if found is not None:
            remote, _ = found
            self._by_remote[remote] -= 1
            if not self._by_remote[remote]:
                del self._by_remote[remote]
            self._begin()


def _certificate_of(transport: TlsTransport) -> bytes | None:
    """Return the verified client certificate in DER, or None."""
    secured = transport.get_extra_info("ssl_object")
    found: bytes | None = secured.getpeercert(binary_form=True) if secured is not None else None
    return found


def _digest(certificate: bytes) -> str:
    """Return the name under which OCSP answers are kept."""
    return hashlib.sha256(certificate).hexdigest()


def _remote(transport: TlsTransport) -> str:
    peer = transport.get_extra_info("peername")
    return remote_of(peer[0] if isinstance(peer, tuple) else "")
