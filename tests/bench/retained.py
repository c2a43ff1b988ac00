"""A retained message on each of a million topics: the gateway's memory for each, without its body."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Final

from tests.bench.brokers import WaypostConfigured
from tests.bench.comparison import Benchmark, Settings
from tests.bench.idle import connect
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most

TOPICS: Final = 1_000_000
WARM: Final = 10_000
"""Messages before the first measurement of memory, which allocate everything that is allocated once."""
BYTES_EACH_MAX: Final = 300.0
"""Most memory for a message, without its body."""
_BODY: Final = b'{"state": "running", "since": 1763856000}'
_AT_ONCE: Final = 1_000
_PUBACK_BYTES: Final = 4
_LIMITS: Final = "{retainedMax: 2000000, retainedPerUserMax: 2000000, memoryBytesMax: 2000000000}"


def _publish(device: socket.socket, first: int, end: int) -> None:
    """Publish retained messages at QoS 1 to these topics and read their PUBACKs. Raises LoadFailed."""
    for start in range(first, end, _AT_ONCE):
        packets = []
        numbers = range(start, min(start + _AT_ONCE, end))
        for number in numbers:
            topic = b"plant/hall%03d/pump%06d/state" % (number % 1_000, number)
            rest = len(topic).to_bytes(2, "big") + topic + (1 + number - start).to_bytes(2, "big") + _BODY
            packets.append(bytes((0x33, len(rest))) + rest)
        device.sendall(b"".join(packets))
        left = len(numbers) * _PUBACK_BYTES
        while left:
            answered = device.recv(left)
            if not answered:
                raise LoadFailed(f"the connection ended at {start:,} retained messages")
            left -= len(answered)


def _run(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    with ExitStack() as stack:
        broker = stack.enter_context(WaypostConfigured(_LIMITS))
        (device,) = connect(stack, broker.port("mqtt"), 1, name="retains")
        _publish(device, 0, WARM)
        time.sleep(1)  # memory of a burst is released now
        before_mib = broker.resident_mib
        begin = time.monotonic()
        _publish(device, WARM, TOPICS)
        rate = (TOPICS - WARM) / (time.monotonic() - begin)
        time.sleep(1)
        resident_mib = broker.resident_mib
        each = (resident_mib - before_mib) * 2**20 / (TOPICS - WARM) - len(_BODY)
        say(f"  {broker.name}: {before_mib:.1f} MiB before, {resident_mib:.1f} MiB after, {rate:,.0f} topics a second")
    goal = at_most(BYTES_EACH_MAX, each, " B")
    return [Result("retained", BENCHMARK.about, "bytes", each, goal, resident_mib=resident_mib)]


BENCHMARK: Final = Benchmark(
    "retained", f"resident memory of a retained message beside its body, {TOPICS:,} topics; once", 120, _run
)
