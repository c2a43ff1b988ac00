"""Logins that wait for the verification of their password, with limits on their number and waiting time."""

from __future__ import annotations

from edge.broker.security.limits import VERIFICATION_WAIT_S_MAX, VERIFICATIONS_MAX, VERIFICATIONS_PER_USER_MAX
from edge.broker.security.proof import Decided, LoginVerdict, VerifiedIdentity


class WaitingLogin:
    """One password that waits for verification or is being verified."""

    __slots__ = ("answered", "bucket", "decided", "started_at")

    def __init__(self, bucket: str | None, decided: Decided, started_at: float) -> None:
        self.bucket = bucket
        self.decided = decided
        self.started_at = started_at
        self.answered = False
        """True once the client has its verdict. The verification threads read it and skip such a login."""

    def answer(self, verdict: LoginVerdict, proven: VerifiedIdentity | None) -> None:
        """Give the verdict, unless one was given already."""
        if not self.answered:
            self.answered = True
            self.decided(verdict, proven)


class WaitingLogins:
    """Waiting logins of one authenticator, oldest first. A login counts until its verification has ended."""

    def __init__(self) -> None:
        self._all: dict[WaitingLogin, None] = {}
        self._by_bucket: dict[str | None, int] = {}

    def add(self, bucket: str | None, decided: Decided, now: float) -> WaitingLogin | None:
        """Add a login; return None when too many wait. `bucket`: the user; None for every unknown name."""
        of_bucket = self._by_bucket.get(bucket, 0)
        if len(self._all) >= VERIFICATIONS_MAX or of_bucket >= VERIFICATIONS_PER_USER_MAX:
            return None
        login = WaitingLogin(bucket, decided, now)
        self._all[login] = None
        self._by_bucket[bucket] = of_bucket + 1
        return login

    def remove(self, login: WaitingLogin) -> None:
        """Remove a login after its verification."""
        del self._all[login]
        left = self._by_bucket[login.bucket] - 1
        if left:
            self._by_bucket[login.bucket] = left
        else:
            del self._by_bucket[login.bucket]

    def waits_s(self, now: float) -> float:
        """Return the seconds that the oldest login without a verdict has waited; 0 without such a login."""
        return next((now - login.started_at for login in self._all if not login.answered), 0.0)

    def overdue(self, now: float) -> list[WaitingLogin]:
        """Return the logins that have waited too long without a verdict."""
        late: list[WaitingLogin] = []
        for login in self._all:
            if now - login.started_at < VERIFICATION_WAIT_S_MAX:
                break
            if not login.answered:
                late.append(login)
        return late
