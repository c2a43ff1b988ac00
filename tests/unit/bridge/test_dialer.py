"""Endpoints as people write them, and when a peer is called again."""

from __future__ import annotations

import asyncio

import pytest

from bridge.backoff import Backoff, BackoffPolicy
from bridge.dialer import AttemptError, Dialer, Endpoint


@pytest.mark.parametrize(
    ("url", "endpoint", "text"),
    [
        ("amqp://hub:5700", Endpoint("hub", 5700), "amqp://hub:5700"),
        ("amqp://hub", Endpoint("hub", 5672), "amqp://hub:5672"),
        ("amqps://hub/", Endpoint("hub", 5671, tls=True), "amqps://hub:5671"),
        ("amqp://[::1]:1", Endpoint("::1", 1), "amqp://[::1]:1"),
    ],
)
def test_endpoint(url: str, endpoint: Endpoint, text: str) -> None:
    assert Endpoint.parse(url) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("url", ["hub:5672", "http://hub", "amqp://", "amqp://hub/queue", "amqp://hub:99999", ""])
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(url)


class _Refusing:
    """An attempt at a peer that asks to be left alone."""

    up = False

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        raise AttemptError("busy", 50.0)

    def end(self, reason: str) -> None: ...

    def abort(self) -> None: ...


def test_a_peer_that_asks_to_be_left_alone_is(caplog: pytest.LogCaptureFixture) -> None:
    async def dial() -> None:
        backoff = Backoff(BackoffPolicy(first_s=0.01, limit_s=0.02), lambda: 0.5)
        dialer = Dialer([Endpoint("h", 1, scheme="http")], lambda _dialer, _endpoint: _Refusing(), backoff=backoff)
        dialer.start()
        async with asyncio.timeout(10):
            while "next attempt" not in caplog.text:
                await asyncio.sleep(0.005)
        await dialer.close()

    with caplog.at_level("INFO", "bridge.dialer"):
        asyncio.run(dial())
    assert "not connected: http://h:1: busy; next attempt in 50.0 s" in caplog.text
