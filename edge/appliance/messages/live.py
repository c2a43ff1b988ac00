"""Messages of a filter as they arrive, for one page: ``GET /api/v1/messages/live``, as Server-Sent Events.

A page gets up to `SHOWN_PER_S` messages a second (event ``message``), and once a second the number of the others
(event ``counts``). The subscription ends with the page, with the user's rights, and after `LIVE_S_MAX` (event ``end``).
It never holds a publisher back: what is not shown is counted and dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bridge.message import Stored
from bridge.topic_filter import filter_fault
from edge.appliance.messages.limits import LIVE_BYTES_SHOWN, LIVE_S_MAX, LIVE_STREAMS_MAX, SHOWN_PER_S
from edge.appliance.messages.reading import message_document
from edge.broker.http.access import AdmittedClient, HttpAccess
from edge.broker.http.live import EventQueue, EventStream, event_bytes
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import AddressError, Consumer, DeliveryOutcome, SubscribeOptions, Subscription
from edge.broker.mqtt.names import SHARE
from edge.broker.router.router import Router

CheckClient = Callable[[AdmittedClient, str], None]
"""Raises RequestRefused if a client may not receive from a filter."""
CREDIT: Final = 1 << 30
"""Credit that is never used up."""


class LiveReceiver(Consumer):
    """Consumer that passes some messages to a page and counts the others."""

    def __init__(self, user: str, events: EventQueue) -> None:
        self.name = user or "console"
        self.user = user
        self._events = events
        self._shown = 0
        """Messages of this second that the page gets."""
        self._skipped = 0

    @property
    def credit(self) -> int:
        return CREDIT

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        for stored in batch:
            count = len(stored.run.bodies)
            for place in range(count):
                if self._shown >= SHOWN_PER_S or not self._events.has_room:
                    self._skipped += count - place
                    break
                self._shown += 1
                self._events.put(event_bytes("message", message_document(stored, place, LIVE_BYTES_SHOWN)))
            if stored.position >= 0:
                last = stored.position + count - 1
                subscription.settle(self, stored.position, last, DeliveryOutcome.ACCEPTED)

    def tell_counts(self) -> None:
        """Report the messages of the last second, and begin another one."""
        if self._shown or self._skipped:
            self._events.put(event_bytes("counts", {"shown": self._shown, "skipped": self._skipped}))
        self._shown = self._skipped = 0


class LiveMessages:
    """Live subscriptions of all pages."""

    def __init__(self, router: Router, access: HttpAccess, *, seconds_max: float = LIVE_S_MAX) -> None:
        self._router = router
        self._access = access
        self._seconds_max = seconds_max
        self._streams = 0

    async def respond(self, request: Request, check: CheckClient) -> Response:
        """Answer with a stream. `check` raises RequestRefused if the user may not receive. Raises RequestRefused."""
        wanted = request.query_params.get("filter", "")
        if fault := _fault(wanted):
            raise RequestRefused(400, f"filter is the name of a topic, or has + and #: {fault}")
        kind = self._router.addresses.type_of(wanted)
        if kind not in (AddressType.TOPIC, AddressType.MULTICAST):
            why = f"{wanted[:100]} is a {kind.value}: a subscriber would take its messages; browse it"
            raise RequestRefused(409, why)
        if self._streams >= LIVE_STREAMS_MAX:
            raise RequestRefused(503, f"{LIVE_STREAMS_MAX} pages follow messages already: close one")
        events = EventQueue()
        return EventStream(request, events, self._following(request, wanted, events, check))

    @asynccontextmanager
    async def _following(
        self, request: Request, wanted: str, events: EventQueue, check: CheckClient
    ) -> AsyncIterator[AdmittedClient]:
        async with self._access.admitted(request) as client:
            check(client, wanted)
            with self._subscribed(client.user, wanted, events):
                yield client

    @contextlib.contextmanager
    def _subscribed(self, user: str, wanted: str, events: EventQueue) -> Iterator[None]:
        receiver = LiveReceiver(user, events)
        try:
            subscription = self._router.subscriptions.subscribe(receiver, wanted, SubscribeOptions(qos=0))
        except AddressError as error:
            raise RequestRefused(409, str(error)) from None
        self._streams += 1
        ticking = asyncio.create_task(self._tick(receiver, events), name="console: live messages")
        try:
            yield
        finally:
            ticking.cancel()
            self._streams -= 1
            self._router.subscriptions.unsubscribe(receiver, subscription, forget=False)

    async def _tick(self, receiver: LiveReceiver, events: EventQueue) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds_max):
                while True:
                    await asyncio.sleep(1.0)
                    receiver.tell_counts()
        events.put(event_bytes("end", {"why": f"{self._seconds_max / 60:g} minutes are over"}))
        events.end()


def _fault(wanted: str) -> str:
    """Return why this cannot be followed; empty if it can."""
    if not wanted:
        return "it is missing"
    return "shared subscriptions take messages from others" if wanted.startswith(SHARE) else filter_fault(wanted)
