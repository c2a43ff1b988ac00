"""MQTT as a fleet sends it: varied topics, sizes and contents, and many connections with one message each.

`cases` measures uniform messages in deep windows; a broker that is fast there may still be slow here.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

from tests.bench.brokers import (
    Broker,
    Mosquitto,
    MosquittoEveryTransport,
    MosquittoSqlite,
    WaypostBroker,
    WaypostEveryTransport,
)
from tests.bench.comparison import Benchmark, Comparison, Settings
from tests.bench.latency import COMMITS, CommitTimes
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.peers import Artemis, RabbitMQ
from tests.bench.result import Result, at_most
from tests.bench.sessions import absent_session

UNLIKE: Final = ("-V", "20", "-Z", "400")
"""20 topics for each connection, payloads of 16 to 400 bytes."""
FLEET: Final = 500
"""Connections with one message each in flight."""
CURVE: Final = (1, 10, 100, 1_000, 5_000)
"""Numbers of connections, with one message each."""
FILES_BESIDE: Final = 200

_WINDOWS: Final = ("-c", "50", "-w", "20")
_SUBSCRIBER: Final = ("-S", "1", "-f", "load/#")


def _measure(
    *arguments: str, figure: str = "pub_per_s", listener: str = "mqtt"
) -> Callable[[LoadGenerators, Broker], float]:
    return lambda load, broker: load.run("mqttload", broker.port(listener), *UNLIKE, *arguments)[figure]


def _one_each(connections: int, messages: int, *more: str, figure: str = "pub_per_s") -> Callable[..., float]:
    return _measure("-c", str(connections), "-w", "1", "-n", str(messages), "-q", "1", *more, figure=figure)


def stored(broker: Broker) -> None:
    """Make Waypost store every message; the peer need not."""
    if broker.name == "waypost":
        absent_session(broker)


def _curve(load: LoadGenerators, settings: Settings, *, through: bool) -> list[Result]:
    """Measure messages a second by number of connections: stored, or received by a live subscriber."""
    allow_files(max(CURVE) + FILES_BESIDE)
    name, about = ("mqtt-connections-through", _EACH_THROUGH) if through else ("mqtt-connections", _EACH_IN)
    with ExitStack() as stack:
        theirs, ours = stack.enter_context(Mosquitto()), stack.enter_context(WaypostBroker())
        if not through:
            absent_session(ours)
        results = []
        for connections in CURVE:
            messages = 2_000 if connections == 1 else max(20_000, 4 * connections)
            more, figure = (_SUBSCRIBER, "recv_per_s") if through else ((), "pub_per_s")
            measure = _one_each(connections, messages, *more, figure=figure)
            values: dict[str, list[float]] = {broker.name: [] for broker in (ours, theirs)}
            for _ in range(settings.rounds):
                for broker in (ours, theirs):
                    values[broker.name].append(measure(load, broker))
            mine, others = values[ours.name], values[theirs.name]
            ratio = median(a / b for a, b in zip(mine, others, strict=True))
            say(f"  {name} {connections}: {median(mine):,.0f} and {median(others):,.0f} msg/s")
            told = about.format(connections)
            results.append(
                Result(f"{name}-{connections}", told, "msg/s", median(mine), None, theirs.name, median(others), ratio)
            )
        return results


def allow_files(files: int) -> None:
    """Raise the limit of open files for this process and its brokers and generators."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, hard), hard))


PACED: Final = ("-c", str(FLEET), "-n", "100000", "-q", "1", "-r", "20000", *UNLIKE)
PUBACK_MS_MAX: Final = 3.0
"""Largest median."""
BEYOND_COMMITS_MS_MAX: Final = 20.0
"""Largest 99th percentile of PUBACK, beyond `COMMITS` commits of the round's 99th percentile."""


def _paced(load: LoadGenerators, settings: Settings) -> list[Result]:
    """Measure PUBACK at a steady rate that many connections share."""
    waits_ms: dict[str, list[float]] = {"p50": [], "p99": [], "commit_p99": []}
    theirs_ms: dict[str, list[float]] = {"p50": [], "p99": []}
    with Mosquitto() as theirs, WaypostBroker() as ours:
        absent_session(ours)
        for number in range(settings.rounds + 1):
            before = CommitTimes.scrape(ours.port("http"))
            mine = load.run("mqttload", ours.port("mqtt"), *PACED)
            commit_ms = CommitTimes.scrape(ours.port("http")).percentile_us(0.99, since=before) / 1e3
            others = load.run("mqttload", theirs.port("mqtt"), *PACED)
            told = f"PUBACK p50 {mine['ack_us_p50'] / 1e3:.2f}, p99 {mine['ack_us_p99'] / 1e3:.2f} ms"
            say(f"  mqtt-fleet-latency {number}/{settings.rounds}: {told}, p99 of its commits {commit_ms:.2f} ms")
            if number:  # the first round warms up
                waits_ms["commit_p99"].append(commit_ms)
                for q in ("p50", "p99"):
                    waits_ms[q].append(mine[f"ack_us_{q}"] / 1e3)
                    theirs_ms[q].append(others[f"ack_us_{q}"] / 1e3)
    return paced(waits_ms, theirs_ms, theirs.name)


