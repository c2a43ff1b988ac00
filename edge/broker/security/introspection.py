"""Asks the issuer whether tokens are active (RFC 7662), before a login is answered and while its connection is open.

```
 signed token ──► signature ─┐              ┌─► known and fresh: accepted at once
                             ├─► confirm ───┼─► issuer away: accepted if it was active within the grace, else "busy"
 opaque token ───────────────┘              └─► question ──► threads ──► issuer ──► known tokens, logins that wait
                                                   ▲
 tokens of open connections, every interval ───────┘  not active: their connections end
```

An issuer that does not answer is asked about a made-up token only, until it is back. Nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

from edge.broker.configuration import TokenIntrospection, TokenIssuer
from edge.broker.security.issuer_requests import (
    IntrospectionEndpoint,
    IssuerError,
    IssuerUnreachable,
    TokenUnreadable,
)
from edge.broker.security.known_tokens import KnownToken, KnownTokens
from edge.broker.security.limits import (
    INACTIVE_KEPT_S,
    INTROSPECTION_PATIENCE_S,
    INTROSPECTION_RETRY_S,
    INTROSPECTION_THREADS,
    INTROSPECTION_TIMEOUT_S,
    KNOWN_TOKENS_BYTES_MAX,
    KNOWN_TOKENS_WRITTEN_PER_S_MAX,
    TOKEN_LEEWAY_S,
)
from edge.broker.security.proof import Decided, LoginVerdict, TokenOrigin, VerifiedIdentity
from edge.broker.security.token_questions import QuestionPace, TokenQuestion, TokenQuestions, WaitingToken
from edge.broker.security.tokens import BearerTokenError, digest_of, identity_of_answer

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Seconds between two looks at the tokens of open connections."""

Ask = Callable[[bytes], Mapping[str, Any]]
"""Asks the issuer about a token; blocks, and raises IssuerError."""


class TokenConnections(Protocol):
    """Open connections by token (`edge.broker.security.token_grants`)."""

    @property
    def texts(self) -> Mapping[str, bytes]:
        """Tokens of open connections by digest."""
        ...

    @property
    def text_bytes(self) -> int:
        """Bytes of these tokens."""
        ...

    def end_digests(self, digests: Iterable[str]) -> int:
        """Close the connections of tokens; return their number."""
        ...


