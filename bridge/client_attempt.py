"""An attempt of a dialer with a library's client: the asyncio shell of connectors whose protocol is not ours.

A `ConnectorClient` is one connection from connect to its end, written as one coroutine. It gets a `Carriage`: the
messages to send, in order and with a ticket each, and the inboxes for what arrives. Whatever ends the coroutine ends
the connection. Messages that were taken and not settled go again, in order, over the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.dialer import Attempt, AttemptError, Dialer, PeerEndpoint
from bridge.forwarders.inbox import ForwarderInbox, Incoming, leave_all
from bridge.forwarders.outbox import ForwarderOutbox, Outgoing
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import LEAVE_TIMEOUT_S


class ConnectorError(AttemptError):
    """The connection cannot be made, or has ended; the text says to people why, and what to do where that is known."""


class ConnectorClient(Protocol):
    """A library's client."""

    async def run(self, endpoint: PeerEndpoint, carriage: Carriage) -> None:
        """One connection: connect, say `carriage.up`, carry both ways until it ends. It is cancelled where it has to
        end sooner, and then tells the far side what was answered here and says good-bye. Raises `ConnectorError` or
        OSError."""
        ...


Answered = Callable[[ForwardOutcome], None]
"""What may be said of a message to the far side: called once it is on disk, or is never going to be; not at all where
the connection ended before."""


class Carriage:
    """What one connection carries, for its client."""

    def __init__(
        self,
        outbox: ForwarderOutbox,
        inboxes: Sequence[ForwarderInbox],
        up: asyncio.Future[str],
        cut: Callable[[str], None],
    ) -> None:
        """`up` is given the peer's name; `cut` ends the connection, for a reason."""
        self.inboxes = tuple(inboxes)
        self._outbox = outbox
        self._up = up
        self._cut = cut
        self._changed = asyncio.Event()
        self._answers: dict[int, dict[int, Answered]] = {}
        self._leaving = False

    def up(self, peer: str) -> None:
        """The peer is there, and takes messages; `peer` is its name, as people know it."""
        if self._up.done():
            return
        self._outbox.attached(self._changed.set, self._cut)
        for inbox in self.inboxes:
            answers = self._answers[id(inbox)] = {}
            inbox.attached(_Answering(answers), self._changed.set)
        self._up.set_result(peer)

    async def leave(self) -> None:
        """Give the client nothing more, nor take anything of it; return when what was taken is answered."""
        self._leaving = True
        left = asyncio.Event()
        leave_all(self.inboxes, left.set)
        await left.wait()

    async def outgoing(self, messages_max: int, bytes_max: int) -> list[Outgoing]:
        """What is next, in order: one run at least, and no more than so many messages and, beside the first, bytes."""
        while True:
            self._changed.clear()
            taken: list[Outgoing] = []
            messages, size = messages_max, bytes_max
            while messages > 0 and (size > 0 or not taken) and not self._leaving:
                following = self._outbox.take(messages, size)
                if following is None:
                    break
                taken.append(following)
                messages -= len(following)
                size -= following.stored.run.size
            if taken:
                return taken
            await self._changed.wait()

    def settle(self, ticket: int, outcome: ForwardOutcome, why: str = "", count: int | None = None) -> None:
        """As `ForwarderOutbox.settle`."""
        self._outbox.settle(ticket, outcome, why, count)

    async def room(self, inbox: ForwarderInbox) -> None:
        """Wait until the forwarder takes something."""
        while inbox.credit <= 0:
            self._changed.clear()
            await self._changed.wait()

    def give(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None:
        """Give what arrived to its forwarder, which has room."""
        if message.token is None:
            answered(ForwardOutcome.ACCEPTED)
        else:
            self._answers[id(inbox)][message.token] = answered
        inbox.receive([message])

    async def receive(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None:
        """`give` as soon as there is `room`."""
        await self.room(inbox)
        self.give(inbox, message, answered)

    def close(self) -> None:
        """The connection is over."""
        if not self._up.done():
            return
        self._outbox.detached()
        for inbox in self.inboxes:
            inbox.detached()
        self._answers.clear()


class _Answering:
    """Gives the answers of an inbox to who waits for them."""

    def __init__(self, answers: dict[int, Answered]) -> None:
        self._answers = answers

    def __call__(self, tokens: Sequence[int], outcome: ForwardOutcome, _why: str) -> None:
        for token in tokens:
            answered = self._answers.pop(token, None)
            if answered is not None:
                answered(outcome)


class ClientAttempt(Attempt):
    """One connection of a client."""

    def __init__(
        self,
        dialer: Dialer,
        endpoint: PeerEndpoint,
        client: ConnectorClient,
        outbox: ForwarderOutbox,
        inboxes: Sequence[ForwarderInbox],
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
        self._ending: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def gone(self) -> asyncio.Future[None]:
        return self._gone

    async def run(self) -> None:
        up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        carriage = Carriage(self._outbox, self._inboxes, up, self.end)
        self._task = task = asyncio.get_running_loop().create_task(
            self._carry(carriage), name=f"connector {self._endpoint}"
        )
        try:
            await asyncio.wait((task, up, self._ending), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                self.up = True
                self._dialer.up(up.result())
                await asyncio.wait((task, self._ending), return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    await self._leave(carriage, task)
            in_time = task.done() or self._ending.done()
            task.cancel()
            await self._ended(task)
            if not in_time:
                raise TimeoutError(f"no answer in {self._timeout_s:g} s")
            self._tell(task)
        finally:
            task.cancel()
            try:
                await self._ended(task)
            finally:
                if not self._gone.done():
                    self._gone.set_result(None)

    def end(self, reason: str) -> None:
        self._reason = self._reason or reason
        if not self._ending.done():
            self._ending.set_result(None)

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- inside -----------------------------------------------------------------------------------------------

    async def _carry(self, carriage: Carriage) -> None:
        try:
            await self._client.run(self._endpoint, carriage)
        finally:
            carriage.close()

    async def _leave(self, carriage: Carriage, task: asyncio.Task[None]) -> None:
        """What was taken is answered, or that takes too long, or the connection ends by itself."""
        leaving = asyncio.ensure_future(carriage.leave())
        try:
            await asyncio.wait((task, leaving), timeout=LEAVE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()

    async def _ended(self, task: asyncio.Task[None]) -> None:
        """Its good-bye is over, or took too long, or the dialer does not wait for it: it is cancelled then."""
        await asyncio.wait((task,), timeout=self._close_timeout_s)

    def _tell(self, task: asyncio.Task[None]) -> None:
        """Why the connection is over, to the dialer. Raises what kept it from coming up."""
        error = None if task.cancelled() or not task.done() else task.exception()
        if error is not None and not self.up and isinstance(error, OSError | AttemptError):
            raise error
        if error is not None and not isinstance(error, OSError | AttemptError):
            raise AttemptError(f"{type(error).__name__} in the connector") from error
        wait_s = error.wait_s if isinstance(error, AttemptError) else 0.0
        self._dialer.down(self._reason or (str(error) if error is not None else "closed by the peer"), wait_s)
