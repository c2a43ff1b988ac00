"""A connection with much work shares the time of the loop with others (`bridge.transport.slow_lane`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver
from bridge.transport.slow_lane import LARGE_BYTES, SLICE_S, TURN_S, slow_lane_of
from tests.support.serving import close
from tests.support.talkative import IdleOwner, TalkativeConnection

CALL_S = 2 * SLICE_S
"""Time of one call of the machine: more than the slice of a connection."""
CALLS = 12
"""Calls that one byte takes."""
WAIT_S = 20.0


class Laborious(TalkativeConnection):
    """Connection that needs many calls for each byte, and records each call."""

    def __init__(self, noted: list[str], *, raises_after: int | None = None) -> None:
        super().__init__()
        self._noted = noted
        self._left = ""
        self._raises_after = raises_after

    @property
    def more(self) -> bool:  # type: ignore[override]
        return bool(self._left)

    def receive_data(self, data: bytes, now: float) -> Sequence[object]:
        self._left += "".join(each * CALLS for each in data.decode())
        if self._left:
            time.sleep(CALL_S)  # simulates work
            self._noted.append(self._left[0])
            self._left = self._left[1:]
            if len(self._noted) == self._raises_after:
                raise ValueError("in a later call")
        return ()

    def receive_eof(self, now: float) -> Sequence[object]:
        self._left = ""
        return ()

    def data_to_send(self) -> bytes:
        return b""


class Quick(TalkativeConnection):
    """Connection that records a dot for each byte, and answers it."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__()
        self._noted = noted

    def receive_data(self, data: bytes, now: float) -> Sequence[object]:
        self._noted.append(".")
        return super().receive_data(data, now)


class Served:
    """Connections over sockets, each with one machine."""

    def __init__(self) -> None:
        self.drivers: list[ConnectionDriver] = []
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, connection: ConnectionMachine) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        def accept() -> ConnectionDriver:
            self.drivers.append(ConnectionDriver(connection, lambda _: IdleOwner(), write_bytes_max=1 << 16))
            return self.drivers[-1]

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for server in self._servers:
            await close(server)
        for writer in self._writers:
            writer.close()
        for driver in self.drivers:
            driver.abort()
        for _ in range(3):
            await asyncio.sleep(0)  # the transports close


