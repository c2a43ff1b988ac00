"""Command service of a hub: accepts, sends and tracks commands, and reports their outcomes.

Runs on the event loop. The registry work runs in two threads with connections of their own, so commands continue during
a landing. One writes and one reads, so a request that waits for a command does not wait for those that are written. A
notice of another hub names what has changed there: a hub with that gateway sends, and one with a request that waits for
that command reads it; others do nothing. All that others may have changed is read at an interval.

News of a gateway is first published to applications, then stored, then acknowledged. After a crash in between it is
repeated: an application gets it twice rather than never.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa

from bridge.batch import Batch
from bridge.command import UNKNOWN_DEVICE, OnlineReason
from bridge.downlink import Key
from bridge.hidden import hides
from bridge.periodic_task import end_task
from cloud.hub.commands.dispatch import Dispatch
from cloud.hub.commands.limits import (
    AT_ONCE_MAX,
    COUNT_INTERVAL_S,
    GATEWAY_COMMANDS_MAX,
    HELD_LOOKS_MAX,
    KEEP_AGAIN_S,
    KEPT_S,
    LATE_COMMIT_S,
    POLL_INTERVAL_S,
    REQUESTS_MAX,
    SELECTED_COMMANDS_MAX,
    WAITING_MAX,
)
from cloud.hub.commands.news import has_news, read_news
from cloud.hub.commands.news_queues import NewsQueues
from cloud.hub.labels import LabelSelector
from cloud.hub.metrics import CommandFigures
from cloud.hub.registry.commands import (
    CommandFilter,
    CommandNews,
    CommandOutlook,
    CommandRecord,
    CommandRefusal,
    CommandRefused,
    Commands,
    CommandState,
)
from cloud.hub.registry.known_numbers import DOUBTED
from cloud.hub.registry.notices import ChangedRow, ChangeHint, NoticeTopic
from cloud.hub.registry_thread import RegistryClosed, RegistryThread
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")

Tell = Callable[[CommandNews, CommandRecord], Awaitable[None]]
"""Publishes the outcome of a command; returns when applications have it or never will. Raises if it cannot now."""


@hides("payload", "correlation_id")
class Draft(NamedTuple):
    """Checked command of a user (`bridge.command.fault`)."""

    tenant: str
    gateway: str
    device: str
    name: str
    payload: bytes
    content_type: str | None
    ttl_s: float
    wants_response: bool = False
    correlation_id: str | None = None
    reply_to: str | None = None
    sent_by: str = ""
    key: str | None = None
    """Idempotency key; None if every request is a command of its own."""
    online: bool = False
    """True if the device has to take it now; False if it waits for its device."""
    follows: bool = True
    """False: it stays at its gateway, as others have one of their own."""

    def record(self, now_us: int) -> CommandRecord:
        """Return the record of the new command."""
        return CommandRecord(
            number=0,
            id=secrets.token_hex(12),
            tenant=self.tenant,
            gateway=self.gateway,
            device=self.device,
            name=self.name,
            content_type=self.content_type,
            payload=self.payload,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            wants_response=self.wants_response,
            sent_by=self.sent_by,
            created_at=now_us,
            expires_at=now_us + int(self.ttl_s * 1e6),
            state=CommandState.WAITING.value,
            reason="",
            changed_at=now_us,
            online=self.online or None,
        )


class ApplicationsUnavailable(Exception):
    """Outcomes cannot be published now."""


class CommandsBusy(Exception):
    """The hub is overloaded, starting or stopping; the request may be repeated in some seconds."""


class HubCommands:
    """Command service of one hub. `open`, later `close`. It is the store of its `dispatch`."""

    def __init__(
        self,
        registry: sa.URL,
        tell: Tell,
        knows: Callable[[Key], bool],
        now: Callable[[], float] = time.time,
        tenants: Tenants | None = None,
        hint: ChangeHint | None = None,
        poll_interval_s: float = POLL_INTERVAL_S,
        hub: str = "",
    ) -> None:
        """`knows` returns whether a gateway is connected here, or was lately; `now`: UTC seconds since 1970; `tenants`
        has the quotas; `hint` is given when other hubs change commands; `hub`: writer id of this hub."""
        self.dispatch: Final = Dispatch(self, self._now_us)
        self.trouble: str | None = None
        """Reason why the registry cannot be used; None if it can."""
        self._over: Counter[CommandState] = Counter()
        self._counts: dict[str, int] = {}
        self._hub = hub
        self._tell = tell
        self._knows = knows
        self._now = now
        self._tenants = tenants or Tenants()
        self._thread = RegistryThread("commands", lambda: Commands(registry))
        self._reader = RegistryThread("commands-reading", lambda: Commands(registry, reading=True))
        self._asked = 0
        self._news = NewsQueues(self._store_of_tenant)
        self._untold: set[str] = set()
        """Tenants with news that could not be stored at the last attempt."""
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._newest = self._newest_move = 0
        self._looked_at = self._grown_at = float("-inf")
        """Time of the last look at gateways with held commands, by the clock of the loop."""
        self._hint = hint or ChangeHint()
        self._poll_interval_s = poll_interval_s
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Open the registry and start polling. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        await self._thread.open()
        await self._reader.open()
        self._newest = await self._read(Commands.newest)
        self._newest_move = await self._read(Commands.newest_move)
        self._tasks = [loop.create_task(self._watch(), name="commands of others")]

    async def close(self) -> None:
        """Stop polling and close the registry. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await end_task(task)
        await self._news.close()
        await self._reader.close()
        await self._thread.close()

    # --- sending and queries ------------------------------------------------------------------------------------------

    async def send(self, draft: Draft) -> CommandRecord:
        """Store a command; it is on disk on return. Raises `CommandRefused`, `CommandsBusy`, `RegistryError`."""
        key = (draft.tenant, draft.gateway)
        command, connected = draft.record(self._now_us()), self.dispatch.is_connected(key)
        add = partial(
            Commands.add,
            command=command,
            gateway_max=GATEWAY_COMMANDS_MAX,
            tenant_max=self._tenants.of(draft.tenant).commands,
            known=connected or self._knows(key),
            connected=connected,
            hub=self._hub,
            key=draft.key,
            follows=draft.follows,
        )
        try:
            kept = await self._ask(add)
        except CommandRefused as refused:
            if refused.why is CommandRefusal.TENANT_FULL:
                self._tenants.count_refusal(draft.tenant, "commands")
            raise
        log.info("command %s of tenant %s to %s at %s", kept.id, kept.tenant, kept.device, kept.gateway)
        self.dispatch.send_pending(kept.key)
        return kept

    async def cancel(self, identifier: str, by: str) -> CommandRecord | None:
        """Cancel a command, and report it to the application. Return None for an unknown command.

        Raises `CancelTooLate`, `CommandsBusy`, `RegistryError`.
        """
        now_us = self._now_us()
        found = await self._ask(lambda registry: registry.cancel(identifier, by, now_us))
        if found is None or found.state != CommandState.CANCELLING.value:
            return found
        reported: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.queue_news([_over(found, now_us)], lambda kept: None if reported.done() else reported.set_result(kept))
        await reported
        return await self.get(identifier)

    async def rehearse(self, tenant: str, chosen: Collection[str] | LabelSelector) -> tuple[list[CommandOutlook], int]:
        """Return what would happen to a command for these gateways, and their number. Raises `CommandsBusy`,
        `RegistryError`."""
        bounds = {"gateway_max": GATEWAY_COMMANDS_MAX, "tenant_max": self._tenants.of(tenant).commands}
        return await self._ask_reader(
            lambda registry: registry.rehearse(tenant, chosen, **bounds, most=SELECTED_COMMANDS_MAX)
        )

    async def get(self, identifier: str) -> CommandRecord | None:
        """Return a command; None if unknown. Raises `CommandsBusy`, `RegistryError`."""
        return await self._ask_reader(lambda registry: registry.get(identifier))

    async def describe(self, identifier: str) -> CommandRecord | None:
        """Return a command, with what it waits for; None if unknown. Raises `CommandsBusy`, `RegistryError`."""
        now_us = self._now_us()
        return await self._ask_reader(lambda registry: registry.describe(identifier, now_us))

    async def page(self, wanted: CommandFilter, limit: int) -> list[CommandRecord]:
        """Return commands, the newest first. Raises `CommandsBusy`, `RegistryError`."""
        return await self._ask_reader(lambda registry: registry.page(wanted, limit))

    async def wait(self, identifier: str, seconds: float) -> CommandRecord | None:
        """Wait until a command is completed, including a wanted response, or until the time is over. Return its current
        state.

        Raises `CommandsBusy`, `RegistryError`.
        """
        return await self._wait(identifier, seconds, is_completed)

    async def wait_delivered(self, identifier: str, seconds: float) -> CommandRecord | None:
        """Wait like `wait`, without a response. Raises `CommandsBusy`, `RegistryError`."""
        return await self._wait(identifier, seconds, lambda found: CommandState(found.state).final)

    async def _wait(
        self, identifier: str, seconds: float, is_done: Callable[[CommandRecord], bool]
    ) -> CommandRecord | None:
        if len(self._waiting) >= WAITING_MAX:
            raise CommandsBusy("too many requests wait for commands; repeat the request without `wait`")
        changed = asyncio.Event()
        self._waiting.setdefault(identifier, set()).add(changed)
        try:
            async with asyncio.timeout(seconds):
                while (found := await self.get(identifier)) is not None and not is_done(found):
                    await changed.wait()
                    changed.clear()
                return found
        except TimeoutError:
            return await self.get(identifier)
        finally:
            others = self._waiting[identifier]
            others.discard(changed)
            if not others:
                del self._waiting[identifier]

    @property
    def figures(self) -> CommandFigures:
        """Figures for the metrics."""
        still = {state.value: self._counts.get(state.value, 0) for state in CommandState if not state.final}
        return CommandFigures(still, {state.value: self._over[state] for state in CommandState if state.final})

    # --- news of gateways -------------------------------------------------------------------------------------------

    def handle_batch(self, tenant: str, gateway: str, batch: Batch, kept: Callable[[bool], None]) -> bool:
        """Queue the news in a batch of a gateway; return False without any. `kept` is called later, as in
        `queue_news`."""
        if not has_news(batch):
            return False
        self.queue_news(read_news(tenant, gateway, batch, self._now_us()), kept)
        return True

    def queue_news(self, news: Sequence[CommandNews], kept: Callable[[bool], None]) -> None:
        """Queue news. `kept` is called with True when it is on disk, with False when it cannot be stored now."""
        self._news.put(news, kept)

    # --- store of the dispatch ----------------------------------------------------------------------------------------

    def take(
        self, key: Key, but: Collection[str], limit: int, then: Callable[[Sequence[CommandRecord] | None], None]
    ) -> None:
        self._run_later(lambda registry: registry.take(key, but, limit, self._now_us()), then)

    def keep(self, news: CommandNews, then: Callable[[], None]) -> None:
        pauses_s = (KEEP_AGAIN_S * 2**attempt for attempt in count())

        def stored(kept: bool) -> None:
            if kept or self._now_us() >= news.again_until or not self._tasks:
                then()
            else:
                asyncio.get_running_loop().call_later(next(pauses_s), self.queue_news, [news], stored)

        self.queue_news([news], stored)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)

    async def _ask(self, work: Callable[[Commands], T]) -> T:
        """Run a request on the thread that writes, within the limit of requests."""
        with self._admitted():
            return await self._in_thread(work)

    async def _ask_reader(self, work: Callable[[Commands], T]) -> T:
        """Run a request on the thread that reads, within the limit of requests."""
        with self._admitted():
            return await self._read(work)

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count a request in the body. Raises `CommandsBusy`."""
        if self._asked >= REQUESTS_MAX:
            raise CommandsBusy("the hub is overloaded; try again in some seconds")
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    async def _in_thread(self, work: Callable[[Commands], T]) -> T:
        """Run `work` on the thread that writes. Raises `CommandsBusy` before `open` and after `close`."""
        with _closed_is_busy():
            return await self._thread.run(work)

    async def _read(self, work: Callable[[Commands], T]) -> T:
        """Run `work`, which changes nothing, on the thread that reads. Raises `CommandsBusy` before `open` and after
        `close`."""
        with _closed_is_busy():
            return await self._reader.run(work)

    def _run_later(self, work: Callable[[Commands], T], then: Callable[[T | None], None]) -> None:
        """Run `work` on the registry's thread; pass the result to `then`, None on failure."""
        if self._thread.is_open:
            self._thread.submit(work).add_done_callback(partial(self._done, then))
        else:
            then(None)

    def _done(self, then: Callable[[T | None], None], future: asyncio.Future[T]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._failed(error)
        then(None if future.cancelled() or error is not None else future.result())

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, RegistryError):
            log.error("commands cannot be sent: internal error", exc_info=error)
        elif self.trouble is None:
            log.warning("commands wait: %s", error)
        self.trouble = str(error)

    async def _store_of_tenant(self, tenant: str, news: Sequence[CommandNews]) -> bool:
        """Store news of one tenant; a fault of its applications does not concern others."""
        kept = await self._store(news)
        if kept:
            self._untold.discard(tenant)
            self.trouble = self.trouble if self._untold else None
        else:
            self._untold.add(tenant)
        return kept

    async def _store(self, news: Sequence[CommandNews]) -> bool:
        """Publish news to applications, then store it; return False if that fails now. News for no application is
        stored first: the next command of its device waits for it."""
        try:
            effective = await self._in_thread(lambda registry: registry.effective_news(news))
            outcomes = [found for found in effective if _is_outcome(*found)]
            await self._keep_news([each for each, command in effective if not _is_outcome(each, command)])
            for each, command in outcomes:
                await self._tell(each, command)
            await self._keep_news([each for each, _ in outcomes])
        except (RegistryError, CommandsBusy, ApplicationsUnavailable) as error:
            log.warning("results of commands cannot be stored yet, retrying: %s", error)
            self.trouble = str(error)
            return False
        except Exception as error:  # an internal error must not end the task silently
            self._failed(error)
            return False
        return True

    async def _keep_news(self, news: Sequence[CommandNews]) -> None:
        """Store news, and send what may leave after it. Raises `RegistryError`, `CommandsBusy`."""
        if not news:
            return
        changed, gateways = await self._in_thread(partial(_keep, news=news))
        for command in changed:
            self._changed(command)
        for key in gateways:
            self.dispatch.send_pending(key)

    def _changed(self, command: CommandRecord) -> None:
        state = CommandState(command.state)
        if state.final and command.responded_at is None:
            self._over[state] += 1
        self._wake(command.id)

    def _wake(self, identifier: str) -> None:
        """Let the requests that wait for a command look at it."""
        for waiting in self._waiting.get(identifier, ()):
            waiting.set()

    async def _watch(self) -> None:
        clock, counted_at = asyncio.get_running_loop().time, float("-inf")
        poll_at = clock() + self._poll_interval_s
        while True:
            changes = await self._hint.wait(max(0.0, poll_at - clock()))
            try:
                self._look_at(changes.rows)
                if not changes.others and clock() < poll_at:
                    continue
                await self._poll()
                if clock() - counted_at >= COUNT_INTERVAL_S:
                    counted_at = clock()
                    await self._clean_up()
                self.trouble = None
            except Exception as error:
                self._failed(error)
            poll_at = clock() + self._poll_interval_s

    def _look_at(self, rows: Collection[ChangedRow]) -> None:
        """Send commands to the gateways of a notice that are connected here, and let requests here look at its
        commands."""
        for topic, key in rows:
            if topic is NoticeTopic.COMMANDS and len(key) == 2:
                self.dispatch.send_pending((key[0], key[1]))
            elif topic is NoticeTopic.RECEIPTS and len(key) == 1:
                self._wake(key[0])

    async def _poll(self) -> None:
        """Send commands that other processes stored, end requests that wait for receipts at other hubs, and complete
        expired commands."""
        now_us, now_s, before = self._now_us(), asyncio.get_running_loop().time(), self._newest
        newest = await self._read(Commands.newest)
        if newest > before:
            self._grown_at = now_s
        if now_s - self._grown_at <= LATE_COMMIT_S:
            for key in await self._read(lambda registry: registry.gateways_of(before)):
                self.dispatch.send_pending(key)
            self._newest = newest
        await self._send_moved()
        self.dispatch.retry_pending()
        if waiting := list(self._waiting):
            pending = await self._read(lambda registry: registry.find_pending(waiting))
            for identifier in waiting:
                if identifier not in pending:
                    self._wake(identifier)
        over = await self._read(lambda registry: registry.over(now_us, AT_ONCE_MAX))
        self._queue_ends(over, now_us)

    async def _send_moved(self) -> None:
        """Send commands that have moved, and look again at some of those that had to wait for others."""
        now_s, before = asyncio.get_running_loop().time(), self._newest_move
        newest = await self._read(Commands.newest_move)
        if newest > before:
            for key in await self._read(lambda registry: registry.gateways_moved_to(before)):
                self.dispatch.send_pending(key)
            self._newest_move = newest
        if now_s - self._looked_at >= self._poll_interval_s:
            self._looked_at = now_s
            for key in await self._in_thread(lambda registry: registry.held_gateways(HELD_LOOKS_MAX)):
                self.dispatch.send_pending(key)

    async def _clean_up(self) -> None:
        now_us = self._now_us()
        before_us = now_us - int(KEPT_S * 1e6)
        await self._in_thread(lambda registry: registry.forget(before_us, AT_ONCE_MAX, now_us))
        self._counts = await self._read(Commands.counts)
        self._queue_ends(await self._read(lambda registry: registry.doubted(now_us, AT_ONCE_MAX)), now_us)

    def _queue_ends(self, over: Sequence[CommandRecord], now_us: int) -> None:
        """Queue the news that completes commands, for each tenant on its own."""
        by_tenant: dict[str, list[CommandNews]] = {}
        for each in over:
            by_tenant.setdefault(each.tenant, []).append(_over(each, now_us))
        for news in by_tenant.values():
            self.queue_news(news, lambda _kept: None)


