"""Scheduled messages of one gateway, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.publisher import client_of, device_of
from edge.appliance.messages.documents import (
    ScheduledDeletion,
    ScheduledMessageDocument,
    ScheduledMessageList,
)
from edge.appliance.messages.limits import STEP_S_MAX
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.router import Router
from edge.broker.router.scheduled_messages import WaitingMessage

_DIGITS_MAX: Final = 19
"""Digits of the largest number: 63 bits."""


class ScheduledSelection(NamedTuple):
    """Selects scheduled messages. An empty text selects all."""

    address: str = ""
    user: str = ""
    """User who sent them."""

    def wants(self, waiting: WaitingMessage) -> bool:
        """Return True for a selected message."""
        return self.address in ("", waiting.kept.address) and self.user in ("", waiting.kept.user)


class _Operator(Origin):
    """Operator who waits for the commit of a deletion."""

    name = "operator"

    def accepted(self, tokens: Sequence[int]) -> None:
        """Do nothing: an operator sends no messages."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Do nothing."""


class ScheduledMessageService:
    """Lists and deletes the scheduled messages of a gateway."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def page(self, selection: ScheduledSelection, after: int | None, limit: int) -> ScheduledMessageList:
        """Return selected messages with a number above `after`."""
        wanted = [each for each in self._router.scheduled if selection.wants(each)]
        found = [each for each in wanted if after is None or each.number > after]
        shown = found[:limit]
        return ScheduledMessageList(
            messages=[self._document(each) for each in shown],
            total=len(wanted),
            bytes=sum(each.kept.size for each in wanted),
            next=shown[-1].number if len(found) > limit else None,
        )

    async def delete_one(self, number: str) -> ScheduledDeletion:
        """Delete the message with the `number` of a document. Raises RequestRefused.

        It and its entry in the loss ledger are on disk then.
        """
        is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
        done = await self._delete([int(number)]) if is_number else None
        if done is None or not done.messages:
            raise RequestRefused(404, f"no scheduled message {number[:100]} waits: it may have been delivered")
        return done

    async def delete(self, selection: ScheduledSelection) -> ScheduledDeletion:
        """Delete all selected messages in one commit. Raises RequestRefused."""
        if selection == ScheduledSelection():
            raise RequestRefused(400, "name an address or a user")
        return await self._delete([each.number for each in self._router.scheduled if selection.wants(each)])

    async def _delete(self, numbers: Sequence[int]) -> ScheduledDeletion:
        count, ticket = self._router.scheduled.delete(numbers)
        if ticket is None:
            return ScheduledDeletion(messages=0)
        ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._router.waits.add(ticket, _Operator(), lambda why: None if ended.done() else ended.set_result(why))
        self._router.flush_soon()
        try:
            async with asyncio.timeout(STEP_S_MAX):
                why = await ended
        except TimeoutError:
            raise RequestRefused(504, f"no commit within {STEP_S_MAX:g} s: look at the messages again") from None
        if why is not None:
            raise RequestRefused(503, f"not deleted yet: {why.value}; it is, unless the gateway restarts before")
        return ScheduledDeletion(messages=count)

    def _document(self, waiting: WaitingMessage) -> ScheduledMessageDocument:
        kept = waiting.kept
        device, client = device_of(kept.device), client_of(kept.device)
        return ScheduledMessageDocument(
            number=str(waiting.number),
            address=kept.address,
            user=kept.user,
            device=device,
            client="" if client == device else client,
            received_at=kept.received_at / 1e9,
            due_in_s=round(self._router.scheduled.due_in_s(waiting), 3),
            size=kept.size,
            refused="" if waiting.refused is None else waiting.refused.value,
        )
