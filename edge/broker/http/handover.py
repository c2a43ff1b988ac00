"""Answers that carry a message, and what becomes of the message when the answer does not reach the client."""

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
    """Carries a message that the client settles itself. The message goes back at once if the client has gone."""

    def __init__(self, body: bytes, headers: Mapping[str, str], give_back: Settle) -> None:
        super().__init__(body, headers=headers)
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await Request(scope, receive).is_disconnected():
            self._give_back(DeliveryOutcome.UNANSWERED)
            return
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._give_back(DeliveryOutcome.MODIFIED_FAILED)
            raise


class AcceptedOnReceipt(Response):
    """Carries a message that is accepted once the client's TCP has acknowledged every byte of the answer.

    When the connection ends before that, the delivery has failed and the message is delivered again. A client that dies
    between its TCP and its program loses the message: HTTP has nothing that says more.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str], settle: Settle) -> None:
        """`settle` is called once, when this answer has been given or could not be."""
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
