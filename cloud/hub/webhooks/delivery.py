"""Delivery of one webhook that this hub has claimed: one event after the other, and how far it got.

An event is sent until the server takes it, and the next one after that, so they arrive in the order of their numbers. A
hub that is killed has written how far it got `PROGRESS_S` ago at the latest: the events since then come twice, with the
same ``webhook-id``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from cloud.hub.registry.event_reader import EventPage
from cloud.hub.registry.webhooks import WebhookProgress, WebhookRecord, WebhookState
from cloud.hub.webhooks.documents import event_body, gap_body
from cloud.hub.webhooks.limits import (
    CLAIM_SILENT_S,
    FAILED_ATTEMPTS_MIN,
    FAILED_S_MAX,
    POST_S_MAX,
    PROGRESS_S,
    RETRY_JITTER,
    RETRY_S_FIRST,
    RETRY_S_MAX,
    TURN_S,
)
from cloud.hub.webhooks.sending import PostConnection, PostFailed, SignedRequest, is_gone

log = logging.getLogger(__name__)

_DOUBLINGS_MAX: Final = 20
Write = Callable[[WebhookRecord, WebhookProgress, bool, WebhookState | None, int], Awaitable[WebhookRecord | None]]
"""Writes the progress of a webhook: the one before, whether this hub goes on, a new state, and the number up to which
events were delivered. Returns what it is now; None if this hub has it no longer. Raises `RegistryError`."""


class WebhookClock(NamedTuple):
    """Clocks of a delivery."""

    now: Callable[[], float]
    """Returns UTC seconds since 1970."""
    monotonic: Callable[[], float]
    """Returns seconds that only rise."""


class DeliveryLost(Exception):
    """This hub may not send any more: the webhook was changed, or another hub has it."""


class WebhookDelivery:
    """One turn of a webhook."""

    def __init__(
        self, claimed: WebhookRecord, begun_s: float, connection: PostConnection, write: Write, clock: WebhookClock
    ) -> None:
        """`claimed`: it was claimed just now; `begun_s`: time at which the claim began, of the monotonic clock."""
        self._record = claimed
        self._connection = connection
        self._write = write
        self._clock = clock
        self._written_at = begun_s
        self._until = begun_s + TURN_S
        self._progress = progress_of(claimed)
        self._delivered = claimed.reached
        """Number up to which events were delivered, whatever the filter."""

    @property
    def reached(self) -> int:
        """Return the number of the event up to which this turn got."""
        return self._progress.reached

    @property
    def is_over(self) -> bool:
        """Return whether others have their turn now."""
        return self._clock.monotonic() >= self._until

    async def deliver(self, page: EventPage) -> bool:
        """Deliver a page, and return whether the turn goes on. `page` has only events that are wanted.

        Raises `RegistryError`, and `DeliveryLost` when this hub may not send any more.
        """
        try:
            await self._tell_gap(page)
            for each in page.events:
                if self.is_over:
                    await self.end()
                    return False
                await self._post(f"{self._record.id}-{each.number}", event_body(each))
                await self._advance(each.number)
        except PostFailed as failure:
            await self._end_failed(failure)
            return False
        self._progress = self._progress._replace(reached=page.reached)
        return True

    async def end(self) -> None:
        """Write how far it got, and leave the webhook to any hub. Raises `RegistryError`."""
        await self._write(self._record, self._progress, False, None, self._delivered)

    async def fail(self, why: str) -> None:
        """Write a failed attempt without an answer. Raises `RegistryError`."""
        await self._end_failed(PostFailed(why))

    async def _tell_gap(self, page: EventPage) -> None:
        """Tell the server that events are missing, unless it knows. Raises `PostFailed`."""
        if page.missed is None or page.missed <= self._progress.gap_told:
            return
        await self._post(f"{self._record.id}-gap-{page.missed}", gap_body(page.missed, self._clock.now()))
        other = page.missed > page.reached and not page.more  # the place is that of another registry, or an older copy
        self._progress = self._progress._replace(gap_told=page.reached if other else page.missed)
        await self._advance(self._progress.reached)

    async def _post(self, identity: str, body: bytes) -> None:
        """Send a request, if no other hub can have taken over before its end. Raises `PostFailed`, `DeliveryLost`."""
        while self._clock.monotonic() - self._written_at > CLAIM_SILENT_S - 2 * POST_S_MAX:
            await self._renew()
        now_s = self._clock.now()
        secrets: Sequence[str] = self._record.secrets(int(now_s * 1e6))
        await self._connection.post(SignedRequest(identity, body, secrets), now_s)

    async def _advance(self, number: int) -> None:
        """Note a delivery, and write it from time to time. Raises `RegistryError`, `DeliveryLost`."""
        now_us, self._delivered = int(self._clock.now() * 1e6), number
        self._progress = WebhookProgress(number, self._progress.gap_told, delivered_at=now_us)
        if self._clock.monotonic() - self._written_at >= PROGRESS_S:
            await self._renew()

    async def _renew(self) -> None:
        """Write how far it got, and go on. Raises `RegistryError`, `DeliveryLost`."""
        begun_s = self._clock.monotonic()
        found = await self._write(self._record, self._progress, True, None, self._delivered)
        if found is None:
            raise DeliveryLost
        if found.changed_at != self._record.changed_at or found.state != WebhookState.ACTIVE.value:
            await self._write(found, progress_of(found), False, None, found.reached)
            raise DeliveryLost
        self._record, self._written_at = found, begun_s

    async def _end_failed(self, failure: PostFailed) -> None:
        """Write a failed attempt, and when the next one is due. Raises `RegistryError`."""
        now_s, before = self._clock.now(), self._progress
        now_us, attempts = int(now_s * 1e6), before.attempts + 1
        since = before.failing_since if before.failing_since is not None else now_us
        pause_s = max(pause_of(attempts, random.uniform(-1, 1)), min(failure.wait_s, RETRY_S_MAX))  # noqa: S311
        ended = None
        if is_gone(failure):
            ended = WebhookState.GONE
        elif now_us - since >= FAILED_S_MAX * 1e6 and attempts >= FAILED_ATTEMPTS_MIN:
            ended = WebhookState.FAILED
        failed = before._replace(
            attempts=attempts, due_at=now_us + int(pause_s * 1e6), failing_since=since, failure=str(failure)
        )
        log.warning("webhook %s: attempt %d: %s", self._record.id, attempts, failure)
        await self._write(self._record, failed, False, ended, self._delivered)


def progress_of(record: WebhookRecord) -> WebhookProgress:
    """Return the progress of a webhook as the registry has it."""
    return WebhookProgress(**{name: getattr(record, name) for name in WebhookProgress._fields})


def pause_of(attempts: int, chance: float) -> float:
    """Return the seconds before the next attempt. `chance`: -1 to 1."""
    pause_s = min(RETRY_S_FIRST * 2.0 ** min(attempts - 1, _DOUBLINGS_MAX), RETRY_S_MAX)
    return pause_s * (1 + RETRY_JITTER * chance)
