"""Process with the authority's key: it signs what hubs of the registry ask for, and publishes the revocation list.

It needs no listener and no lake: requests come through the registry. Several of them on one registry do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa

from bridge.periodic_task import end_task
from cloud.hub.enrolment.authority import OwnAuthority, RevokedCertificate
from cloud.hub.enrolment.device_page_request import NO_PAGE, OpenPageSigner, read_page_request
from cloud.hub.enrolment.limits import (
    AUTHORITY_PUBLISHED_S,
    LIST_RESIGNED_S,
    PAGE_REQUEST_CHARACTERS_MAX,
    PAGES_A_TURN_MAX,
    PAGES_TURN_S,
    REVOCATIONS_CHECK_INTERVAL_S,
    SIGNATURE_ANSWERS_KEPT_S,
    SIGNATURE_FIRST_CHECK_S,
    SIGNATURE_REQUEST_CHARACTERS_MAX,
    SIGNATURE_REQUESTS_KEPT_S,
    SIGNATURES_A_TURN_MAX,
)
from cloud.hub.enrolment.signature_request import SignatureRefused, SigningRules, answer_request, sign_version
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.signatures import SignatureAnswer, Signatures, UnsignedVersion
from cloud.lake.faults import RegistryError
from edge.output.text import line

log = logging.getLogger(__name__)

NO_SIGNATURE: Final = "none"
"""Signature of a configuration that the authority refuses to sign: its gateway refuses it, and says so."""


class SigningTurn:
    """Work of the authority on the registry, for the thread that creates it. `close` at the end."""

    def __init__(
        self,
        authority: OwnAuthority,
        registry: sa.URL,
        rules: SigningRules,
        pages: OpenPageSigner,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the registry. `pages` makes what signs pages of devices. `now`: UTC seconds since 1970. Raises
        `RegistryError`."""
        self._authority = authority
        self._name = authority.fingerprint.hex()
        self._rules = rules
        self._now = now
        opened = open_registry(registry)
        self._database: Database = opened.database
        with contextlib.ExitStack() as opening:
            opening.callback(self._database.close)
            self._signatures = Signatures(self._database)
            self._enrolments = Enrolments(registry)
            opening.callback(self._enrolments.close)
            self._pages = pages(registry, opened.registry_id, authority.sign)
            opening.pop_all()
        self._revoked: dict[str, RevokedCertificate] = {}
        self._newest_us = 0
        self._list: tuple[float, int] | None = None
        """Time and number of entries of the published list."""
        self._number = 0
        self._published_at = float("-inf")
        self._dropped_at = float("-inf")

    def close(self) -> None:
        """Close the registry."""
        self._pages.close()
        self._enrolments.close()
        self._database.close()

    def run(self) -> float:
        """Sign what waits, and publish; return the seconds until the next turn. Raises `RegistryError`."""
        waiting = self._signatures.waiting(self._name, SIGNATURES_A_TURN_MAX, SIGNATURE_REQUEST_CHARACTERS_MAX)
        if waiting:
            answers = {each.id: self._answer(each.request) for each in waiting}
            self._signatures.answer(answers)
        signed = self._signatures.sign_versions(self._name, self._sign_version, SIGNATURES_A_TURN_MAX, self._now_us())
        if signed:
            log.info("signed %d configurations", signed)
        self._publish()
        self._drop_old()
        pages, more = self._sign_pages()
        if more or max(len(waiting), signed) == SIGNATURES_A_TURN_MAX:
            return 0.0
        return SIGNATURE_FIRST_CHECK_S if waiting or signed or pages else REVOCATIONS_CHECK_INTERVAL_S

    # --- inside -----------------------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)

    def _answer(self, request: str) -> SignatureAnswer:
        try:
            made, subject = answer_request(request, self._authority, self._rules, self._now())
        except SignatureRefused as refused:
            log.warning("refused a request for a signature: %s", refused)
            return SignatureAnswer(None, str(refused))
        log.info("signed a certificate for %s", line(subject))
        return SignatureAnswer(made, None)

    def _sign_pages(self) -> tuple[int, bool]:
        """Make and sign pages of devices, for some time; return their number, and whether more may wait.

        A page that cannot be read is refused for its gateway alone, and ends the pages of this turn.
        """
        limits = (PAGES_A_TURN_MAX, PAGE_REQUEST_CHARACTERS_MAX)
        waiting, answers = self._signatures.waiting(self._name, *limits, pages=True), dict[str, SignatureAnswer]()
        ends = time.monotonic() + PAGES_TURN_S
        for each in waiting:
            try:
                answers[each.id] = self._answer_page(each.request)
            except RegistryError as error:
                log.warning("a page of devices cannot be read: %s", error)
                answers[each.id] = SignatureAnswer(None, f"the registry cannot be read: {error}")
                break
            if time.monotonic() >= ends:
                break
        if answers:
            self._signatures.answer(answers)
        return len(answers), len(waiting) == PAGES_A_TURN_MAX or len(answers) < len(waiting)

    def _answer_page(self, request: str) -> SignatureAnswer:
        try:
            made = self._pages.answer(read_page_request(request))
        except SignatureRefused as refused:
            log.warning("refused a request for a page of devices: %s", refused)
            return SignatureAnswer(None, str(refused))
        if made.text != NO_PAGE:
            log.info("signed a page: %s", line(made.about))
        return SignatureAnswer(made.text, None)

    def _sign_version(self, version: UnsignedVersion) -> str:
        try:
            return sign_version(version, self._authority)
        except SignatureRefused as refused:
            where = (version.tenant, version.gateway, version.version, refused)
            log.warning("tenant %s, gateway %s: configuration version %d cannot be signed: %s", *where)
            return NO_SIGNATURE

    def _publish(self) -> None:
        """Publish a new revocation list if there is one, and at intervals that the process runs."""
        for each in self._enrolments.revoked(self._newest_us):
            at_us = each.revoked_at or 0
            self._revoked[each.serial] = RevokedCertificate(each.serial, at_us / 1e6)
            self._newest_us = max(self._newest_us, at_us)
        now, made = self._now(), None
        if self._list is None or self._list[1] != len(self._revoked) or not 0 <= now - self._list[0] < LIST_RESIGNED_S:
            made = self._make_list(now)
        elif 0 <= now - self._published_at < AUTHORITY_PUBLISHED_S:
            return
        self._signatures.publish(self._name, self._now_us(), made)
        self._published_at = now
        if made is not None:
            self._list, self._number = (now, len(self._revoked)), made[1]

    def _make_list(self, now: float) -> tuple[bytes, int]:
        """Return a revocation list and its number, above each one before (RFC 5280 section 5.2.3)."""
        if not self._number:
            before = self._signatures.published(self._name)
            self._number = before.number if before is not None else 0
        number = max(int(now * 1_000), self._number + 1)
        return self._authority.revocations(self._revoked.values(), number, now), number

    def _drop_old(self) -> None:
        """Delete old requests and answers, at intervals."""
        now = self._now()
        if not 0 <= now - self._dropped_at < SIGNATURE_ANSWERS_KEPT_S:
            self._signatures.drop_old(SIGNATURE_REQUESTS_KEPT_S, SIGNATURE_ANSWERS_KEPT_S)
            self._dropped_at = now


