"""Connections that leave by one network interface."""

from __future__ import annotations

import asyncio
import socket

import pytest

from bridge import connecting
from bridge.dialer import AttemptError
from tests.support.serving import serving


def by(interface: str) -> bool:
    async def run() -> bool:
        async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with serving(close) as port:
            opened = await connecting.socket_by(interface, "127.0.0.1", port)
            with opened:
                return opened.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).startswith(interface.encode())

    return asyncio.run(run())


def test_connection_uses_the_interface() -> None:
    try:
        assert by("lo")
    except AttemptError as error:
        pytest.skip(f"no right to bind to an interface: {error}")


def test_missing_interface_raises() -> None:
    with pytest.raises(AttemptError, match=r"nosuch0"):
        by("nosuch0")


def test_missing_capability_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    class Guarded(socket.socket):
        setsockopt = refuse  # type: ignore[assignment]

    monkeypatch.setattr(connecting.socket, "socket", Guarded)
    with pytest.raises(AttemptError, match=r"CAP_NET_RAW"):
        asyncio.run(connecting.socket_by("lo", "127.0.0.1", 1))
