"""Locks on messages that HTTP clients have fetched and not settled.

A lock is a random token that only the user who fetched the message can use. When it expires the message returns to its
address, and the delivery counts as failed. Locks are not stored: after a restart the messages are delivered again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from typing import Final, NamedTuple

from edge.broker.http.exchange import MessageFetch
from edge.broker.http.limits import HTTP_LOCKS_MAX, HTTP_LOCKS_OF_ONE_MAX, HTTP_SETTLED_REMEMBERED_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.interfaces import DeliveryOutcome

_TOKEN_BYTES: Final = 16
"""128 random bits cannot be guessed."""


class MessageLock(NamedTuple):
    """Lock of one message for one client."""

    owner: str
    """User, or remote address without authentication: the lock counts against its limit."""
    user: str
    """Only this user may settle the message; empty without authentication."""
    address: str
    fetch: MessageFetch
    expiry: asyncio.TimerHandle


class MessageLocks:
    """Locks of one gateway."""

    def __init__(self) -> None:
        self._held: dict[str, MessageLock] = {}
        self._of: Counter[str] = Counter()
        """Number of locks by owner."""
        self._settled: OrderedDict[str, MessageLock] = OrderedDict()
        """Locks of accepted messages, oldest first."""

    @property
    def count(self) -> int:
        """Number of locks."""
        return len(self._held)

    def check_room(self, owner: str) -> None:
        """Raise RequestRefused if the limit of locks of the owner, or of the gateway, is reached."""
        if self._of[owner] >= HTTP_LOCKS_OF_ONE_MAX:
            words = f"limit of {HTTP_LOCKS_OF_ONE_MAX} locked messages of {owner[:100]} reached"
            raise RequestRefused(429, f"{words}: settle them (DELETE with ?lock=) or wait until the locks expire")
        if len(self._held) >= HTTP_LOCKS_MAX:
            raise RequestRefused(503, f"limit of {HTTP_LOCKS_MAX} locked messages of the gateway reached")

    def add(self, owner: str, user: str, address: str, fetch: MessageFetch, lock_s: float) -> str:
        """Lock a fetched message; return the token."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        expiry = asyncio.get_running_loop().call_later(lock_s, self._expire, token)
        self._held[token] = MessageLock(owner, user, address, fetch, expiry)
        self._of[owner] += 1
        return token

    def settle(self, token: str, user: str, address: str, outcome: DeliveryOutcome) -> MessageFetch:
        """Settle a locked message. Accepting it again has no effect. Raises RequestRefused.

        A lock of another user is answered like one that does not exist.
        """
        lock = self._held.get(token) or (self._settled.get(token) if outcome is DeliveryOutcome.ACCEPTED else None)
        if lock is None or (lock.user, lock.address) != (user, address):
            words = "lock not found at this address: it has expired, or the gateway was restarted"
            raise RequestRefused(410, f"{words}; an unsettled message is delivered again")
        if self._release(token) is not None:
            lock.fetch.settle(outcome)
            if outcome is DeliveryOutcome.ACCEPTED:
                self._settled[token] = lock
                if len(self._settled) > HTTP_SETTLED_REMEMBERED_MAX:
                    self._settled.popitem(last=False)
        return lock.fetch

    def return_unread(self, token: str, outcome: DeliveryOutcome) -> None:
        """Release a lock, as the message did not reach the client. Do nothing if it is settled."""
        lock = self._release(token)
        if lock is not None:
            lock.fetch.settle(outcome)

    def _expire(self, token: str) -> None:
        self.return_unread(token, DeliveryOutcome.MODIFIED_FAILED)

    def _release(self, token: str) -> MessageLock | None:
        lock = self._held.pop(token, None)
        if lock is not None:
            lock.expiry.cancel()
            self._of[lock.owner] -= 1
            if not self._of[lock.owner]:
                del self._of[lock.owner]
        return lock
