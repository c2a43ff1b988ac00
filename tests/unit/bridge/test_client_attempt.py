"""A connection of a client library ends only after the answers to its received messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge import client_attempt
from bridge.backoff import Backoff, BackoffPolicy
from bridge.client_attempt import ClientAttempt, ConnectorError, ConnectorTraffic
from bridge.dialer import Attempt, Dialer, PeerEndpoint
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run
from tests.support.feeding import Bench, running
from tests.support.loop_wait import until

HERE = PeerEndpoint("127.0.0.1", 1)


class Inbox:
    """Incoming forwarder; the test decides when its commits end, and `events` records its calls."""

    name = remote = "f"
    qos = 1

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.credit = 10
        self.open: list[int] = []
        self._settle: Settle | None = None
        self._left: Callable[[], None] | None = None

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle = settle

    def leave(self, left: Callable[[], None]) -> None:
        self.events.append("leave")
        self.credit, self._left = 0, left

    def detached(self) -> None:
        self.events.append("detached")
        self._settle = None

    def receive(self, messages: Sequence[Incoming]) -> None:
        self.open += [message.token for message in messages if message.token is not None]

    def commit(self, outcome: ForwardOutcome = ForwardOutcome.ACCEPTED) -> None:
        """End the commit of its messages with this outcome."""
        tokens, self.open = self.open, []
        if self._settle is not None:
            self._settle(tokens, outcome, "")
        if self._left is not None:
            self._left()


class Client:
    """Client that receives three messages and records at its end how many were answered."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.answered: list[int] = []

    async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
        traffic.up("somebody")
        (inbox,) = traffic.inboxes
        try:
            for token in range(3):
                run = Run("a", "", 1, b"", [b""])
                await traffic.receive(inbox, Incoming(token, (), b"", (), run), self._answered(token))
            await traffic.outgoing(1, 1)
            raise AssertionError("nothing goes out")
        finally:
            self.events.append(f"good-bye, {len(self.answered)} answered")

    def _answered(self, token: int) -> Callable[[ForwardOutcome], None]:
        def answered(outcome: ForwardOutcome) -> None:
            if outcome is ForwardOutcome.ACCEPTED:
                self.answered.append(token)

        return answered


