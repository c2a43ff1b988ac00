"""A peer counts as silent only while the gateway reads.

A broker on real sockets does not read, or is busy, for longer than a peer may stay silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import shutil
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import uvloop
from wsproto import ConnectionType, WSConnection, events

from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.borrowed import socket_of
from bridge.transport.driver import ANSWERS_UNREAD, ConnectionDriver
from edge.broker.configuration import BrokerConfiguration, DeviceTls, Listener, Protocol
from edge.broker.limits import Limits
from edge.broker.model.addresses import AddressType
from edge.broker.mqtt import packets
from edge.broker.mqtt.limits import KEEP_ALIVE_GRACE
from edge.broker.server import Broker
from tests.support.certificates import Authority
from tests.support.memory_store import MemoryStore
from tests.support.processes import edge, standing_still

WAIT_S: Final = 20.0
KEEP_ALIVE_S: Final = 1
IDLE_S: Final = 1.0
"""Idle time-out of AMQP; MQTT has whole seconds only."""
PAUSE: Final = "a test reads nothing"

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""Heartbeat of AMQP (section 2.4.5)."""
OPEN: Final = b"\x00\x00\x00\x18\x02\x00\x00\x00\x00\x53\x10\xc0\x0b\x05\xa1\x02me\x40\x40\x40\x70"
"""Open frame (section 2.7.1) of container `me` up to the idle time-out, in ms, which follows."""


class Spoken(NamedTuple):
    """Bytes of one protocol that a peer sends."""

    protocol: Protocol
    hello: bytes
    welcome: bytes
    """Bytes in the gateway's answer to the opening."""
    heartbeat: bytes
    silence_s: float
    """Longest silence that the gateway allows."""


MQTT: Final = Spoken(
    Protocol.MQTT,
    packets.Connect("me", 4, keep_alive_s=KEEP_ALIVE_S).encode(4),
    b"\x20\x02\x00\x00",
    packets.PingReq().encode(4),
    KEEP_ALIVE_S * KEEP_ALIVE_GRACE,
)
PUBLISHER: Final = MQTT._replace(heartbeat=packets.Publish("queue/a", b"x", 1, packet_id=1).encode(4))
"""Publisher without pings: each message is a sign of life. The fast path in C reads it, if it is built."""


def amqp(idle_ms: int) -> Spoken:
    """Build the AMQP peer; `idle_ms` is the time in which it expects a frame."""
    frame = bytearray(OPEN + struct.pack(">I", idle_ms))
    frame[3] = len(frame)
    frame[12] = len(frame) - 13
    return Spoken(Protocol.AMQP, b"AMQP\x00\x01\x00\x00" + bytes(frame), b"\x00\x53\x10", EMPTY_FRAME, IDLE_S)


AMQP: Final = amqp(int(IDLE_S * 1000))


class Peer:
    """Peer over a blocking socket."""

    def __init__(self, spoken: Spoken, way: str, port: int) -> None:
        self.spoken = spoken
        self.connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._frames = WSConnection(ConnectionType.CLIENT) if way == "websocket" else None
        if way == "tls":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.connection = context.wrap_socket(self.connection)
        if self._frames is not None:
            target = events.Request(f"127.0.0.1:{port}", "/", subprotocols=[spoken.protocol.value])
            self.connection.sendall(self._frames.send(target))
            self._until(b"\r\n\r\n")

    def greet(self) -> None:
        self.send(self.spoken.hello)
        self._until(self.spoken.welcome)

    def send(self, data: bytes) -> None:
        self.connection.sendall(data if self._frames is None else self._frames.send(events.BytesMessage(data)))

    def beat(self) -> None:
        self.send(self.spoken.heartbeat)

    def heard(self) -> bytes:
        """Return the bytes received since the last call. Raises EOFError or ConnectionError after a disconnect."""
        self.connection.setblocking(False)
        found = bytearray()
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while data := self.connection.recv(1 << 16):
                found += data
            raise EOFError
        self.connection.setblocking(True)
        return bytes(found)

    def vanish(self) -> None:
        """Drop all incoming data by a socket filter (socket(7)), so that the peer never answers."""
        drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K: 0 bytes pass
        program = struct.pack("HL", 1, ctypes.addressof(drop))
        self.connection.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER

    def _until(self, wanted: bytes) -> None:
        said = b""
        while wanted not in said:
            data = self.connection.recv(1 << 16)
            assert data, said
            said += data
            if self._frames is not None and b"\r\n\r\n" in said:
                self._frames.receive_data(said[: said.index(b"\r\n\r\n") + 4])
                assert any(isinstance(each, events.AcceptConnection) for each in self._frames.events())


