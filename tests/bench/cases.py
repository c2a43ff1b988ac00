"""The benchmarks by name: what is measured, of whom, and what it is compared with.

A case with a peer is a ratio: both brokers run at the same time, idle but for their turns, and the rounds alternate, so
that a machine that is busy for a while is busy for both. A case without a peer is held against a figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.brokers import Broker, Mosquitto, MosquittoPersistent, WaypostBroker, say
from tests.bench.idle import connections_resident_mib
from tests.bench.load import LoadGenerators
from tests.bench.peers import Artemis, RabbitMQ

ROUNDS: Final = 5
MQTT_LOAD = ("-c", "50", "-n", "200000", "-q", "1", "-w", "20", "-s", "100")
ROUTER: Final = 67_000
"""skupper-router, the C router to compare anycast with, is in no Debian release: held against the least it did on a
machine with two cores, 67 000-105 000 messages a second."""
IDLE: Final = 8_000
MEMORY_SHARE: Final = 0.1
"""Of the JVM's resident memory that ours may take."""

_queues = count()


class Result(NamedTuple):
    """One case's outcome: medians over the rounds."""

    name: str
    about: str
    unit: str
    value: float
    peer: str
    peer_value: float | None
    ratio: float | None
    """Median of the rounds' own ratios."""
    goal: str
    met: bool | None
    """None: reported, not held against anything."""
    resident_mib: float
    peer_resident_mib: float | None


class Case(NamedTuple):
    """A benchmark: `prepare` and `measure` are called with a broker; `measure` returns a figure in `unit`."""

    name: str
    about: str
    seconds: int
    """About how long a run of the default rounds takes here."""
    measure: Callable[[LoadGenerators, Broker], float]
    peer: Callable[[], Broker] | None
    goal: float
    """Least ratio to the peer, or least figure without one (most, where `lower_is_better`)."""
    prepare: Callable[[Broker], None] = lambda broker: None
    unit: str = "msg/s"
    lower_is_better: bool = False
    warm_rounds: int = 1
    memory_share: float | None = None
    """Most of the peer's resident memory that ours may be."""


