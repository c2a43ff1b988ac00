"""Forwarders over AMQP between gateways: both ways, remapped, over breaks and changes of configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

from bridge import plain
from edge.broker.configuration import Direction, Forwarder
from tests.integration.forwarders.gateways import Receiver, Sender, amqp_to, eventually, gateways


def scenario(run: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """A test on a loop of its own."""

    @wraps(run)
    def test() -> None:
        asyncio.run(run())

    return test


def out(name: str, pattern: str, remote: str, **fields: object) -> Forwarder:
    return Forwarder(name=name, filter=pattern, connector="peer", remote_address=remote, **fields)  # type: ignore[arg-type]


def into(name: str, pattern: str, remote: str, **fields: object) -> Forwarder:
    return out(name, pattern, remote, direction=Direction.IN, **fields)


def payloads(receiver: Receiver) -> list[bytes]:
    return [plain.body_of(body) for run in receiver.runs for body in run.bodies]


@scenario
async def test_out_to_an_address_with_other_names() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        await near.configure(amqp_to(far.port), out("f", "plant/#", "queue/of/#"))
        reader = Receiver(far.broker, "queue/of/7")
        Sender(near.broker).publish("plant/7", *[b"%d" % i for i in range(2_000)])
        await eventually(lambda: len(payloads(reader)) == 2_000)
        assert payloads(reader) == [b"%d" % i for i in range(2_000)]
        await eventually(lambda: near.connector().backlog == 0)
        assert near.connector().figures.messages_accepted == 2_000


@scenario
async def test_in_from_a_queue_of_the_peer() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(near.broker, "queue/here")
        await near.configure(amqp_to(far.port), into("f", "queue/here", "queue/there"))
        Sender(far.broker).publish("queue/there", *[b"%d" % i for i in range(2_000)])
        await eventually(lambda: len(payloads(reader)) == 2_000)
        assert payloads(reader) == [b"%d" % i for i in range(2_000)]
        await eventually(lambda: near.connector().inboxes[0].figures.accepted == 2_000)
        await eventually(lambda: far.store.info().messages == 0, "the far side has forgotten them")
