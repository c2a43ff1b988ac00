"""Devices of a gateway to the lake of its hub: rate of a backlog's drain, bytes on the wire, and delay of live
readings.

The gateway and its hub are the product's programs; the link between them counts bytes and can be narrow.
"""

from __future__ import annotations

import random
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from deltalake import DeltaTable

from bridge.limits import BACKLOG_QUEUE_S
from tests.bench.accepting_hub import AcceptingHub
from tests.bench.brokers import Mosquitto, MosquittoBridge
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.narrow_link import NarrowLink
from tests.bench.packages import say
from tests.bench.result import Result, at_least, at_most
from tests.bench.scratch import scratch_folder
from tests.support.http_client import ask
from tests.support.processes import Waypost, cpu_s, edge, hub, wait_until

DEVICES: Final = 200
BACKLOG: Final = 200_000
NARROW_BYTES_S: Final = 1_000_000 / 8
NARROW_BACKLOG: Final = 250_000
NARROW_BACKLOG_FULL: Final = 1_000_000
LIVE_S: Final = 12.0
"""Seconds of single readings, on an idle link and during a drain."""
READING_BYTES: Final = 118
RATE_MIN: Final = 150_000
PUBACK_BYTES: Final = 4
BACKLOG_BYTES_MAX: Final = 10.0
LIVE_BYTES_MAX: Final = 40.0
LIVE_DEVICES: Final = 20
LIVE_LEAVES_MS_MAX: Final = 250.0
"""Longest time until a live reading has reached the hub, on a good link."""
LIVE_TIMES_MAX: Final = 1.5
BATCH_S: Final = BACKLOG_QUEUE_S
"""One batch of the backlog, which may be ahead of a reading on the link."""
_CONNECTED: Final = b"\x20\x02\x00\x00"


class Sensor:
    """Device with values that vary, and have the digits, of a real one."""

    def __init__(self, number: int) -> None:
        self.name = f"pump{number:03d}"
        self.topic = f"plant/{self.name}/reading"
        self._chance = random.Random(number)
        self._time_ms = 1_763_845_200_000 + self._chance.randrange(1_000)
        self.last = b""
        """The newest reading."""
        self._values = [21.5 + self._chance.random() * 4, 45 + self._chance.random() * 10, 1013.2, 3.71]

    def reading(self) -> bytes:
        """Return a reading as JSON of `READING_BYTES`."""
        self._time_ms += 1_000 + self._chance.randrange(-8, 9)
        steps = (0.05, 0.2, 0.05, 0.001)
        self._values = [value + self._chance.gauss(0, step) for value, step in zip(self._values, steps, strict=True)]
        temperature, humidity, pressure, battery = self._values
        text = (
            f'{{"ts":{self._time_ms},"temperature":{temperature:.2f},"humidity":{humidity:.1f},'
            f'"pressure":{pressure:.2f},"battery":{battery:.3f},"status":"ok"'
        )
        self.last = (text + " " * (READING_BYTES - 1 - len(text)) + "}").encode()
        return self.last


