"""RabbitMQ and ActiveMQ Artemis as the peer of two gateways: what is left after the broker has died."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import plain
from tests.bench.peers import Artemis, BrokerMissing, RabbitMQ
from tests.integration.forwarders.gateways import Gateway, Receiver, Sender, amqp_to, gateways
from tests.integration.forwarders.test_amqp import into, out, payloads

Peer = RabbitMQ | Artemis

MESSAGES = 100_000
RESTART_AT = (25_000, 60_000)
"""Messages acknowledged here when the peer is killed."""


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


def kill(peer: Peer) -> None:
    """As a power cut would, but for the page cache."""
    for process in peer._processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


async def carry(peer: Peer, messages: int, restart_at: tuple[int, ...] = (), timeout_s: float = 60.0) -> None:
    """From one gateway to the other over a queue of the peer; asserts that each is there once, in order."""
    async with gateways("gw1", "gw2") as (one, two):
        reader = Receiver(two.broker, "plant/#", "reader")
        port, queue = peer.port("amqp"), peer.queue(0)
        await one.configure(amqp_to(port), out("f", "plant/#", queue))
        await two.configure(amqp_to(port), into("f", "plant/#", queue))
        sender = Sender(one.broker)
        restarts = list(restart_at)
        for start in range(0, messages, 250):
            sender.publish("plant/7", *[b"%d" % i for i in range(start, start + 250)])
            await asyncio.sleep(0.002)
            if restarts and start >= restarts[0]:
                del restarts[0]
                await asyncio.to_thread(kill, peer)
                await asyncio.to_thread(peer.__enter__)
        deadline = time.monotonic() + timeout_s
        while sum(len(run) for run in reader.runs) < messages or one.connector().backlog:
            assert time.monotonic() < deadline, said(one, two, reader)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # what comes twice comes now
        got = payloads(reader)
        names = Counter(plain.parse(body).name for run in reader.runs for body in run.bodies)
        print(said(one, two, reader))
        assert len(set(got)) == messages, "0 lost"
        assert sum(names.values()) - len(names) == len(got) - messages, "what came twice has the same name twice"
        assert len(got) == messages, "and is kept once"
        assert got == [b"%d" % i for i in range(messages)], "in order"


def said(one: Gateway, two: Gateway, reader: Receiver) -> str:
    """For people, when it does not end."""
    inbound, outlet = two.connector().inboxes[0], one.connector().outbox.outlets[0]
    states = [gateway.connector().dialer.state for gateway in (one, two)]
    return f"{sum(map(len, reader.runs))} there; {outlet.figures}; {inbound.figures}; {states}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_queue_of_rabbitmq(rabbitmq: RabbitMQ) -> None:
    asyncio.run(carry(rabbitmq, 2_000))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_peer_that_is_killed_twice(artemis: Artemis) -> None:
    asyncio.run(carry(artemis, MESSAGES, RESTART_AT, timeout_s=240.0))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_queue_of_artemis(artemis: Artemis) -> None:
    asyncio.run(carry(artemis, 2_000))
