"""The benchmarks by name: what is sent, to whom, and what it is compared with.

A case with a peer is a ratio: both brokers run at the same time, idle but for their turns, and the rounds alternate, so
that a machine that is busy for a while is busy for both. A case without a peer is held against a figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.brokers import Broker, Mosquitto, WaypostBroker, say
from tests.bench.load import LoadGenerators

ROUNDS = 5
MQTT_LOAD = ("-c", "50", "-n", "200000", "-q", "1", "-w", "20", "-s", "100")
AMQP_LOAD = ("-a", "queue/load", "-c", "5", "-n", "100000", "-s", "100", "-d")


class Result(NamedTuple):
    """One case's outcome: rates are messages a second, medians over the rounds."""

    name: str
    about: str
    rate: float
    peer: str
    peer_rate: float | None
    ratio: float | None
    """Median of the rounds' own ratios."""
    goal: str
    met: bool
    resident_mib: float


class Case(NamedTuple):
    """A benchmark: `prepare` and `load` are called with a broker; `load` returns messages a second."""

    name: str
    about: str
    load: Callable[[LoadGenerators, Broker], float]
    peer: Callable[[], Broker] | None
    goal: float
    """Least ratio to the peer, or least messages a second without one."""
    prepare: Callable[[Broker], None] = lambda broker: None


def durable_subscription(broker: Broker) -> None:
    """An absent persistent session on load/#, so that Waypost stores every message; Mosquitto is spared it."""
    if broker.name != "waypost":
        return
    client = paho.Client(CallbackAPIVersion.VERSION2, "absent", clean_session=False)
    client.on_connect = lambda *_: client.subscribe("load/#", 1)
    client.on_subscribe = lambda *_: client.disconnect()
    client.connect("127.0.0.1", broker.port("mqtt"))
    client.loop_forever()


def mqtt_in(load: LoadGenerators, broker: Broker) -> float:
    return load.run("mqttload", broker.port("mqtt"), *MQTT_LOAD)["pub_per_s"]


def mqtt_through(load: LoadGenerators, broker: Broker) -> float:
    return load.run("mqttload", broker.port("mqtt"), *MQTT_LOAD, "-S", "1", "-f", "load/#")["recv_per_s"]


def amqp_in(load: LoadGenerators, broker: Broker) -> float:
    return load.run("amqpload", broker.port("amqp"), *AMQP_LOAD)["accepted_per_s"]


def amqp_through(load: LoadGenerators, broker: Broker) -> float:
    return load.run("amqpload", broker.port("amqp"), *AMQP_LOAD, "-R", "1")["recv_per_s"]


CASES = {
    case.name: case
    for case in (
        Case(
            "mqtt-in",
            "MQTT QoS 1, 50 connections, window 20, 100 B; ours on disk before each PUBACK, theirs stored nowhere",
            mqtt_in,
            Mosquitto,
            0.6,
            durable_subscription,
        ),
        Case("mqtt-through", "the same load through to one live QoS 1 subscriber", mqtt_through, Mosquitto, 0.6),
        Case("amqp-in", "AMQP, 5 senders, 100 B, into a durable queue; on disk before accepted", amqp_in, None, 50_000),
        Case("amqp-through", "the same through to one receiver", amqp_through, None, 30_000),
    )
}


def run(case: Case, load: LoadGenerators, rounds: int) -> Result:
    """Run one case. Raises BrokerMissing, LoadFailed."""
    with ExitStack() as stack:
        ours: Broker = stack.enter_context(WaypostBroker())
        theirs = stack.enter_context(case.peer()) if case.peer is not None else None
        brokers = [broker for broker in (ours, theirs) if broker is not None]
        for broker in brokers:
            case.prepare(broker)
            case.load(load, broker)  # warm
        rates: dict[str, list[float]] = {broker.name: [] for broker in brokers}
        for number in range(rounds):
            for broker in brokers:
                rates[broker.name].append(case.load(load, broker))
            said = ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items())
            say(f"{case.name} {number + 1}/{rounds}: {said}")
        return _result(case, rates, theirs, ours.resident_mib)


def _result(case: Case, rates: dict[str, list[float]], theirs: Broker | None, memory: float) -> Result:
    ours = rates["waypost"]
    rate = statistics.median(ours)
    if theirs is None:
        return Result(case.name, case.about, rate, "", None, None, f"≥ {case.goal:,.0f}/s", rate >= case.goal, memory)
    peer = rates[theirs.name]
    ratio = statistics.median(a / b for a, b in zip(ours, peer, strict=True))
    goal = f"≥ {case.goal:g} of {theirs.name}"
    return Result(
        case.name, case.about, rate, theirs.name, statistics.median(peer), ratio, goal, ratio >= case.goal, memory
    )