def paced(waits_ms: dict[str, list[float]], theirs_ms: dict[str, list[float]], peer: str) -> list[Result]:
    """Evaluate the rounds: ``p50``, ``p99`` of PUBACK, and of ours ``commit_p99``."""
    return [_paced_usual(waits_ms, theirs_ms, peer), _paced_worst(waits_ms, theirs_ms, peer)]


def _paced_usual(waits_ms: dict[str, list[float]], theirs_ms: dict[str, list[float]], peer: str) -> Result:
    mine, others = median(waits_ms["p50"]), median(theirs_ms["p50"])
    goal = at_most(PUBACK_MS_MAX, mine)
    return Result(LATENCY.name, LATENCY.about, "ms, p50", mine, goal, peer, others, mine / others, details=waits_ms)


def _paced_worst(waits_ms: dict[str, list[float]], theirs_ms: dict[str, list[float]], peer: str) -> Result:
    """Compare the 99th percentile without the round's own commit time, because commit times differ by the minute."""
    mine, others = median(waits_ms["p99"]), median(theirs_ms["p99"])
    beyond = median(a - COMMITS * c for a, c in zip(waits_ms["p99"], waits_ms["commit_p99"], strict=True))
    words = f"<= {COMMITS:g} commits + {BEYOND_COMMITS_MS_MAX:g}"
    goal = at_most(BEYOND_COMMITS_MS_MAX, max(beyond, 0.0))._replace(words=words)
    return Result(
        f"{LATENCY.name}-p99", f"the same, in 99 of 100: {COMMITS:g} commits and {beyond:+.2f} ms", "ms, p99",
        mine, goal, peer, others, mine / others,
    )  # fmt: skip


LATENCY: Final = Benchmark(
    "mqtt-fleet-latency", f"MQTT QoS 1, unlike, 20 000 msg/s from {FLEET} connections: PUBACK, p50 and p99", 80, _paced
)

