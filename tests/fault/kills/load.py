"""The mixed load of the kill campaign: its addresses, who sends to them, who takes from them, and what is owed then."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.store.sqlite import FILE_NAME
from tests.fault.kills.checker import Consumed, Given, Kill, Produced, Verdict, judge, judge_dead, judge_ring
from tests.fault.kills.clients import WAIT_S, AmqpConsumer, AmqpProducer, MqttConsumer, MqttPublisher, Wire
from tests.support.processes import wait_until
from tests.support.publisher import Publisher

DRAINED_S: Final = 90.0
RESOURCES: Final = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.queues}, spec: {address: queue/#, type: queue}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.work},
  spec: {address: work/kill, type: queue, deadletter: dead/kill}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.dead}, spec: {address: dead/kill, type: deadletter}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.ring},
  spec: {address: ring/kill, type: queue, quota: {bytes: 2000}, whenFull: dropOldest}}
"""
"""Everything else is a topic."""

ADDRESSES: Final = ("topic/kill", "queue/kill", "topic/once", "work/kill")
"""All of what is sent there is to be taken; of `RING` the newest, of `RETAINED` the last."""
RING: Final = "ring/kill"
RETAINED: Final = "topic/retained"


def rejected(body: bytes) -> bool:
    """Whether the consumer of ``work/kill`` will not have this message: every third one."""
    return int(body.partition(b":")[2]) % 3 == 0


class Load:
    """Producers of every kind and their consumers, and the judgement of what they saw."""

    def __init__(self, mqtt: int, amqp: int) -> None:
        self._mqtt, self._amqp = mqtt, amqp
        publishers = {
            f"{kind}1": Publisher(f"{kind}1", mqtt, f"{kind}/kill", window=5)
            for kind in ("topic", "queue", "work", "ring")
        }
        producers: list[MqttPublisher | AmqpProducer] = [
            MqttPublisher("topic2", mqtt, "topic/kill", 2), MqttPublisher("queue2", mqtt, "queue/kill", 2),
            AmqpProducer("topicA", amqp, "topic/kill"), AmqpProducer("queueA", amqp, "queue/kill"),
            AmqpProducer("workA", amqp, "work/kill"), AmqpProducer("ringA", amqp, "ring/kill"),
            MqttPublisher("once2", mqtt, "topic/once", 2), MqttPublisher("retained1", mqtt, RETAINED, 1, retain=True),
        ]  # fmt: skip
        self._producers: dict[str, Publisher | MqttPublisher | AmqpProducer] = {
            **publishers,
            **{producer.name: producer for producer in producers},
        }
        self._consumers: dict[str, MqttConsumer | AmqpConsumer] = {
            consumer.name: consumer
            for consumer in (
                MqttConsumer("sub1", mqtt, "topic/kill", 1), AmqpConsumer("subA", amqp, "topic/kill", durable=True),
                AmqpConsumer("taker", amqp, "queue/kill"), MqttConsumer("sub2", mqtt, "topic/once", 2),
                AmqpConsumer("worker", amqp, "work/kill", rejects=rejected),
                AmqpConsumer("undertaker", amqp, "dead/kill"),
            )
        }  # fmt: skip
        self._takers = {
            "topic/kill": ("sub1", "subA"), "queue/kill": ("taker",), "topic/once": ("sub2",), "work/kill": ("worker",)
        }  # fmt: skip
        self._left: Consumed | None = None
        self._retained = b""

    def start(self) -> None:
        for consumer in self._consumers.values():
            consumer.start()
            assert consumer.ready.wait(WAIT_S), consumer.name
        for producer in self._producers.values():
            producer.start()

    def acked(self) -> int:
        """Messages acked so far, of all producers."""
        return sum(len(producer.acked) for producer in self._producers.values())

    def end(self, data: Path) -> None:
        """Producers stop; consumers take what is left, and stop. `data`: the directory of the gateway, which runs."""
        for producer in self._producers.values():
            producer.end()
        wait_until(self._drained, timeout_s=DRAINED_S, what="consumers have all that was acked", every_s=0.2)
        for consumer in self._consumers.values():
            consumer.end()
        with Wire(self._mqtt, "late") as wire:
            wire.send(p.Subscribe(1, (SubscriptionRequest(RETAINED, 1),)))
            packets = [wire.next(WAIT_S) for _ in range(2)]
            self._retained = next(packet.payload for packet in packets if isinstance(packet, p.Publish))
        left = AmqpConsumer("left", self._amqp, RING)
        left.start()
        wait_until(lambda: behind(data, RING) == 0, timeout_s=DRAINED_S, what="the ring is empty", every_s=0.2)
        left.end()
        self._left = left.consumed

    def verdicts(self, kills: Sequence[Kill], data: Path) -> dict[str, Verdict]:
        """By address. The gateway has stopped."""
        assert self._left is not None
        verdicts = {address: judge(*self._parts(address), kills) for address in ADDRESSES}
        worker, undertaker = self._consumers["worker"].consumed, self._consumers["undertaker"].consumed
        verdicts["dead/kill"] = judge_dead(worker, undertaker, rejected, given(data, "work/kill", "dead/kill"), kills)
        verdicts[RING] = judge_ring(self._produced(RING), self._left, given(data, RING, RING))
        verdicts[RETAINED] = self._judge_retained()
        return verdicts

    def _judge_retained(self) -> Verdict:
        producer = self._producers["retained1"]
        verdict = Verdict(acked=len(producer.acked), got=1)
        number, last = int(self._retained.partition(b":")[2]), int(producer.acked[-1].partition(b":")[2])
        if not last <= number <= last + 1:
            verdict.problems.append(f"{self._retained!r} is retained, {producer.acked[-1]!r} was acked last")
        return verdict

    def _parts(self, address: str) -> tuple[list[Produced], list[Consumed]]:
        return self._produced(address), [self._consumers[name].consumed for name in self._takers[address]]

    def _produced(self, address: str) -> list[Produced]:
        kind = "once" if address == "topic/once" else address.partition("/")[0]
        return [
            Produced(producer.name, producer.acked, producer.sent)
            for producer in self._producers.values()
            if producer.name[:-1] == kind
        ]

    def _drained(self) -> bool:
        for address in ADDRESSES:
            producers, consumers = self._parts(address)
            acked = {body for producer in producers for body in producer.acked}
            if any(acked - {body for _, body in consumer.got} for consumer in consumers):
                return False
        dead = {body for _, body in self._consumers["undertaker"].consumed.got}
        return all(body in dead for _, body in self._consumers["worker"].consumed.got if rejected(body))


def given(data: Path, address: str, into: str) -> Given:
    """What the store at rest says: messages ever given to `into`, and the ledger of `address`."""
    connection = sqlite3.connect(f"file:{data / FILE_NAME}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT next FROM address WHERE name = ?", (into,)).fetchone()
        rows = connection.execute("SELECT first, last, messages, reason FROM ledger WHERE address = ?", (address,))
        return Given(row[0] if row else 0, rows.fetchall())
    finally:
        connection.close()


def behind(data: Path, queue: str) -> int:
    """Messages of a queue that are not acknowledged, as far as it is on disk."""
    connection = sqlite3.connect(f"file:{data / FILE_NAME}?mode=ro", uri=True)
    try:
        return int(
            connection.execute("SELECT max(behind) FROM backlog WHERE log = ?", (f"queue {queue}",)).fetchone()[0]
        )
    finally:
        connection.close()
