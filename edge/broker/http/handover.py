"""Answers with a message, which is settled or returned depending on the delivery of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge.broker.http.limits import HTTP_WRITE_S_MAX
from edge.broker.http.peer import peer_of
from edge.broker.model.interfaces import DeliveryOutcome

Settle = Callable[[DeliveryOutcome], None]


class LockedAnswer(Response):
    """Answer with a message that the client settles. If the client has disconnected, the message returns at once."""

    def __init__(self, body: bytes, headers: Mapping[str, str], return_unread: Settle) -> None:
        super().__init__(body, headers=headers)
        self._return_unread = return_unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await Request(scope, receive).is_disconnected():
            self._return_unread(DeliveryOutcome.UNANSWERED)
            return
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._return_unread(DeliveryOutcome.MODIFIED_FAILED)
            raise


class AcceptedOnReceipt(Response):
    """Answer with a message that is accepted once the client's TCP has acknowledged every byte.

    If the connection ends before that, the delivery has failed and the message is delivered again. A client that
    crashes between its TCP and its program loses the message: HTTP has no further acknowledgement.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str], settle: Settle) -> None:
        """`settle` is called once, after the answer was sent or has failed."""
        super().__init__(body, headers=headers)
        self._settle = settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, outcome = Request(scope, receive), DeliveryOutcome.UNANSWERED
        try:
            if not await request.is_disconnected():
                outcome = DeliveryOutcome.MODIFIED_FAILED
                await super().__call__(scope, receive, send)
                if await peer_of(request).received_all(HTTP_WRITE_S_MAX):
                    outcome = DeliveryOutcome.ACCEPTED
        finally:
            self._settle(outcome)
