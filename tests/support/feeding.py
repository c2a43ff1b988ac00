"""Forwarders without a router: messages for a connector's client, and their outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from bridge.client_attempt import ConnectorClient, ConnectorTraffic
from bridge.dialer import PeerEndpoint
from bridge.flow import Outcomes
from bridge.forwarders.mapping import Mapping
from bridge.forwarders.outbox import ForwarderOutbox, ForwardRule
from bridge.message import Run, Stored

P = ParamSpec("P")

NOW_NS = 1_790_000_000_000_000_000


def running(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine as a test in its own loop, for a minute at most."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(*arguments, **named)

        asyncio.run(limited())

    return run


class Feed:
    """Subscription with messages of one address; its flow takes them as it has credit."""

    def __init__(self, outbox: ForwarderOutbox, bodies: Sequence[bytes], address: str, remote: str, **run: Any) -> None:
        self.outcomes: dict[int, str] = {}
        """Outcomes by position."""
        self._bodies = bodies
        self._address = address
        self._run = run
        self._next = 0
        self.flow = outbox.add(ForwardRule(f"to {remote}", Mapping(address, remote))).flow
        self.flow.add(self)

    def settle(self, _consumer: Any, first: int, last: int, outcome: str) -> None:
        for position in range(first, last + 1):
            assert position not in self.outcomes, f"{position} is settled twice"
            self.outcomes[position] = outcome

    def pump(self) -> None:
        while self.flow.credit > 0 and self._next < len(self._bodies):
            bodies = list(self._bodies[self._next : self._next + min(100, self.flow.credit)])
            fields = {"flags": 1, "properties": b"", "received_at": NOW_NS, **self._run}
            run = Run(self._address, "dev", fields["flags"], fields["properties"], bodies, fields["received_at"])
            first, self._next = self._next, self._next + len(bodies)
            self.flow.deliver(self, [Stored(first, first, run)])

    def end(self) -> None:
        """Remove the forwarder from the configuration."""
        self.flow.remove(self)

    @property
    def accepted(self) -> list[int]:
        return [position for position, outcome in self.outcomes.items() if outcome == "accepted"]

    @property
    def rejected(self) -> list[int]:
        return [position for position, outcome in self.outcomes.items() if outcome == "rejected"]


class Bench:
    """Forwarders of one connector, and consecutive connections of its client."""

    def __init__(self) -> None:
        self.outbox = ForwarderOutbox(
            "gw", Outcomes("accepted", "rejected"), epoch_of=lambda _address, _sequence: "e1", now_ns=lambda: NOW_NS
        )
        self.inboxes: list[Any] = []
        self.errors: list[BaseException] = []

    def feed(self, *bodies: bytes, address: str = "plant/7", remote: str = "cloud/7", **run: Any) -> Feed:
        """Add a forwarder of these messages."""
        return Feed(self.outbox, bodies, address, remote, **run)

    async def connect(self, client: ConnectorClient, port: int, *, tls: bool = False, path: str | None = None) -> None:
        """Run one connection to its end; record its error in `errors`."""
        task = asyncio.current_task()
        assert task is not None
        up = asyncio.get_running_loop().create_future()
        carriage = ConnectorTraffic(self.outbox, self.inboxes, up, lambda _reason: task.cancel())
        try:
            await client.run(PeerEndpoint("127.0.0.1", port, tls, path=path), carriage)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.errors.append(error)
        finally:
            carriage.close()

    @contextlib.asynccontextmanager
    async def connected(self, client: ConnectorClient, port: int, **endpoint: Any) -> Any:
        """Run a connection in the background, cancelled at the end. `endpoint`: as `connect` takes it."""
        task = asyncio.ensure_future(self.connect(client, port, **endpoint))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
