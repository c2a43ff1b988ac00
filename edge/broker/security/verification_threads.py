"""Verify passwords in threads of low priority, and in one of normal priority after a second.

On a busy machine threads of low priority may get no time for minutes. A password that has waited for
`VERIFICATION_PATIENCE_S` is also hashed by one thread with the loop's priority. (Without the rights of root the
priority of a thread cannot be raised again.)
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from edge.broker.security.authenticator import Done, Work
from edge.broker.security.credentials import CredentialSecret
from edge.broker.security.limits import VERIFICATION_PATIENCE_S

log = logging.getLogger(__name__)

NICE: Final = 10
"""Nice value of the threads of low priority (nice(2); on Linux every thread has its own)."""


class VerificationResult(NamedTuple):
    """Result of the thread that did the work; the other thread has none."""

    secret: CredentialSecret | None


class Verification:
    """A password to verify, by one thread or two: the first to finish gives the result."""

    __slots__ = ("_prompt", "done", "hastened", "work")

    def __init__(self, work: Work, done: Done) -> None:
        self.work = work
        self.done: Done | None = done
        """None once the result was given."""
        self.hastened: asyncio.TimerHandle | None = None
        self._prompt = False
        """The thread of normal priority has started on it."""

    def run_patiently(self) -> VerificationResult | None:
        """Verify the password unless the other thread has started or finished."""
        return None if self._prompt or self.done is None else VerificationResult(self.work())

    def run_promptly(self) -> VerificationResult | None:
        """Verify the password unless that is done. A thread of low priority may have started and get no time."""
        self._prompt = True
        return None if self.done is None else VerificationResult(self.work())


class VerificationThreads:
    """Worker of a running broker: few threads of low priority, and one for passwords that have waited too long."""

    def __init__(self) -> None:
        """Create the threads; call inside a running loop."""
        self._loop = asyncio.get_running_loop()
        count = max(1, (os.cpu_count() or 1) // 2)
        self._patient = ThreadPoolExecutor(count, thread_name_prefix="verify", initializer=_lower_priority)
        self._prompt = ThreadPoolExecutor(1, thread_name_prefix="verify-promptly")
        self._stopped = False

    def __call__(self, work: Work, done: Done) -> None:
        verification = Verification(work, done)
        future = self._loop.run_in_executor(self._patient, verification.run_patiently)
        future.add_done_callback(functools.partial(self._ended, verification))
        verification.hastened = self._loop.call_later(VERIFICATION_PATIENCE_S, self._hasten, verification)

    def _hasten(self, verification: Verification) -> None:
        if self._stopped:
            return
        future = self._loop.run_in_executor(self._prompt, verification.run_promptly)
        future.add_done_callback(functools.partial(self._ended, verification))

    @staticmethod
    def _ended(verification: Verification, future: asyncio.Future[VerificationResult | None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if verification.done is None:
            return  # the other thread was first
        ran = future.result() if error is None else VerificationResult(None)
        if ran is None:
            return  # the other thread gives the result
        done, verification.done = verification.done, None
        if verification.hastened is not None:
            verification.hastened.cancel()
        if error is not None:  # for example no memory for the hash: the login is refused
            log.error("a password could not be verified: %s", type(error).__name__)
        done(ran.secret)

    def stop(self) -> None:
        """Drop waiting verifications. Running ones end within some 100 ms."""
        self._stopped = True
        for pool in (self._patient, self._prompt):
            pool.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        thread = threading.get_native_id()
        # Never raise it: a gateway started with a lower priority may not. Threads would fail to start, and their pool
        # would refuse every client.
        if os.getpriority(os.PRIO_PROCESS, thread) < NICE:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
