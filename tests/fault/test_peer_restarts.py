"""100 000 messages to other vendors' peers, with two restarts of the peer and a kill of the gateway.

No message that was acknowledged to its sender is missing at the peer, and duplicates have names. The peers are
Mosquitto and an HTTP server, and Kafka where a broker is available (Maven and Java).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.command import run_waypost
from tests.support.kafka import Kafka, kafka_jars
from tests.support.mosquitto import Listener, Mosquitto, installed
from tests.support.processes import Waypost, free_port, wait_until
from tests.support.publisher import Publisher
from tests.support.uplink import uplink
from tests.support.web_peer import Reply, Request, WebPeer

MESSAGES = 100_000
PUBLISHERS = 4

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: gw1}}
spec:
  listeners: {{mqtt: "127.0.0.1:{mqtt}", http: "127.0.0.1:0"}}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {{name: default}}
spec:
  connectors: [{{name: peer, type: {type}, endpointHosts: [{{host: 127.0.0.1, port: {peer}}}]}}]
---
apiVersion: waypost/v1
kind: Address
metadata: {{name: default.plant}}
spec: {{address: "plant/#", type: topic, forwarders: [{{name: all, remoteAddress: "peer/{remote}"}}]}}
"""


class Peer(Protocol):
    """Peer that restarts, and the messages that it has received."""

    port: int

    def restart(self) -> None: ...

    def got(self) -> list[bytes]: ...


def crossed(folder: Path, kind: str, remote: str, peer: Peer) -> tuple[list[bytes], Counter[bytes]]:
    """Return the messages acknowledged to their senders, and the count of each at the peer in the end."""
    mqtt = free_port()
    file, data = folder / "gateway.yaml", folder / "gw1"
    file.write_text(GATEWAY.format(mqtt=mqtt, type=kind, peer=peer.port, remote=remote))
    applied = run_waypost("apply", "--data", str(data), "-f", str(file))
    assert applied.returncode == 0, applied.stderr
    gateway = Waypost(folder / "gw1.log", "run", "--data", str(data))
    publishers = [Publisher(f"p{i}", mqtt, f"plant/{i}") for i in range(PUBLISHERS)]
    with gateway:
        for publisher in publishers:
            publisher.start()
        for part, happens in enumerate((peer.restart, gateway.kill, peer.restart), 1):
            reached = part * MESSAGES // 4
            wait_until(lambda reached=reached: _acked(publishers) >= reached, timeout_s=300, what="messages are taken")
            wait_until(lambda: uplink(gateway)["state"] == "connected", timeout_s=60, what="messages are under way")
            happens()
            if happens == gateway.kill:
                gateway.start()
        wait_until(lambda: _acked(publishers) >= MESSAGES, timeout_s=300, what="messages are taken")
        for publisher in publishers:
            publisher.end()
        wait_until(lambda: uplink(gateway).get("backlog_messages") == 0, timeout_s=300, what="all cross", every_s=0.5)
        acked = [body for publisher in publishers for body in publisher.acked]
        missing = set(acked)

        def arrived() -> bool:
            missing.difference_update(peer.got())
            return not missing

        wait_until(
            arrived, timeout_s=120, what=f"the peer has them; some are missing: {list(missing)[:3]}", every_s=1.0
        )
    return acked, Counter(peer.got())


def _acked(publishers: list[Publisher]) -> int:
    return sum(len(publisher.acked) for publisher in publishers)


def _check(folder: Path, kind: str, remote: str, peer: Peer) -> None:
    acked, got = crossed(folder, kind, remote, peer)
    twice = sum(count - 1 for count in got.values())
    print(f"{kind}: {len(acked)} acknowledged, {len(got)} at the peer, {twice} of them again")
    assert len(acked) >= MESSAGES
    assert set(acked) <= set(got)


class _Mosquitto:
    def __init__(self, broker: Mosquitto, listener: Listener) -> None:
        self.port, self.restart = broker.port, broker.restart
        self._listener = listener

    def got(self) -> list[bytes]:
        return [payload for _, payload in self._listener.messages]


@installed
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restarts_of_mosquitto_lose_no_message(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path / "mosquitto")
    with broker.running(), Listener(broker.port, "cloud/#").listening() as listener:
        _check(tmp_path, "mqtt", "cloud/#", _Mosquitto(broker, listener))


class _Web:
    """Server that drops repeated requests and messages by their names."""

    def __init__(self) -> None:
        self.port = free_port()
        self._bodies: list[bytes] = []
        self._names: set[tuple[str, str, int]] = set()
        self.repeated = 0
        self._thread: threading.Thread | None = None
        self._end: Callable[[], None] = lambda: None

    def answer(self, request: Request) -> Reply:
        for item in json.loads(request.body):
            name = (item["epoch"], item.get("source") or item["address"], item["sequence"])
            self.repeated += name in self._names
            if name not in self._names:
                self._names.add(name)
                self._bodies.append(item["body"].encode())
        return Reply()

    def got(self) -> list[bytes]:
        return list(self._bodies)

    def start(self) -> None:
        ready = threading.Event()

        async def serve() -> None:
            ended, loop = asyncio.Event(), asyncio.get_running_loop()
            self._end = lambda: loop.call_soon_threadsafe(ended.set)
            async with WebPeer(self.answer).serving(port=self.port):
                ready.set()
                await ended.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        assert ready.wait(20)

    def stop(self) -> None:
        self._end()
        assert self._thread is not None
        self._thread.join(20)

    def restart(self) -> None:
        self.stop()
        time.sleep(1)  # it is away for a while
        self.start()


@contextmanager
def serving(web: _Web) -> Iterator[_Web]:
    web.start()
    try:
        yield web
    finally:
        web.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restarts_of_http_server_lose_no_message(tmp_path: Path) -> None:
    with serving(_Web()) as web:
        acked, got = crossed(tmp_path, "http", "cloud/#", web)
    print(f"http: {len(acked)} acknowledged, {len(got)} at the server, {web.repeated} came again and were found out")
    assert set(acked) <= set(got)
    assert max(got.values()) == 1, "a message that comes again bears the same name"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_restarts_of_kafka_lose_no_message(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka", kafka_jars()).running() as broker:
        broker.create("cloud")
        acked, got = crossed(tmp_path, "kafka", "cloud", broker)
        names, order = broker.names(), broker.order()
    twice = sum(count - 1 for count in names.values())
    print(f"kafka: {len(acked)} acknowledged, {len(got)} at the broker, {twice} records again, under the same name")
    assert set(acked) <= set(got)
    assert len(names) == len(got), "a duplicate bears the name of the first"
    for numbers in order.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first), "in order, but for what came again"
