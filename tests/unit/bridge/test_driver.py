"""The driver over a real socket, with peers that do not read (`bridge.transport.driver`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from bridge.transport.dialed import transport_over
from bridge.transport.driver import ConnectionDriver
from bridge.transport.served import UnreadError
from tests.support.serving import close
from tests.support.talkative import ANSWER, IdleOwner, LateConnection, TalkativeConnection

UNREAD_BYTES_MAX = 1 << 20
SENT = 400_000


async def until_it_stops(connection: TalkativeConnection) -> int:
    """Return the count of bytes read once the connection stops reading for a while."""
    seen = -1
    while seen != connection.received:
        seen = connection.received
        await asyncio.sleep(0.3)  # the test waits for the absence of events
    return seen


@pytest.mark.parametrize("bounded", [True, False])
def test_peer_that_does_not_read_its_answers_is_not_read(bounded: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connection = TalkativeConnection()
        made: list[ConnectionDriver] = []
        gone = asyncio.Event()

        def accept() -> ConnectionDriver:
            limit = UNREAD_BYTES_MAX if bounded else None
            made.append(
                ConnectionDriver(
                    connection,
                    lambda _: IdleOwner(),
                    write_bytes_max=1 << 16,
                    unread_bytes_max=limit,
                    gone=lambda _: gone.set(),
                )
            )
            return made[0]

        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        listening.bind(("127.0.0.1", 0))
        server = await loop.create_server(accept, sock=listening)
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        peer.setblocking(False)
        await loop.sock_connect(peer, listening.getsockname())
        sending = loop.create_task(loop.sock_sendall(peer, bytes(SENT)))
        taken = await until_it_stops(connection)
        assert (taken < SENT) is bounded, "the limit, what the kernel takes, and the answers to a read or two"
        answered = 0
        while answered < SENT * len(ANSWER):
            data = await asyncio.wait_for(loop.sock_recv(peer, 1 << 20), 20)
            assert data
            answered += len(data)
        await sending
        assert connection.received == SENT
        await close(server)
        made[0].abort()
        async with asyncio.timeout(10):
            await gone.wait()
        peer.close()

    asyncio.run(scenario())


def test_dialed_peer_that_does_not_read_is_disconnected() -> None:
    """The driver drops a dialled peer that does not read, as both might wait for each other."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connection, made = TalkativeConnection(), list[ConnectionDriver]()
        gone = asyncio.Event()

        def make() -> ConnectionDriver:
            made.append(
                ConnectionDriver(
                    connection,
                    lambda _: IdleOwner(),
                    write_bytes_max=1 << 16,
                    unread_bytes_max=UNREAD_BYTES_MAX,
                    dialed=True,
                    gone=lambda _: gone.set(),
                )
            )
            return made[0]

        with socket.socket() as listening, socket.socket() as near:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            near.connect(listening.getsockname())
            near.setblocking(False)
            far, _ = listening.accept()
            with far:
                far.setblocking(False)
                await transport_over(socket.socket(fileno=near.detach()), make)
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(far, bytes(SENT))
                async with asyncio.timeout(10):
                    await gone.wait()
        assert isinstance(made[0].lost, UnreadError)
        assert "does not read its data" in str(made[0].lost)
        assert connection.received < SENT

    asyncio.run(scenario())


def test_read_without_an_answer_writes_nothing_and_keeps_its_deadline() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connection = LateConnection()
        connection.deadline = loop.time()
        gone = asyncio.Event()
        server = await loop.create_server(
            lambda: ConnectionDriver(
                connection, lambda _: IdleOwner(), write_bytes_max=1 << 16, gone=lambda _: gone.set()
            ),
            "127.0.0.1",
            0,
        )
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10):
            while connection.timeouts < 3:  # each timeout sets the next one, with nothing to write
                await asyncio.sleep(0.001)
            connection.deadline = loop.time() + 3600
            asked = -1
            while asked != connection.asked:
                asked = connection.asked
                await asyncio.sleep(0.1)  # the slots that were taken before have run
            for total in range(1, 6):
                writer.write(b"x")
                while connection.received < total:
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert connection.asked == asked
        await close(server)
        writer.close()
        async with asyncio.timeout(10):
            await gone.wait()

    asyncio.run(scenario())


def test_connection_without_a_deadline_is_watched_once_it_has_one() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connection, gone = LateConnection(), asyncio.Event()
        server = await loop.create_server(
            lambda: ConnectionDriver(
                connection, lambda _: IdleOwner(), write_bytes_max=1 << 16, gone=lambda _: gone.set()
            ),
            "127.0.0.1",
            0,
        )
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10):
            for total in range(1, 6):
                writer.write(b"x")
                while connection.received < total:
                    await asyncio.sleep(0.001)
            assert connection.asked <= 1, "when the connection was made"
            assert not connection.timeouts
            connection.deadline = loop.time()
            connection.has_output = True  # as a connection reports when a deadline moves closer
            writer.write(b"x")
            while not connection.timeouts:
                await asyncio.sleep(0.001)
        await close(server)
        writer.close()
        async with asyncio.timeout(10):
            await gone.wait()

    asyncio.run(scenario())
