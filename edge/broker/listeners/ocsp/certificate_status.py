"""Ask responders about client certificates off the loop's thread, and remember what they say.

One request per certificate is under way at a time. A positive answer counts for `interval`, at most until the time that
the responder names; while no responder answers it counts for `offlineGrace` after that. A certificate that an answer
revokes stays revoked until a newer answer says otherwise. Certificates are named by the SHA-256 of their DER, as the
connections know it. Create it inside a running loop.
"""

from __future__ import annotations

import asyncio
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
from edge.broker.listeners.ocsp.known_answers import FILE, AnswersContent, KnownAnswers
from edge.broker.listeners.ocsp.limits import (
    HELD_CONNECTIONS_MAX,
    OCSP_CLOCK_S,
    OCSP_REFRESHES_MAX,
    OCSP_RETRY_S,
    OCSP_THREADS,
    OCSP_WAITING_MAX,
    OCSP_WRITE_S,
    RESPONSE_S_MAX,
)
from edge.broker.listeners.ocsp.responder import ask_responder

log = logging.getLogger(__name__)

REVOKED: Final = "its authority revoked it (OCSP)"
ENDED: Final = "no OCSP response about it: the listener stops, or its settings change"

Decided = Callable[[str | None], None]
"""Takes why a certificate is refused; None when it is accepted."""


class AskedCertificate:
    """Certificate with a request under way."""

    __slots__ = ("clients", "overdue", "patience")

    def __init__(self, patience: asyncio.TimerHandle) -> None:
        self.clients: list[Decided] = []
        """Connections that wait for the answer."""
        self.overdue = False
        """Connections do not wait any more."""
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
        on_revoked: Callable[[str], None],
        ask: Callable[[str, bytes], bytes] = ask_responder,
    ) -> None:
        """`authorities`: PEM file of the issuers of client certificates. `data`: folder of the file of answers. `now_s`
        returns UTC seconds. `on_revoked` is called when an answer revokes the certificate with a digest. `ask` posts a
        request to a responder, and blocks. Blocks for the time of a small file."""
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
        self._held = 0
        """Connections that wait for an answer."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ocsp-file")
        self._writing = False
        self._write_failed = False
        self._write_at = self._loop.time()
        """Loop's time of the next write without a revocation, or after an error."""
        self._closed = False

    def close(self) -> None:
        """Stop asking, refuse the connections that wait, and write what the file lacks. Blocks for the time of a small
        file."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.patience.cancel()
            self._tell(each, ENDED)
        self._writer.shutdown(wait=True)
        if self._known.changed:
            self._known.write(self._known.content())

    def is_revoked(self, digest: str) -> bool:
        """Return True if the last answer about a certificate revokes it."""
        found = self._known.find(digest)
        return found is not None and found.verdict is StatusVerdict.REVOKED

    def decide(self, digest: str, certificate: bytes, decided: Decided) -> bool:
        """Decide about a new connection with a certificate (DER); return False if `decided` is called later, when the
        responder has answered."""
        found = self._known.find(digest)
        if found is not None and self._is_fresh(found):
            decided(REVOKED if found.verdict is StatusVerdict.REVOKED else None)
            return True
        if not self._may_wait(digest):
            decided(self._without_answer(digest))
            return True
        self._begin(digest, certificate).clients.append(decided)
        self._held += 1
        return False

    def refresh(self, digest: str, certificate: Callable[[], bytes | None]) -> None:
        """Ask about the certificate of an open connection, if the last answer has ended. `certificate` returns its DER;
        None: the connection has ended."""
        found = self._known.find(digest)
        if found is not None and self._is_fresh(found):
            return
        if digest in self._waiting or len(self._waiting) >= OCSP_REFRESHES_MAX or self._failed_lately(digest):
            return
        shown = certificate()
        if shown is not None:
            self._begin(digest, shown)

    def write_if_due(self) -> None:
        """Write the file in a thread if it lacks a revocation, or for some time an answer."""
        if self._writing or not self._known.changed:
            return
        at_once = self._known.urgent and not self._write_failed
        if at_once or self._loop.time() >= self._write_at:
            self._writing = True
            content = self._known.content()
            written = self._loop.run_in_executor(self._writer, self._known.write, content)
            written.add_done_callback(lambda done: self._note_write(content, done))

    # --- inside -------------------------------------------------------------------------------------------------

    def _is_fresh(self, found: StatusAnswer) -> bool:
        """Return whether an answer counts without a further one; not if the clock was ahead when it was read."""
        now_s = self._now_s()
        return found.read_at <= now_s + OCSP_CLOCK_S and now_s < _counts_until(found, self.settings.interval)

    def _may_wait(self, digest: str) -> bool:
        """Return whether a connection may wait for an answer about its certificate."""
        waiting = self._waiting.get(digest)
        if waiting is None:
            room = len(self._waiting) < OCSP_WAITING_MAX and not self._failed_lately(digest)
        else:
            room = not waiting.overdue
        return room and self._held < HELD_CONNECTIONS_MAX

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
        waiting.overdue = True
        if self.trouble is None:
            self.trouble = f"no response within {RESPONSE_S_MAX:g} s"
        self._tell(waiting, self._without_answer(digest))

    def _tell(self, waiting: AskedCertificate, why: str | None) -> None:
        """Decide about the connections that wait; an error of one must not keep the others waiting."""
        clients, waiting.clients = waiting.clients, []
        self._held -= len(clients)
        for decided in clients:
            try:
                decided(why)
            except Exception:
                log.exception("unexpected error in the decision about a client certificate")

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
                return read_answer(self._ask(url, question.request), question, self._now_s(), self.settings.interval)
            except OcspError as error:
                why = str(error)
        raise OcspError(why)

    def _take(self, digest: str, done: asyncio.Future[StatusAnswer]) -> None:
        """Note the end of a request, on the loop's thread."""
        error = done.exception() if not done.cancelled() else OcspError("the listener stops")
        if self._closed:
            return
        waiting = self._waiting.pop(digest)
        waiting.patience.cancel()
        if error is None and not self._known.add(digest, done.result()):
            error = OcspError("the response is older than the last one, and contradicts it")
        why: str | None
        if error is None:
            self._failed_at.pop(digest, None)
            self.trouble = None
            why = REVOKED if done.result().verdict is StatusVerdict.REVOKED else None
        else:
            self.trouble = str(error) if isinstance(error, OcspError) else f"unexpected error: {type(error).__name__}"
            log.info("no OCSP response about a client certificate: %s", self.trouble)
            self._forget_old_failures()
            self._failed_at[digest] = self._loop.time()
            why = self._without_answer(digest)
        self._tell(waiting, why)
        if error is None and why is REVOKED:
            self.write_if_due()
            self._on_revoked(digest)

    def _note_write(self, content: AnswersContent, done: asyncio.Future[bool]) -> None:
        """Note the end of a write, on the loop's thread. After an error the file is written again later."""
        self._writing = False
        self._write_failed = done.cancelled() or done.exception() is not None or not done.result()
        self._write_at = self._loop.time() + OCSP_WRITE_S
        if not self._write_failed:
            self._known.note_written(content)

    def _forget_old_failures(self) -> None:
        if len(self._failed_at) >= OCSP_WAITING_MAX:
            now = self._loop.time()
            self._failed_at = {each: at for each, at in self._failed_at.items() if now - at < OCSP_RETRY_S}


def _counts_until(found: StatusAnswer, interval_s: float) -> float:
    """Return the time until which an answer counts without a further one, UTC seconds."""
    until = found.read_at + interval_s
    return min(until, found.until) if found.until is not None else until