def absent_session(broker: Broker) -> None:
    """A persistent session on load/# whose client is away: every message is kept for it."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "absent", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/#", 1)  # type: ignore[assignment]
    client.on_subscribe = lambda *_: client.disconnect()  # type: ignore[assignment]
    client.connect("127.0.0.1", broker.port("mqtt"))
    client.loop_forever()


def ours_durable(broker: Broker) -> None:
    """Waypost stores every message; the peer is spared it."""
    if broker.name == "waypost":
        absent_session(broker)


def mqtt_in(load: LoadGenerators, broker: Broker) -> float:
    return load.run("mqttload", broker.port("mqtt"), *MQTT_LOAD)["pub_per_s"]


def mqtt_through(load: LoadGenerators, broker: Broker) -> float:
    return load.run("mqttload", broker.port("mqtt"), *MQTT_LOAD, "-S", "1", "-f", "load/#")["recv_per_s"]


def mqtt_qos0(load: LoadGenerators, broker: Broker) -> float:
    qos0 = ("-c", "50", "-n", "500000", "-q", "0", "-Q", "0", "-s", "100", "-S", "1", "-f", "load/#")
    return load.run("mqttload", broker.port("mqtt"), *qos0)["recv_per_s"]


def mqtt_fanout(load: LoadGenerators, broker: Broker) -> float:
    fanout = ("-c", "1", "-n", "5000", "-q", "0", "-Q", "0", "-s", "100", "-S", "200", "-f", "load/#")
    return load.run("mqttload", broker.port("mqtt"), *fanout)["recv_per_s"]


def mqtt_latency(load: LoadGenerators, broker: Broker) -> float:
    paced = ("-c", "50", "-n", "100000", "-q", "1", "-s", "100", "-r", "20000")
    return load.run("mqttload", broker.port("mqtt"), *paced)["ack_us_p99"]


def amqp_in(load: LoadGenerators, broker: Broker, *, messages: int = 100_000) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", str(messages), "-s", "100", "-d")
    return load.run("amqpload", broker.port("amqp"), *to)["accepted_per_s"]


def amqp_through(load: LoadGenerators, broker: Broker, *, messages: int = 100_000) -> float:
    through = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", str(messages), "-s", "100", "-d", "-R", "1")
    return load.run("amqpload", broker.port("amqp"), *through)["recv_per_s"]


def amqp_anycast(load: LoadGenerators, broker: Broker) -> float:
    through = ("-a", "anycast/load", "-c", "5", "-n", "200000", "-s", "100", "-R", "1")
    return load.run("amqpload", broker.port("amqp"), *through)["recv_per_s"]


def idle(_load: LoadGenerators, broker: Broker) -> float:
    return connections_resident_mib(broker, IDLE)


_LOAD = "MQTT QoS 1, 50 connections, window 20, 100 B"
_RABBIT, _TO_RABBIT = 5.0, 20_000
CASES = {
    case.name: case
    for case in (
        Case(
            "mqtt-in", f"{_LOAD}; ours on disk before each PUBACK, theirs stored nowhere",
            25, mqtt_in, Mosquitto, 1.0, ours_durable,
        ),
        Case("mqtt-through", f"{_LOAD}, through to one live subscriber", 35, mqtt_through, Mosquitto, 1.0),
        Case("mqtt-qos0", "MQTT QoS 0, 50 connections, through to one subscriber", 45, mqtt_qos0, Mosquitto, 0.8),
        Case("mqtt-fanout", "MQTT QoS 0, one publisher to 200 subscribers", 60, mqtt_fanout, Mosquitto, 0.8),
        Case(
            "mqtt-queued", f"{_LOAD}, for an absent session; theirs kept in memory",
            40, mqtt_in, Mosquitto, 1.3, absent_session,
        ),
        Case(
            "mqtt-queued-artemis", f"{_LOAD}, for an absent session, both on disk",
            60, mqtt_in, Artemis, 1.3, absent_session, warm_rounds=4,
        ),
        Case(
            "mqtt-latency", "MQTT QoS 1 at 20 000 msg/s, p99 of PUBACK; theirs with its persistence, unsynced",
            70, mqtt_latency, MosquittoPersistent, 0, absent_session, "us", lower_is_better=True,
        ),
        Case("amqp-anycast", "AMQP anycast, 5 senders, 1 receiver, settled end to end", 20, amqp_anycast, None, ROUTER),
        Case("amqp-in", "AMQP, 5 senders, 100 B, durable queue; on disk before accepted", 15, amqp_in, None, 50_000),
        Case("amqp-through", "the same through to one receiver", 20, amqp_through, None, 30_000),
        Case(
            "amqp-in-rabbitmq", "AMQP, 5 senders, 100 B, into a durable queue",
            30, partial(amqp_in, messages=_TO_RABBIT), RabbitMQ, _RABBIT,
        ),
        Case(
            "amqp-through-rabbitmq", "the same through to one receiver",
            40, partial(amqp_through, messages=_TO_RABBIT), RabbitMQ, _RABBIT,
        ),
        Case(
            "amqp-in-artemis", "AMQP, 5 senders, 100 B, into a durable queue, both on disk",
            50, amqp_in, Artemis, 0.8, warm_rounds=4, memory_share=MEMORY_SHARE,
        ),
        Case(
            "amqp-through-artemis", "the same through to one receiver",
            60, amqp_through, Artemis, 0.8, warm_rounds=4, memory_share=MEMORY_SHARE,
        ),
        Case(
            "idle", f"resident memory with {IDLE} idle MQTT connections, most of the rounds",
            30, idle, None, 64, unit="MiB", lower_is_better=True, warm_rounds=0,
        ),
    )
}  # fmt: skip


def run(case: Case, load: LoadGenerators, rounds: int) -> Result:
    """Run one case. Raises BrokerMissing, LoadFailed."""
    with ExitStack() as stack:
        theirs = stack.enter_context(case.peer()) if case.peer is not None else None  # first: it may be missing
        ours: Broker = stack.enter_context(WaypostBroker())
        brokers = [broker for broker in (ours, theirs) if broker is not None]
        for broker in brokers:
            case.prepare(broker)
            for number in range(case.warm_rounds):
                figure = case.measure(load, broker)
                say(f"  {case.name} warm {number + 1}/{case.warm_rounds}: {broker.name} {figure:,.0f} {case.unit}")
        values: dict[str, list[float]] = {broker.name: [] for broker in brokers}
        for number in range(rounds):
            for broker in brokers:
                values[broker.name].append(case.measure(load, broker))
            said = ", ".join(f"{name} {found[-1]:,.0f} {case.unit}" for name, found in values.items())
            say(f"  {case.name} {number + 1}/{rounds}: {said}")
        memory = {broker.name: broker.resident_mib for broker in brokers}
        return _result(case, values, theirs, memory)


def _result(case: Case, values: dict[str, list[float]], theirs: Broker | None, memory: dict[str, float]) -> Result:
    value = statistics.median(values["waypost"])
    resident = memory["waypost"]
    if theirs is None:
        held = value <= case.goal if case.lower_is_better else value >= case.goal
        goal = f"{'<=' if case.lower_is_better else '>='} {case.goal:,.0f}"
        return Result(case.name, case.about, case.unit, value, "", None, None, goal, held, resident, None)
    peer = values[theirs.name]
    ratio = statistics.median(a / b for a, b in zip(values["waypost"], peer, strict=True))
    goal, reached = f">= {case.goal:g} x", ratio >= case.goal
    if case.memory_share is not None:
        goal += f", RAM <= {case.memory_share:g} x"
        reached = reached and resident <= memory[theirs.name] * case.memory_share
    met: bool | None = reached
    if not case.goal:
        met, goal = None, "report"
    peer_value = statistics.median(peer)
    return Result(
        case.name, case.about, case.unit, value, theirs.name, peer_value, ratio, goal, met, resident,
        memory[theirs.name],
    )  # fmt: skip
