"""Who a client is: the gate every connection passes, whatever its protocol.

The gate compares what a client claims with the users it was given, off the loop's thread where a password has to be
hashed, and hands out grants (`edge.broker.policy`). It is told of users and of their changes; where they are kept is
not its business. No secret is logged, kept in the clear, or in an exception.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from bridge.sasl import ANONYMOUS, Answer
from bridge.scram import ITERATIONS, SALT_BYTES, Verifier
from edge.broker.configuration import Authentication
from edge.broker.credentials import Secret, Snapshot, User, new_user, verify, with_secret
from edge.broker.limits import (
    PASSWORD_BYTES_MAX,
    USERS_MAX,
    VERDICT_KEPT_S,
    VERIFICATIONS_MAX,
    VERIFICATIONS_PER_USER_MAX,
)
from edge.broker.policy import Grant

log = logging.getLogger(__name__)

NOBODY = "nobody"
"""Whom the work is done for when there is no such user: a wrong name takes as long as a wrong password."""


COMPLAINT_S = 1.0
"""Wrong passwords are said in the log this often at most, with how many there were."""


class Verdict(enum.Enum):
    """What the gate says to a name and a password."""

    ACCEPTED = "accepted"
    REFUSED = "wrong user name or password"
    BUSY = "too many passwords to verify"


Decided = Callable[[Verdict], None]
Work = Callable[[], Secret | None]
Done = Callable[[Secret | None], None]


class Worker(Protocol):
    """Does work elsewhere and gives its result to `done` on the thread that asked, in order or not."""

    def __call__(self, work: Work, done: Done) -> None:
        """Start, or queue, the work; returns at once."""
        ...


class _Known(NamedTuple):
    """A password that was right: its keyed digest, the secret it was, and until when that is believed."""

    digest: bytes
    secret: str
    until: float


class Gate:
    """Lets clients in or not. One a broker; every method on the loop's thread."""

    def __init__(
        self,
        mode: Authentication,
        snapshot: Snapshot | None = None,
        *,
        worker: Worker,
        clock: Callable[[], float],
        utc_s: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic seconds; `utc_s` judges the validity of secrets."""
        self.mode = mode
        self.refused = 0
        """Connections that did not prove who they are."""
        self.busy = 0
        """Connections told to come again because too many passwords were waiting."""
        self.verifications = 0
        """Passwords hashed."""
        self._worker = worker
        self._clock = clock
        self._utc_s = utc_s
        self._users: Mapping[str, User] = {}
        self._key = secrets.token_bytes(32)
        self._decoy_key = self._key
        self._known: dict[str, _Known] = {}
        self._waiting: dict[str | None, int] = {}
        self._waiting_all = 0
        self._complain_at = 0.0
        self._grants: dict[str, set[Grant]] = {}
        self.update(snapshot or Snapshot())

    @property
    def open(self) -> bool:
        """Everybody may do everything: no authentication, no authorization, no cost."""
        return self.mode is Authentication.NONE

    @property
    def passwords(self) -> bool:
        """User names with passwords are how clients of this space say who they are."""
        return self.mode is Authentication.STANDARD

    def update(self, snapshot: Snapshot) -> None:
        """Follow a change of users. Who is gone, or may do something else now, is cut off (and may come again)."""
        before, self._users = self._users, snapshot.users
        self._decoy_key = snapshot.decoy_key or self._key
        for name, user in before.items():
            now = self._users.get(name)
            if now is user or now == user:
                continue
            self._known.pop(name, None)
            if now is None or now.rules != user.rules:
                for grant in list(self._grants.get(name, ())):
                    log.info("user %s changed: closing the connection of %s", name, grant.client or "-")
                    grant.revoke()

    # --- passwords --------------------------------------------------------------------------------------------

    def check(self, username: str | None, password: bytes | None, decided: Decided) -> None:
        """Call `decided` once: at once when it takes no hashing, else later."""
        if username is None or password is None or len(password) > PASSWORD_BYTES_MAX or not self.passwords:
            self._refuse(username, decided)
            return
        user = self._users.get(username)
        digest = hmac.digest(self._key, username.encode("utf-8", "surrogatepass") + b"\0" + password, hashlib.sha256)
        if user is not None and self._remembered(user, digest):
            decided(Verdict.ACCEPTED)
            return
        bucket = username if user is not None else None
        if self._waiting_all >= VERIFICATIONS_MAX or self._waiting.get(bucket, 0) >= VERIFICATIONS_PER_USER_MAX:
            self.busy += 1
            decided(Verdict.BUSY)
            return
        self._waiting_all += 1
        self._waiting[bucket] = self._waiting.get(bucket, 0) + 1
        asked, at_s = user, self._utc_s()

        def work() -> Secret | None:
            if asked is not None and any(secret.valid(at_s) for secret in asked.secrets):
                return verify(asked, password, at_s)
            _waste(password)
            return None

        def done(secret: Secret | None) -> None:
            self._verified(username, asked, digest, secret, decided)

        self._worker(work, done)

    def _verified(
        self, username: str, asked: User | None, digest: bytes, secret: Secret | None, decided: Decided
    ) -> None:
        bucket = username if asked is not None else None
        self.verifications += 1
        self._waiting_all -= 1
        left = self._waiting[bucket] - 1
        if left:
            self._waiting[bucket] = left
        else:
            del self._waiting[bucket]
        # what was verified counts only if it is still so: the user may have been changed meanwhile
        user = self._users.get(username)
        current = next((s for s in user.secrets if secret is not None and s.id == secret.id), None) if user else None
        if user is None or current is None or not current.valid(self._utc_s()):
            self._refuse(username, decided)
            return
        if len(self._known) >= USERS_MAX:
            self._known.clear()
        self._known[user.name] = _Known(digest, current.id, self._clock() + VERDICT_KEPT_S)
        decided(Verdict.ACCEPTED)

    def _remembered(self, user: User, digest: bytes) -> bool:
        known = self._known.get(user.name)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return False
        valid = any(secret.id == known.secret and secret.valid(self._utc_s()) for secret in user.secrets)
        if valid and self._clock() < known.until:
            return True
        del self._known[user.name]
        return False

    def _refuse(self, username: str | None, decided: Decided) -> None:
        self.refused += 1
        now = self._clock()
        if now >= self._complain_at:  # not a line for each: guessing must not fill the log
            self._complain_at = now + COMPLAINT_S
            log.warning("user %r: %s (%d since start)", (username or "-")[:100], Verdict.REFUSED.value, self.refused)
        decided(Verdict.REFUSED)

    # --- SCRAM ------------------------------------------------------------------------------------------------

    def scram(self, username: str) -> Verifier:
        """What a client has to prove; for a user that does not exist the same each time, and never proven."""
        user = self._users.get(username)
        if user is None or not self.passwords:
            salt = hmac.digest(self._decoy_key, username.encode("utf-8", "surrogatepass"), hashlib.sha256)
            return Verifier(salt[:SALT_BYTES], ITERATIONS, ())
        at_s = self._utc_s()
        return Verifier(user.salt, user.iterations, [s.keys for s in user.secrets if s.valid(at_s)])

    # --- grants -----------------------------------------------------------------------------------------------

    def grant(self, username: str, client: str, revoke: Callable[[], None]) -> Grant | None:
        """What the authenticated user may do over one connection; None when there is no such user (any more).

        `revoke` is called when that changes, until `release`.
        """
        user = self._users.get(username)
        if user is None:
            return None
        grant = Grant(username, client, user.rules, revoke)
        self._grants.setdefault(username, set()).add(grant)
        return grant

    def release(self, grant: Grant) -> None:
        """The connection is over; idempotent."""
        grants = self._grants.get(grant.user)
        if grants is not None:
            grants.discard(grant)
            if not grants:
                del self._grants[grant.user]

    def revoke_all(self) -> None:
        """Cut every connection that has a grant: the mode has changed."""
        for grants in list(self._grants.values()):
            for grant in list(grants):
                grant.revoke()


class SaslCredentials:
    """A gate as the SASL layer of one AMQP connection asks it (`bridge.sasl.Credentials`)."""

    def __init__(self, gate: Gate) -> None:
        self.wake: Callable[[], None] = lambda: None
        """Gives the connection a turn after a verdict that took its time; to be set before there can be one."""
        self._gate = gate

    def plain(self, username: str, password: bytes, answer: Answer) -> None:
        asking = True

        def decided(verdict: Verdict) -> None:
            answer(username if verdict is Verdict.ACCEPTED else None, temporary=verdict is Verdict.BUSY)
            if not asking:
                self.wake()

        if username == ANONYMOUS:  # what those are called who gave no name
            answer(None)
            return
        self._gate.check(username, password, decided)
        asking = False

    def scram(self, username: str) -> Verifier:
        return self._gate.scram(username)


class Threads:
    """The worker of a running broker: few threads of low priority, so that hashing never takes a core from serving."""

    def __init__(self) -> None:
        """Made inside a running loop."""
        self._loop = asyncio.get_running_loop()
        count = max(1, (os.cpu_count() or 1) // 2)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="verify", initializer=_step_back)

    def __call__(self, work: Work, done: Done) -> None:
        future = self._loop.run_in_executor(self._pool, work)
        future.add_done_callback(functools.partial(self._ended, done))

    @staticmethod
    def _ended(done: Done, future: asyncio.Future[Secret | None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:  # no memory for the hash, for one: who cannot be verified is not let in
            log.error("a password could not be verified: %s", type(error).__name__)
        done(None if error is not None else future.result())

    def stop(self) -> None:
        """Drop what waits; what runs ends within a verification."""
        self._pool.shutdown(wait=False, cancel_futures=True)


NICE = 10
"""How far the verifying threads stand back for the loop's (nice(2); on Linux every thread has its own)."""


def _step_back() -> None:
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


@functools.cache
def _decoy() -> User:
    return with_secret(new_user(NOBODY), secrets.token_hex(8), at_s=0.0)


def _waste(password: bytes) -> None:
    """As much work as a wrong password of a user makes."""
    verify(_decoy(), password, 0.0)