class Fleet:
    """Devices over MQTT, QoS 1, each with its own connection."""

    def __init__(self, port: int, devices: int = DEVICES) -> None:
        self.sensors = [Sensor(number) for number in range(devices)]
        self._sockets = [self._connect(port, sensor.name) for sensor in self.sensors]

    @staticmethod
    def _connect(port: int, name: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        client = name.encode()
        connection.sendall(
            bytes((0x10, 12 + len(client))) + b"\x00\x04MQTT\x04\x02\x00\x00\x00" + bytes((len(client),)) + client
        )
        if connection.recv(4) != _CONNECTED:
            raise LoadFailed("the gateway refused a device")
        return connection

    def publish(self, number: int, readings: int) -> None:
        """Publish with one device, and wait for all acknowledgements."""
        sensor, connection = self.sensors[number], self._sockets[number]
        topic = struct.pack(">H", len(sensor.topic)) + sensor.topic.encode()
        for start in range(0, readings, 200):
            packets = []
            for identifier in range(1, min(200, readings - start) + 1):
                rest = topic + struct.pack(">H", identifier) + sensor.reading()
                packets.append(bytes((0x32, len(rest) & 0x7F | 0x80, len(rest) >> 7)) + rest)
            connection.sendall(b"".join(packets))
            left = 4 * len(packets)
            while left:
                got = len(connection.recv(left))
                if not got:
                    raise LoadFailed("the gateway closed a device's connection")
                left -= got

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()


class Site:
    """Hub, gateway, and the link between them."""

    def __init__(self, folder: Path) -> None:
        self.hub: Waypost = hub(folder)
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[tuple[Waypost, NarrowLink]]:
        with self.hub, NarrowLink(self.hub.port("amqp")) as link:
            link.cut = True
            arguments = ("--hub", f"amqp://127.0.0.1:{link.port}", "--gateway", "gw1", "--forward", "plant/#")
            with edge(self._folder, "gateway", *arguments) as gateway:
                yield gateway, link

    @property
    def landed(self) -> int:
        """Count the gateway's messages in the lake."""
        answer = ask(self.hub, "GET", "/api/v1/gateways/gw1")
        return int(answer.document["landed"]) if answer.status == HTTPStatus.OK else 0

    def rows(self) -> list[tuple[str, float]]:
        """Return (lane, seconds from the gateway to the lake) of every row, in the order of reception."""
        table = DeltaTable(str(self._folder / "hub" / "lake" / "telemetry"))
        columns = table.to_pyarrow_table(columns=["lane", "received_at", "ingested_at"]).sort_by("received_at")
        lanes = columns["lane"].to_pylist()
        received, ingested = (columns[name].cast("int64").to_pylist() for name in ("received_at", "ingested_at"))
        return [(lane, (to - at) / 1e6) for lane, at, to in zip(lanes, received, ingested, strict=True)]


def _fill(fleet: Fleet, readings: int) -> None:
    """Publish an equal share of the readings with each device, in turn and in small parts, as many devices would."""
    each = readings // len(fleet.sensors)
    for start in range(0, each, 50):
        for number in range(len(fleet.sensors)):
            fleet.publish(number, min(50, each - start))


def _live(fleet: Fleet, seconds: float, devices: int, every_s: float = 1.0) -> int:
    """Publish one reading a second with each device, spread over the second; return their number."""
    begin = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed / every_s * devices)
        while sent < due:
            fleet.publish(sent % devices, 1)
            sent += 1
        time.sleep(0.005)
    return sent


class Drained(NamedTuple):
    """Figures of one round of `drain`."""

    rate: float
    backlog_bytes: float
    live_bytes: float
    gateway_us: float
    """Processor time for a reading."""
    hub_us: float


def _drain(folder: Path) -> Drained:
    site = Site(folder)
    with site.running() as (gateway, link):
        fleet = Fleet(gateway.port("mqtt"))
        _fill(fleet, BACKLOG)
        before = cpu_s(gateway.pid), cpu_s(site.hub.pid)
        link.cut = False
        wait_until(lambda: link.up_bytes > 0, timeout_s=60, what="the gateway connects", every_s=0.002)
        begin = time.monotonic()
        wait_until(lambda: site.landed >= BACKLOG, timeout_s=120, what="all of it has landed", every_s=0.02)
        rate = BACKLOG / (time.monotonic() - begin)
        spent = cpu_s(gateway.pid) - before[0], cpu_s(site.hub.pid) - before[1]
        time.sleep(1.0)  # the last answers are in flight
        backlog_bytes = (link.up_bytes + link.down_bytes) / BACKLOG
        carried, landed = link.up_bytes + link.down_bytes, site.landed
        sent = _live(fleet, LIVE_S, DEVICES)
        wait_until(lambda: site.landed >= landed + sent, timeout_s=60, what="what came has landed")
        live_bytes = (link.up_bytes + link.down_bytes - carried) / sent
        fleet.close()
    return Drained(rate, backlog_bytes, live_bytes, *(each / BACKLOG * 1e6 for each in spent))


