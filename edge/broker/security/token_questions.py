"""Questions to the issuer about tokens that wait for their turn: one for each token, with the logins that wait for it.

Logins come before the tokens of open connections, but every `INTROSPECTION_REFRESH_SHARE`-th question is about the
latter. Without a loop, and without the issuer.
"""

from __future__ import annotations

from collections import Counter, deque

from edge.broker.model.isolation import report
from edge.broker.model.remote import remote_of
from edge.broker.security.limits import (
    INTROSPECTION_BURST_S,
    INTROSPECTION_REFRESH_SHARE,
    INTROSPECTIONS_PER_ADDRESS_MAX,
    INTROSPECTIONS_PER_S_MAX,
    INTROSPECTIONS_WAITING_MAX,
)
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity


class QuestionPace:
    """Limits the questions in a second, with a burst after a quiet time."""

    def __init__(self) -> None:
        self._next_at = float("-inf")
        """Monotonic time of the next question without a burst, in seconds."""

    def delay_s(self, now: float) -> float:
        """Return the seconds after which the next question may be asked, and count it."""
        begins_at = max(self._next_at, now)
        self._next_at = begins_at + 1.0 / INTROSPECTIONS_PER_S_MAX
        return max(0.0, begins_at - now - INTROSPECTION_BURST_S)


class WaitingToken:
    """A login that waits for the answer about its token."""

    __slots__ = ("_decided", "answered", "proven", "source")

    def __init__(self, decided: Decided, source: str, proven: VerifiedIdentity | None) -> None:
        """`proven`: identity of a signed token; None for an opaque one."""
        self.answered = False
        self.source = remote_of(source)
        self.proven = proven
        self._decided = decided

    def decide(self, verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        """Answer the login, once; an error of its connection stays with it."""
        if self.answered:
            return
        self.answered = True
        try:
            self._decided(verdict, proven)
        except Exception as error:
            report("a login that waits for the issuer", "its connection gets no answer", error)


class TokenQuestion:
    """A question about one token."""

    __slots__ = ("digest", "token", "waiting")

    def __init__(self, digest: str, token: bytes) -> None:
        self.digest = digest
        self.token = token
        self.waiting: list[WaitingToken] = []
        """Logins that wait for the answer; none for the token of an open connection."""


class TokenQuestions:
    """Questions that are waiting or were asked, by the digest of their token."""

    def __init__(self) -> None:
        self._by_digest: dict[str, TokenQuestion] = {}
        self._logins: deque[TokenQuestion] = deque()
        self._refreshes: deque[TokenQuestion] = deque()
        self._asked: set[str] = set()
        self._by_source: Counter[str] = Counter()
        self._turn = 0

    def __len__(self) -> int:
        """Return the number of questions that were not asked yet."""
        return len(self._by_digest) - len(self._asked)

    def add_login(self, digest: str, token: bytes, login: WaitingToken) -> bool:
        """Let a login wait for the answer about its token. Return False if too many wait, of all or of its address."""
        if self._by_source.total() >= INTROSPECTIONS_WAITING_MAX:
            return False
        if login.source and self._by_source[login.source] >= INTROSPECTIONS_PER_ADDRESS_MAX:
            return False
        question = self._by_digest.get(digest)
        if question is None:
            question = self._by_digest[digest] = TokenQuestion(digest, token)
            self._logins.append(question)
        elif not question.waiting and digest not in self._asked:
            self._logins.append(question)  # it waits as a refresh; the first of both turns counts
        question.waiting.append(login)
        self._by_source[login.source] += 1
        return True

    def add_refresh(self, digest: str, token: bytes) -> None:
        """Ask about the token of an open connection, unless that is waiting already."""
        if digest not in self._by_digest:
            question = self._by_digest[digest] = TokenQuestion(digest, token)
            self._refreshes.append(question)

    def take(self) -> TokenQuestion | None:
        """Return the next question; None without one. `finish` it later."""
        self._turn += 1
        first, second = self._logins, self._refreshes
        if self._turn % INTROSPECTION_REFRESH_SHARE == 0:
            first, second = second, first
        for turns in (first, second):
            while turns:
                question = turns.popleft()
                current = self._by_digest.get(question.digest) is question
                if current and question.digest not in self._asked:
                    self._asked.add(question.digest)
                    return question
        return None

    def finish(self, question: TokenQuestion) -> list[WaitingToken]:
        """Remove a question; return the logins that wait for its answer. Idempotent."""
        if self._by_digest.get(question.digest) is question:
            del self._by_digest[question.digest]
            self._asked.discard(question.digest)
        waiting, question.waiting = question.waiting, []
        for login in waiting:
            self._by_source[login.source] -= 1
            if not self._by_source[login.source]:
                del self._by_source[login.source]
        return waiting

    def waiting(self) -> list[TokenQuestion]:
        """Return the questions that were not asked yet."""
        return [each for digest, each in self._by_digest.items() if digest not in self._asked]
