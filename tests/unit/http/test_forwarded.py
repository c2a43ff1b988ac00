"""Addresses of clients behind trusted proxies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from edge.broker.http.forwarded import PROXIES_MAX, ForwardedClients, ProxyNetwork, client_behind

PROXIES = [ProxyNetwork.parse("10.0.0.0/8"), ProxyNetwork.parse("2001:db8::7")]


@pytest.mark.parametrize(
    ("peer", "fields", "client"),
    [
        ("10.0.0.7", [b"192.0.2.1"], "192.0.2.1"),
        ("10.0.0.7", [b"198.51.100.9, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.7", [b"198.51.100.9", b"192.0.2.1, 10.0.0.8"], "192.0.2.1"),
        ("10.0.0.7", [b"192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.7", [b"[2001:db8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.7", [b"::ffff:192.0.2.1"], "192.0.2.1"),
        ("2001:db8::7", [b"2001:db8::1"], "2001:db8::1"),
        ("10.0.0.7", [b"unknown, 10.0.0.8"], "10.0.0.8"),
        ("10.0.0.7", [b""], "10.0.0.7"),
        ("10.0.0.7", [], "10.0.0.7"),
        ("192.0.2.1", [b"198.51.100.9"], "192.0.2.1"),
        ("2001:db8::8", [b"198.51.100.9"], "2001:db8::8"),
        ("/run/socket", [b"198.51.100.9"], "/run/socket"),
    ],
)
def test_only_trusted_proxies_name_a_client(peer: str, fields: list[bytes], client: str) -> None:
    assert client_behind(peer, fields, PROXIES) == client


def test_chain_is_read_to_a_limit() -> None:
    chain = ["192.0.2.1", *(f"10.0.1.{number}" for number in range(PROXIES_MAX))]
    assert client_behind("10.0.0.7", [", ".join(chain[1:]).encode()], PROXIES) == "10.0.1.0"
    assert client_behind("10.0.0.7", [", ".join(chain).encode()], PROXIES) == "10.0.1.0"
    assert client_behind("10.0.0.7", [", ".join(chain[:-1]).encode()], PROXIES) == "192.0.2.1"


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "10.0.0.1/8", "proxy.example", ""])
def test_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"give "):
        ProxyNetwork.parse(text)


def test_application_sees_the_client() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["client"])

    async def ask(*fields: tuple[bytes, bytes], kind: str = "http") -> None:
        scope = {"type": kind, "client": ("10.0.0.7", 4711), "headers": list(fields)}
        await ForwardedClients(app, PROXIES)(scope, None, None)  # type: ignore[arg-type]

    async def test() -> None:
        await ask((b"x-forwarded-for", b"192.0.2.1"))
        await ask((b"forwarded", b"for=192.0.2.1"))
        await ask((b"x-forwarded-for", b"192.0.2.1"), kind="lifespan")

    asyncio.run(test())
    assert seen == [("192.0.2.1", 0), ("10.0.0.7", 4711), ("10.0.0.7", 4711)]