class Introspection:
    """Answers whether tokens are active. Call `start`, later `stop`, inside a running loop."""

    def __init__(
        self,
        issuer: TokenIssuer,
        settings: TokenIntrospection,
        data: Path,
        *,
        utc_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ask: Ask | None = None,
    ) -> None:
        """`data`: folder for the stored tokens."""
        self._issuer = issuer
        self._settings = settings
        self._utc_s = utc_s
        self._clock = clock
        self._ask = ask or IntrospectionEndpoint(issuer, settings.client_id, settings.client_secret).ask
        self._known = KnownTokens(issuer.issuer, issuer.audience, data, settings.interval + settings.grace_s)
        self._questions = TokenQuestions()
        self._wanted = asyncio.Event()
        self._connections: TokenConnections | None = None
        self._executor = ThreadPoolExecutor(INTROSPECTION_THREADS, thread_name_prefix="introspection")
        self._tasks: list[asyncio.Task[None]] = []
        self._pace = QuestionPace()
        self._probe_at = float("-inf")
        self._probed = False
        self._save_at = float("-inf")
        """Monotonic time from which new tokens may be written."""
        self._save_fails = False
        self.problem: str | None = None
        """Why the issuer does not answer; None while it does."""

    def start(self, connections: TokenConnections | None = None) -> None:
        """Load the stored tokens, and start asking. `connections`: those that end with their token."""
        self._connections = connections
        self._known.load(self._utc_s())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(), name="introspection") for _ in range(INTROSPECTION_THREADS)]
        self._tasks.append(loop.create_task(self._follow(), name="introspection: known tokens"))

    async def stop(self) -> None:
        """Answer the logins that wait, and store the known tokens. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            self.problem = self.problem or "the node stops"
            await self._save()
        for question in self._questions.waiting():
            self._answer_without_issuer(question)
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def interval_s(self) -> float:
        """Seconds for which an answer counts."""
        return self._settings.interval

    # --- logins -----------------------------------------------------------------------------------------------------

    def confirm(self, token: bytes, proven: VerifiedIdentity | None, decided: Decided, source: str = "") -> None:
        """Call `decided` once, now or later. `proven`: identity of a token with a valid signature; None for an opaque
        one. `source`: address of the client."""
        digest, login = digest_of(token), WaitingToken(decided, source, proven)
        known, now = self._known.find(digest), self._clock()
        offline = known is not None and self._known.is_valid_offline(known, self._utc_s())
        if self._known.is_inactive(digest, now):
            login.decide(LoginVerdict.REFUSED if proven is None else LoginVerdict.ENDED, None)
        elif self.problem is not None or (known is not None and now - known.answered_at < self.interval_s):
            self._answer(digest, token, login)
        elif self._questions.add_login(digest, token, login):
            self._wanted.set()
            if offline:
                asyncio.get_running_loop().call_later(INTROSPECTION_PATIENCE_S, self._answer, digest, token, login)
        elif offline:  # a crowd of strangers does not keep known clients out, and their tokens are asked about
            self._questions.add_refresh(digest, token)
            self._wanted.set()
            self._answer(digest, token, login)
        else:
            login.decide(LoginVerdict.BUSY, None)

    def _answer(self, digest: str, token: bytes, login: WaitingToken) -> None:
        """Answer a login by what is known: a token that was never active is asked to come again."""
        known = self._known.find(digest)
        proven = login.proven or (known.proven if known is not None else None)
        accepted = known is not None and self._known.is_valid_offline(known, self._utc_s())
        if proven is None or not accepted or not self._has_room(digest, token):
            login.decide(LoginVerdict.BUSY, None)
            return
        origin = (proven.origin or TokenOrigin())._replace(digest=digest, text=token)
        login.decide(LoginVerdict.ACCEPTED, proven._replace(origin=origin))

    def _has_room(self, digest: str, token: bytes) -> bool:
        """Return True if another connection may hold this token."""
        held = self._connections
        return held is None or digest in held.texts or held.text_bytes + len(token) <= KNOWN_TOKENS_BYTES_MAX

    def _answer_without_issuer(self, question: TokenQuestion) -> None:
        for login in self._questions.finish(question):
            self._answer(question.digest, question.token, login)

    # --- questions --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Ask the questions, one after the other."""
        while True:
            await self._wanted.wait()
            question = self._questions.take()
            if question is None:
                self._wanted.clear()
                continue
            try:
                await asyncio.sleep(self._pace.delay_s(self._clock()))
                await self._ask_about(question)
            except Exception:  # an internal error must not end the questions silently
                log.exception("a question to the token issuer failed with an internal error")
            finally:
                self._answer_without_issuer(question)

    async def _ask_about(self, question: TokenQuestion) -> None:
        """Ask the issuer about one token. Without an answer find out if that is due to the token."""
        try:
            document = await self._asked(question.token)
        except IssuerError as why:
            await self._unanswered(question, why)
            return
        self._is_back()
        self._take_answer(question, document)

    async def _unanswered(self, question: TokenQuestion, why: IssuerError) -> None:
        """Ask about a made-up token, unless the issuer was not reached. A token that it cannot read is refused only if
        it can answer, and the token was never active here."""
        known = self._known.find(question.digest)
        if known is not None:  # ask again somewhat later
            known.fails = True
            known.answered_at = self._clock() - self.interval_s + min(INTROSPECTION_RETRY_S, self.interval_s)
        if isinstance(why, IssuerUnreachable):
            self._went_away(str(why), 0.0)  # this token may be the reason: look at once
            return
        await self._probe()
        if self.problem is None and known is None and isinstance(why, TokenUnreadable):
            self._take_answer(question, {"active": False})

    async def _asked(self, token: bytes) -> Mapping[str, Any]:
        """Return the answer about a token. Its thread may take longer than the time limit, in the resolver of names.

        Raises IssuerError.
        """
        asked = asyncio.get_running_loop().run_in_executor(self._executor, self._ask, token)
        asked.add_done_callback(_forget_error)
        try:
            async with asyncio.timeout(INTROSPECTION_TIMEOUT_S):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise IssuerUnreachable(f"no answer within {INTROSPECTION_TIMEOUT_S:g} s") from None

    def _take_answer(self, question: TokenQuestion, document: Mapping[str, Any]) -> None:
        """Note the answer about a token, and answer the logins that wait for it."""
        digest, now, at_s = question.digest, self._clock(), self._utc_s()
        logins = self._questions.finish(question)
        signed = next((login.proven for login in logins if login.proven is not None), None)
        before = self._known.find(digest)
        try:
            fresh = self._confirmed(document, signed, before, now, at_s)
        except BearerTokenError as why:
            self._end(digest, now)
            log.info("token refused: %s", why)
            for login in logins:
                login.decide(LoginVerdict.REFUSED if login.proven is None else LoginVerdict.ENDED, None)
            return
        if not self._known.confirm(digest, fresh, self._in_use()):
            log.warning("no room for a further token: %d belong to open connections", len(self._in_use()))
        if _has_changed(before, fresh) and self._connections is not None:
            self._connections.end_digests([digest])  # they come again with the rights of now
        for login in logins:
            self._answer(digest, question.token, login)

    def _confirmed(
        self,
        document: Mapping[str, Any],
        signed: VerifiedIdentity | None,
        before: KnownToken | None,
        now: float,
        at_s: float,
    ) -> KnownToken:
        """Return the token of a positive answer. Raises BearerTokenError for a negative one."""
        if not document["active"]:
            raise BearerTokenError("the issuer says that it is not active")
        if signed is not None and signed.expires_at_s is not None:
            return KnownToken(at_s, now, signed.expires_at_s, None)
        if before is not None and before.proven is None:
            return KnownToken(at_s, now, before.expires_at_s, None)
        proven = identity_of_answer(document, self._issuer, at_s)
        return KnownToken(at_s, now, proven.expires_at_s or at_s, proven)

    def _end(self, digest: str, now: float) -> None:
        """End the connections of a token that is not active."""
        self._known.end(digest, now + min(INACTIVE_KEPT_S, self.interval_s))
        if self._connections is not None:
            self._connections.end_digests([digest])

    def _in_use(self) -> Mapping[str, bytes]:
        """Return the tokens of open connections by digest."""
        return self._connections.texts if self._connections is not None else {}

    # --- while connections are open ---------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Ask about the tokens of open connections, and whether a silent issuer is back."""
        while True:
            try:
                await self._look()
            except Exception:  # an internal error must not end the task silently
                log.exception("following the token issuer failed with an internal error")
            await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        if not self._probed or (self.problem is not None and self._clock() >= self._probe_at):
            self._probed = True
            await self._probe()
        self._review()
        if (self._known.revoked or self._known.changed) and self._clock() >= self._save_at:
            await self._save()

    async def _probe(self) -> None:
        """Ask about a made-up token, which any answer shows to be reached."""
        try:
            await self._asked(secrets.token_urlsafe(16).encode())
        except IssuerError as why:
            self._went_away(str(why))
        else:
            self._is_back()

    def _went_away(self, why: str, probe_s: float = INTROSPECTION_RETRY_S) -> None:
        """Answer without the issuer, until a probe after some seconds reaches it."""
        if self.problem is None:
            log.warning(
                "token issuer %s: introspection: %s; tokens that were active count for %g s",
                self._issuer.issuer,
                why,
                self._settings.grace_s,
            )
        self.problem, self._probe_at = why, self._clock() + probe_s
        for question in self._questions.waiting():
            self._answer_without_issuer(question)

    def _is_back(self) -> None:
        if self.problem is not None:
            log.info("token issuer %s: introspection works again", self._issuer.issuer)
        self.problem = None

    def _review(self) -> None:
        """Let the tokens of open connections be asked about in time, and end those that count no longer."""
        now, at_s, in_use = self._clock(), self._utc_s(), dict(self._in_use())
        self._known.tidy(in_use, at_s, away=self.problem is not None)
        gone = [digest for digest in in_use if self._known.find(digest) is None]
        if gone and self._connections is not None:
            self._connections.end_digests(gone)
        if self.problem is not None:
            return
        for digest, text in in_use.items():
            known = self._known.find(digest)
            if known is not None and now - known.answered_at >= self.interval_s:
                self._questions.add_refresh(digest, text)
        if len(self._questions):
            self._wanted.set()

    async def _save(self) -> None:
        """Write the known tokens."""
        work = self._known.to_store()
        try:
            written = await asyncio.to_thread(work)
        except OSError as error:
            self._known.not_stored()
            self._save_at = self._clock() + INTROSPECTION_RETRY_S
            if not self._save_fails:
                log.warning("cannot store the known tokens in the data directory: %s", error.strerror)
            self._save_fails = True
        else:
            self._save_at = self._clock() + written / KNOWN_TOKENS_WRITTEN_PER_S_MAX
            self._save_fails = False


def _has_changed(before: KnownToken | None, fresh: KnownToken) -> bool:
    """Return True if the issuer gives an opaque token another user, other rights or an earlier end than before. The
    order of rights does not count, nor does an end that differs by rounding."""
    was, now = (None if each is None else each.proven for each in (before, fresh))
    if before is None or was is None or now is None:
        return False
    ends_earlier = fresh.expires_at_s < before.expires_at_s - TOKEN_LEEWAY_S
    return was.user != now.user or set(was.rules) != set(now.rules) or ends_earlier


def _forget_error(asked: asyncio.Future[Any]) -> None:
    """Take the error of a question that came too late."""
    if not asked.cancelled():
        asked.exception()
