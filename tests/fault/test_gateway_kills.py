"""SIGKILL of a gateway under mixed load: nothing acknowledged is lost, nothing is given twice beyond what was un-acked.

MQTT at QoS 1 and 2 and AMQP, into a topic with durable subscriptions of both protocols and into a queue. The seed is
printed, ``WAYPOST_SEED=n`` replays the moments. The 1 000 kills of the promise:
``./waypost test tests/fault/test_gateway_kills.py -m slow -s`` (about 20 minutes; ``WAYPOST_KILLS=n`` for less).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fault.kills.checker import Consumed, Kill, Produced, Verdict, judge
from tests.fault.kills.clients import AmqpConsumer, AmqpProducer, Client, MqttConsumer, Qos2Publisher
from tests.fault.kills.nursery import Nursery
from tests.support.processes import Waypost, edge, free_port, wait_until
from tests.support.publisher import Publisher

DRAINED_S = 60.0


class Load:
    """Two addresses, each with producers of every kind and consumers that should get all of it."""

    def __init__(self, mqtt: int, amqp: int) -> None:
        self._publishers: list[Publisher] = [
            Publisher(f"{kind}1", mqtt, f"{kind}/kill", window=5) for kind in ("topic", "queue")
        ]
        self._producers: list[Qos2Publisher | AmqpProducer] = [
            Qos2Publisher("topic2", mqtt, "topic/kill"), Qos2Publisher("queue2", mqtt, "queue/kill"),
            AmqpProducer("topicA", amqp, "topic/kill"), AmqpProducer("queueA", amqp, "queue/kill"),
            Qos2Publisher("once", mqtt, "topic/once"),
        ]  # fmt: skip
        self._consumers: list[MqttConsumer | AmqpConsumer] = [
            MqttConsumer("sub1", mqtt, "topic/kill", 1), AmqpConsumer("subA", amqp, "topic/kill", durable=True),
            AmqpConsumer("taker", amqp, "queue/kill"), MqttConsumer("sub2", mqtt, "topic/once", 2),
        ]  # fmt: skip

    def start(self) -> None:
        clients: list[Client] = [*self._consumers, *self._producers]
        for client in clients:
            client.start()
            assert client.ready.wait(20), client.name
        for publisher in self._publishers:
            publisher.start()

    def acked(self) -> int:
        """Messages acked so far, of all producers."""
        return sum(len(producer.acked) for producer in (*self._publishers, *self._producers))

    def end(self) -> None:
        """Producers stop; consumers take what is left, and stop."""
        for publisher in self._publishers:
            publisher.end()
        for producer in self._producers:
            producer.end()
        wait_until(self._drained, timeout_s=DRAINED_S, what="consumers have all that was acked", every_s=0.2)
        for consumer in self._consumers:
            consumer.end()

    def verdicts(self, kills: Sequence[Kill]) -> dict[str, Verdict]:
        return {name: judge(*self._parts(name), kills) for name in ("topic/kill", "queue/kill", "topic/once")}

    def _parts(self, address: str) -> tuple[list[Produced], list[Consumed]]:
        kind, _, name = address.partition("/")
        sub1, sub_amqp, taker, sub2 = (consumer.consumed for consumer in self._consumers)
        if name == "once":
            return [self._producers[-1].produced()], [sub2]
        wanted = [Produced(each.name, each.acked, each.sent) for each in self._publishers if each.name == f"{kind}1"]
        wanted += [each.produced() for each in self._producers if each.name in {f"{kind}2", f"{kind}A"}]
        return wanted, [sub1, sub_amqp] if kind == "topic" else [taker]

    def _drained(self) -> bool:
        for address in ("topic/kill", "queue/kill", "topic/once"):
            producers, consumers = self._parts(address)
            acked = {body for producer in producers for body in producer.acked}
            if any(acked - {body for _, body in consumer.got} for consumer in consumers):
                return False
        return True


def kill(gateway: Waypost, load: Load, count: int, chance: random.Random) -> list[Kill]:
    """`count` kills at random moments: most after something was acked since the start, some within the start."""
    kills: list[Kill] = []
    for number in range(count):
        acked = load.acked()
        if chance.random() < 0.8:
            wait_until(lambda acked=acked: load.acked() > acked, timeout_s=30, what="it serves", every_s=0.01)
        time.sleep(chance.uniform(0.02, 0.4))  # the random moment
        at = time.monotonic()
        gateway.kill()
        gateway.start()
        kills.append(Kill(at, time.monotonic()))
        if number % 50 == 49:
            print(f"{number + 1} kills", flush=True)
    return kills


def campaign(folder: Path, count: int) -> dict[str, Verdict]:
    seed = int(os.environ.get("WAYPOST_SEED", random.randrange(1 << 32)))
    print(f"WAYPOST_SEED={seed}")
    mqtt, amqp = free_port(), free_port()
    arguments = edge(folder, "gw", f"--mqtt=127.0.0.1:{mqtt}", f"--amqp=127.0.0.1:{amqp}").arguments
    with Nursery(folder / "gw.log", *arguments[3:]) as gateway:
        load = Load(mqtt, amqp)
        load.start()
        kills = kill(gateway, load, count, random.Random(seed))
        load.end()
        assert gateway.stop() == 0
    verdicts = load.verdicts(kills)
    for address, verdict in verdicts.items():
        print(f"{count} kills, {address}: {verdict}")
    return verdicts


def hold(verdicts: dict[str, Verdict], kills: int) -> None:
    for address, verdict in verdicts.items():
        assert not verdict.problems, f"{address}: " + "\n".join(verdict.problems[:5])
        assert verdict.acked > kills, "there was load"


def test_10_kills(tmp_path: Path) -> None:
    verdicts = campaign(tmp_path, 10)
    hold(verdicts, 10)
    assert verdicts["topic/once"].again == 0


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_1000_kills(tmp_path: Path) -> None:
    kills = int(os.environ.get("WAYPOST_KILLS", "1000"))
    verdicts = campaign(tmp_path, kills)
    hold(verdicts, kills)
    assert verdicts["topic/once"].again == 0


class TestChecker:
    """It sees what it is there to see."""

    PRODUCED = Produced("a", [b"a:0", b"a:1"], 3)

    def problems(
        self, *bodies: bytes, acked: float = 9.0, kills: Sequence[float] = (), once: bool = False
    ) -> list[str]:
        consumed = Consumed(
            "c", once, [(float(at), body) for at, body in enumerate(bodies)], dict.fromkeys(bodies, acked)
        )
        return judge([self.PRODUCED], [consumed], [Kill(kill, kill + 0.1) for kill in kills]).problems

    def test_all_is_well(self) -> None:
        assert not self.problems(b"a:0", b"a:1")
        assert not self.problems(b"a:0", b"a:1", b"a:2")
        assert not self.problems(b"a:0", b"a:1", b"a:1", kills=[1.5], acked=1.4)

    def test_a_message_is_missing(self) -> None:
        assert "missing" in self.problems(b"a:0")[0]

    def test_a_message_of_nobody(self) -> None:
        assert "nobody" in self.problems(b"a:0", b"a:1", b"a:7")[0]

    def test_order(self) -> None:
        assert "after" in self.problems(b"a:1", b"a:0")[0]

    @pytest.mark.parametrize("kills", [[], [0.5], [2.5]])
    def test_given_again_without_a_kill_between(self, kills: list[float]) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", kills=kills)[0]

    def test_given_again_long_after_it_was_acked(self) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", b"a:1", kills=[1.9], acked=1.3)[0]

    def test_given_again_at_qos_2(self) -> None:
        assert "again" in self.problems(b"a:0", b"a:1", b"a:1", kills=[1.5], once=True)[0]