async def ping_until(noted: list[str], count: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send pings one after the other, until `count` other events have been recorded."""
    async with asyncio.timeout(WAIT_S):
        while len("".join(noted).replace(".", "")) < count:
            writer.write(b"x")
            await reader.readexactly(100)


def test_other_connections_have_their_turn_between_slices() -> None:
    async def scenario() -> None:
        served, noted = Served(), list[str]()
        _, busy = await served.connect(Laborious(noted))
        reader, writer = await served.connect(Quick(noted))
        busy.write(b"a")
        await ping_until(noted, CALLS, reader, writer)
        rows = [len(row) for row in "".join(noted).split(".")]
        assert max(rows) <= CALLS // 3, "a call that crosses the slice is completed, and the next is of another turn"
        await served.close()

    asyncio.run(scenario())


def test_busy_connections_take_turns_and_keep_their_order() -> None:
    async def scenario() -> None:
        served, noted = Served(), list[str]()
        writers = [(await served.connect(Laborious(noted)))[1] for _ in range(3)]
        reader, writer = await served.connect(Quick(noted))
        for name, busy in zip("abc", writers, strict=True):
            busy.write(name.encode())
        await asyncio.sleep(0)
        for name, busy in zip("ABC", writers, strict=True):
            busy.write(name.encode())
        await ping_until(noted, 6 * CALLS, reader, writer)
        history = "".join(noted).replace(".", "")
        for small in "abc":
            mine = [each for each in history if each.lower() == small]
            assert mine == [small] * CALLS + [small.upper()] * CALLS, "what was sent later is taken later"
        first_half = history[: 3 * CALLS].lower()
        assert min(first_half.count(small) for small in "abc") >= CALLS // 2, "nobody waits for the end of another"
        await served.close()

    asyncio.run(scenario())


def test_exception_or_close_between_slices_ends_that_connection_alone() -> None:
    async def scenario() -> None:
        served, noted, lost = Served(), list[str](), list[str]()
        _, failing = await served.connect(Laborious(lost, raises_after=3))
        _, leaving = await served.connect(Laborious(lost))
        reader, writer = await served.connect(Quick(noted))
        failing.write(b"f")
        leaving.write(b"l")
        async with asyncio.timeout(WAIT_S):
            while not {"f", "l"} <= set(lost):
                await asyncio.sleep(0)
            served.drivers[1].abort()
            while slow_lane_of(asyncio.get_running_loop()).waiting or lost.count("f") < 2:
                writer.write(b"x")
                await reader.readexactly(100)
        assert lost.count("f") < CALLS
        assert lost.count("l") < CALLS
        await served.close()

    asyncio.run(scenario())


def test_large_reads_beyond_the_share_of_a_turn_wait_in_order() -> None:
    async def scenario() -> None:
        served, noted = Served(), list[str]()
        connection = Quick(noted)
        reader, writer = await served.connect(connection)
        writer.write(b"x")
        await reader.readexactly(100)
        lane, driver = slow_lane_of(asyncio.get_running_loop()), served.drivers[0]
        driver.data_received(bytes(LARGE_BYTES + 1))
        taken = connection.received
        assert taken == LARGE_BYTES + 2, "there is time"
        lane.spend(TURN_S)
        driver.data_received(b"x")
        assert connection.received == taken + 1, "a small one is taken as it comes"
        driver.data_received(bytes(LARGE_BYTES + 1))
        driver.data_received(b"x")
        assert connection.received == taken + 1, "a large one waits, and what comes behind it too"
        async with asyncio.timeout(WAIT_S):
            while connection.received < taken + 1 + LARGE_BYTES + 2:
                await asyncio.sleep(0)
        assert lane.has_time
        assert not lane.waiting
        await served.close()

    asyncio.run(scenario())


class Doorkeeper:
    """Meter that admits every connection."""

    def begun(self, driver: ConnectionDriver) -> None: ...

    def identified(self, driver: ConnectionDriver, user: str) -> bool:
        return True

    def held(self, driver: ConnectionDriver, held_bytes: int) -> None: ...

    def ended(self, driver: ConnectionDriver) -> None: ...


def test_reads_of_unidentified_peers_wait_at_any_size() -> None:
    async def scenario() -> None:
        lane = slow_lane_of(asyncio.get_running_loop())
        connection = Quick([])
        driver = ConnectionDriver(connection, lambda _: IdleOwner(), write_bytes_max=1 << 16, meter=Doorkeeper())
        driver.connection_made(Ended())
        lane.spend(TURN_S)
        driver.data_received(b"x")
        assert not connection.received
        async with asyncio.timeout(WAIT_S):
            while not connection.received:
                await asyncio.sleep(0)
        assert driver.identified("pump")
        lane.spend(TURN_S)
        driver.data_received(b"x")
        assert connection.received == 2

    asyncio.run(scenario())


class Ended(asyncio.Transport):
    """Transport without a socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Leaving(TalkativeConnection):
    """Connection that needs time to end."""

    def __init__(self, told: list[int], number: int) -> None:
        super().__init__()
        self._told = told
        self._number = number

    def receive_eof(self, now: float) -> Sequence[object]:
        time.sleep(SLICE_S)  # simulates work
        self._told.append(self._number)
        return ()


def test_connections_that_end_together_are_reported_once_in_turns() -> None:
    async def scenario() -> None:
        told: list[int] = []
        gone: list[ConnectionDriver] = []
        drivers = []
        for number in range(20):
            connection = Leaving(told, number)
            drivers.append(ConnectionDriver(connection, lambda _: IdleOwner(), write_bytes_max=1, gone=gone.append))
            drivers[-1].connection_made(Ended())
        for driver in drivers:
            driver.connection_lost(None)
            assert driver.transport is None, "nothing is written any more"
        at_once = len(told)
        assert 0 < at_once <= TURN_S / SLICE_S + 1
        async with asyncio.timeout(WAIT_S):
            while len(gone) < len(drivers):
                before = len(told)
                await asyncio.sleep(0)
                assert len(told) - before <= TURN_S / SLICE_S + 1
        assert told == list(range(20))
        assert gone == drivers
        assert not slow_lane_of(asyncio.get_running_loop()).waiting

    asyncio.run(scenario())