class AuthorityService:
    """Signs until it is closed. `open`, later `close`."""

    def __init__(
        self,
        authority: OwnAuthority,
        registry: sa.URL,
        rules: SigningRules,
        pages: OpenPageSigner,
        *,
        now: Callable[[], float] = time.time,
        hint: ChangeHint | None = None,
    ) -> None:
        """`pages` makes what signs pages of devices. `hint` is given when hubs ask for signatures, or revoke
        certificates. `now`: UTC seconds since 1970."""
        self.trouble: str | None = "the authority is starting"
        """Reason why nothing is signed; None if requests are answered."""
        self._make_turn = lambda: SigningTurn(authority, registry, rules, pages, now)
        self._hint = hint or ChangeHint()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="authority")
        self._turn: SigningTurn | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry and start to sign. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._turn = await loop.run_in_executor(self._executor, self._make_turn)
        self._task = loop.create_task(self._sign(self._turn), name="authority")

    async def close(self) -> None:
        """End after the current turn. Idempotent."""
        task, self._task = self._task, None
        await end_task(task)
        turn, self._turn = self._turn, None
        if turn is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, turn.close)
        self._executor.shutdown()

    async def _sign(self, turn: SigningTurn) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = REVOCATIONS_CHECK_INTERVAL_S
            try:
                pause_s = await loop.run_in_executor(self._executor, turn.run)
            except RegistryError as error:
                if self.trouble is None:
                    log.warning("nothing can be signed now: %s", error)
                self.trouble = str(error)
            except Exception as error:  # an internal error must not end the task silently
                log.exception("nothing can be signed now")
                self.trouble = f"internal error: {type(error).__name__}"
            else:
                if self.trouble is not None:
                    log.info("requests for signatures are answered")
                self.trouble = None
            if pause_s:
                await self._hint.wait(pause_s)
