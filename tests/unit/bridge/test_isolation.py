"""An exception of a machine or its owner ends that connection alone (`bridge.transport.driver`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge.engine import Link, Transfers
from bridge.transport.deadlines import deadlines_of
from bridge.transport.driver import ConnectionDriver, ConnectionOwner

PAYLOAD = b"the pressure of vessel 7"


class Fault(Exception):
    """Exception that the tests raise."""


class StubTransport(asyncio.Transport):
    """Keep written bytes; `abort` notifies the driver in the next turn of the loop, as asyncio does."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = 0
        self.driver: ConnectionDriver | None = None

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted += 1
        if self.aborted == 1 and self.driver is not None:
            asyncio.get_running_loop().call_soon(self.driver.connection_lost, None)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 5672) if name == "peername" else default


class Echo:
    """Machine that echoes its input, and raises in the calls that the test names."""

    closed = False
    more = False

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.held_bytes = 0
        self.raise_at = ""
        self.output = b""
        self.ends = 0

    def _step(self, name: str) -> None:
        if self.raise_at == name:
            raise Fault(name)

    def receive_data(self, data: bytes, now: float) -> Sequence[object]:
        self._step("receive_data")
        self.output += data
        return [Transfers(Link(None, None, "s", is_sender=False, ours=False), range(1), [PAYLOAD], settled=False)]

    def receive_eof(self, now: float) -> Sequence[object]:
        self._step("receive_eof")
        self.ends += 1
        return ["closed"]

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[object]:
        self.deadline = None
        self._step("handle_timeout")
        return ["timeout"]

    def shed(self) -> Sequence[object]:
        return ()

    @property
    def spoken(self) -> str:
        return ""

    @property
    def has_output(self) -> bool:
        return True

    def data_to_send(self) -> bytes:
        self._step("data_to_send")
        output, self.output = self.output, b""
        return output


class Session:
    """Owner that raises in the calls that the test names."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.raise_at = ""

    def handle(self, events: Sequence[object]) -> None:
        self.events += events
        if self.raise_at == "handle" and events != ["closed"]:
            raise KeyError(PAYLOAD)
        if self.raise_at == "closed" and events == ["closed"]:
            raise Fault("closed")

    def writable(self) -> None:
        if self.raise_at == "writable":
            raise Fault("writable")


class Side:
    """One driver with its machine and its owner."""

    def __init__(self, make: Callable[[ConnectionDriver], ConnectionOwner] | None = None) -> None:
        self.machine, self.session, self.transport = Echo(), Session(), StubTransport()
        self.gone: list[ConnectionDriver] = []
        self.driver = ConnectionDriver(
            self.machine, make or (lambda _: self.session), write_bytes_max=1 << 16, gone=self.gone.append
        )
        self.transport.driver = self.driver
        self.driver.connection_made(self.transport)


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def raising_maker(_: ConnectionDriver) -> ConnectionOwner:
    raise Fault("owner")


def by_machine(name: str) -> Callable[[Side], None]:
    def provoke(side: Side) -> None:
        side.machine.raise_at = name
        side.driver.data_received(b"x")

    return provoke


def by_handle(side: Side) -> None:
    side.session.raise_at = "handle"
    side.driver.data_received(b"x")


def by_writable(side: Side) -> None:
    side.session.raise_at = "writable"
    side.driver.resume_writing()


def by_timer(side: Side) -> None:
    side.machine.raise_at = "handle_timeout"
    side.machine.deadline = 0.0
    side.driver.check_deadline()


def by_turn(side: Side) -> None:
    def fault() -> None:
        raise Fault("a later turn")

    side.driver.soon(fault)


def by_wake(side: Side) -> None:
    side.machine.raise_at = "receive_data"
    side.driver.wake()


WAYS = {
    "receive_data": by_machine("receive_data"),
    "data_to_send": by_machine("data_to_send"),
    "handle": by_handle,
    "writable": by_writable,
    "timer": by_timer,
    "a later turn": by_turn,
    "wake": by_wake,
}


@pytest.mark.parametrize("way", WAYS)
def test_connection_ends_and_is_logged_once(way: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        side, other = Side(), Side()

        WAYS[way](side)
        await turns()
        side.driver.data_received(b"more")
        side.driver.flush_soon()
        other.driver.data_received(b"on it goes")
        await turns()

        assert side.transport.aborted
        assert side.gone == [side.driver]
        assert side.machine.ends == 1
        assert side.session.events[-1] == "closed", "what it held is given back"
        assert side.driver.owner is None
        assert not other.transport.aborted
        assert other.transport.written == b"on it goes"

    asyncio.run(scenario())
    [error] = errors(caplog)
    assert "192.0.2.1:5672" in error.getMessage()


def test_log_shows_no_payload(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        side = Side()
        by_handle(side)
        await turns()

    asyncio.run(scenario())
    assert "KeyError" in caplog.text
    assert "in handle" in errors(caplog)[0].__dict__["frames"]
    assert "vessel" not in caplog.text


def test_owner_that_cannot_be_created_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        side = Side(raising_maker)
        await turns()

        assert side.transport.aborted
        assert side.gone == [side.driver]

    asyncio.run(scenario())
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize("where", ["machine", "owner"])
def test_exception_at_the_end_is_contained(where: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        side = Side()
        side.machine.raise_at = "receive_eof" if where == "machine" else ""
        side.session.raise_at = "closed" if where == "owner" else ""

        side.driver.connection_lost(None)
        await turns()

        assert side.gone == [side.driver], "its place is free"
        assert side.driver.owner is None

    asyncio.run(scenario())
    assert len(errors(caplog)) == 1


def test_exception_on_a_timer_does_not_affect_other_timers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        sides = [Side() for _ in range(3)]
        now = asyncio.get_running_loop().time()
        for side in sides:
            side.machine.deadline = now
        sides[0].machine.raise_at = "handle_timeout"
        await turns()
        async with asyncio.timeout(5):
            while not all("timeout" in side.session.events for side in sides[1:]):
                await asyncio.sleep(0.01)

        assert sides[0].transport.aborted
        assert not sides[1].transport.aborted
        assert not deadlines_of(asyncio.get_running_loop())._order

    asyncio.run(scenario())
    assert len(errors(caplog)) == 1
