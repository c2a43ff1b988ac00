"""Webhooks of a hub: finds those with events to send, claims them, and delivers.

Runs on the event loop; the registry work runs in a thread of its own. One hub sends to a webhook at a time. A hub that
has claimed one writes at intervals; another hub goes on when it has seen no write for `CLAIM_SILENT_S`. It measures
that time with its own clock, so clocks of hubs need not agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.connectors.http.network import Connect
from bridge.periodic_task import PeriodicTask, wait_and_clear
from cloud.hub.events.service import HubEvents
from cloud.hub.groups import Key
from cloud.hub.labels import parse_selector
from cloud.hub.registry.event_reader import EventPage
from cloud.hub.registry.events import FleetEvent
from cloud.hub.registry.webhooks import (
    RegisteredWebhooks,
    WebhookProgress,
    WebhookRecord,
    WebhookState,
)
from cloud.hub.registry_thread import RegistryThread
from cloud.hub.webhooks.delivery import DeliveryLost, WebhookClock, WebhookDelivery
from cloud.hub.webhooks.documents import make_test_body
from cloud.hub.webhooks.limits import (
    CLAIM_SILENT_S,
    LOCAL_PAUSE_S,
    LOOK_PAUSE_S,
    NAME_THREADS,
    OPERATOR_NAME_THREADS,
    PLACE_S,
    RETRY_JITTER,
    RETRY_S_MAX,
    SCANNED_MAX,
    SENT_AT_ONCE_MAX,
    SENT_AT_ONCE_TENANT_MAX,
    TESTS_AT_ONCE_MAX,
    TESTS_TENANT_MAX,
    WEBHOOK_PAGE,
    WEBHOOKS_IDLE_S,
    WEBHOOKS_INTERVAL_S,
)
from cloud.hub.webhooks.reach import AnyAddresses, PublicAddresses, ReachableNetwork
from cloud.hub.webhooks.sending import PostConnection, PostFailed, SignedRequest, post_once
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class WebhookTestsBusy(Exception):
    """As many tests as allowed are being sent; repeat the request in some seconds."""


class _Scanned(NamedTuple):
    """Events of a webhook that were passed over, as none is wanted."""

    begin: int
    """Place of the webhook in the registry."""
    changed_at: int
    """Last change of the webhook: another filter may want them."""
    reached: int
    since_s: float
    """Time at which this hub passed over the first of them, of the monotonic clock."""


class _OtherHolder(NamedTuple):
    """Write of another hub that sends to a webhook."""

    number: int
    seen_s: float
    """Time at which this hub has seen it first."""


class HubWebhooks:
    """Webhooks of one hub. `open`, `start`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        events: HubEvents,
        networks: Sequence[ReachableNetwork],
        clock: WebhookClock,
    ) -> None:
        """`hub`: writer id of this hub; `networks`: those that webhooks of tenants may reach, besides public ones."""
        self._hub = hub
        self._events = events
        self._clock = clock
        self._names = ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="webhook names")
        self._addresses = PublicAddresses(self._names, networks)
        self._operator_names = ThreadPoolExecutor(OPERATOR_NAME_THREADS, thread_name_prefix="fleet webhook names")
        self._operator_addresses = AnyAddresses(self._operator_names)
        self._thread = RegistryThread("webhooks", lambda: RegisteredWebhooks(registry))
        self._serving = PeriodicTask(
            "webhooks", self._serve, WEBHOOKS_IDLE_S,
            log=log, failed="webhooks get no events", expected=(RegistryError,), wait=self._pause,
        )  # fmt: skip
        self._turns: dict[str, asyncio.Task[None]] = {}
        """Deliveries in progress, by webhook."""
        self._tenants: Counter[str] = Counter()
        """Deliveries in progress, by tenant."""
        self._scanned: dict[str, _Scanned] = {}
        self._others: dict[str, _OtherHolder] = {}
        self._pauses: dict[str, float] = {}
        """Time until which this hub leaves a webhook alone, of the monotonic clock."""
        self._tests: Counter[str] = Counter()
        """Tests in progress, by tenant."""
        self._changed = asyncio.Event()
        self._failed: Sequence[WebhookRecord] = ()

    @property
    def trouble(self) -> str | None:
        """Return what is wrong; None while webhooks are served."""
        if self._serving.trouble is not None:
            return f"webhooks get no events: {self._serving.trouble}"
        if not self._failed:
            return None
        first = self._failed[0]
        whose = f"of tenant {first.tenant}" if first.tenant else "of the fleet"
        more = f", and {len(self._failed) - 1} more" if len(self._failed) > 1 else ""
        return f"webhook {first.id} {whose}{more} is paused, as nothing was delivered for days: {first.failure}"

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._thread.open()

    def start(self) -> None:
        """Start to deliver."""
        self._serving.start()

    async def close(self) -> None:
        """Stop, and close the registry. Requests in progress are abandoned, and sent again later. Idempotent."""
        await self._serving.stop()
        for task in self._turns.values():
            task.cancel()
        if self._turns:
            await asyncio.wait(list(self._turns.values()))
        await self._thread.close()
        for threads in (self._names, self._operator_names):
            threads.shutdown(wait=False, cancel_futures=True)

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return int(self._clock.now() * 1_000_000)

    async def ask(self, work: Callable[[RegisteredWebhooks], T]) -> T:
        """Run `work` on the registry's thread. Raises `RegistryError`."""
        return await self._thread.run(work)

    async def change(self, work: Callable[[RegisteredWebhooks], T]) -> T:
        """Run `work` as `ask` does, and look for events to send soon."""
        try:
            return await self.ask(work)
        finally:
            self._changed.set()

    async def test(self, record: WebhookRecord) -> str | None:
        """Send a test; return why it failed, None if it was delivered. Raises `WebhookTestsBusy`."""
        tenant = record.tenant
        if self._tests[tenant] >= TESTS_TENANT_MAX or self._tests.total() >= TESTS_AT_ONCE_MAX:
            raise WebhookTestsBusy("other tests of webhooks are being sent; try again in some seconds")
        self._tests[tenant] += 1
        try:
            return await self._send_test(record)
        finally:
            self._tests[tenant] -= 1

    async def _send_test(self, record: WebhookRecord) -> str | None:
        now_s = self._clock.now()
        body, identity = make_test_body(record, now_s), f"{record.id}-test-{secrets.token_hex(8)}"
        request = SignedRequest(identity, body, record.secrets(int(now_s * 1e6)))
        try:
            await post_once(record.url, request, now_s, self._connect(record))
        except PostFailed as failure:
            return str(failure)
        return None

    # --- looking for work -------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Deliver while there are webhooks. Raises `RegistryError`."""
        found = await self.ask(RegisteredWebhooks.watched)
        if found.sendable:
            with self._events.following():
                while found.sendable:
                    reached = self._events.reached
                    await self.look(found.sendable)
                    self._failed = found.failed
                    self._serving.note_success()
                    await asyncio.sleep(LOOK_PAUSE_S)
                    await self._events.wait(reached, WEBHOOKS_INTERVAL_S)
                    found = await self.ask(RegisteredWebhooks.watched)
        self._failed = found.failed

    async def _pause(self, seconds: float) -> None:
        await wait_and_clear(self._changed, seconds)

    async def look(self, found: Sequence[WebhookRecord]) -> None:
        """Start the delivery of webhooks with events, as far as there is room. Raises `RegistryError`."""
        known, now_s = {each.id for each in found}, self._clock.monotonic()
        self._scanned = {name: each for name, each in self._scanned.items() if name in known}
        self._others = {name: each for name, each in self._others.items() if name in known}
        self._pauses = {name: until for name, until in self._pauses.items() if until > now_s}
        for record in found:
            if record.id in self._turns or record.id in self._pauses or not self._is_due(record):
                continue
            if not self._may_claim(record):
                continue
            if len(self._turns) >= SENT_AT_ONCE_MAX or self._tenants[record.tenant] >= SENT_AT_ONCE_TENANT_MAX:
                continue
            try:
                page = await self._page(record, self._begin(record))
            except RegistryError as error:  # one that cannot be read holds up no other one
                self._leave_alone(record, error)
                continue
            if page.events or (page.missed is not None and page.missed > record.gap_told):
                self._begin_turn(record, page)
            else:
                await self._pass_over(record, page)

    def _leave_alone(self, record: WebhookRecord, error: Exception) -> None:
        """Try a webhook again later, at this hub."""
        log.warning("webhook %s is delivered later: %s", record.id, error)
        self._pauses[record.id] = self._clock.monotonic() + LOCAL_PAUSE_S

    def _is_due(self, record: WebhookRecord) -> bool:
        """Return whether the next attempt is due. One that is due later than any pause lasts was written with a clock
        that was ahead."""
        wait_s = (record.due_at - self.now_us()) / 1e6
        return not 0 < wait_s <= RETRY_S_MAX * (1 + RETRY_JITTER)

    def _may_claim(self, record: WebhookRecord) -> bool:
        """Return whether no other hub sends to a webhook."""
        if record.holder in (None, self._hub):
            return True
        now_s, seen = self._clock.monotonic(), self._others.get(record.id)
        if seen is None or seen.number != record.number:
            self._others[record.id] = _OtherHolder(record.number, now_s)
            return False
        return now_s - seen.seen_s >= CLAIM_SILENT_S

    def _begin(self, record: WebhookRecord) -> int:
        """Return the number behind which the next events of a webhook are."""
        scanned = self._scanned.get(record.id)
        same = scanned is not None and scanned[:2] == (record.reached, record.changed_at)
        return scanned.reached if same and scanned is not None else record.reached

    async def _page(self, record: WebhookRecord, after: int) -> EventPage:
        """Return the events after a number that a webhook wants. Raises `RegistryError`."""
        page = await self._events.page(after, record.wanted, WEBHOOK_PAGE)
        if not record.selector or not page.events:
            return page
        selector = parse_selector(record.selector)
        keys = {(each.event.tenant, each.event.gateway) for each in page.events if each.event.gateway}
        labels = await self.ask(partial(RegisteredWebhooks.labels, gateways=keys))
        return page._replace(events=[each for each in page.events if _selects(selector.matches, labels, each.event)])

    async def _pass_over(self, record: WebhookRecord, page: EventPage) -> None:
        """Note that no event up to a number is wanted; write it now and then. Nothing waits, so nothing fails."""
        now_s, before = self._clock.monotonic(), self._scanned.get(record.id)
        begin = (record.reached, record.changed_at)
        since_s = before.since_s if before is not None and before[:2] == begin else now_s
        moved = page.reached - record.reached
        if record.attempts or not 0 <= moved < SCANNED_MAX or (moved and now_s - since_s >= PLACE_S):
            progress = WebhookProgress(page.reached, record.gap_told, delivered_at=record.delivered_at)
            await self.ask(lambda registry: registry.write(record, progress, None))
        elif moved:
            self._scanned[record.id] = _Scanned(*begin, page.reached, since_s)

    # --- one webhook ------------------------------------------------------------------------------------------------

    def _begin_turn(self, record: WebhookRecord, page: EventPage) -> None:
        task = asyncio.get_running_loop().create_task(self._turn(record, page), name=f"webhook {record.id}")
        self._turns[record.id] = task
        self._tenants[record.tenant] += 1
        task.add_done_callback(partial(self._end_turn, record))

    def _end_turn(self, record: WebhookRecord, task: asyncio.Task[None]) -> None:
        del self._turns[record.id]
        self._tenants[record.tenant] -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a webhook failed with an internal error", exc_info=error)
            self._pauses[record.id] = self._clock.monotonic() + LOCAL_PAUSE_S

    async def _turn(self, seen: WebhookRecord, page: EventPage) -> None:
        """Claim a webhook, and deliver until it is up to date, fails, or others have their turn."""
        begun_s = self._clock.monotonic()
        try:
            claimed = await self.ask(lambda registry: registry.claim(seen, self._hub))
            if claimed is None or claimed.changed_at != seen.changed_at:
                return  # the page may be of older settings: the next look reads another one
            async with PostConnection(claimed.url, self._connect(claimed)) as connection:
                delivery = WebhookDelivery(claimed, begun_s, connection, self._write, self._clock)
                await self._deliver(claimed, delivery, page)
        except DeliveryLost:
            log.info("webhook %s was changed, or another hub goes on with it", seen.id)
        except RegistryError as error:
            self._leave_alone(seen, error)

    async def _deliver(self, claimed: WebhookRecord, delivery: WebhookDelivery, page: EventPage) -> None:
        """Deliver a page and those behind it. Raises as `WebhookDelivery.deliver`."""
        try:
            while await delivery.deliver(page):
                if delivery.is_over or not page.more:
                    await delivery.end()
                    return
                page = await self._page(claimed, delivery.reached)
        except asyncio.CancelledError:
            with contextlib.suppress(RegistryError):
                await delivery.end()  # the hub stops: another one goes on at once
            raise
        except (DeliveryLost, RegistryError):
            raise
        except Exception as error:  # an attempt like any other: the next one is due later
            log.exception("webhook %s failed with an internal error", claimed.id)
            await delivery.fail(f"internal error: {type(error).__name__}")

    async def _write(
        self,
        before: WebhookRecord,
        progress: WebhookProgress,
        goes_on: bool,
        ended: WebhookState | None,
        delivered: int,
    ) -> WebhookRecord | None:
        holder = self._hub if goes_on else None
        return await self.ask(lambda registry: registry.write(before, progress, holder, ended, delivered=delivered))

    def _connect(self, record: WebhookRecord) -> Connect:
        """Return how a webhook connects: one of the whole fleet is an operator's, and may reach any address."""
        return partial(self._addresses.connect, record.tenant) if record.tenant else self._operator_addresses.connect


def _selects(
    matches: Callable[[Mapping[str, str]], bool], labels: Mapping[Key, Mapping[str, str]], event: FleetEvent
) -> bool:
    """Return whether an event is of a gateway with labels that match."""
    return bool(event.gateway) and matches(labels.get((event.tenant, event.gateway), {}))
