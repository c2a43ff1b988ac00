"""A connector of type `amqp` fetches messages that an application left at an address of the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

from proton import Message
from proton.utils import BlockingConnection

from bridge import plain
from tests.integration.forwarders.gateways import Receiver, amqp_to, eventually, gateways, into
from tests.support.processes import hub

MESSAGES = 100


def leave(port: int, first: int) -> None:
    """Send messages to an address of the hub; the hub acknowledges them."""
    application = BlockingConnection(f"127.0.0.1:{port}", timeout=60)
    sender = application.create_sender("queue/orders")
    for number in range(first, first + MESSAGES):
        sender.send(Message(id=f"order-{number}", body=b"%d" % number, inferred=True, durable=True))
    application.close()


def test_gateway_receives_messages_that_an_application_left_at_the_hub(tmp_path: Path) -> None:
    with hub(tmp_path) as running:

        async def run() -> None:
            async with gateways("gw1") as (near,):
                reader = Receiver(near.broker, "queue/here")
                await asyncio.to_thread(leave, running.port("amqp"), 0)
                await near.configure(amqp_to(running.port("amqp")), into("f", "queue/here", "queue/orders"))
                await eventually(lambda: taken(reader) == MESSAGES)
                await asyncio.to_thread(leave, running.port("amqp"), MESSAGES)
                await eventually(lambda: taken(reader) == 2 * MESSAGES)
                bodies = [plain.body_of(body) for run in reader.runs for body in run.bodies]
                assert bodies == [b"%d" % number for number in range(2 * MESSAGES)], "each once, in order"

        asyncio.run(run())


def taken(reader: Receiver) -> int:
    return sum(len(run) for run in reader.runs)
