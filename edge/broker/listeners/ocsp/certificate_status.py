"""Ask responders about client certificates off the loop's thread, and remember what they say.

One request per certificate is under way at a time. A positive answer counts for `interval`, at most until the time that
the responder names; while no responder answers it counts for `offlineGrace` after that. A certificate that an answer
revokes stays revoked until an answer says otherwise. Create it inside a running loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from cryptography import x509

from edge.broker.configuration import ClientOcsp, OcspMode
from edge.broker.listeners.ocsp.answer import (
    OcspError,
    StatusAnswer,
    StatusQuestion,
    StatusVerdict,
    question_about,
    read_answer,
)
from edge.broker.listeners.ocsp.known_answers import FILE, KnownAnswers
from edge.broker.listeners.ocsp.limits import (
    OCSP_RETRY_S,
    OCSP_THREADS,
    OCSP_WAITING_MAX,
    OCSP_WRITE_S,
    RESPONSE_S_MAX,
)
from edge.broker.listeners.ocsp.responder import ask_responder

log = logging.getLogger(__name__)

REVOKED: Final = "its authority revoked it (OCSP)"

Decided = Callable[[str | None], None]
"""Takes why a certificate is refused; None when it is accepted."""


class AskedCertificate:
    """Certificate with a request under way."""

    __slots__ = ("clients", "patience")

    def __init__(self, patience: asyncio.TimerHandle) -> None:
        self.clients: list[Decided] = []
        """Connections that wait for the answer."""
        self.patience = patience
        """Timer after which they stop waiting."""


class CertificateStatus:
    """Status of the certificates of clients."""

    def __init__(
        self,
        settings: ClientOcsp,
        authorities: str,
        data: Path | None,
        now_s: Callable[[], float],
        on_revoked: Callable[[], None],
        ask: Callable[[str, bytes], bytes] = ask_responder,
    ) -> None:
        """`authorities`: PEM file of the issuers of client certificates. `data`: folder of the file of answers. `now_s`
        returns UTC seconds. `on_revoked` is called when an answer revokes a certificate. `ask` posts a request to a
        responder, and blocks. Blocks for the time of a small file."""
        self.settings = settings
        self.trouble: str | None = None
        """Why the last request had no usable response; None if it had."""
        self._on_revoked = on_revoked
        self._authorities = Path(authorities)
        self._loop = asyncio.get_running_loop()
        self._now_s = now_s
        self._ask = ask
        self._known = KnownAnswers(data / FILE if data is not None else None)
        self._waiting: dict[str, AskedCertificate] = {}
        """Certificates that are asked about."""
        self._failed_at: dict[str, float] = {}
        """Loop's time of the last request without an answer, by certificate."""
        self._threads = ThreadPoolExecutor(OCSP_THREADS, thread_name_prefix="ocsp")
        self._written_at = 0.0

    def close(self) -> None:
        """Stop asking, and write what the file lacks. Blocks for the time of a small file."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._known.changed:
            self._known.write(self._known.content())

    def is_revoked(self, certificate: bytes) -> bool:
        """Return True if the last answer about a certificate (DER) revokes it."""
        found = self._known.find(_digest(certificate))
        return found is not None and found.verdict is StatusVerdict.REVOKED

    def decide(self, certificate: bytes, decided: Decided) -> bool:
        """Decide about a new connection; return False if `decided` is called later, when the responder has answered."""
        digest = _digest(certificate)
        found = self._known.find(digest)
        if found is not None and self._is_fresh(found):
            decided(REVOKED if found.verdict is StatusVerdict.REVOKED else None)
            return True
        if self._failed_lately(digest) or (digest not in self._waiting and len(self._waiting) >= OCSP_WAITING_MAX):
            decided(self._without_answer(digest))
            return True
        self._begin(digest, certificate).clients.append(decided)
        return False

    def refresh(self, certificate: bytes) -> None:
        """Ask about the certificate of an open connection, if the last answer has ended."""
        digest = _digest(certificate)
        found = self._known.find(digest)
        asked = digest in self._waiting or self._failed_lately(digest) or len(self._waiting) >= OCSP_WAITING_MAX
        if not asked and not (found is not None and self._is_fresh(found)):
            self._begin(digest, certificate)

    def write_if_due(self) -> None:
        """Write the file in a thread if it lacks a revocation, or for some time an answer."""
        now = self._loop.time()
        if self._known.urgent or (self._known.changed and now - self._written_at >= OCSP_WRITE_S):
            self._written_at = now
            self._loop.run_in_executor(self._threads, self._known.write, self._known.content())

    # --- inside -------------------------------------------------------------------------------------------------

    def _is_fresh(self, found: StatusAnswer) -> bool:
        return self._now_s() < _counts_until(found, self.settings.interval)

    def _failed_lately(self, digest: str) -> bool:
        failed_at = self._failed_at.get(digest)
        return failed_at is not None and self._loop.time() - failed_at < OCSP_RETRY_S

    def _without_answer(self, digest: str) -> str | None:
        """Return why a certificate is refused while no responder answers; None if it is accepted."""
        found = self._known.find(digest)
        if found is not None and found.verdict is StatusVerdict.REVOKED:
            return REVOKED
        grace_s = self.settings.grace_s
        in_grace = found is not None and self._now_s() < _counts_until(found, self.settings.interval) + grace_s
        if in_grace or self.settings.mode is OcspMode.SOFT:
            return None
        return f"no OCSP response about it: {self.trouble}"

    def _begin(self, digest: str, certificate: bytes) -> AskedCertificate:
        """Ask about a certificate unless that is under way."""
        waiting = self._waiting.get(digest)
        if waiting is None:
            patience = self._loop.call_later(RESPONSE_S_MAX, self._wait_no_more, digest)
            waiting = self._waiting[digest] = AskedCertificate(patience)
            asked = self._loop.run_in_executor(self._threads, self._answer, certificate)
            asked.add_done_callback(lambda done: self._take(digest, done))
        return waiting

    def _wait_no_more(self, digest: str) -> None:
        """Decide about the connections of a certificate without an answer; the request goes on."""
        waiting = self._waiting[digest]
        clients, waiting.clients = waiting.clients, []
        if self.trouble is None:
            self.trouble = f"no response within {RESPONSE_S_MAX:g} s"
        for decided in clients:
            decided(self._without_answer(digest))

    def _answer(self, certificate: bytes) -> StatusAnswer:
        """Ask the responders of a certificate in turn. Runs in a thread. Raises OcspError."""
        try:
            authorities = x509.load_pem_x509_certificates(self._authorities.read_bytes())
        except (OSError, ValueError) as error:
            raise OcspError(f"{self._authorities}: {error}") from None
        question = question_about(certificate, authorities)
        urls: Sequence[str] = (self.settings.responder,) if self.settings.responder else question.urls
        return self._first_answer(urls, question)

    def _first_answer(self, urls: Sequence[str], question: StatusQuestion) -> StatusAnswer:
        why = "the certificate names no responder, and listeners.tls.clientOcsp.responder is not set"
        for url in urls:
            try:
                return read_answer(self._ask(url, question.request), question, self._now_s())
            except OcspError as error:
                why = str(error)
        raise OcspError(why)

    def _take(self, digest: str, done: asyncio.Future[StatusAnswer]) -> None:
        """Note the end of a request, on the loop's thread."""
        waiting = self._waiting.pop(digest)
        waiting.patience.cancel()
        error = done.exception() if not done.cancelled() else OcspError("the listener stops")
        why: str | None
        if error is None:
            answer = done.result()
            self._failed_at.pop(digest, None)
            self.trouble = None
            self._known.add(digest, answer)
            why = REVOKED if answer.verdict is StatusVerdict.REVOKED else None
        else:
            self.trouble = str(error) if isinstance(error, OcspError) else f"unexpected error: {type(error).__name__}"
            log.info("no OCSP response about a client certificate: %s", self.trouble)
            self._forget_old_failures()
            self._failed_at[digest] = self._loop.time()
            why = self._without_answer(digest)
        for decided in waiting.clients:
            decided(why)
        if why is REVOKED:
            self._on_revoked()

    def _forget_old_failures(self) -> None:
        if len(self._failed_at) >= OCSP_WAITING_MAX:
            now = self._loop.time()
            self._failed_at = {each: at for each, at in self._failed_at.items() if now - at < OCSP_RETRY_S}


def _counts_until(found: StatusAnswer, interval_s: float) -> float:
    """Return the time until which an answer counts without a further one, UTC seconds."""
    until = found.read_at + interval_s
    return min(until, found.until) if found.until is not None else until


def _digest(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