def _bridged(folder: Path) -> float:
    """Send the same backlog over Mosquitto's bridge; return readings/s from its first byte to the last PUBACK."""
    with Mosquitto(folder) as far, NarrowLink(far.port("mqtt")) as link:
        link.cut = True
        with MosquittoBridge(folder, link.port, "plant/#") as near:
            fleet = Fleet(near.port("mqtt"))
            _fill(fleet, BACKLOG)
            link.cut = False
            wait_until(lambda: link.up_bytes > 0, timeout_s=60, what="the bridge connects", every_s=0.002)
            begin, answers = time.monotonic(), BACKLOG * PUBACK_BYTES
            wait_until(lambda: link.down_bytes >= answers, timeout_s=120, what="all of it is answered", every_s=0.02)
            rate = BACKLOG / (time.monotonic() - begin)
            fleet.close()
    return rate


def drain(_load: LoadGenerators, settings: Settings) -> list[Result]:
    """Measure a backlog over a fast link, and the bytes of a reading in either lane.

    Mosquitto's bridge drains the same backlog with its largest window, without a disk at either end.
    """
    rounds, bridged = list[Drained](), list[float]()
    for _ in range(settings.rounds):
        with scratch_folder() as folder:
            rounds.append(_drain(Path(folder)))
            bridged.append(_bridged(Path(folder)))
        found = rounds[-1]
        say(
            f"  {found.rate:,.0f} readings/s, {found.gateway_us:.2f} + {found.hub_us:.2f} us of CPU each; "
            f"{found.backlog_bytes:.1f} B each, live {found.live_bytes:.1f} B; Mosquitto's bridge {bridged[-1]:,.0f}"
        )
    cpu_us = [found.gateway_us + found.hub_us for found in rounds]
    rate, backlog, live, *_ = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(found.rate / peer for found, peer in zip(rounds, bridged, strict=True))
    return [
        Result(
            "crossing-drain", f"{BACKLOG:,} readings of {DEVICES} devices, gateway's disk to the lake", "msg/s",
            rate, at_least(RATE_MIN, rate), "mosquitto bridge", statistics.median(bridged), ratio,
            details={"cpu_us": cpu_us},
        ),
        Result(
            "crossing-bytes", f"a JSON reading of {READING_BYTES} B of a backlog, both directions", "B", backlog,
            at_most(BACKLOG_BYTES_MAX, backlog),
        ),
        Result(
            "crossing-live-bytes", f"the same live, one a second of each of {DEVICES} devices", "B", live,
            at_most(LIVE_BYTES_MAX, live),
        ),
    ]  # fmt: skip


