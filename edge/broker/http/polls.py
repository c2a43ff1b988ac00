"""Requests that wait for a message: how many there are, and whose. Each holds a socket for minutes."""

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
    """Return the user of a request, or its remote address without logins: limits count by it."""
    return admission.user or remote_of(request.client.host if request.client is not None else "")


class LongPolls:
    """Of one gateway."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        """By user, or by remote address where nobody has to say who he is."""

    @property
    def count(self) -> int:
        """Requests waiting."""
        return self._of.total()

    @contextmanager
    def waiting(self, request: Request, admission: AdmittedClient) -> Iterator[None]:
        """Around the wait of a request. Raises RequestRefused when there is no place for another one."""
        whose = owner_of(request, admission)
        if self._of[whose] >= HTTP_POLLS_OF_ONE_MAX:
            raise RequestRefused(
                429, f"{whose[:100]} has {HTTP_POLLS_OF_ONE_MAX} requests waiting, as many as one may have"
            )
        if self.count >= HTTP_POLLS_MAX:
            raise RequestRefused(503, f"{HTTP_POLLS_MAX} requests are waiting, as many as there may be")
        self._of[whose] += 1
        try:
            yield
        finally:
            self._of[whose] -= 1
            if not self._of[whose]:
                del self._of[whose]
