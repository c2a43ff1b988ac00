"""An attempt of a dialer with a library's client: the asyncio shell of connectors whose protocol is not ours.

A `Client` is one connection from connect to its end, written as one coroutine. It gets a `Carriage`: what is to go, in
order and with a ticket each, and where to put what arrives. Whatever ends the coroutine ends the connection; what was
taken and not settled goes again, in order, over the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from bridge.dialer import Attempt, AttemptError, Dialer, Endpoint
from bridge.forwarders.inbox import Inbox, Incoming
from bridge.forwarders.outbox import Outbox, Outgoing
from bridge.forwarders.outcome import Outcome


class ConnectorError(AttemptError):
    """The connection cannot be made, or has ended; the text says to people why, and what to do where that is known."""


class Client(Protocol):
    """A library's client."""

    async def run(self, endpoint: Endpoint, carriage: Carriage) -> None:
        """One connection: connect, say `carriage.up`, carry both ways until it ends. It is cancelled where it has to
        end sooner, and says good-bye then. Raises `ConnectorError` or OSError."""
        ...


class Carriage:
    """What one connection carries, for its client."""

    def __init__(self, outbox: Outbox, inboxes: Sequence[Inbox], up: asyncio.Future[str]) -> None:
        """`up` is given the peer's name."""
        self.inboxes = inboxes
        self.ended: str | None = None
        """Why the connection has to end, once it has to."""
        self._outbox = outbox
        self._up = up
        self._changed = asyncio.Event()
        self._task = asyncio.current_task()
        self._answers: dict[int, dict[int, asyncio.Future[Outcome]]] = {}

    def up(self, peer: str) -> None:
        """The peer is there, and takes messages; `peer` is its name, as people know it."""
        if self._up.done():
            return
        self._outbox.attached(self._changed.set, self.cut)
        for inbox in self.inboxes:
            answers = self._answers[id(inbox)] = {}
            inbox.attached(_Answering(answers), self._changed.set)
        self._up.set_result(peer)

    def cut(self, reason: str) -> None:
        """End the connection; it is made anew after the backoff."""
        if self.ended is None:
            self.ended = reason
            if self._task is not None:
                self._task.cancel()

    async def outgoing(self, messages_max: int, bytes_max: int) -> list[Outgoing]:
        """What is next, in order: one run at least, and no more than so many messages and, beside the first, bytes."""
        while True:
            self._changed.clear()
            taken: list[Outgoing] = []
            messages, size = messages_max, bytes_max
            while messages > 0 and (size > 0 or not taken):
                following = self._outbox.take(messages, size)
                if following is None:
                    break
                taken.append(following)
                messages -= len(following)
                size -= following.stored.run.size
            if taken:
                return taken
            await self._changed.wait()

    def settle(self, ticket: int, outcome: Outcome, why: str = "", count: int | None = None) -> None:
        """As `Outbox.settle`."""
        self._outbox.settle(ticket, outcome, why, count)

    async def room(self, inbox: Inbox) -> None:
        """Wait until the forwarder takes something."""
        while inbox.credit <= 0:
            self._changed.clear()
            await self._changed.wait()

    def give(self, inbox: Inbox, message: Incoming) -> asyncio.Future[Outcome]:
        """Give what arrived to its forwarder, which has room. The future is done when it may be answered: once it is on
        disk, or is never going to be."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if message.token is None:
            answer.set_result(Outcome.ACCEPTED)
        else:
            self._answers[id(inbox)][message.token] = answer
        inbox.receive([message])
        return answer

    async def receive(self, inbox: Inbox, message: Incoming) -> asyncio.Future[Outcome]:
        """`give` as soon as there is `room`."""
        await self.room(inbox)
        return self.give(inbox, message)

    def close(self) -> None:
        """The connection is over."""
        if not self._up.done():
            return
        self._outbox.detached()
        for inbox in self.inboxes:
            inbox.detached()
        for answers in self._answers.values():
            for answer in answers.values():
                answer.cancel()
        self._answers.clear()


class _Answering:
    """Gives the answers of an inbox to who waits for them."""

    def __init__(self, answers: dict[int, asyncio.Future[Outcome]]) -> None:
        self._answers = answers

    def __call__(self, tokens: Sequence[int], outcome: Outcome, _why: str) -> None:
        for token in tokens:
            answer = self._answers.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_result(outcome)


class ClientAttempt(Attempt):
    """One connection of a client."""

    def __init__(
        self,
        dialer: Dialer,
        endpoint: Endpoint,
        client: Client,
        outbox: Outbox,
        inboxes: Sequence[Inbox],
        *,
        timeout_s: float = 10.0,
        close_timeout_s: float = 3.0,
    ) -> None:
        """`timeout_s`: from the attempt to `Carriage.up`; `close_timeout_s`: for the good-bye."""
        self.up = False
        loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._dialer = dialer
        self._endpoint = endpoint
        self._client = client
        self._outbox = outbox
        self._inboxes = inboxes
        self._timeout_s = timeout_s
        self._close_timeout_s = close_timeout_s
        self._reason: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._gone

    async def run(self) -> None:
        up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._task = task = asyncio.get_running_loop().create_task(self._carry(up), name=f"connector {self._endpoint}")
        try:
            await asyncio.wait((task, up), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                self.up = True
                self._dialer.up(up.result())
            elif not task.done():
                task.cancel()
                await self._ended(task)
                raise TimeoutError(f"no answer in {self._timeout_s:g} s")
            await asyncio.wait((task,))
            self._tell(task)
        finally:
            task.cancel()
            await self._ended(task)
            if not self._gone.done():
                self._gone.set_result(None)

    def end(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- inside -----------------------------------------------------------------------------------------------

    async def _carry(self, up: asyncio.Future[str]) -> None:
        carriage = Carriage(self._outbox, self._inboxes, up)
        try:
            await self._client.run(self._endpoint, carriage)
        except asyncio.CancelledError:
            if carriage.ended is None:
                raise
            self._reason = self._reason or carriage.ended
        finally:
            carriage.close()

    async def _ended(self, task: asyncio.Task[None]) -> None:
        """Its good-bye is over, or took too long."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,), timeout=self._close_timeout_s)

    def _tell(self, task: asyncio.Task[None]) -> None:
        """Why the connection is over, to the dialer. Raises what kept it from coming up."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.up and isinstance(error, OSError | AttemptError):
            raise error
        if error is not None and not isinstance(error, OSError | AttemptError):
            raise AttemptError(f"{type(error).__name__} in the connector") from error
        wait_s = error.wait_s if isinstance(error, AttemptError) else 0.0
        self._dialer.down(self._reason or (str(error) if error is not None else "closed by the peer"), wait_s)
