"""The medium under a running gateway fails and recovers: no acknowledgement during the failure, service afterwards."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from proton import Message

from bridge.message import AMQP
from edge.appliance.store.figures import figures_of
from edge.appliance.store.recovery.inspection import Inspection
from edge.appliance.store.recovery.verification import verify
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.store.segment import decode
from edge.broker.store.sqlite import FILE_NAME
from tests.fault.kills.checker import Consumed, Kill, Produced, judge, judge_ring
from tests.fault.kills.clients import AmqpProducer, MqttConsumer
from tests.fault.kills.load import RESOURCES, RING, given
from tests.support.hostile import Raw
from tests.support.medium import Files, Medium
from tests.support.problems import await_problem, await_recovery, health
from tests.support.processes import Waypost, edge, free_port, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Medium]:
    (tmp_path / "gw").mkdir()
    with Medium(tmp_path / "gw", folder=tmp_path) as medium:
        yield medium


@pytest.fixture
def gateway(tmp_path: Path, medium: Medium) -> Iterator[Waypost]:
    gateway = edge(tmp_path, "gw", f"--mqtt=127.0.0.1:{free_port()}")
    gateway.environment = medium.environment
    with gateway:
        yield gateway


FAULTS: dict[str, Callable[[Medium], None]] = {
    "full": lambda medium: medium.limit(20_000),
    "write EIO": lambda medium: medium.fail(Files.ALL, write=errno.EIO),
    "sync EIO": lambda medium: medium.fail(Files.ALL, sync=errno.EIO),
    "read-only": lambda medium: medium.fail(Files.ALL, write=errno.EROFS, sync=errno.EROFS, opening=errno.EROFS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_service_resumes_after_medium_recovers(gateway: Waypost, medium: Medium, fault: str) -> None:
    port = gateway.port("mqtt")
    consumer = MqttConsumer("kept", port, "topic/kept", 1)
    publisher = Publisher("sender", port, "topic/kept", window=5)
    consumer.start()
    assert consumer.ready.wait(WAIT_S)
    publisher.start()
    wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
    FAULTS[fault](medium)
    wait_until(lambda: medium.count("failures") > 5, timeout_s=WAIT_S, what="commits fail")
    before = len(publisher.acked)
    failures = medium.count("failures")
    wait_until(lambda: medium.count("failures") > failures + 5, timeout_s=WAIT_S, what="commits are tried again")
    assert len(publisher.acked) == before, "nothing is acked that is not on the medium"
    await_problem(gateway.port("http"), "store", "commit")
    medium.heal()
    wait_until(lambda: len(publisher.acked) > before + 50, timeout_s=WAIT_S, what="messages are acked again")
    await_recovery(gateway.port("http"), "store")
    publisher.end()
    gateway.kill()  # acked messages must not depend on this process's memory
    gateway.start()
    acked = set(publisher.acked)
    wait_until(
        lambda: acked <= {body for _, body in consumer.consumed.got}, timeout_s=WAIT_S, what="all of it was delivered"
    )
    consumer.end()
    verdict = judge([Produced("sender", publisher.acked, publisher.sent)], [consumer.consumed], [Kill(0.0, 1e12)])
    assert not [problem for problem in verdict.problems if "again" not in problem], verdict.problems


def test_unreadable_backlog_is_reported_while_it_lasts(gateway: Waypost, medium: Medium) -> None:
    port = gateway.port("mqtt")
    for address in ("queue/stuck", "queue/other"):
        publisher = Publisher("sender", port, address, window=50)
        publisher.start()
        wait_until(partial(_acked, publisher, 2_000), timeout_s=WAIT_S, what="a backlog is there")
        publisher.end()
    assert gateway.stop() == 0
    gateway.start()
    http = gateway.port("http")
    medium.fail(Files.ALL, read=errno.EIO)
    with Raw(gateway) as consumer:
        consumer.connect("consumer").send(packets.Subscribe(1, (SubscriptionRequest("queue/stuck", 0),)))
        await_problem(http, "store", "read of log")
        for _ in range(40):  # some 2 s, with an attempt each second
            assert health(http)[0] == 503
            time.sleep(0.05)
        medium.heal()
        while not isinstance(consumer.receive(), packets.Publish):
            pass
        await_recovery(http, "store")


def _acked(publisher: Publisher, count: int) -> bool:
    return len(publisher.acked) > count


def test_figures_are_exact_after_full_medium_has_room(tmp_path: Path, medium: Medium) -> None:
    """Figures are exact after a full medium has room again.

    The medium is filled to the last byte under load and freed, three times, with a queue that drops its oldest
    messages.
    """
    (tmp_path / "gateway.yaml").write_text(RESOURCES)
    mqtt, amqp = free_port(), free_port()
    listeners = (f"--mqtt=127.0.0.1:{mqtt}", f"--amqp=127.0.0.1:{amqp}")
    data = tmp_path / "gw"
    arguments = ("run", "--data", str(data), "--config", str(tmp_path / "gateway.yaml"), *listeners)
    gateway = Waypost(tmp_path / "gw.log", *arguments)
    gateway.environment = medium.environment
    with gateway:
        addresses = {"ringA": RING, "keptA": "queue/kept"}
        producers = [AmqpProducer(name, amqp, address, may_be_full=True) for name, address in addresses.items()]
        publishers = [Publisher("ring1", mqtt, RING, window=5), Publisher("kept1", mqtt, "queue/kept", window=5)]
        everyone: list[AmqpProducer | Publisher] = [*producers, *publishers]
        for producer in everyone:
            producer.start()
        for room in (0, 7_000, 30_000):
            before = [len(producer.acked) for producer in everyone]
            wait_until(partial(_more, everyone, before), timeout_s=WAIT_S, what="all are acked")
            failures = medium.count("failures")
            medium.limit(room)
            wait_until(partial(_failing, medium, failures + 5), timeout_s=WAIT_S, what="commits fail")
            medium.heal()
        before = [len(producer.acked) for producer in everyone]
        wait_until(partial(_more, everyone, before), timeout_s=WAIT_S, what="all are acked again")
        for producer in everyone:
            producer.end()
        assert gateway.stop() == 0
    produced = [Produced(producer.name, producer.acked, producer.sent) for producer in everyone]
    figures = figures_of(data / FILE_NAME)
    assert {log.name: log.bytes for log in figures.logs} == bytes_on_disk(data), "what is counted is what is there"
    assert next(log.bytes for log in figures.logs if log.name == f"queue {RING}") <= 2000, "the quota held"
    assert not verify(data / FILE_NAME).findings
    left = Consumed("left", got=[(0.0, body) for body in bodies_on_disk(data, f"queue {RING}")])
    assert not judge_ring(produced[::2], left, given(data, RING, RING)).problems
    kept = Consumed("kept", got=[(0.0, body) for body in bodies_on_disk(data, "queue queue/kept")])
    assert not judge(produced[1::2], [kept], []).problems


def _failing(medium: Medium, beyond: int) -> bool:
    return medium.count("failures") > beyond


def _more(everyone: list[AmqpProducer | Publisher], before: list[int]) -> bool:
    return all(len(producer.acked) > count + 20 for producer, count in zip(everyone, before, strict=True))


def bytes_on_disk(data: Path) -> dict[str, int]:
    """Return the sum of body bytes by log."""
    with Inspection.open(data / FILE_NAME) as inspection:
        return {
            log.name: sum(row.body_bytes for row in inspection.segments_inside(log.log)) for log in inspection.logs()
        }


def bodies_on_disk(data: Path, log: str) -> list[bytes]:
    """Return the bodies of a log, oldest first, as they were sent."""
    bodies: list[bytes] = []
    with Inspection.open(data / FILE_NAME) as inspection:
        facts = next(facts for facts in inspection.logs() if facts.name == log)
        for row in inspection.segments(facts.log, facts.first):
            for _, _, run in decode(row, facts.first):
                bodies += map(_payload, run.bodies) if run.flags & AMQP else run.bodies
    return bodies


def _payload(body: bytes) -> bytes:
    message = Message()
    message.decode(body)
    return bytes(message.body)