def narrow(_load: LoadGenerators, settings: Settings) -> list[Result]:
    """Measure readings over 1 Mbit/s, alone and while a backlog drains."""
    messages = NARROW_BACKLOG_FULL if settings.full else NARROW_BACKLOG
    with scratch_folder() as folder:
        site = Site(Path(folder))
        with site.running() as (gateway, link):
            link.bytes_s, link.cut = NARROW_BYTES_S, False
            fleet = Fleet(gateway.port("mqtt"))
            idle = _live(fleet, LIVE_S, 20)
            wait_until(lambda: site.landed >= idle, timeout_s=60, what="all of it has landed")
            link.cut = True
            _fill(fleet, messages)
            landed = site.landed  # the cut was not noticed immediately
            link.cut = False
            wait_until(lambda: site.landed > landed, timeout_s=60, what="the backlog drains")
            carried, begin = link.up_bytes, time.monotonic()
            busy = _live(fleet, LIVE_S, 20)
            used = (link.up_bytes - carried) / (time.monotonic() - begin) / NARROW_BYTES_S
            left = idle + messages + busy - site.landed
            if left < messages / 100:
                raise LoadFailed("the backlog was gone too soon to say anything")
            wait_until(lambda: site.landed >= idle + messages + busy, timeout_s=600, what="all of it has landed")
            fleet.close()
            time.sleep(0.5)
            rows = site.rows()
    alone = [seconds for _, seconds in rows[:idle]]
    during = [seconds for lane, seconds in rows[-busy:] if lane == "live"]
    if len(during) != busy:
        raise LoadFailed(f"{busy - len(during)} of {busy} readings that came were not of the live lane")
    quiet, loaded = _p99(alone), _p99(during)
    say(
        f"  idle p50 {statistics.median(alone) * 1e3:.0f} p99 {quiet * 1e3:.0f} ms; during the drain "
        f"p50 {statistics.median(during) * 1e3:.0f} p99 {loaded * 1e3:.0f} ms; the link {100 * used:.0f} % used"
    )
    return [
        Result(
            "crossing-narrow", f"p99 of a live reading to the lake over 1 Mbit/s while {messages:,} drain", "ms",
            loaded * 1e3, at_most(round((LIVE_TIMES_MAX * quiet + BATCH_S) * 1e3), loaded * 1e3),
            details={"idle_p99_ms": quiet * 1e3, "link_used": used},
        ),
        Result("crossing-narrow-used", "how much of the link is used meanwhile", "share", used, at_least(0.8, used)),
    ]  # fmt: skip


def live(_load: LoadGenerators, _settings: Settings) -> list[Result]:
    """Measure from a device's PUBACK to the hub's intake, over a fast link."""
    with (
        scratch_folder() as folder,
        AcceptingHub() as far,
    ):
        arguments = ("--hub", f"amqp://127.0.0.1:{far.port}", "--gateway", "gw1", "--forward", "plant/#")
        with edge(Path(folder), "gateway", *arguments) as gateway:
            fleet = Fleet(gateway.port("mqtt"), LIVE_DEVICES)
            fleet.publish(0, 1)
            wait_until(lambda: bool(far.arrived), timeout_s=60, what="the gateway connects")
            acked = _acked_live(fleet, LIVE_S)
            wait_until(lambda: acked.keys() <= far.arrived.keys(), timeout_s=60, what="all of it has arrived")
            fleet.close()
    waits_ms = [max(0.0, far.arrived[reading] - at) * 1e3 for reading, at in acked.items()]
    wait_ms = _p99(waits_ms)
    say(f"  {len(waits_ms)} readings: p50 {statistics.median(waits_ms):.0f}, p99 {wait_ms:.0f} ms")
    return [
        Result(
            "crossing-live", f"a live reading, from PUBACK to the hub's intake; {LIVE_DEVICES} devices, one a second",
            "ms, p99", wait_ms, at_most(LIVE_LEAVES_MS_MAX, wait_ms),
        ),
    ]  # fmt: skip


def _acked_live(fleet: Fleet, seconds: float) -> dict[bytes, float]:
    """Publish one reading a second with each device, spread over the second; return their acknowledgement times."""
    acked: dict[bytes, float] = {}
    begin, devices = time.monotonic(), len(fleet.sensors)
    while (elapsed := time.monotonic() - begin) < seconds:
        if len(acked) < int(elapsed * devices):
            number = len(acked) % devices
            fleet.publish(number, 1)
            acked[fleet.sensors[number].last] = time.monotonic()
        time.sleep(0.002)
    return acked


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


CASES: Final = (
    Benchmark(
        "crossing", "a backlog from gateway to lake: rate, bytes on the wire, and live readings' bytes", 90, drain
    ),
    Benchmark("crossing-live", "a live reading's way from its PUBACK to the hub's intake", 25, live),
    Benchmark("crossing-narrow", "live readings over 1 Mbit/s while a backlog drains over it", 120, narrow),
)
