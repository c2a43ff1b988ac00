"""RabbitMQ and ActiveMQ Artemis between two gateways: no message is lost when the broker is killed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import plain
from bridge.message import AMQP
from tests.bench.peers import Artemis, BrokerMissing, RabbitMQ
from tests.integration.forwarders.gateways import (
    Gateway,
    Receiver,
    Sender,
    amqp_to,
    eventually,
    gateways,
    into,
    out,
    payloads,
)

Peer = RabbitMQ | Artemis

MESSAGES = 100_000
RESTART_AT = (25_000, 60_000)
"""Counts of messages at the second gateway at which the peer is killed."""
FEW = 2_000


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[RabbitMQ]:
    try:
        with RabbitMQ(tmp_path) as peer:
            yield peer
    except BrokerMissing as missing:
        pytest.skip(f"no RabbitMQ: {missing}")


@pytest.fixture
def artemis() -> Iterator[Artemis]:
    try:
        with Artemis() as peer:
            yield peer
    except BrokerMissing as missing:
        pytest.skip(f"no Artemis: {missing}")


async def carry(peer: Peer, messages: int, restart_at: tuple[int, ...] = (), timeout_s: float = 120.0) -> None:
    """Carry messages between the gateways over a queue of the peer; each arrives once, in order.

    `timeout_s` bounds the gateways: the restart of the peer does not count.
    """
    async with gateways("gw1", "gw2") as (one, two):
        reader = Receiver(two.broker, "plant/#", "reader")
        port, queue = peer.port("amqp"), peer.queue(0)
        await one.configure(amqp_to(port), out("f", "plant/#", queue))
        await two.configure(amqp_to(port), into("f", "plant/#", queue))
        sender = Sender(one.broker)
        restarts, sent, looked_at = list(restart_at), 0, 0
        there: set[bytes] = set()
        deadline = time.monotonic() + timeout_s
        while len(there) < messages or one.connector().backlog:
            if sent < messages:
                sender.publish("plant/7", *[b"%d" % i for i in range(sent, sent + 250)])
                sent += 250
            there.update(plain.body_of(body) for run in reader.runs[looked_at:] for body in run.bodies)
            looked_at = len(reader.runs)
            if restarts and len(there) >= restarts[0]:
                del restarts[0]
                killed_at = time.monotonic()
                await asyncio.to_thread(peer.kill)
                await asyncio.to_thread(peer.__enter__)
                deadline += time.monotonic() - killed_at
            if time.monotonic() > deadline:
                counters = await asyncio.to_thread(peer.counters) if isinstance(peer, RabbitMQ) else ""
                raise AssertionError(f"{said(one, two, reader)}\n{counters}")
            await asyncio.sleep(0.002 if sent < messages else 0.05)
        await asyncio.sleep(0.5)  # duplicates arrive now
        got = payloads(reader)
        names = Counter(plain.parse(body).name for run in reader.runs for body in run.bodies)
        print(said(one, two, reader))
        assert len(set(got)) == messages, "0 lost"
        assert sum(names.values()) - len(names) == len(got) - messages, "what came twice has the same name twice"
        assert len(got) == messages, "and is kept once"
        assert got == [b"%d" % i for i in range(messages)], "in order"


def said(one: Gateway, two: Gateway, reader: Receiver) -> str:
    """Describe the progress in the error of a timeout."""
    inbound, outlet = two.connector().inboxes[0], one.connector().outbox.outlets[0]
    states = [gateway.connector().dialer.state for gateway in (one, two)]
    return f"{sum(map(len, reader.runs))} there; {outlet.figures}; {inbound.figures}; {states}"


async def keep(peer: RabbitMQ) -> None:
    """Messages that were accepted from a sender without durable survive a clean restart."""
    port, queue = peer.port("amqp"), peer.queue(1)
    unsaid = [plain.data_section(b"%d" % i) for i in range(FEW)]
    async with gateways("gw1", "gw2") as (one, two):
        await one.configure(amqp_to(port), out("f", "plant/#", queue))
        Sender(one.broker).publish("plant/9", *unsaid, flags=AMQP | 1)
        await eventually(lambda: one.connector().figures.messages_accepted == FEW)
        await one.configure(None)
        await asyncio.to_thread(peer.stop)
        await asyncio.to_thread(peer.__enter__)
        reader = Receiver(two.broker, "plant/#", "reader")
        await two.configure(amqp_to(port), into("f", "plant/#", queue))
        await eventually(lambda: len(payloads(reader)) == FEW, "they are there after the restart")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rabbitmq_persists_messages_that_their_sender_did_not_mark_durable(rabbitmq: RabbitMQ) -> None:
    asyncio.run(keep(rabbitmq))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_message_is_lost_when_rabbitmq_is_killed(rabbitmq: RabbitMQ) -> None:
    asyncio.run(carry(rabbitmq, FEW, (FEW // 4,)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_message_is_lost_when_rabbitmq_is_killed_twice(rabbitmq: RabbitMQ) -> None:
    asyncio.run(carry(rabbitmq, MESSAGES, RESTART_AT, timeout_s=480.0))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_message_is_lost_when_artemis_is_killed_twice(artemis: Artemis) -> None:
    asyncio.run(carry(artemis, MESSAGES, RESTART_AT, timeout_s=480.0))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_messages_cross_a_queue_of_artemis(artemis: Artemis) -> None:
    asyncio.run(carry(artemis, FEW))
