"""Connection attempt with a library's client: the asyncio shell of connectors that use a library's protocol.

A `ConnectorClient` runs one connection from start to end in one coroutine. Its `ConnectorTraffic` has the messages to
send, in order and each with a ticket, and the inboxes for received messages. The end of the coroutine ends the
connection. Messages that were taken and not settled are sent again, in order, over the next one.
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
    """The connection failed or ended; the text gives an operator the reason, and the next step if it is known."""


class ConnectorClient(Protocol):
    """Client of a library."""

    async def run(self, endpoint: PeerEndpoint, traffic: ConnectorTraffic) -> None:
        """Connect, call `traffic.up`, and carry messages both ways until the connection ends.

        It is cancelled when it has to end sooner; then it sends outstanding acknowledgements and disconnects. Raises
        `ConnectorError` or OSError.
        """
        ...


Answered = Callable[[ForwardOutcome], None]
"""Callback with a message's outcome, for the peer: called once the message is on disk or refused for good, and not at
all when the connection ended before."""


class ConnectorTraffic:
    """The traffic of one connection, for its client: messages to send, and inboxes for messages that arrive."""

    def __init__(
        self,
        outbox: ForwarderOutbox,
        inboxes: Sequence[ForwarderInbox],
        up: asyncio.Future[str],
        disconnect: Callable[[str], None],
    ) -> None:
        """`up` receives the peer's name; `disconnect` ends the connection for a reason."""
        self.inboxes = tuple(inboxes)
        self._outbox = outbox
        self._up = up
        self._disconnect = disconnect
        self._changed = asyncio.Event()
        self._answers: dict[int, dict[int, Answered]] = {}
        self._leaving = False

    def up(self, peer: str) -> None:
        """Report that the peer takes messages; `peer` is its name for people."""
        if self._up.done():
            return
        self._outbox.attached(self._changed.set, self._disconnect)
        for inbox in self.inboxes:
            answers = self._answers[id(inbox)] = {}
            inbox.attached(_Answering(answers), self._changed.set)
        self._up.set_result(peer)

    async def leave(self) -> None:
        """Stop giving messages to the client and taking them from it; return when all taken messages are answered."""
        self._leaving = True
        left = asyncio.Event()
        leave_all(self.inboxes, left.set)
        await left.wait()

    async def outgoing(self, messages_max: int, bytes_max: int) -> list[Outgoing]:
        """Return the next runs in order: at least one, and at most `messages_max` messages and (after the first run)
        `bytes_max` bytes."""
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
        """Settle with `ForwarderOutbox.settle`."""
        self._outbox.settle(ticket, outcome, why, count)

    async def room(self, inbox: ForwarderInbox) -> None:
        """Wait until the forwarder has credit."""
        while inbox.credit <= 0:
            self._changed.clear()
            await self._changed.wait()

    def give(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None:
        """Give an incoming message to its forwarder, which must have credit."""
        if message.token is None:
            answered(ForwardOutcome.ACCEPTED)
        else:
            self._answers[id(inbox)][message.token] = answered
        inbox.receive([message])

    async def receive(self, inbox: ForwarderInbox, message: Incoming, answered: Answered) -> None:
        """Wait for `room`, then `give`."""
        await self.room(inbox)
        self.give(inbox, message, answered)

    def close(self) -> None:
        """Detach outbox and inboxes: the connection is over."""
        if not self._up.done():
            return
        self._outbox.detached()
        for inbox in self.inboxes:
            inbox.detached()
        self._answers.clear()


class _Answering:
    """Passes the answers of an inbox to the waiting callbacks."""

    def __init__(self, answers: dict[int, Answered]) -> None:
        self._answers = answers

    def __call__(self, tokens: Sequence[int], outcome: ForwardOutcome, _why: str) -> None:
        for token in tokens:
            answered = self._answers.pop(token, None)
            if answered is not None:
                answered(outcome)


class ClientAttempt(Attempt):
    """One connection of a library's client."""

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
        """`timeout_s`: from the attempt to `ConnectorTraffic.up`; `close_timeout_s`: for disconnecting."""
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
        traffic = ConnectorTraffic(self._outbox, self._inboxes, up, self.end)
        self._task = task = asyncio.get_running_loop().create_task(
            self._carry(traffic), name=f"connector {self._endpoint}"
        )
        try:
            await asyncio.wait((task, up, self._ending), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                self.up = True
                self._dialer.up(up.result())
                await asyncio.wait((task, self._ending), return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    await self._leave(traffic, task)
            in_time = task.done() or self._ending.done()
            task.cancel()
            await self._ended(task)
            if not in_time:
                raise TimeoutError(f"no answer in {self._timeout_s:g} s")
            self._report_end(task)
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

    async def _carry(self, traffic: ConnectorTraffic) -> None:
        try:
            await self._client.run(self._endpoint, traffic)
        finally:
            traffic.close()

    async def _leave(self, traffic: ConnectorTraffic, task: asyncio.Task[None]) -> None:
        """Wait until taken messages are answered, the timeout is over, or the connection ends by itself."""
        leaving = asyncio.ensure_future(traffic.leave())
        try:
            await asyncio.wait((task, leaving), timeout=LEAVE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()

    async def _ended(self, task: asyncio.Task[None]) -> None:
        """Wait for the cancelled client to disconnect, up to the close timeout."""
        await asyncio.wait((task,), timeout=self._close_timeout_s)

    def _report_end(self, task: asyncio.Task[None]) -> None:
        """Report to the dialer why the connection ended. Raises the error when it never came up."""
        error = None if task.cancelled() or not task.done() else task.exception()
        if error is not None and not self.up and isinstance(error, OSError | AttemptError):
            raise error
        if error is not None and not isinstance(error, OSError | AttemptError):
            raise AttemptError(f"{type(error).__name__} in the connector") from error
        wait_s = error.wait_s if isinstance(error, AttemptError) else 0.0
        self._dialer.down(self._reason or (str(error) if error is not None else "closed by the peer"), wait_s)
