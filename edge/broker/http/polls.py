"""Limit the requests that wait for a message, as each holds a socket for minutes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from starlette.requests import Request

from edge.broker.http.access import AdmittedClient
from edge.broker.http.limits import HTTP_POLLS_MAX, HTTP_POLLS_OF_ONE_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.remote import remote_of


def owner_of(request: Request, admission: AdmittedClient) -> str:
    """Return the user of a request, or its remote address without authentication, for limits."""
    return admission.user or remote_of(request.client.host if request.client is not None else "")


class WaitingPoll(NamedTuple):
    """Device that waits for a message."""

    device: str
    user: str
    """Empty without authentication."""
    remote: str
    """``host:port`` of the device."""
    tls: bool
    address: str
    """Queue from which it receives."""
    since: float
    """UTC seconds."""


class LongPolls:
    """Waiting requests of one gateway."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        """Waiting requests by owner."""
        self.waits: dict[int, WaitingPoll] = {}
        """Waiting requests by number, the oldest first; other modules only read it."""
        self._numbers = count(1)

    @property
    def count(self) -> int:
        """Number of waiting requests."""
        return self._of.total()

    @contextmanager
    def waiting(
        self, request: Request, admission: AdmittedClient, device: str = "", address: str = ""
    ) -> Iterator[None]:
        """Count a request of this device while it waits for a message of this queue. Raises RequestRefused at a
        limit."""
        owner = owner_of(request, admission)
        if self._of[owner] >= HTTP_POLLS_OF_ONE_MAX:
            raise RequestRefused(429, f"limit of {HTTP_POLLS_OF_ONE_MAX} waiting requests of {owner[:100]} reached")
        if self.count >= HTTP_POLLS_MAX:
            raise RequestRefused(503, f"limit of {HTTP_POLLS_MAX} waiting requests of the gateway reached")
        self._of[owner] += 1
        number, remote = next(self._numbers), request.client
        self.waits[number] = WaitingPoll(
            device or owner,
            admission.user,
            "-" if remote is None else f"{remote.host}:{remote.port}",
            request.url.scheme == "https",
            address,
            time.time(),
        )
        try:
            yield
        finally:
            del self.waits[number]
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
