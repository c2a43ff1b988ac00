"""A hub with many gateways: its rate, its memory, and the files of its lake.

The hub is the real program. The gateways are connections of this process that send what uplinks do: batches of readings
over their own link with the end of their store; a lineage first, and a status every few seconds. Readings that wait for
credit leave in one batch, as in an uplink. The columns of the batches are packed beforehand, and each batch gets a
table of its own ranges, so sending costs a fraction of receiving. The time of a reading is that of the packing.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import statistics
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from deltalake import DeltaTable

from bridge import plain
from bridge.batch import CAPABILITY
from bridge.columns import pack, planes
from bridge.engine import Closed, DeliveryState, Dispositions, Engine, Link
from bridge.hub_addresses import LEDGER, STATUS, TELEMETRY
from bridge.limits import LIVE_BATCHES_UNDELAYED, LIVE_GATHER_LAST_S
from tests.bench.comparison import Benchmark, Settings
from tests.bench.crossing import Sensor
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_least, at_most
from tests.bench.scratch import scratch_folder
from tests.support import delta_commits
from tests.support.hostile_gateway import columns_of, sealed
from tests.support.machines import take_all
from tests.support.processes import Waypost, cpu_s, hub, resident_mib

READINGS_S: Final = 105_000
"""Readings a second of all gateways: the goal and a twentieth more."""
READINGS_S_MIN: Final = 100_000
SECONDS: Final = 360.0
SECONDS_FULL: Final = 1_800.0
BATCHES_S: Final = 5
"""Batches a second of a gateway, approximately: an uplink gathers its live readings for a fifth of a second."""
DEVICES: Final = 5
"""Devices of a gateway, each with its own address; a small fleet has ten times as many for each gateway."""
READINGS_PACKED: Final = 30_000
"""Readings packed beforehand, in batches of each size of `GATHERED`."""
GATHERED: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Numbers of due times that one batch may cover."""
TIMES_A_TURN: Final = 200
"""Due times processed before the next look at the answers."""
STATUS_EVERY_S: Final = 5.0
WARM_SHARE: Final = 0.25
"""Share of the time before the first measurement of memory."""
WARM_S_MIN: Final = 180
"""The same in seconds: by then a hub has compacted small files, which needs memory."""
GROWTH_MAX: Final = 1.05
"""Largest memory at the end, relative to the warm hub."""
FILES_S_MAX: Final = 1.0
OPEN_S_MAX: Final = 0.2
SETTLED_S_MAX: Final = 60.0
CONNECTED_S_MAX: Final = 120.0
_EPOCH: Final = "e" * 32
_CHUNK_BYTES: Final = 1 << 18


class Shape(NamedTuple):
    """A fleet: `gateways` with `devices` each, and `readings_s` of all of them."""

    gateways: int
    devices: int
    readings_s: int = READINGS_S

    @property
    def each(self) -> int:
        """Return the readings of a device in one batch."""
        return round(self.readings_s / (self.gateways * self.devices * BATCHES_S))

    @property
    def readings(self) -> int:
        """Return the readings due at a time."""
        return self.each * self.devices

    @property
    def times_s(self) -> float:
        """Return how often readings are due in a second, over all gateways."""
        return self.readings_s / self.readings


SHAPES: Final = (Shape(20, 10 * DEVICES), Shape(2_000, DEVICES))