class Site:
    """A dialer with one such connection."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.inbox = Inbox(self.events)
        self.bench = Bench()
        self.bench.inboxes.append(self.inbox)
        backoff = Backoff(BackoffPolicy(first_s=60.0, limit_s=60.0, stable_s=60.0), lambda: 0.5)
        self.dialer = Dialer([HERE], self._attempt, backoff=backoff)

    def _attempt(self, dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        return ClientAttempt(dialer, endpoint, Client(self.events), self.bench.outbox, self.bench.inboxes)

    async def take(self) -> None:
        self.dialer.start()
        await until(lambda: len(self.inbox.open) == 3, "three are taken")


ENDS: list[Callable[[Site], Any]] = [
    lambda site: asyncio.ensure_future(site.dialer.close()),
    lambda site: site.dialer.pause(),
    lambda site: site.dialer.renew("changed"),
    lambda site: site.bench.outbox.disconnect("a fault"),
]


@pytest.mark.parametrize("end", ENDS, ids=["close", "pause", "renew", "cut"])
def test_received_messages_are_answered_before_the_end(end: Callable[[Site], Any]) -> None:
    @running
    async def run() -> None:
        site = Site()
        await site.take()
        ending = end(site)
        await until(lambda: site.events, "it leaves")
        assert site.events == ["leave"], "and goes no further"
        site.inbox.commit()
        await until(lambda: len(site.events) == 3, "it is over")
        assert site.events == ["leave", "good-bye, 3 answered", "detached"]
        await asyncio.gather(*([ending] if ending is not None else []))
        await site.dialer.close()

    run()


@running
async def test_wait_for_answers_is_limited() -> None:
    limit_s = client_attempt.LEAVE_TIMEOUT_S
    client_attempt.LEAVE_TIMEOUT_S = 0.05  # type: ignore[misc]
    try:
        site = Site()
        await site.take()
        await site.dialer.close()
        assert site.events == ["leave", "good-bye, 0 answered", "detached"]
    finally:
        client_attempt.LEAVE_TIMEOUT_S = limit_s  # type: ignore[misc]


@running
async def test_successor_of_the_same_name_dials_after_the_end() -> None:
    before, after = Site(), Site()
    await before.take()
    after.dialer.start(before.dialer)
    await until(lambda: before.events == ["leave"], "the one before leaves")
    assert after.dialer.state.attempts == 0
    before.inbox.commit()
    await until(lambda: len(after.inbox.open) == 3, "the next has its connection")
    assert before.events == ["leave", "good-bye, 3 answered", "detached"]
    assert before.dialer.closed
    after.inbox.commit()
    closing = asyncio.ensure_future(after.dialer.close())
    await until(lambda: after.events, "it leaves")
    after.inbox.commit()
    await closing


@running
async def test_successor_closed_early_leaves_no_connection() -> None:
    before, after = Site(), Site()
    await before.take()
    after.dialer.start(before.dialer)
    closing = asyncio.ensure_future(after.dialer.close())
    await until(lambda: before.events, "the one before leaves")
    before.inbox.commit()
    await closing
    assert before.dialer.closed
    assert after.dialer.state.attempts == 0


@running
async def test_last_of_three_attempts_of_one_name_gets_the_connection() -> None:
    first, second, third = Site(), Site(), Site()
    await first.take()
    second.dialer.start(first.dialer)
    await until(lambda: first.events == ["leave"], "the first leaves")
    third.dialer.start(second.dialer)
    first.inbox.commit()
    await until(lambda: len(third.inbox.open) == 3, "the last has its connection")
    assert first.dialer.closed
    assert second.dialer.closed
    assert second.dialer.state.attempts == 0
    assert [task.get_name() for task in asyncio.all_tasks()].count("dialer") == 1, "nobody is left behind"
    third.inbox.commit()
    closing = asyncio.ensure_future(third.dialer.close())
    await until(lambda: third.events, "it leaves")
    third.inbox.commit()
    await closing


@running
async def test_endless_close_does_not_block_the_dialer() -> None:
    class Stubborn(Client):
        async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
            traffic.up("somebody")
            try:
                await over.wait()
            finally:
                await over.wait()

    over = asyncio.Event()
    bench = Bench()
    backoff = Backoff(BackoffPolicy(first_s=60.0, limit_s=60.0, stable_s=60.0), lambda: 0.5)

    def attempt(dialer: Dialer, endpoint: PeerEndpoint) -> Attempt:
        return ClientAttempt(dialer, endpoint, Stubborn([]), bench.outbox, [], close_timeout_s=0.05)

    dialer = Dialer([HERE], attempt, backoff=backoff)
    dialer.start()
    await until(lambda: dialer.state.connected, "it is up")
    closing = asyncio.ensure_future(dialer.close())
    await until(lambda: not dialer.state.connected, "its good-bye takes too long")
    again = asyncio.ensure_future(dialer.close())
    await asyncio.gather(closing, again)
    assert dialer.closed
    over.set()


@running
async def test_attempt_may_end_before_it_is_connected() -> None:
    class Silent(Client):
        async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
            self.events.append("asked")
            await asyncio.get_running_loop().create_future()

    bench, events = Bench(), list[str]()
    backoff = Backoff(BackoffPolicy(first_s=60.0, limit_s=60.0, stable_s=60.0), lambda: 0.5)
    dialer = Dialer([HERE], lambda d, e: ClientAttempt(d, e, Silent(events), bench.outbox, []), backoff=backoff)
    dialer.start()
    await until(lambda: events, "it asks")
    dialer.renew("changed")
    await until(lambda: dialer.state.last_error == f"{HERE}: changed", "it says why")
    await dialer.close()


@running
async def test_failure_is_reported_at_once() -> None:
    class Failing(Client):
        async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
            traffic.up("somebody")
            raise ConnectorError("it is over")

    events: list[str] = []
    bench = Bench()
    bench.inboxes.append(Inbox(events))
    backoff = Backoff(BackoffPolicy(first_s=60.0, limit_s=60.0, stable_s=60.0), lambda: 0.5)
    dialer = Dialer(
        [HERE], lambda d, e: ClientAttempt(d, e, Failing(events), bench.outbox, bench.inboxes), backoff=backoff
    )
    dialer.start()
    await until(lambda: dialer.state.last_error == f"{HERE}: it is over", "it says why")
    assert events == ["detached"], "there is nobody left to answer"
    await dialer.close()
