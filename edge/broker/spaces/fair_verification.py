"""Share the threads that verify passwords among address spaces: one password of each space in turn.

Without it, the logins of one space would wait behind all that an attacker of another one has sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from edge.broker.security.authenticator import Done, Work, Worker
from edge.broker.security.credentials import CredentialSecret

STARTED_MAX: Final = 4
"""Passwords that the threads have at a time: some for each core of a Raspberry Pi, and few for another space to wait
for (about 50 ms each)."""


class FairVerification:
    """Queue of passwords for each space in front of one worker. Each queue is bounded by its authenticator
    (`edge.broker.security.limits.VERIFICATIONS_MAX`)."""

    def __init__(self, worker: Worker, shared: Callable[[], bool]) -> None:
        """`shared` returns False while there is only one space, which needs no queue."""
        self._worker = worker
        self._shared = shared
        self._waiting: dict[str, deque[tuple[Work, Done]]] = {}
        """Passwords that wait, by space, in the order of their turns."""
        self._started = 0

    def worker_of(self, space: str) -> Worker:
        """Return the worker of one space."""
        return partial(self._add, space)

    def _add(self, space: str, work: Work, done: Done) -> None:
        self._waiting.setdefault(space, deque()).append((work, done))
        self._start()

    def _start(self) -> None:
        while self._waiting and (self._started < STARTED_MAX or not self._shared()):
            space = next(iter(self._waiting))
            queue = self._waiting.pop(space)
            work, done = queue.popleft()
            if queue:
                self._waiting[space] = queue  # behind all other spaces
            self._started += 1
            self._worker(work, partial(self._ended, done))

    def _ended(self, done: Done, secret: CredentialSecret | None) -> None:
        self._started -= 1
        try:
            done(secret)
        finally:
            self._start()
