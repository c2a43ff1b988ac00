"""Alert service of a hub: evaluates the rules in intervals and notifies receivers.

Runs on the event loop. The registry work runs in a thread with a connection of its own. Mails are sent, and names
resolved, in threads of a pool. `evaluate` and `deliver` take the time from the clock that the hub is given.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask, wait_and_clear
from cloud.hub.alerts.book import PING, AlertBook, EffectiveRule, effective_rules, names_for
from cloud.hub.alerts.documents import make_test_notification, notification_of
from cloud.hub.alerts.gateways import AlertGateways
from cloud.hub.alerts.limits import (
    CLEANUP_INTERVAL_S,
    DELIVERIES_AT_ONCE,
    DELIVERIES_MAX,
    DELIVERY_S_MAX,
    EVALUATION_INTERVAL_S,
    EVALUATION_PAUSE_S,
    HISTORY_KEPT_S,
    HISTORY_MAX,
    RETRIED_S_MAX,
    RETRY_S_FIRST,
    RETRY_S_MAX,
)
from cloud.hub.alerts.measures import SHARED_RULES, AlertReadings, HubMeasures
from cloud.hub.alerts.receivers import Notification, NotificationFailed, PingSettings, send, settings_of
from cloud.hub.registry.alerts import (
    FIRING,
    AlertRecord,
    Alerts,
    AlertsMoved,
    AlertsNow,
    DeliveryRecord,
    ReceiverRecord,
)
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")

Send = Callable[[ReceiverRecord, Notification, float, Executor], Awaitable[None]]
"""Sends a notification; raises `NotificationFailed`. The threads are for what blocks."""


class AlertFigures(NamedTuple):
    """Number of alerts by state."""

    firing: int = 0
    critical: int = 0
    """Firing ones that are critical."""
    acknowledged: int = 0
    muted: int = 0
    pending: int = 0
    """Subjects of rules that are true and have not fired."""
    evaluations: int = 0
    """Evaluations of all rules since the hub started."""


NOT_EVALUATED: Final = "rules are not evaluated"
NOT_NOTIFIED: Final = "receivers are not notified"


class HubAlerts:
    """Alert service of one hub. `open`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        measures: HubMeasures,
        gateways: AlertGateways,
        now: Callable[[], float],
        *,
        name: str = "hub",
        send: Send = send,
    ) -> None:
        """`hub`: writer id of this hub; `gateways`: those that it judges; `now`: UTC seconds since 1970; `name`: of the
        machine, for notifications."""
        self.evaluated_at = 0.0
        """Time of the last evaluation."""
        self.figures = AlertFigures()
        self.book = AlertBook(hub)
        self.rules: Mapping[str, EffectiveRule] = effective_rules({})
        self.measured: frozenset[str] = frozenset()
        """Rules with a measure at the last evaluation."""
        self._hub = hub
        self._measures = measures
        self._gateways = gateways
        self._now = now
        self._name = name
        self._send = send
        self._thread = RegistryThread("alerts", lambda: Alerts(registry))
        self._senders = ThreadPoolExecutor(DELIVERIES_AT_ONCE, thread_name_prefix="alert mail")
        self._number: int | None = None
        """Number of the evaluation that the book is as of; None: the book has to be loaded."""
        self._cleaned_at = float("-inf")
        self._pinged: dict[str, float] = {}
        """Time of the last ping, by receiver."""
        self._due = asyncio.Event()
        """Set when notifications may be due."""
        self._changed = asyncio.Event()
        """Set when rules or mutes changed after an evaluation."""
        self._evaluating = PeriodicTask(
            "evaluation of rules", self.evaluate, EVALUATION_INTERVAL_S,
            log=log, failed=NOT_EVALUATED, expected=(RegistryError,), wait=self._until_changed,
        )  # fmt: skip
        self._delivering = PeriodicTask(
            "notifications", self.deliver, EVALUATION_INTERVAL_S,
            log=log, failed=NOT_NOTIFIED, expected=(RegistryError,), wait=partial(wait_and_clear, self._due),
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why rules are not evaluated, or receivers are not notified; None if they are."""
        for task, effect in ((self._evaluating, NOT_EVALUATED), (self._delivering, NOT_NOTIFIED)):
            if task.trouble is not None:
                return f"{effect}: {task.trouble}"
        return None

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._thread.open()
        await self._gateways.open()

    def start(self) -> None:
        """Start to evaluate and deliver."""
        self._evaluating.start()
        self._delivering.start()

    async def close(self) -> None:
        """Stop, and close the registry. Idempotent."""
        await self._evaluating.stop()
        await self._delivering.stop()
        await self._thread.close()
        await self._gateways.close()
        self._senders.shutdown(wait=False, cancel_futures=True)

    async def _until_changed(self, seconds: float) -> None:
        await asyncio.sleep(EVALUATION_PAUSE_S)
        await wait_and_clear(self._changed, seconds - EVALUATION_PAUSE_S)

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return int(self._now() * 1_000_000)

    async def ask(self, work: Callable[[Alerts], T]) -> T:
        """Run `work` on the registry's thread. Raises `RegistryError`."""
        return await self._thread.run(work)

    async def change(self, work: Callable[[Alerts], T]) -> T:
        """Change rules or mutes on the registry's thread, and evaluate the rules soon. Raises as `ask` does."""
        try:
            return await self.ask(work)
        finally:
            self._changed.set()

    # --- evaluation -------------------------------------------------------------------------------------------------

    async def evaluate(self) -> None:
        """Evaluate the rules once. If another hub of the lake changes alerts at the same time, this one changes none,
        and the next evaluation begins with those. Raises `RegistryError`."""
        now_us = self.now_us()
        found = await self.ask(lambda registry: registry.now(self._hub, now_us, SHARED_RULES))
        await self._load(found)
        self.rules = effective_rules({each.rule: each for each in found.settings})
        judged = await self._gateways.read(self.book.members)
        readings = await self._measures.measure(judged.seen, now_us)
        readings.elsewhere = judged.unknown
        readings.set_labels(await self._gateways.labels(readings.troubled | self.book.members))
        changes = self.book.step(readings, self.rules, found.mutes, found.receivers, now_us)
        if changes:
            self._number = None
            apply = partial(Alerts.apply, hub=self._hub, changes=changes, now_us=now_us, waiting_max=DELIVERIES_MAX)
            try:
                await self.ask(partial(apply, number=found.number))
            except AlertsMoved:
                log.info("another hub has changed alerts at the same time: evaluating again with those")
                return
            self._number = found.number + 1
        for record in changes.opened:
            log.warning("alert %s: %s: %s", record.id, record.rule, record.what)
        self._count(readings)
        if changes.notify:
            self._due.set()
        if not 0 <= self._now() - self._cleaned_at < CLEANUP_INTERVAL_S:
            self._cleaned_at = self._now()
            before_us = now_us - HISTORY_KEPT_S * 1_000_000
            await self.ask(lambda registry: registry.clean_up(before_us, HISTORY_MAX))
            end = partial(Alerts.end_of_stopped_hubs, hub=self._hub, now_us=now_us, waiting_max=DELIVERIES_MAX)
            if await self.ask(partial(end, shared=SHARED_RULES, names_for=names_for)):
                self._changed.set()
                self._due.set()

    async def _load(self, found: AlertsNow) -> None:
        if self._number == found.number:
            self.book.refresh(found.open)
            return
        members = await self.ask(lambda registry: registry.members([each.id for each in found.open]))
        self.book.load(found.open, members)
        self._number = found.number

    def _count(self, readings: AlertReadings) -> None:
        records = [opened.record for opened in self.book.open.values()]
        states = Counter(each.state for each in records)
        critical = sum(each.severity == "critical" and each.state == "firing" for each in records)
        self.figures = AlertFigures(
            firing=states["firing"],
            critical=critical,
            acknowledged=states["acknowledged"],
            muted=states["muted"],
            pending=sum(not active.alert for active in self.book.active.values()),
            evaluations=self.figures.evaluations + 1,
        )
        self.measured = frozenset(readings.measured)
        self.evaluated_at = self._now()

    # --- notifications ----------------------------------------------------------------------------------------------

    async def deliver(self) -> None:
        """Send the notifications that are due, and pings. Raises `RegistryError`."""
        receivers = {each.name: each for each in await self.ask(lambda registry: registry.receivers())}
        at_once = DELIVERIES_AT_ONCE
        while True:
            now_us = self.now_us()
            until_us = now_us + int(DELIVERY_S_MAX * 1e6)
            due = await self.ask(partial(Alerts.claim, hub=self._hub, now_us=now_us, until_us=until_us, limit=at_once))
            await asyncio.gather(*(self._deliver(receivers, each, alert) for each, alert in due))
            if len(due) < DELIVERIES_AT_ONCE:
                break
        await asyncio.gather(*(self._ping(each) for each in receivers.values() if each.kind == PING))

    async def _deliver(
        self, receivers: Mapping[str, ReceiverRecord], delivery: DeliveryRecord, alert: AlertRecord | None
    ) -> None:
        receiver, failure = receivers.get(delivery.receiver), None
        late = alert is not None and alert.resolved_at is not None and delivery.event == FIRING
        if receiver is not None and alert is not None and not (late and delivery.attempts):
            identity = f"{delivery.alert}-{delivery.event}"
            failure = await self._try(receiver, notification_of(alert, delivery.event, identity, self._name))
        now_us, again_us = self.now_us(), None
        if failure is not None and now_us - delivery.made_at < RETRIED_S_MAX * 1e6:
            again_us = now_us + int(min(RETRY_S_FIRST * 2.0 ** min(delivery.attempts, 20), RETRY_S_MAX) * 1e6)
        if failure is not None:
            log.warning("receiver %s: notification of alert %s: %s", delivery.receiver, delivery.alert, failure)
        await self.ask(lambda registry: registry.settle(delivery, now_us, failure, again_us))

    async def test(self, receiver: ReceiverRecord) -> str | None:
        """Send a test notification; return why it failed, None if it was delivered."""
        notification = make_test_notification(receiver, f"test-{secrets.token_hex(8)}", self._name)
        failure, now_us = await self._try(receiver, notification), self.now_us()
        await self.ask(lambda registry: registry.record_outcome(receiver.name, now_us, failure))
        return failure

    async def _ping(self, receiver: ReceiverRecord) -> None:
        """Ping if it is time, and if rules were evaluated lately: the service at the other end raises the alarm."""
        settings, now = settings_of(receiver), self._now()
        every_s = settings.every_s if isinstance(settings, PingSettings) else 0
        if 0 <= now - self._pinged.get(receiver.name, float("-inf")) < every_s:
            return
        if self.trouble is not None or not 0 <= now - self.evaluated_at < max(60.0, 3 * EVALUATION_INTERVAL_S):
            return
        self._pinged[receiver.name] = now
        failure, now_us = await self._try(receiver, make_test_notification(receiver, "ping", self._name)), self.now_us()
        await self.ask(lambda registry: registry.record_outcome(receiver.name, now_us, failure))

    async def _try(self, receiver: ReceiverRecord, notification: Notification) -> str | None:
        try:
            await self._send(receiver, notification, self._now(), self._senders)
        except NotificationFailed as failed:
            return str(failed)
        return None