class Batches:
    """Batches of gateways of one shape; only the ranges have to be filled in."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        sensors = [Sensor(number) for number in range(shape.devices)]
        self._names = [sensor.topic.encode() for sensor in sensors]
        self._columns_of = {times: self._packed(sensors, times * shape.each) for times in GATHERED}

    def _packed(self, sensors: list[Sensor], each: int) -> Iterator[tuple[int, bytes]]:
        """Yield size and packed columns of batches with `each` readings of each device, endlessly."""
        columns = [self._columns(sensors, each) for _ in range(READINGS_PACKED // (each * len(sensors)) + 1)]
        return itertools.cycle([(len(one), pack(one)) for one in columns])

    @staticmethod
    def _columns(sensors: list[Sensor], each: int) -> bytes:
        """Pack the devices in order; each reading is its own run with its own time."""
        bodies = [sensor.reading() for sensor in sensors for _ in range(each)]
        times = [time.time_ns()] + [1_000_000] * (len(bodies) - 1)
        return columns_of([1] * len(bodies), device="pump", bodies=bodies, received_at=times)

    def message(self, first: int, times: int) -> bytes:
        """Return the next batch: the readings of each device from sequence `first` on, for `times` due times."""
        shape, names, each = self.shape, self._names, self.shape.each * times
        zeros, firsts = array("Q", bytes(8 * shape.devices)), array("Q", [first]) * shape.devices
        counts = array("I", [each]) * shape.devices
        table = b"".join((*map(planes, (array("I", map(len, names)), zeros, firsts, counts)), *names))
        size, packed = next(self._columns_of[times])
        batch = sealed(
            table, packed, messages=each * shape.devices, ranges=shape.devices, epoch=_EPOCH,
            packed=lambda section: section, columns_size=size,
        )  # fmt: skip
        return plain.batch_message(batch, {1: (first + each) * shape.devices})


class _Left(NamedTuple):
    """Batch in flight without an answer."""

    due_at: float
    """Time when the first of its readings was due."""
    readings: int


class Gateway:
    """One connection of the fleet to the hub."""

    def __init__(self, port: int, number: int) -> None:
        self.name = f"gw{number:05d}"
        self.due: deque[float] = deque()
        """Due times of readings that wait."""
        self.under_way: dict[int, _Left] = {}
        """Batches in flight by number."""
        self._tags = itertools.count()
        self._times_sent = 0
        self._sent_at = 0.0
        self._engine = Engine(container_id=self.name, server=False)
        self._unsent = bytearray()
        self.socket = socket.create_connection(("127.0.0.1", port), CONNECTED_S_MAX)
        self.socket.setblocking(False)
        self._engine.open()
        self._ledger: Link = self._engine.attach_sender(LEDGER, LEDGER)
        self._telemetry: Link = self._engine.attach_sender(TELEMETRY, TELEMETRY, desired_capabilities=(CAPABILITY,))
        self._status: Link = self._engine.attach_sender(STATUS, STATUS)
        self._lineage_sent = self._introduced = False

    @property
    def ready(self) -> bool:
        """Return True when it may send and the hub knows its store."""
        return self._introduced and bool(self._telemetry.credit) and bool(self._status.credit)

    def send(self, batches: Batches) -> None:
        """Send waiting readings, as far as credit allows."""
        while self.due and self._may_send:
            times = max(times for times in GATHERED if times <= len(self.due))
            tag, first = next(self._tags), self._times_sent * batches.shape.each
            self._engine.send(self._telemetry, tag, batches.message(first, times))
            self._sent_at = time.monotonic()
            self.under_way[tag] = _Left(self.due[0], times * batches.shape.readings)
            for _ in range(times):
                self.due.popleft()
            self._times_sent += times

    @property
    def _may_send(self) -> bool:
        credit, unsettled = self._telemetry.credit, len(self.under_way)
        if credit <= 0 or unsettled >= LIVE_BATCHES_UNDELAYED:
            return False
        return not (credit == 1 and unsettled) or time.monotonic() - self._sent_at >= LIVE_GATHER_LAST_S

    def tell(self) -> None:
        """Send a status as a real gateway does."""
        document = {
            "state": "running",
            "epoch": _EPOCH,
            "reported_at": datetime.now(UTC).isoformat(),
            "version": "bench",
            "backlog_messages": len(self.due),
            "devices_connected": DEVICES,
            "messages_accepted": self._times_sent,
            "clock_quality": "good",
        }
        if self._status.credit > 0:
            message = plain.data_section(msgspec.json.encode(document))
            self._engine.send(self._status, next(self._tags), message, settled=True)

    def _introduce(self) -> None:
        """Send the lineage of its store, once it has credit."""
        if self._ledger.credit > 0 and not self._lineage_sent:
            self._lineage_sent = True
            told = {"lineage": {"epoch": _EPOCH, "openings": [_EPOCH]}}
            self._engine.send(self._ledger, next(self._tags), plain.data_section(msgspec.json.encode(told)))

    def flush(self) -> bool:
        """Write pending output; return False while the socket does not take all."""
        self._unsent += self._engine.data_to_send()
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent[:_CHUNK_BYTES])]
        return not self._unsent

    def read(self) -> list[_Left]:
        """Read from the hub; return the accepted batches. Raises LoadFailed."""
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(_CHUNK_BYTES)
            if not data:
                raise LoadFailed(f"the hub has closed the connection of {self.name}")
            return self._taken(data)
        return []

    def _taken(self, data: bytes) -> list[_Left]:
        accepted = []
        for event in take_all(self._engine, data, time.monotonic()):
            if isinstance(event, Closed):
                raise LoadFailed(f"the hub has closed the connection of {self.name}: {event.condition}")
            if isinstance(event, Dispositions):
                for tag, state, settled, detail in event.items:
                    if state is not DeliveryState.ACCEPTED:
                        raise LoadFailed(f"the hub has not accepted what {self.name} sent: {state.name} {detail!r}")
                    if not settled:
                        self._engine.settle_sent(event.link, tag)
                    if event.link is self._ledger:
                        self._introduced = True
                    else:
                        accepted.append(self.under_way.pop(tag))
        self._introduce()
        return accepted


class Second(NamedTuple):
    """State of the hub at the end of a second."""

    accepted: int
    """Readings accepted so far."""
    resident_mib: float
    waiting: int
    """Readings of all gateways that are due but not sent."""


class Fleet:
    """The gateways of a shape, on one thread."""

    def __init__(self, ports: Sequence[int], shape: Shape) -> None:
        """`ports`: hubs; each gateway connects to one of them, in turn."""
        self.shape = shape
        self.accepted = 0
        """Readings accepted so far."""
        self.settled_s: list[float] = []
        """Time from the due time of a batch's first reading to its answer, for each batch."""
        self._batches = Batches(shape)
        self._selector = selectors.DefaultSelector()
        self._gateways = []
        for number in range(shape.gateways):
            gateway = Gateway(ports[number % len(ports)], number)
            self._gateways.append(gateway)
            self._selector.register(gateway.socket, selectors.EVENT_READ, gateway)
            gateway.flush()
            self._exchange(0.0)
        deadline = time.monotonic() + CONNECTED_S_MAX
        while not all(gateway.ready for gateway in self._gateways):
            if time.monotonic() > deadline:
                raise LoadFailed(f"{sum(not gateway.ready for gateway in self._gateways)} gateways have no credit")
            self._exchange(0.1)

    @property
    def waiting(self) -> int:
        """Return the readings that are due but not sent."""
        return sum(len(gateway.due) for gateway in self._gateways) * self.shape.readings

    @property
    def under_way(self) -> int:
        """Return the batches without an answer."""
        return sum(len(gateway.under_way) for gateway in self._gateways)

    def run(self, seconds: float) -> Iterator[float]:
        """Send at the rate of the shape; yield the elapsed time once a second."""
        begin, due, told, next_second = time.monotonic(), 0, 0, 1
        while (elapsed := time.monotonic() - begin) < seconds:
            due = self._due(due, min(int(elapsed * self.shape.times_s), due + TIMES_A_TURN))
            told = self._told(told, int(elapsed * self.shape.gateways / STATUS_EVERY_S))
            self._exchange(0.002)
            if elapsed >= next_second:
                next_second += 1
                yield elapsed

    def settle(self) -> None:
        """Send waiting readings and wait for all answers. Raises LoadFailed."""
        begin, told = time.monotonic(), 0
        while self.under_way or self.waiting:
            elapsed = time.monotonic() - begin
            if elapsed > SETTLED_S_MAX:
                raise LoadFailed(f"{self.under_way} batches have no answer, {self.waiting} readings have not left")
            told = self._told(told, int(elapsed * self.shape.gateways / STATUS_EVERY_S))
            self._exchange(0.1)

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.socket.close()
        self._selector.close()

    def _due(self, first: int, end: int) -> int:
        """Mark readings as due, each time for another gateway."""
        now = time.monotonic()
        for number in range(first, end):
            gateway = self._gateways[number % self.shape.gateways]
            gateway.due.append(now)
            self._send(gateway)
        return end

    def _told(self, first: int, end: int) -> int:
        for number in range(first, end):
            gateway = self._gateways[number % self.shape.gateways]
            gateway.tell()
            self._flush(gateway)
        return end

    def _send(self, gateway: Gateway) -> None:
        gateway.send(self._batches)
        self._flush(gateway)

    def _flush(self, gateway: Gateway) -> None:
        wanted = selectors.EVENT_READ if gateway.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        if self._selector.get_key(gateway.socket).events != wanted:
            self._selector.modify(gateway.socket, wanted, gateway)

    def _exchange(self, wait_s: float) -> None:
        for key, events in self._selector.select(wait_s):
            gateway: Gateway = key.data
            if events & selectors.EVENT_READ:
                self._count(gateway.read(), time.monotonic())
            self._send(gateway)

    def _count(self, accepted: list[_Left], now: float) -> None:
        self.accepted += sum(left.readings for left in accepted)
        self.settled_s += [now - left.due_at for left in accepted]