class Served(NamedTuple):
    peer: Peer
    driver: ConnectionDriver

    @property
    def ended(self) -> bool:
        return self.driver.transport is None or self.driver.connection.closed

    async def until_ended(self, within_s: float) -> None:
        """Wait for the disconnect. Heartbeats of the gateway have their time while the peer is not read."""
        async with asyncio.timeout(within_s):
            while not self.ended:
                await asyncio.sleep(0.01)

    def limited(self, **options: int) -> None:
        """Set options of tcp(7) so that the kernel's time-outs are as short as the test needs."""
        assert self.driver.transport is not None
        with socket_of(self.driver.transport.get_extra_info("descriptor")) as ours:
            for name, value in options.items():
                ours.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> DeviceTls | None:
    if shutil.which("openssl") is None:
        return None
    issued = Authority(tmp_path_factory.mktemp("authority")).issue("localhost")
    return DeviceTls(certificate=issued.certificate, key=issued.key)


def skip_without(tls: DeviceTls | None, ways: Sequence[str]) -> None:
    if "tls" in ways and tls is None:
        pytest.skip("openssl is not installed")


@contextlib.asynccontextmanager
async def served(spoken: Spoken, way: str, tls: DeviceTls | None) -> AsyncIterator[Served]:
    """Yield a peer that is connected to a broker in this loop and known to it."""
    listener = Listener(spoken.protocol, ListenEndpoint("127.0.0.1", 0), way == "websocket", way == "tls")
    configuration = BrokerConfiguration(
        gateway="gw1",
        listeners=(listener,),
        default_type=AddressType.QUEUE,
        tls=tls,
        limits=Limits(idle_timeout_s=IDLE_S),
    )
    store = MemoryStore(post=asyncio.get_running_loop().call_soon_threadsafe)
    broker = Broker(configuration, store, resident=lambda: 0)
    port = (await broker.start())[listener.name][1]
    peer = await asyncio.to_thread(Peer, spoken, way, port)
    try:
        await asyncio.to_thread(peer.greet)
        for _ in range(2):
            peer.beat()
            await asyncio.sleep(0.05)
        (driver,) = broker.listeners.drivers()
        yield Served(peer, driver)
    finally:
        peer.connection.close()
        await broker.stop()
        await asyncio.to_thread(store.close)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run in the production event loop, which handles timers before readable sockets."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario)


GROUPS: Final = [
    *(pytest.param((AMQP,), (way,), id=f"amqp-{way}") for way in ("tcp", "tls", "websocket")),
    pytest.param((MQTT, PUBLISHER), ("tcp", "websocket"), id="mqtt"),
    pytest.param((MQTT, PUBLISHER), ("tls",), id="mqtt-tls"),
]
"""Peers with the same limit, and their transports. The peers of a group wait at the same time, each at its broker."""


@pytest.mark.parametrize(("peers", "ways"), GROUPS)
def test_paused_peer_is_not_silent(peers: Sequence[Spoken], ways: Sequence[str], tls: DeviceTls | None) -> None:
    """A peer that is not read for three times its limit stays: it has sent all along, and receives heartbeats where the
    protocol has them both ways.
    """

    async def pause_and_resume(spoken: Spoken, way: str) -> None:
        async with served(spoken, way, tls) as it:
            it.driver.pause_reading(PAUSE)
            until = time.monotonic() + 3 * spoken.silence_s
            it.peer.heard()
            while time.monotonic() < until:
                it.peer.beat()
                await asyncio.sleep(spoken.silence_s / 4)
            assert not it.ended, way
            said = it.peer.heard()
            if spoken is AMQP:
                assert len(said) >= 3 * len(EMPTY_FRAME), way
            it.driver.resume_reading(PAUSE)
            for _ in range(8):
                it.peer.beat()
                await asyncio.sleep(spoken.silence_s / 4)
            assert not it.ended, way

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            for spoken in peers:
                for way in ways:
                    group.create_task(pause_and_resume(spoken, way))

    skip_without(tls, ways)
    run(scenario())


