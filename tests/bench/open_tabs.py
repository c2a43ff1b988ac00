"""Cost of open pages of the console to a loaded gateway: its rate, and the delay of its event loop.

The same gateway is loaded with and without eight tabs, in alternating order. A tab does what the overview
does: one stream of live figures, and the series and the bridge every five seconds. The delay of the loop is the time
to PINGRESP on a connection that sends nothing else: PINGREQ needs no commit, so its answer waits for the loop only.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.bench.brokers import WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.idle import connect
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_least, at_most
from tests.bench.sessions import absent_session
from tests.bench.unlike import UNLIKE

TABS: Final = 8
"""Streams that a gateway has for tabs."""
RATE_MIN: Final = 0.97
"""Least rate with the tabs, relative to that without."""
DELAY_MS_MAX: Final = 2.0
"""Largest increase of the 99th percentile of the loop's delay."""
POLLED: Final = ("/api/v1/series?span=15m", "/api/v1/bridge")
POLL_S: Final = 5.0
PING_EVERY_S: Final = 0.002
TURNS_A_ROUND: Final = 2
"""Turns with and without tabs in one round: a ratio of three hundredths needs more than five."""
_LOAD: Final = ("-c", "50", "-w", "20", "-q", "1", *UNLIKE)
_FULL: Final = (*_LOAD, "-n", "200000")
_PACED: Final = (*_LOAD, "-n", "60000", "-r", "20000")
_PINGREQ, _PINGRESP = b"\xc0\x00", b"\xd0\x00"


class OpenTab:
    """Page that is open: reads its stream, and requests figures. Ends with `stop`."""

    def __init__(self, port: int) -> None:
        self.received = 0
        """Bytes of the stream."""
        self._over = threading.Event()
        self._polls = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._stream = socket.create_connection(("127.0.0.1", port), 30)
        self._stream.sendall(
            b"GET /api/v1/events?topics=status HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        head = self._stream.recv(1 << 16)
        if not head.startswith(b"HTTP/1.1 200"):
            raise LoadFailed(f"no stream of live figures: {head[:80]!r}")
        self._stream.settimeout(0.5)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            if time.monotonic() >= due:
                self._poll()
                due += POLL_S
            try:
                self.received += len(self._stream.recv(1 << 16))
            except TimeoutError:
                continue

    def _poll(self) -> None:
        for path in POLLED:
            self._polls.request("GET", path, headers={"Accept-Encoding": "gzip"})
            self._polls.getresponse().read()
        self._polls.close()  # the gateway closes it before the next poll: a browser connects again, too

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._stream.close()
        self._polls.close()


class OpenTabs:
    """Context in which `count` tabs are open."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._tabs: list[OpenTab] = []
        self.bytes_s = 0.0
        """Bytes a second and tab of live figures, known at the end."""

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        self._tabs = [OpenTab(self._port) for _ in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tab in self._tabs:
            tab.stop()
        seconds = time.monotonic() - self._since
        self.bytes_s = sum(tab.received for tab in self._tabs) / max(1, len(self._tabs)) / seconds


class LoopDelays:
    """Times to PINGRESP of one connection, taken while the context lasts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._times_s: list[float] = []

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        [self._socket] = connect(self._stack, self._port, 1, name="ping")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._over.wait(PING_EVERY_S):
            begin = time.perf_counter()
            self._socket.sendall(_PINGREQ)
            if self._socket.recv(2) != _PINGRESP:
                return
            self._times_s.append(time.perf_counter() - begin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._stack.close()

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile. Raises LoadFailed without times."""
        if len(self._times_s) < 100:
            raise LoadFailed(f"only {len(self._times_s)} answers to PINGREQ")
        return 1e3 * statistics.quantiles(self._times_s, n=100)[-1]


class TabsFigures(NamedTuple):
    """Figures of one turn."""

    rate: float
    """Messages a second."""
    delay_ms: float
    """99th percentile of the loop's delay at 20 000 messages a second."""
    tab_bytes_s: float


def _turn(load: LoadGenerators, waypost: WaypostBroker, tabs: int) -> TabsFigures:
    with OpenTabs(waypost.port("http"), tabs) as opened:
        rate = load.run("mqttload", waypost.port("mqtt"), *_FULL)["pub_per_s"]
        with LoopDelays(waypost.port("mqtt")) as delays:
            load.run("mqttload", waypost.port("mqtt"), *_PACED)
    return TabsFigures(rate, delays.p99_ms, opened.bytes_s)


def _run(load: LoadGenerators, settings: Settings) -> list[Result]:
    without: list[TabsFigures] = []
    with_tabs: list[TabsFigures] = []
    with WaypostBroker() as waypost:
        absent_session(waypost)
        _turn(load, waypost, TABS)
        turns = TURNS_A_ROUND * settings.rounds
        for number in range(turns):
            pair = [(without, 0), (with_tabs, TABS)]
            for found, tabs in pair if number % 2 else reversed(pair):
                found.append(_turn(load, waypost, tabs))
            say(
                f"  console-tabs {number + 1}/{turns}: without {without[-1].rate:,.0f} msg/s, p99 "
                f"{without[-1].delay_ms:.2f} ms; with {TABS} tabs {with_tabs[-1].rate:,.0f} msg/s, p99 "
                f"{with_tabs[-1].delay_ms:.2f} ms, {with_tabs[-1].tab_bytes_s:,.0f} B/s a tab"
            )
    ratio = statistics.median(a.rate / b.rate for a, b in zip(with_tabs, without, strict=True))
    more_ms = statistics.median(a.delay_ms - b.delay_ms for a, b in zip(with_tabs, without, strict=True))
    details = {
        f"{name}_{field}": [float(getattr(turn, field)) for turn in found]
        for name, found in (("without", without), ("tabs", with_tabs))
        for field in TabsFigures._fields
    }
    return [
        Result(
            "console-tabs", BENCHMARK.about, "msg/s", statistics.median(turn.rate for turn in with_tabs),
            at_least(RATE_MIN, ratio, " x"), "without", statistics.median(turn.rate for turn in without), ratio,
            details=details,
        ),
        Result(
            "console-tabs-loop", "p99 of PINGRESP at 20 000 msg/s: with the tabs, less that without", "ms, p99",
            more_ms, at_most(DELAY_MS_MAX, more_ms),
        ),
    ]  # fmt: skip


BENCHMARK: Final = Benchmark(
    "console-tabs", f"MQTT QoS 1, stored, with {TABS} tabs of the console open, and without", 160, _run
)
