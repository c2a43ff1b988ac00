"""Endpoints in their written form, and the times of new attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bridge.backoff import Backoff, BackoffPolicy
from bridge.dialer import AttemptError, Dialer, PeerEndpoint


@pytest.mark.parametrize(
    ("url", "endpoint", "text"),
    [
        ("amqp://hub:5700", PeerEndpoint("hub", 5700), "amqp://hub:5700"),
        ("amqp://hub", PeerEndpoint("hub", 5672), "amqp://hub:5672"),
        ("amqps://hub/", PeerEndpoint("hub", 5671, tls=True), "amqps://hub:5671"),
        ("amqp://[::1]:1", PeerEndpoint("::1", 1), "amqp://[::1]:1"),
    ],
)
def test_endpoint_is_parsed(url: str, endpoint: PeerEndpoint, text: str) -> None:
    assert PeerEndpoint.parse(url) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize("url", ["hub:5672", "http://hub", "amqp://", "amqp://hub/queue", "amqp://hub:99999", ""])
def test_invalid_endpoints_raise(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        PeerEndpoint.parse(url)


class _Refusing:
    """Attempt at a peer that asks the dialler to stay away."""

    up = False

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        raise AttemptError("busy", 50.0)

    def end(self, reason: str) -> None: ...

    def abort(self) -> None: ...


def test_pause_requested_by_the_peer_is_respected(caplog: pytest.LogCaptureFixture) -> None:
    async def dial() -> None:
        backoff = Backoff(BackoffPolicy(first_s=0.01, limit_s=0.02), lambda: 0.5)
        dialer = Dialer([PeerEndpoint("h", 1, scheme="http")], lambda _dialer, _endpoint: _Refusing(), backoff=backoff)
        dialer.start()
        async with asyncio.timeout(10):
            while "next attempt" not in caplog.text:
                await asyncio.sleep(0.005)
        await dialer.close()

    with caplog.at_level("INFO", "bridge.dialer"):
        asyncio.run(dial())
    assert "not connected: http://h:1: busy; next attempt in 50.0 s" in caplog.text


class _Peers:
    """Attempts at ports; some of them connect and then lose the link at once."""

    def __init__(self, dials: int, answering: set[int]) -> None:
        self.dialled: list[int] = []
        self.enough = asyncio.Event()
        self._dials, self._answering = dials, answering

    def attempt(self, dialer: Dialer, endpoint: PeerEndpoint) -> _Answering:
        self.dialled.append(endpoint.port)
        if len(self.dialled) >= self._dials:
            self.enough.set()
        return _Answering(dialer, endpoint.port in self._answering)


class _Answering:
    """Attempt that connects and ends, or that gets no answer."""

    def __init__(self, dialer: Dialer, answers: bool) -> None:
        self.up = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dialer, self._answers = dialer, answers

    async def run(self) -> None:
        if not self._answers:
            raise TimeoutError
        self.up = True
        self._dialer.up("peer")
        self._dialer.down("cut")

    def end(self, reason: str) -> None: ...

    def abort(self) -> None: ...


def dialled(dials: int, *, answering: set[int], resumed: bool = False) -> list[int]:
    """Return the ports of the first attempts at a peer with the endpoints 1, 2 and 3."""

    async def dial() -> list[int]:
        peers = _Peers(dials, answering)
        wait_s = 60.0 if resumed else 0.001  # a resumed dialler does not wait
        backoff = Backoff(BackoffPolicy(first_s=wait_s, limit_s=wait_s), lambda: 0.5)
        dialer = Dialer([PeerEndpoint("h", port) for port in (1, 2, 3)], peers.attempt, backoff=backoff)
        dialer.start()
        async with asyncio.timeout(10):
            await peers.enough.wait()
            if resumed:
                peers.enough.clear()
                dialer.pause()
                dialer.resume()
                await peers.enough.wait()
        await dialer.close()
        return peers.dialled[: dials + resumed]

    return asyncio.run(dial())


def test_reconnect_starts_with_the_last_good_endpoint() -> None:
    assert dialled(6, answering={2}) == [1, 2, 2, 2, 2, 2]
    assert dialled(4, answering={1, 2}) == [1, 1, 1, 1]
    assert dialled(6, answering=set()) == [1, 2, 3, 1, 2, 3]


def test_resume_starts_with_the_preferred_endpoint() -> None:
    assert dialled(3, answering={3}, resumed=True) == [1, 2, 3, 1]


class _Peer:
    """A peer that refuses every attempt until `takes` is set; later ones connect."""

    def __init__(self) -> None:
        self.takes = False
        self.attempts = 0
        self.standing: asyncio.Future[None] | None = None

    def attempt(self, dialer: Dialer, _endpoint: PeerEndpoint) -> _Standing:
        self.attempts += 1
        return _Standing(self, dialer)


class _Standing(_Refusing):
    """One attempt at a `_Peer`."""

    def __init__(self, peer: _Peer, dialer: Dialer) -> None:
        super().__init__()
        self._peer, self._dialer = peer, dialer

    async def run(self) -> None:
        if not self._peer.takes:
            raise AttemptError("revoked")
        await asyncio.sleep(0)  # an attempt takes time, in which other tasks run
        self._peer.standing = self.gone
        self.up = True
        self._dialer.up("peer")
        await self.gone
        self._dialer.down("ended")

    def end(self, reason: str) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def _waits_long(peer: _Peer, shown: Callable[[], object]) -> Dialer:
    backoff = Backoff(BackoffPolicy(first_s=3_600.0, limit_s=3_600.0), lambda: 0.5)
    return Dialer([PeerEndpoint("h", 1)], peer.attempt, backoff=backoff, stamps=shown)


def test_replaced_certificate_ends_the_wait() -> None:
    async def dial() -> None:
        peer, files = _Peer(), ["old"]
        dialer = _waits_long(peer, lambda: files[0])
        dialer.start()
        await _until(lambda: dialer.state.last_error is not None)
        dialer.check_files()
        await asyncio.sleep(0)
        assert peer.attempts == 1
        peer.takes, files[0] = True, "new"
        dialer.check_files()
        await _until(lambda: dialer.state.connected)
        assert peer.attempts == 2
        await dialer.close()

    asyncio.run(dial())


def test_replaced_certificate_does_not_affect_a_connection_or_a_pause() -> None:
    async def dial() -> None:
        peer, files = _Peer(), ["old"]
        peer.takes = True
        dialer = _waits_long(peer, lambda: files[0])
        dialer.start()
        await _until(lambda: dialer.state.connected)
        files[0] = "renewed"
        dialer.check_files()
        assert dialer.state.connected
        assert peer.standing is not None
        peer.standing.set_result(None)
        await _until(lambda: not dialer.state.connected)
        dialer.check_files()  # the connection had read the renewed file: its loss waits as usual
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.attempts == 1
        dialer.pause()
        files[0] = "another"
        dialer.check_files()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (peer.attempts, dialer.state.paused) == (1, True)
        dialer.resume()
        await _until(lambda: dialer.state.connected)
        assert peer.attempts == 2
        await dialer.close()

    asyncio.run(dial())


def test_request_during_a_successful_attempt_causes_no_second_one() -> None:
    async def dial() -> None:
        peer = _Peer()
        peer.takes = True
        dialer = _waits_long(peer, lambda: None)
        dialer.start()
        await asyncio.sleep(0)
        assert peer.attempts == 1
        dialer.resume()
        await _until(lambda: dialer.state.connected)
        assert peer.standing is not None
        peer.standing.set_result(None)
        await _until(lambda: not dialer.state.connected)
        for _ in range(10):
            await asyncio.sleep(0)
        assert peer.attempts == 1
        await dialer.close()

    asyncio.run(dial())


def test_resume_while_connected_does_not_shorten_a_later_wait() -> None:
    async def dial() -> None:
        peer = _Peer()
        peer.takes = True
        dialer = _waits_long(peer, lambda: None)
        dialer.start()
        await _until(lambda: dialer.state.connected)
        dialer.resume()
        assert peer.standing is not None
        peer.standing.set_result(None)
        await _until(lambda: not dialer.state.connected)
        for _ in range(20):  # turns of the loop in which a nudge would end the wait
            await asyncio.sleep(0)
        assert peer.attempts == 1
        await dialer.close()

    asyncio.run(dial())
