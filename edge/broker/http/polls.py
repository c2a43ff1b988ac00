"""Limit the requests that wait for a message, as each holds a socket for minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from edge.broker.http.access import AdmittedClient
from edge.broker.http.limits import HTTP_POLLS_MAX, HTTP_POLLS_OF_ONE_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.remote import remote_of


def owner_of(request: Request, admission: AdmittedClient) -> str:
    """Return the user of a request, or its remote address without authentication, for limits."""
    return admission.user or remote_of(request.client.host if request.client is not None else "")


class LongPolls:
    """Waiting requests of one gateway."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        """Waiting requests by owner."""

    @property
    def count(self) -> int:
        """Number of waiting requests."""
        return self._of.total()

    @contextmanager
    def waiting(self, request: Request, admission: AdmittedClient) -> Iterator[None]:
        """Count a request while it waits. Raises RequestRefused at a limit."""
        owner = owner_of(request, admission)
        if self._of[owner] >= HTTP_POLLS_OF_ONE_MAX:
            raise RequestRefused(429, f"limit of {HTTP_POLLS_OF_ONE_MAX} waiting requests of {owner[:100]} reached")
        if self.count >= HTTP_POLLS_MAX:
            raise RequestRefused(503, f"limit of {HTTP_POLLS_MAX} waiting requests of the gateway reached")
        self._of[owner] += 1
        try:
            yield
        finally:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]
