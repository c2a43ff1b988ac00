"""The benchmarks by name: the measurement, its subject and its reference."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Final

from tests.bench import (
    alone,
    analytics,
    backlog,
    commits,
    crossing,
    figures,
    first,
    gateway_pages,
    gold,
    hour,
    hub_replicas,
    known_gateways,
    latency,
    many_gateways,
    open_tabs,
    pace,
    passes,
    retained,
    rollups,
    simulated_devices,
    unlike,
    writes,
)
from tests.bench.brokers import Broker, Mosquitto, WaypostEveryTransport
from tests.bench.comparison import Benchmark, Comparison
from tests.bench.idle import connections_resident_mib, tls_connection_kib
from tests.bench.load import LoadGenerators
from tests.bench.peers import Artemis, RabbitMQ, SkupperRouter
from tests.bench.sessions import absent_session
from tests.bench.spread import Spread

MQTT_LOAD = ("-c", "50", "-n", "200000", "-q", "1", "-w", "20", "-s", "100")
IDLE: Final = 8_000
IDLE_TLS: Final = 1_000
MEMORY_SHARE: Final = 0.1
"""Most of the JVM's resident memory that ours may use."""

ROUTER: Final = 67_000
"""Lowest rate measured of skupper-router, the C router, with other load generators on a machine with two cores: 67
000-105 000 messages a second. It serves as a floor where the router is missing (it is in no Debian release). It is not
the comparison: with our generators on such an idle machine it did 329 000-387 000 (`tests/bench/README.md`).
"""

_queues = count()


def ours_durable(broker: Broker) -> None:
    """Make Waypost store every message; the peer need not."""
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


def amqp_in(load: LoadGenerators, broker: Broker, *, messages: int = 100_000) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", str(messages), "-s", "100", "-d")
    return load.run("amqpload", broker.port("amqp"), *to)["accepted_per_s"]


def amqp_through(load: LoadGenerators, broker: Broker, *, messages: int = 100_000) -> float:
    through = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", str(messages), "-s", "100", "-d", "-R", "1")
    return load.run("amqpload", broker.port("amqp"), *through)["recv_per_s"]


def amqp_anycast(load: LoadGenerators, broker: Broker) -> float:
    through = ("-a", "anycast/load", "-c", "5", "-n", "200000", "-s", "100", "-R", "1")
    return load.run("amqpload", broker.port("amqp"), *through)["recv_per_s"]


def amqp_unlike(load: LoadGenerators, broker: Broker) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", "100000", "-s", "400", "-d", "-V")
    return load.run("amqpload", broker.port("amqp"), *to)["accepted_per_s"]


def _each(senders: int) -> int:
    """Return the messages of a round, which takes a second or more; a single sender waits for each answer."""
    return 2_000 if senders == 1 else max(20 * senders, 20_000 if senders < 50 else 60_000)


def amqp_each(load: LoadGenerators, broker: Broker, senders: int) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", str(senders), "-n", str(_each(senders)), "-s", "400")
    return load.run("amqpload", broker.port("amqp"), *to, "-d", "-V", "-x", "1")["accepted_per_s"]


def anycast_each(load: LoadGenerators, broker: Broker, senders: int) -> float:
    through = ("-a", "anycast/load", "-c", str(senders), "-n", str(_each(senders)), "-s", "100", "-R", "4")
    return load.run("amqpload", broker.port("amqp"), *through, "-x", "1")["recv_per_s"]


def amqp_each_through(load: LoadGenerators, broker: Broker, senders: int) -> float:
    through = ("-a", broker.queue(next(_queues)), "-c", str(senders), "-n", str(_each(senders)), "-s", "400")
    return load.run("amqpload", broker.port("amqp"), *through, "-d", "-V", "-x", "1", "-R", "4")["recv_per_s"]


def amqp_fanout(load: LoadGenerators, broker: Broker) -> float:
    fanout = ("-a", "fan/out", "-c", "5", "-n", "4000", "-s", "400", "-V", "-R", "50", "-F")
    return load.run("amqpload", broker.port("amqp"), *fanout)["recv_per_s"]


def amqps_unlike(load: LoadGenerators, broker: Broker) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", "50000", "-s", "400", "-d", "-V", "-X")
    return load.run("amqpload", broker.port("amqps"), *to)["accepted_per_s"]


def amqp_ws_unlike(load: LoadGenerators, broker: Broker) -> float:
    to = ("-a", broker.queue(next(_queues)), "-c", "5", "-n", "50000", "-s", "400", "-d", "-V")
    with load.over_websocket(broker.port("amqp-ws")) as port:
        return load.run("amqpload", port, *to)["accepted_per_s"]


def idle(_load: LoadGenerators, broker: Broker) -> float:
    return connections_resident_mib(broker, IDLE)


def idle_tls(_load: LoadGenerators, broker: Broker) -> float:
    return tls_connection_kib(broker, IDLE_TLS)


