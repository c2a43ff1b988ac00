"""A long backlog in one queue: its effect on the next message, a restart, memory and its own drain.

Filling and draining are compared, decile by decile, with a gateway that starts with an empty store just before, so that
variations of the machine cancel out. The gateway is killed, not stopped, before the restart.
"""

from __future__ import annotations

import socket
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_least, at_most
from tests.bench.scratch import scratch_folder

MESSAGES: Final = 2_000_000
MESSAGES_FULL: Final = 20_000_000
PARTS: Final = 10
REFERENCE: Final = 300_000
"""Messages that measure the rate of an empty store."""
QUEUE: Final = "queue/backlog"
SHARE_MIN: Final = 0.9
FIRST_DELIVERY_S_MAX: Final = 2.0
RESIDENT_MIB_MAX: Final = 150.0
STEADY: Final = 0.15
"""Largest deviation of a decile of the drain from their median."""
TIMEOUT_S: Final = "900"
_CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04late"
_SUBSCRIBE = b"\x82" + bytes((len(QUEUE) + 5,)) + b"\x00\x01\x00" + bytes((len(QUEUE),)) + QUEUE.encode() + b"\x01"


def run(load: LoadGenerators, settings: Settings) -> list[Result]:
    messages = MESSAGES_FULL if settings.full else MESSAGES
    with scratch_folder() as folder, ExitStack() as stack:
        gateway = stack.enter_context(WaypostBroker(Path(folder)))
        enqueue(load, gateway, REFERENCE, "queue/warm")
        filled, empty, filling_cpu = _fill(load, gateway, messages)
        filled_mib = gateway.resident_mib_max
        gateway.kill()
        begin = time.monotonic()
        gateway.start()
        ready_s = time.monotonic() - begin
        _first_delivery(gateway.port("mqtt"))
        first_s = time.monotonic() - begin
        say(f"  after SIGKILL ready in {ready_s:.2f} s, first delivery in {first_s:.2f} s")
        drained, short, draining_cpu = _drain(load, gateway, messages)
        resident = max(filled_mib, gateway.resident_mib_max)
    ratios = [a / b for a, b in zip(filled, empty, strict=True)]
    last = statistics.median(ratios[-3:])
    # Further load on the machine only adds to the spread, so the smaller one describes the gateway better.
    spread = min(_spread(drained), _spread([a / b for a, b in zip(drained, short, strict=True)]))
    details: dict[str, float | list[float]] = {
        "messages": float(messages), "ready_s": ready_s,
        "filled_per_s": filled, "empty_store_per_s": empty, "filled_to_empty": ratios, "filling_cpu_us": filling_cpu,
        "drained_per_s": drained, "short_backlog_per_s": short, "draining_cpu_us": draining_cpu,
    }  # fmt: skip
    what = f"{messages // 1_000_000} million messages of 100 B in one queue"
    return [
        Result(
            "backlog-fill", f"{what}: the last tenths' rate to an empty store's", "x", last,
            at_least(SHARE_MIN, last), details=details,
        ),
        Result(
            "backlog-restart", f"{what}: SIGKILL, start, first delivery", "s", first_s,
            at_most(FIRST_DELIVERY_S_MAX, first_s),
        ),
        Result(
            "backlog-memory", f"{what}: most resident memory over all of it", "MiB", resident,
            at_most(RESIDENT_MIB_MAX, resident),
        ),
        Result(
            "backlog-drain", f"{what}: the decile whose rate is furthest from their median", "+/- %",
            100 * spread, at_most(100 * STEADY, 100 * spread),
        ),
    ]  # fmt: skip


def enqueue(load: LoadGenerators, gateway: WaypostBroker, messages: int, queue: str = QUEUE) -> float:
    """Publish into the queue, each message on disk before its PUBACK; return messages a second."""
    arguments = ("-c", "50", "-n", str(messages), "-q", "1", "-w", "20", "-s", "100", "-t", queue, "-T", TIMEOUT_S)
    return load.run("mqttload", gateway.port("mqtt"), *arguments)["pub_per_s"]


def _fill(load: LoadGenerators, gateway: WaypostBroker, messages: int) -> tuple[list[float], list[float], list[float]]:
    """Fill the queue; return by decile the rate, an empty store's rate, and CPU microseconds for a message."""
    filled: list[float] = []
    empty: list[float] = []
    cpu: list[float] = []
    for part in range(PARTS):
        with WaypostBroker() as fresh:
            enqueue(load, fresh, REFERENCE // 3, "queue/warm")
            empty.append(enqueue(load, fresh, REFERENCE))
        before = gateway.cpu_s
        filled.append(enqueue(load, gateway, messages // PARTS))
        cpu.append((gateway.cpu_s - before) / (messages // PARTS) * 1e6)
        say(
            f"  filled {part + 1}/{PARTS}: {filled[-1]:,.0f} msg/s ({cpu[-1]:.2f} us of CPU each), an empty store "
            f"{empty[-1]:,.0f} msg/s, {gateway.resident_mib:.0f} MiB"
        )
    return filled, empty, cpu


def _first_delivery(port: int) -> None:
    """Wait until the first message of the queue has arrived. It is not acknowledged, so it stays."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as consumer:
        consumer.sendall(_CONNECT)
        if consumer.recv(4) != b"\x20\x02\x00\x00":
            raise LoadFailed("the gateway refused the consumer")
        consumer.sendall(_SUBSCRIBE)
        arrived = b""
        while len(arrived) < 6:  # SUBACK is 5 bytes; a PUBLISH follows
            more = consumer.recv(65536)
            if not more:
                raise LoadFailed("the gateway closed the consumer's connection")
            arrived += more
        if arrived[0] != 0x90 or arrived[5] >> 4 != 3:
            raise LoadFailed(f"no message but {arrived[:16].hex()}")


def dequeue(load: LoadGenerators, gateway: WaypostBroker, messages: int) -> float:
    """Receive the queue with one AMQP receiver that accepts all; return messages a second."""
    arguments = ("-a", QUEUE, "-c", "0", "-R", "1", "-n", str(messages), "-s", "100", "-T", TIMEOUT_S)
    return load.run("amqpload", gateway.port("amqp"), *arguments)["recv_per_s"]


def _drain(load: LoadGenerators, gateway: WaypostBroker, messages: int) -> tuple[list[float], list[float], list[float]]:
    """Drain the queue; return by decile the rate, a short backlog's rate, and CPU microseconds for a message."""
    rates: list[float] = []
    short: list[float] = []
    cpu: list[float] = []
    for part in range(PARTS):
        with WaypostBroker() as fresh:
            enqueue(load, fresh, REFERENCE)
            short.append(dequeue(load, fresh, REFERENCE))
        before = gateway.cpu_s
        rates.append(dequeue(load, gateway, messages // PARTS))
        cpu.append((gateway.cpu_s - before) / (messages // PARTS) * 1e6)
        say(
            f"  drained {part + 1}/{PARTS}: {rates[-1]:,.0f} msg/s ({cpu[-1]:.2f} us of CPU each), a short backlog "
            f"{short[-1]:,.0f} msg/s, {gateway.resident_mib:.0f} MiB"
        )
    return rates, short, cpu


def _spread(rates: list[float]) -> float:
    """Return the largest distance from the median, as a share of it."""
    usual = statistics.median(rates)
    return max(abs(rate / usual - 1) for rate in rates)


BENCHMARK = Benchmark("store-backlog", "a long backlog in one queue: fill, SIGKILL, restart, drain", 120, run)