_WHAT: Final = "MQTT, 50 connections, 20 topics each, 16-400 B"
_EACH: Final = "MQTT QoS 1, unlike, {} connections with a message each"
_EACH_IN: Final = f"{_EACH}; ours on disk first, theirs stored nowhere"
_EACH_THROUGH: Final = f"{_EACH}, through to one live subscriber"
_IN: Final = (*_WINDOWS, "-n", "100000", "-q", "1")
_THROUGH: Final = (*_IN, *_SUBSCRIBER)
_PROPERTIES: Final = ("-5", "3")
_compared = partial(Comparison, peer=Mosquitto)
_over = partial(Comparison, peer=MosquittoEveryTransport, ours=WaypostEveryTransport)
_beside_sqlite = partial(Comparison, peer=MosquittoSqlite, prepare=absent_session)
_beside_artemis = partial(Comparison, peer=Artemis, prepare=absent_session, warm_rounds=4)
_beside_rabbitmq = partial(Comparison, peer=RabbitMQ, prepare=absent_session)
CASES: Final = (
    _compared(
        "mqtt-unlike-in", f"{_WHAT}, QoS 1, window 20; ours on disk first, theirs stored nowhere", 30,
        _measure(*_IN), goal=1.0, prepare=stored,
    ),
    _compared(
        "mqtt-unlike-through", f"{_WHAT}, QoS 1, through to one live subscriber", 40,
        _measure(*_THROUGH, figure="recv_per_s"), goal=1.0,
    ),
    _compared(
        "mqtt-unlike-qos0", f"{_WHAT}, QoS 0, through to one subscriber", 40,
        _measure("-c", "50", "-n", "300000", "-q", "0", "-Q", "0", *_SUBSCRIBER, figure="recv_per_s"), goal=1.5,
    ),
    _compared(
        "mqtt-unlike-qos2", f"{_WHAT}, QoS 2, window 20; ours on disk first, theirs stored nowhere", 60,
        _measure(*_WINDOWS, "-n", "20000", "-q", "2"), goal=0.3, prepare=stored,
    ),
    _compared(
        "mqtt-unlike-retained", f"{_WHAT}, QoS 1, window 20, all retained; ours on disk first", 60,
        _measure(*_WINDOWS, "-n", "40000", "-q", "1", "-R", "1"), goal=0.2,
    ),
    _compared(
        "mqtt-unlike-fanout", "MQTT QoS 0, 10 connections, 20 topics each, to 100 subscribers of all", 60,
        _measure("-c", "10", "-n", "10000", "-q", "0", "-Q", "0", "-S", "100", "-f", "load/#", figure="recv_per_s"),
        goal=0.8,
    ),
    _compared(
        "mqtt5-unlike-in", f"{_WHAT}, MQTT 5 QoS 1, 3 user properties of its own each; ours on disk first", 40,
        _measure(*_IN, *_PROPERTIES), goal=0.25, prepare=stored,
    ),
    _compared(
        "mqtt5-unlike-through", f"{_WHAT}, MQTT 5 QoS 1, 3 user properties of its own each, to one subscriber", 50,
        _measure(*_THROUGH, *_PROPERTIES, figure="recv_per_s"), goal=0.5,
    ),
    _over(
        "mqtts-unlike-in", f"{_WHAT}, QoS 1, window 20, over TLS; ours on disk first", 40,
        _measure(*_IN, "-X", listener="mqtts"), goal=0.5, prepare=stored,
    ),
    _over(
        "mqtts-unlike-through", f"{_WHAT}, QoS 1, window 20, over TLS, to one subscriber", 50,
        _measure(*_THROUGH, "-X", listener="mqtts", figure="recv_per_s"), goal=0.5,
    ),
    _over(
        "mqtt-ws-unlike-in", f"{_WHAT}, QoS 1, window 20, over WebSocket; ours on disk first", 40,
        _measure(*_IN, "-W", listener="mqtt-ws"), goal=0.2, prepare=stored,
    ),
    _beside_sqlite(
        "mqtt-unlike-in-sqlite", f"{_WHAT}, QoS 1, window 20, for an absent session; ours on disk first", 60,
        _measure(*_IN), goal=1.5,
    ),
    _beside_sqlite(
        "mqtt-fleet-in-sqlite", f"{_EACH.format(FLEET)}, for an absent session; ours on disk first", 60,
        _one_each(FLEET, 300_000), goal=1.5,
    ),
    _beside_artemis(
        "mqtt-unlike-in-artemis", f"{_WHAT}, QoS 1, window 20, for an absent session, both on disk", 120,
        _measure(*_WINDOWS, "-n", "50000", "-q", "1"), goal=1.0,
    ),
    _beside_artemis(
        "mqtt-fleet-in-artemis", f"{_EACH.format(FLEET)}, for an absent session, both on disk", 120,
        _one_each(FLEET, 20_000), goal=1.0,
    ),
    _beside_rabbitmq(
        "mqtt-unlike-in-rabbitmq", f"{_WHAT}, QoS 1, window 20, for an absent session", 90,
        _measure(*_WINDOWS, "-n", "50000", "-q", "1"), goal=1.0,
    ),
    _beside_rabbitmq(
        "mqtt-fleet-in-rabbitmq", f"{_EACH.format(FLEET)}, for an absent session", 90,
        _one_each(FLEET, 20_000), goal=1.0,
    ),
    _compared(
        "mqtt-fleet-in", f"{_EACH.format(FLEET)}; ours on disk first, theirs stored nowhere", 40,
        _one_each(FLEET, 300_000), goal=0.7, prepare=stored,
    ),
    _compared(
        "mqtt-fleet-2000-in", f"{_EACH.format(2_000)}; ours on disk first, theirs stored nowhere", 40,
        _one_each(2_000, 300_000), goal=0.7, prepare=stored,
    ),
    _compared(
        "mqtt-fleet-through", f"{_EACH.format(FLEET)}, through to one live subscriber", 40,
        _one_each(FLEET, 300_000, *_SUBSCRIBER, figure="recv_per_s"), goal=1.0,
    ),
    _compared(
        "mqtt-fleet-2000-through", _EACH_THROUGH.format(2_000), 50,
        _one_each(2_000, 300_000, *_SUBSCRIBER, figure="recv_per_s"), goal=1.0,
    ),
    LATENCY,
    Benchmark("mqtt-connections", _EACH_IN.format("1 to 5 000"), 120, partial(_curve, through=False)),
    Benchmark("mqtt-connections-through", _EACH_THROUGH.format("1 to 5 000"), 150, partial(_curve, through=True)),
)  # fmt: skip
"""The measurements. The goals of QoS 2, retained messages, MQTT 5, TLS and WebSocket are lower bounds for
every change.
"""