_LOAD = "MQTT QoS 1, 50 connections, window 20, 100 B"
_EACH = "AMQP, one unlike message a sender under way, durable queue"
_ANYCAST = "AMQP anycast, one message a sender under way, 4 receivers"
_RABBIT, _TO_RABBIT = 5.0, 20_000
CASES: Final[dict[str, Benchmark]] = {
    case.name: case if isinstance(case, Benchmark) else case.benchmark
    for case in (
        Comparison(
            "mqtt-in", f"{_LOAD}; ours on disk before each PUBACK, theirs stored nowhere",
            25, mqtt_in, Mosquitto, 1.0, ours_durable,
        ),
        Comparison("mqtt-through", f"{_LOAD}, through to one live subscriber", 35, mqtt_through, Mosquitto, 1.0),
        Comparison("mqtt-qos0", "MQTT QoS 0, 50 connections, through to one subscriber", 45, mqtt_qos0, Mosquitto, 0.8),
        Comparison("mqtt-fanout", "MQTT QoS 0, one publisher to 200 subscribers", 60, mqtt_fanout, Mosquitto, 0.8),
        Comparison(
            "mqtt-queued", f"{_LOAD}, for an absent session; theirs kept in memory",
            40, mqtt_in, Mosquitto, 1.3, absent_session,
        ),
        Comparison(
            "mqtt-queued-artemis", f"{_LOAD}, for an absent session, both on disk",
            60, mqtt_in, Artemis, 1.3, absent_session, warm_rounds=4,
        ),
        latency.BENCHMARK,
        alone.BENCHMARK,
        *unlike.CASES,
        pace.BENCHMARK,
        open_tabs.BENCHMARK,
        simulated_devices.BENCHMARK,
        Comparison(
            "amqp-anycast", "AMQP anycast, 5 senders, 1 receiver, settled end to end", 20, amqp_anycast, None, ROUTER
        ),
        Comparison("amqp-anycast-skupper", "the same, beside the C router", 25, amqp_anycast, SkupperRouter, 1.0),
        Comparison("amqp-in", "AMQP, 5 senders, 100 B, durable queue; on disk first", 15, amqp_in, None, 50_000),
        Comparison("amqp-through", "the same through to one receiver", 20, amqp_through, None, 30_000),
        Comparison("amqp-unlike", "AMQP, 5 senders, unlike messages, durable queue", 15, amqp_unlike, None, 50_000),
        Comparison("amqp-fanout", "AMQP, 5 senders, unlike, a topic with 50 receivers", 20, amqp_fanout, None, 50_000),
        Comparison(
            "amqps-unlike", "AMQP over TLS, 5 senders, unlike messages, durable queue",
            15, amqps_unlike, None, 40_000, ours=WaypostEveryTransport,
        ),
        Comparison(
            "amqp-ws-unlike", "AMQP over WebSocket, 5 senders through a relay, unlike messages, durable queue",
            15, amqp_ws_unlike, None, 30_000, ours=WaypostEveryTransport,
        ),
        Spread("amqp-each", _EACH, 60, amqp_each, (50, 200, 1_000), 40_000),
        Spread("amqp-connections", _EACH, 120, amqp_each, unlike.CURVE),
        Spread("amqp-each-through", f"{_EACH}, to 4 receivers", 90, amqp_each_through, (50, 200, 1_000)),
        Spread("amqp-each-artemis", f"{_EACH}, both on disk", 180, amqp_each, (50, 200, 1_000), 1.5, peer=Artemis),
        Spread("amqp-each-rabbitmq", _EACH, 180, amqp_each, (50, 200, 1_000), _RABBIT, peer=RabbitMQ),
        Spread("anycast-each", _ANYCAST, 70, anycast_each, (10, 50, 200, 1_000), 40_000, 0.8),
        Spread(
            "anycast-each-skupper", f"{_ANYCAST}, beside the C router",
            90, anycast_each, (10, 50, 200, 1_000), 0.3, 0.0, SkupperRouter,
        ),
        Comparison(
            "amqp-in-rabbitmq", "AMQP, 5 senders, 100 B, into a durable queue",
            30, partial(amqp_in, messages=_TO_RABBIT), RabbitMQ, _RABBIT,
        ),
        Comparison(
            "amqp-through-rabbitmq", "the same through to one receiver",
            40, partial(amqp_through, messages=_TO_RABBIT), RabbitMQ, _RABBIT,
        ),
        Comparison(
            "amqp-in-artemis", "AMQP, 5 senders, 100 B, into a durable queue, both on disk",
            50, amqp_in, Artemis, 0.8, warm_rounds=4, memory_share=MEMORY_SHARE,
        ),
        Comparison(
            "amqp-through-artemis", "the same through to one receiver",
            60, amqp_through, Artemis, 0.8, warm_rounds=4, memory_share=MEMORY_SHARE,
        ),
        Comparison(
            "idle", f"resident memory with {IDLE} idle MQTT connections, most of the rounds",
            30, idle, None, 80, unit="MiB", lower_is_better=True, warm_rounds=0,
        ),
        Comparison(
            "idle-tls", f"resident memory of each of {IDLE_TLS} idle MQTT connections over TLS",
            30, idle_tls, None, 32, unit="KiB", lower_is_better=True, warm_rounds=0, ours=WaypostEveryTransport,
        ),
        retained.BENCHMARK,
        backlog.BENCHMARK,
        *crossing.CASES,
        writes.BENCHMARK,
        figures.BENCHMARK,
        analytics.BENCHMARK,
        passes.BENCHMARK,
        rollups.BENCHMARK,
        commits.BENCHMARK,
        gold.BENCHMARK,
        hour.BENCHMARK,
        first.BENCHMARK,
        many_gateways.BENCHMARK,
        hub_replicas.BENCHMARK,
        known_gateways.BENCHMARK,
        gateway_pages.BENCHMARK,
    )
}  # fmt: skip
