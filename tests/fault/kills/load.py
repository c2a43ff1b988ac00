"""Mixed load of the kill campaign: addresses, producers, consumers, and the guarantees for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest
from tests.fault.kills.checker import (
    Consumed,
    Death,
    Given,
    Kill,
    Lives,
    Produced,
    Verdict,
    judge,
    judge_dead,
    judge_memory,
    judge_ring,
)
from tests.fault.kills.clients import WAIT_S, AmqpConsumer, AmqpProducer, MqttConsumer, MqttPublisher, Wire
from tests.support.processes import wait_until
from tests.support.publisher import Publisher
from tests.support.store_rows import query

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
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.batch},
  spec: {address: batch/kill, type: topic, durability: "batch:20"}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.memory},
  spec: {address: memory/kill, type: topic, durability: memory}}
"""
"""Address rules; all other addresses are topics."""

ADDRESSES: Final = ("topic/kill", "queue/kill", "topic/once", "work/kill", "batch/kill")
"""Addresses with complete delivery.

Of `RING` the newest messages are delivered, of `RETAINED` the last one, of `MEMORY` those that the ledger does not
report as lost.
"""
MEMORY: Final = "memory/kill"
RING: Final = "ring/kill"
RETAINED: Final = "topic/retained"


def rejected(body: bytes) -> bool:
    """Return whether the consumer of ``work/kill`` rejects this message: every third one."""
    return int(body.partition(b":")[2]) % 3 == 0


class Load:
    """Producers of every kind and their consumers, and the check of their records."""

    def __init__(self, mqtt: int, amqp: int) -> None:
        self._mqtt, self._amqp = mqtt, amqp
        publishers = {
            f"{kind}1": Publisher(f"{kind}1", mqtt, f"{kind}/kill", window=5)
            for kind in ("topic", "queue", "work", "ring", "batch")
        }
        self._memory = MqttPublisher("memory1", mqtt, MEMORY, 1)
        self._deaths: list[Death] = []
        producers: list[MqttPublisher | AmqpProducer] = [
            MqttPublisher("topic2", mqtt, "topic/kill", 2), MqttPublisher("queue2", mqtt, "queue/kill", 2),
            AmqpProducer("topicA", amqp, "topic/kill"), AmqpProducer("queueA", amqp, "queue/kill"),
            AmqpProducer("workA", amqp, "work/kill"), AmqpProducer("ringA", amqp, "ring/kill"),
            AmqpProducer("batchA", amqp, "batch/kill"),
            MqttPublisher("once2", mqtt, "topic/once", 2), MqttPublisher("retained1", mqtt, RETAINED, 1, retain=True),
            self._memory,
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
                MqttConsumer("subB", mqtt, "batch/kill", 1), MqttConsumer("subM", mqtt, MEMORY, 1),
            )
        }  # fmt: skip
        self._takers = {
            "topic/kill": ("sub1", "subA"), "queue/kill": ("taker",), "topic/once": ("sub2",), "work/kill": ("worker",),
            "batch/kill": ("subB",),
        }  # fmt: skip
        self._left: Consumed | None = None
        self._retained = b""

    def start(self) -> None:
        for consumer in self._consumers.values():
            consumer.start()
            assert consumer.ready.wait(WAIT_S), consumer.name
        late = self._late()
        late.start()
        assert late.ready.wait(WAIT_S), late.name
        late.end()  # messages in memory wait for it until the end
        for producer in self._producers.values():
            producer.start()

    def _late(self) -> AmqpConsumer:
        """Return a durable subscription to `MEMORY` that is offline most of the time."""
        return AmqpConsumer("late", self._amqp, MEMORY, durable=True)

    def died(self, data: Path) -> None:
        """Record that the gateway was killed and does not run; `data` is its directory."""
        self._deaths.append(Death(time.monotonic(), given(data, MEMORY, MEMORY).messages))

    def acked(self) -> int:
        """Return the number of messages acked so far, of all producers."""
        return sum(len(producer.acked) for producer in self._producers.values())

    def end(self, data: Path) -> None:
        """Stop producers; let consumers take the rest, and stop them.

        `data` is the directory of the running gateway.
        """
        acked = len(self._memory.acked)
        wait_until(lambda: len(self._memory.acked) > acked, timeout_s=DRAINED_S, what="it serves", every_s=0.01)
        for producer in self._producers.values():
            producer.end()
        wait_until(self._drained, timeout_s=DRAINED_S, what="consumers have all that was acked", every_s=0.2)
        for consumer in self._consumers.values():
            consumer.end()
        late = self._late()
        late.start()
        wait_until(lambda: self._has_last(late.consumed), timeout_s=DRAINED_S, what="it comes late", every_s=0.2)
        late.end()
        self._consumers["late"] = late
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
        """Return the verdict of each address, after the gateway has stopped."""
        assert self._left is not None
        verdicts = {address: judge(*self._parts(address), kills) for address in ADDRESSES}
        worker, undertaker = self._consumers["worker"].consumed, self._consumers["undertaker"].consumed
        verdicts["dead/kill"] = judge_dead(worker, undertaker, rejected, given(data, "work/kill", "dead/kill"), kills)
        verdicts[RING] = judge_ring(self._produced(RING), self._left, given(data, RING, RING))
        sent = Produced("memory1", self._memory.acked, self._memory.sent)
        for name in ("subM", "late"):
            lives = Lives(self._memory.connections, self._deaths, lost(data, MEMORY, name))
            verdicts[f"{MEMORY} to {name}"] = judge_memory(sent, self._consumers[name].consumed, lives, kills)
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
        if not self._has_last(self._consumers["subM"].consumed):
            return False
        dead = {body for _, body in self._consumers["undertaker"].consumed.got}
        return all(body in dead for _, body in self._consumers["worker"].consumed.got if rejected(body))

    def _has_last(self, consumed: Consumed) -> bool:
        """Return whether the consumer has the last acknowledged message in memory, after which no kill came."""
        return any(body == self._memory.acked[-1] for _, body in consumed.got)


def lost(data: Path, address: str, client: str) -> list[tuple[int, int, str]]:
    """Return first, last and reason of the ledger's entries for the subscriptions of a client."""
    rows = query(data, "SELECT first, last, reason, subscription FROM ledger WHERE address = ?", address)
    return [(first, last, reason) for first, last, reason, subscription in rows if client in subscription]


def given(data: Path, address: str, into: str) -> Given:
    """Return the number of messages ever stored under `into`, and the ledger of `address`."""
    stored = query(data, "SELECT next FROM address WHERE name = ?", into)
    rows = query(data, "SELECT first, last, messages, reason FROM ledger WHERE address = ?", address)
    return Given(stored[0][0] if stored else 0, rows)


def behind(data: Path, queue: str) -> int:
    """Return the number of unacknowledged messages of a queue on disk."""
    return max(int(row[0]) for row in query(data, "SELECT behind FROM backlog WHERE log = ?", f"queue {queue}"))