@contextlib.contextmanager
def _closed_is_busy() -> Iterator[None]:
    """Raise `CommandsBusy` instead of `RegistryClosed`."""
    try:
        yield
    except RegistryClosed as error:
        raise CommandsBusy(str(error)) from error


def _is_outcome(news: CommandNews, command: CommandRecord) -> bool:
    """Return whether news is for applications. `command`: as it is after the news."""
    return news.response is not None or CommandState(command.state).final


def _keep(registry: Commands, news: Sequence[CommandNews]) -> tuple[list[CommandRecord], set[Key]]:
    """Store news; return the changed commands, and the gateways to which commands may leave now."""
    changed = registry.keep(news)
    return changed, registry.next_gateways(changed)


def _over(command: CommandRecord, now_us: int) -> CommandNews:
    """Return the news that completes a command which no gateway will get, or of which no outcome arrived."""
    mine = (command.id, *command.key, command.device, now_us)
    waits = command.state == CommandState.WAITING.value
    if command.state == CommandState.CANCELLING.value:
        return CommandNews(*mine, CommandState.CANCELLED, command.reason)
    if command.state == CommandState.REJECTING.value:
        return CommandNews(*mine, CommandState.REJECTED, command.reason)
    if command.online and not waits:
        why, code = "no outcome arrived in time: the device may have taken it", OnlineReason.OUTCOME_UNKNOWN
        return CommandNews(*mine, CommandState.EXPIRED, why, code=code)
    if command.online:
        why, code = "its gateway disconnected, or gave no credit in time", OnlineReason.NOT_SENT
        return CommandNews(*mine, CommandState.EXPIRED, why, waiting=True, code=code)
    if command.reason == DOUBTED:
        return CommandNews(*mine, CommandState.EXPIRED, DOUBTED, waiting=waits, code=OnlineReason.OUTCOME_UNKNOWN)
    why = command.reason if command.reason.startswith(UNKNOWN_DEVICE) else "its gateway did not connect in time"
    return CommandNews(*mine, CommandState.EXPIRED, why, waiting=True)


def is_completed(command: CommandRecord) -> bool:
    """Return whether a command is completed, including a wanted response."""
    state = CommandState(command.state)
    if command.responded_at is not None:
        return True
    return state.final and not (state is CommandState.DELIVERED and command.wants_response)