class Run(NamedTuple):
    """Figures of one shape's run."""

    shape: Shape
    seconds: list[Second]
    settled_s: list[float]
    hub_cpu_s: float
    our_cpu_s: float
    files_s: float
    """Data files added by commits of `telemetry`, a second."""
    commits: int
    open_s: float

    @property
    def readings_s(self) -> float:
        """Return the median over the seconds."""
        accepted = [second.accepted for second in self.seconds]
        return (accepted[-1] - accepted[0]) / (len(accepted) - 1)

    @property
    def growth(self) -> float:
        """Return the growth of memory since the hub was warm, by medians of a tenth of the seconds."""
        resident = [second.resident_mib for second in self.seconds]
        seconds = len(resident)
        tenth, warm = max(1, seconds // 10), min(max(int(seconds * WARM_SHARE), WARM_S_MIN), seconds // 2)
        return statistics.median(resident[-tenth:]) / statistics.median(resident[warm : warm + tenth])


def _run_shape(folder: Path, shape: Shape, seconds: float) -> Run:
    with hub(folder) as running:
        fleet = Fleet([running.port("amqp")], shape)
        try:
            return _measured(folder, running, fleet, seconds)
        finally:
            fleet.close()


def _measured(folder: Path, running: Waypost, fleet: Fleet, seconds: float) -> Run:
    seen, table = [], folder / "hub" / "lake" / "telemetry"
    hub_cpu_s, our_cpu_s = cpu_s(running.pid), time.process_time()
    for elapsed in fleet.run(seconds):
        seen.append(Second(fleet.accepted, resident_mib(running.pid), fleet.waiting))
        if len(seen) % 30 == 0:
            rate, waiting = fleet.accepted / elapsed, seen[-1].waiting
            say(f"    {elapsed:.0f} s: {rate:,.0f} readings/s, {seen[-1].resident_mib:.0f} MiB, {waiting} batches wait")
    hub_cpu_s, our_cpu_s = cpu_s(running.pid) - hub_cpu_s, time.process_time() - our_cpu_s
    fleet.settle()
    written, commits = delta_commits.written(table, -1), delta_commits.version(table) + 1
    begin = time.process_time()
    landed = DeltaTable(table)
    open_s = time.process_time() - begin
    if landed.count() != fleet.accepted:
        raise LoadFailed(f"{landed.count():,} rows in the lake of {fleet.accepted:,} readings that were accepted")
    return Run(
        fleet.shape, seen, sorted(fleet.settled_s), hub_cpu_s, our_cpu_s, written.added / seconds, commits, open_s
    )


def _results(run: Run) -> list[Result]:
    shape, length = run.shape, len(run.seconds)
    about = f"a hub with {shape.gateways:,} gateways of {shape.devices} devices, {length} s"
    settled_s, accepted = run.settled_s, run.seconds[-1].accepted
    settled = {share: settled_s[int(share / 100 * (len(settled_s) - 1))] for share in (50, 95, 100)}
    resident = run.seconds[-1].resident_mib
    details: dict[str, Any] = {"settled_s": settled, "hub_cpu_s": run.hub_cpu_s, "our_cpu_s": run.our_cpu_s}
    details |= {"resident_mib": [round(second.resident_mib, 1) for second in run.seconds], "commits": run.commits}
    say(f"  {about}: {run.readings_s:,.0f} readings/s, {resident:.0f} MiB ({run.growth:.2f} x)")
    say(f"    accepted within {settled[50]:.2f} s (median), {settled[95]:.2f} s (p95), {settled[100]:.2f} s (last)")
    say(f"    {len(settled_s) / length:,.0f} batches/s, {accepted / len(settled_s):.0f} readings each")
    say(f"    processor: the hub {run.hub_cpu_s / length:.2f}, its gateways {run.our_cpu_s / length:.2f} of a core")
    say(f"    {run.commits:,} commits, {run.files_s:.2f} files/s, opened in {run.open_s:.3f} s")
    name = f"hub-{shape.gateways}"
    return [
        Result(
            f"{name}-readings", about, "readings/s", run.readings_s, at_least(READINGS_S_MIN, run.readings_s),
            resident_mib=resident, details=details,
        ),
        Result(f"{name}-memory", f"{about}, memory", "x", run.growth, at_most(GROWTH_MAX, run.growth, " x")),
        Result(f"{name}-files", f"{about}, data files", "files/s", run.files_s, at_most(FILES_S_MAX, run.files_s)),
        Result(f"{name}-open", f"{about}, opened", "CPU s", run.open_s, at_most(OPEN_S_MAX, run.open_s)),
    ]  # fmt: skip


def _run(_load: LoadGenerators, settings: Settings) -> list[Result]:
    results = []
    for shape in SHAPES:
        with scratch_folder() as folder:
            results += _results(_run_shape(Path(folder), shape, SECONDS_FULL if settings.full else SECONDS))
    return results


BENCHMARK: Final = Benchmark(
    "hub", "a hub with 20 and with 2 000 gateways: readings a second, memory, files", 750, _run
)
