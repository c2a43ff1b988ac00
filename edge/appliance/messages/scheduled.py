"""Scheduled messages of one gateway, for operators."""

from __future__ import annotations

import asyncio
from typing import Final

from bridge.publisher import client_of, device_of
from edge.appliance.messages.documents import ScheduledMessageDocument, ScheduledMessageList
from edge.appliance.messages.limits import STEP_S_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.router import Router
from edge.broker.router.scheduled_messages import WaitingMessage

_DIGITS_MAX: Final = 19
"""Digits of the largest number: 63 bits."""


class _Operator(Origin):
    """Operator who waits for the commit of a deletion."""

    name = "operator"


class ScheduledMessageService:
    """Lists and deletes the scheduled messages of a gateway."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def page(self, after: int | None, limit: int) -> ScheduledMessageList:
        """Return the messages with a number above `after`."""
        scheduled = self._router.scheduled
        found = [each for each in scheduled if after is None or each.number > after]
        shown = found[:limit]
        return ScheduledMessageList(
            messages=[self._document(each) for each in shown],
            total=len(scheduled),
            bytes=scheduled.bytes,
            next=shown[-1].number if len(found) > limit else None,
        )

    async def delete(self, number: str) -> None:
        """Delete the message with the `number` of a document; return when that and its entry in the loss ledger are on
        disk.

        Raises RequestRefused.
        """
        is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
        ticket = self._router.scheduled.delete(int(number)) if is_number else None
        if ticket is None:
            raise RequestRefused(404, f"no scheduled message {number[:100]} waits: it may have been delivered")
        ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._router.waits.add(ticket, _Operator(), lambda why: None if ended.done() else ended.set_result(why))
        self._router.flush_soon()
        try:
            async with asyncio.timeout(STEP_S_MAX):
                why = await ended
        except TimeoutError:
            raise RequestRefused(504, f"no commit within {STEP_S_MAX:g} s: look at the messages again") from None
        if why is not None:
            raise RequestRefused(503, f"it is deleted when the store can commit again: {why.value}")

    def _document(self, waiting: WaitingMessage) -> ScheduledMessageDocument:
        stamp = waiting.stamp
        device, client = device_of(stamp.device), client_of(stamp.device)
        return ScheduledMessageDocument(
            number=str(waiting.number),
            address=stamp.address,
            device=device,
            client="" if client == device else client,
            received_at=stamp.received_at / 1e9,
            due_in_s=round(self._router.scheduled.due_in_s(waiting), 3),
            size=waiting.size,
            refused="" if waiting.refused is None else waiting.refused.value,
        )
