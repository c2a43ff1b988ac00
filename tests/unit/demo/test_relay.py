"""The relay acts as a network: it carries both ways, and a cut resets open connections and refuses new ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.demo.ports import FROM, TO, free_ports
from tests.demo.relay import Relay
from tests.support.serving import serving


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    await writer.drain()
    return await reader.readexactly(len(data))


def test_relay_carries_is_cut_and_carries_again() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), serving(echo) as target:
            relay = Relay(free_ports(1)[0], target)
            await relay.open()
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            big = bytes(range(256)) * 2_000
            assert await exchange(reader, writer, big) == big

            await relay.close()
            await relay.close()
            assert relay.cut
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await exchange(reader, writer, b"lost")
            writer.transport.abort()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", relay.port)

            await relay.open()
            assert not relay.cut
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            assert await exchange(reader, writer, b"back") == b"back"
            writer.transport.abort()
            await relay.close()

    asyncio.run(main())


def test_unreachable_target_ends_the_connection() -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            port, nobody = free_ports(2)
            relay = Relay(port, nobody)
            await relay.open()
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.transport.abort()
            await relay.close()

    asyncio.run(main())


def test_ports_are_distinct_free_and_outside_the_ephemeral_range() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(FROM <= port < TO for port in ports)
    with pytest.raises(OSError, match="fewer than"):
        free_ports(TO - FROM + 1)
