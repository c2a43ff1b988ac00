"""Proton's Python client over sockets, against the broker's AMQP side: engine, driver, session and router."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from proton import ConnectionException, Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection, SyncRequestResponse

from bridge.engine import Engine
from bridge.sasl import SaslServer
from bridge.transport.driver import ConnectionDriver
from edge.broker.amqp.session import AmqpSession
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.router.router import Router
from tests.support.amqp_client import detached_with
from tests.support.memory_store import MemoryStore
from tests.support.serving import close

TIMEOUT_S = 10


def authenticate(mechanism: str, identity: str, secret: bytes) -> str | None:
    return identity if secret == b"s3cret" else None


class Server:
    """The broker's AMQP side on its own loop and thread; clients block in the test's thread."""

    def __init__(self, sasl: Callable[[], SaslServer]) -> None:
        self.url = ""
        self._sasl = sasl
        self._ready = Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        store = MemoryStore(post=loop.call_soon_threadsafe)
        rules = [AddressRule(f"{kind.value}/#", kind) for kind in AddressType]

        def flush_soon() -> None:
            loop.call_soon(router.flush)

        router = Router(store, AddressTable(rules), clock_ns=lambda: 1, flush_soon=flush_soon)
        drivers: set[ConnectionDriver] = set()

        def accept() -> ConnectionDriver:
            engine = Engine(container_id="broker", server=True, sasl=self._sasl(), now=loop.time())
            driver = ConnectionDriver(
                engine, lambda d: AmqpSession(d, engine, router), write_bytes_max=1 << 18, gone=drivers.discard
            )
            drivers.add(driver)
            return driver

        server = await loop.create_server(accept, "127.0.0.1", 0)
        self.url = f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        await close(server)
        for driver in list(drivers):
            driver.abort()
        while drivers:
            await asyncio.sleep(0)
        store.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(lambda: SaslServer(authenticate, anonymous="anonymous")) as running:
        yield running


@contextmanager
def connected(server: Server, **options: Any) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(server.url, timeout=TIMEOUT_S, **options)
    try:
        yield connection
    finally:
        connection.close()


def test_message_is_unchanged_after_a_queue(server: Server) -> None:
    sent = Message(
        body={"t": 21.5},
        durable=True,
        id="id-1",
        correlation_id="c-1",
        reply_to="replies",
        subject="s",
        content_type="application/json",
        properties={"unit": "C", "n": 3},
    )
    with connected(server) as connection:
        sender = connection.create_sender("queue/a")
        assert sender.send(sent).remote_state == Delivery.ACCEPTED
        receiver = connection.create_receiver("queue/a")
        received = receiver.receive(timeout=TIMEOUT_S)
        receiver.accept()
        for field in ("body", "durable", "id", "correlation_id", "reply_to", "subject", "content_type", "properties"):
            assert getattr(received, field) == getattr(sent, field)


def test_large_message_is_unchanged_after_a_queue(server: Server) -> None:
    body = bytes(range(256)) * 8192
    with connected(server) as connection:
        receiver = connection.create_receiver("queue/a")
        connection.create_sender("queue/a").send(Message(body=body))
        received = receiver.receive(timeout=TIMEOUT_S)
        receiver.accept()
        assert bytes(received.body) == body


def test_released_message_is_delivered_again(server: Server) -> None:
    with connected(server) as connection:
        connection.create_sender("queue/a").send(Message(body="x"))
        receiver = connection.create_receiver("queue/a", credit=1)
        assert receiver.receive(timeout=TIMEOUT_S).body == "x"
        receiver.release(delivered=False)
        assert receiver.receive(timeout=TIMEOUT_S).body == "x"
        receiver.accept()


def test_request_and_reply(server: Server) -> None:
    class Answer(MessagingHandler):
        def __init__(self) -> None:
            super().__init__()
            self.relay: Any = None
            self.listening = Event()

        def on_start(self, event: Any) -> None:
            connection = event.container.connect(server.url)
            event.container.create_receiver(connection, "anycast/echo")
            self.relay = event.container.create_sender(connection, None)

        def on_link_opened(self, event: Any) -> None:
            self.listening.set()

        def on_message(self, event: Any) -> None:
            asked = event.message
            self.relay.send(
                Message(address=asked.reply_to, body=asked.body.upper(), correlation_id=asked.correlation_id)
            )
            event.connection.close()

    answer = Answer()
    thread = Thread(target=Container(answer).run)
    thread.start()
    try:
        assert answer.listening.wait(TIMEOUT_S)
        with connected(server) as connection:
            reply = SyncRequestResponse(connection, "anycast/echo").call(Message(body="hello"))
            assert reply.body == "HELLO"
    finally:
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_every_message_of_a_burst_is_accepted(server: Server) -> None:
    count = 3000

    class Send(MessagingHandler):
        def __init__(self) -> None:
            super().__init__()
            self.sent = self.accepted = 0

        def on_start(self, event: Any) -> None:
            event.container.create_sender(event.container.connect(server.url), "queue/a")

        def on_sendable(self, event: Any) -> None:
            while event.sender.credit and self.sent < count:
                event.sender.send(Message(body=b"x" * 100))
                self.sent += 1

        def on_accepted(self, event: Any) -> None:
            self.accepted += 1
            if self.accepted == count:
                event.connection.close()

    handler = Send()
    Container(handler).run()
    assert handler.accepted == count


def test_refused_links_have_a_condition(server: Server) -> None:
    with connected(server) as connection:
        with detached_with("amqp:invalid-field"):
            connection.create_sender("topic/#")
        assert connection.create_sender("queue/a")  # the connection still works


def test_plain_authentication(server: Server) -> None:
    options = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True, "user": "joe"}
    with connected(server, password="s3cret", **options) as connection:
        connection.create_sender("queue/a").send(Message(body="x"))
    with pytest.raises(ConnectionException, match=r"unauthorized|Authentication"):
        BlockingConnection(server.url, timeout=TIMEOUT_S, password="no", **options)


def test_garbage_closes_only_its_own_connection(server: Server) -> None:
    host, port = server.url.removeprefix("amqp://").split(":")
    with connected(server) as connection:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00" + b"\xff" * 64, b"\x10\x04MQTT" * 9):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as raw:
                raw.sendall(garbage)
                while raw.recv(4096):
                    pass
        assert connection.create_sender("queue/a").send(Message(body="x")).remote_state == Delivery.ACCEPTED
