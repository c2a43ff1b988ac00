"""Where passwords are hashed in a running broker: threads that never take a core from serving."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from edge.broker.security.authenticator import Done, Work
from edge.broker.security.credentials import Secret

log = logging.getLogger(__name__)


class VerificationThreads:
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
        thread = threading.get_native_id()
        # Never forward: a gateway that was itself started further back may not, and a pool whose threads do not start
        # verifies nothing, so that nobody would be let in.
        if os.getpriority(os.PRIO_PROCESS, thread) < NICE:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