@pytest.mark.parametrize(("peers", "ways"), GROUPS)
def test_unread_data_in_the_socket_counts(peers: Sequence[Spoken], ways: Sequence[str], tls: DeviceTls | None) -> None:
    """The loop is busy for longer than the limit; data in the socket counts although timers run first."""
    silence_s = peers[0].silence_s

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            all_served = [await stack.enter_async_context(served(spoken, way, tls)) for spoken in peers for way in ways]
            loop = asyncio.get_running_loop()
            for it in all_served:
                it.peer.beat()
            await asyncio.sleep(0.6 * silence_s)  # AMQP checks for received data at its next tick
            somebody, ours = socket.socketpair()
            taken = asyncio.Event()

            def take_long() -> None:
                loop.remove_reader(ours)
                taken.set()
                time.sleep(0.3 * silence_s)
                for it in all_served:
                    it.peer.beat()
                time.sleep(1.1 * silence_s)

            loop.add_reader(ours, take_long)
            with somebody, ours:
                somebody.send(b"x")
                await taken.wait()
            await asyncio.sleep(silence_s / 8)
            assert not [it.peer.spoken.protocol for it in all_served if it.ended]

    skip_without(tls, ways)
    run(scenario())


@pytest.mark.parametrize("spoken", [AMQP, MQTT], ids=["amqp", "mqtt"])
def test_peer_that_vanished_while_paused_is_found_on_resume(spoken: Spoken, tls: DeviceTls | None) -> None:
    async def scenario() -> None:
        async with served(spoken, "tcp", tls) as it:
            it.driver.pause_reading(PAUSE)
            it.peer.beat()
            await asyncio.sleep(2 * spoken.silence_s)
            assert not it.ended
            it.driver.resume_reading(PAUSE)
            await it.until_ended(WAIT_S)

    run(scenario())


@pytest.mark.parametrize("spoken", [AMQP, MQTT], ids=["amqp", "mqtt"])
def test_peer_that_closes_while_paused_is_removed(spoken: Spoken, tls: DeviceTls | None) -> None:
    """Unread data of a closed connection is lost, as in each connection that breaks."""

    async def scenario() -> None:
        async with served(spoken, "tcp", tls) as it:
            it.driver.pause_reading(PAUSE)
            await asyncio.sleep(1.5 * spoken.silence_s)
            it.peer.beat()
            it.peer.connection.close()
            await it.until_ended(WAIT_S)

    run(scenario())


def test_paused_peer_that_does_not_acknowledge_heartbeats_is_found(tls: DeviceTls | None) -> None:
    """The kernel detects this in its own time (tcp_retries2 of tcp(7): 15 minutes), which the test shortens."""

    async def scenario() -> None:
        async with served(AMQP, "tcp", tls) as it:
            it.driver.pause_reading(PAUSE)
            it.limited(TCP_USER_TIMEOUT=600)
            it.peer.vanish()
            await it.until_ended(WAIT_S)

    run(scenario())


@pytest.mark.parametrize("spoken", [amqp(0), MQTT], ids=["amqp", "mqtt"])
def test_paused_peer_that_vanishes_without_heartbeats_is_found_by_keepalive(
    spoken: Spoken, tls: DeviceTls | None
) -> None:
    """The kernel probes the peer in its own time (tcp_keepalive_time of tcp(7): 2 hours), which the test shortens."""

    async def scenario() -> None:
        async with served(spoken, "tcp", tls) as it:
            it.driver.pause_reading(PAUSE)
            it.limited(TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_KEEPCNT=1)
            it.peer.vanish()
            await it.until_ended(WAIT_S)

    run(scenario())


@pytest.mark.parametrize("spoken", [AMQP, MQTT], ids=["amqp", "mqtt"])
def test_peer_that_does_not_read_answers_counts_as_silent(spoken: Spoken, tls: DeviceTls | None) -> None:
    """A peer that does not read the answers decides itself that it is not read, so it counts as silent."""

    async def scenario() -> None:
        async with served(spoken, "tcp", tls) as it:
            it.driver.pause_reading(ANSWERS_UNREAD)
            it.peer.beat()
            await it.until_ended(WAIT_S)

    run(scenario())


def test_suspended_process_disconnects_no_peer(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {limits: {idleTimeoutS: 1}}}\n---\n"
        "{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default},"
        " spec: {authenticationService: {name: none}}}\n"
    )
    with edge(tmp_path, "gw", "--config", str(tmp_path / "gateway.yaml")) as gateway, contextlib.ExitStack() as stack:
        peers = [Peer(spoken, "tcp", gateway.port(spoken.protocol.value)) for spoken in (MQTT, AMQP)]
        for peer in peers:
            stack.enter_context(contextlib.closing(peer.connection))
            peer.greet()
        for _ in range(2):
            with standing_still(gateway.pid):
                for _ in range(5):
                    time.sleep(0.5)
                    for peer in peers:
                        peer.beat()
            for _ in range(5):
                time.sleep(0.1)
                for peer in peers:
                    peer.beat()
        for peer in peers:
            peer.heard()
