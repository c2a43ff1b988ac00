"""The tracer over stub machines: connections that get a tap, its removal, and unchanged traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge.message import Run, Stored
from bridge.transport.driver import ConnectionDriver
from edge.broker.limits import Limits
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.isolation import EventListeners
from edge.broker.model.tracing import Destination, HttpRequest
from edge.broker.mqtt import packets
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import ConnectEvent
from edge.broker.store.records import Committed
from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_EARLY_EVENTS_MAX, TRACE_RUNS_WAITING_MAX, TRACES_MAX
from edge.broker.tracing.runs import TracedRuns
from edge.broker.tracing.tap import Tap
from edge.broker.tracing.tracer import PacketTracer, TooManyTraces
from edge.broker.tracing.watch import TraceFilter, TraceWatch


class Transport(asyncio.Transport):
    """Transport that keeps written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.17", 40000)})
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: no byte is buffered."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the test closes."""

    abort = close

    def is_closing(self) -> bool:
        return False


class Owner:
    """A session that answers CONNECT with an error."""

    def __init__(self, connection: MqttConnection) -> None:
        self.connection = connection

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ConnectEvent):
                self.connection.refuse(ReasonCode.BAD_USER_NAME_OR_PASSWORD)

    def writable(self) -> None:
        """Do nothing: no output waits."""


class Gate:
    """Gate that knows alice."""

    passwords = True

    def knows(self, user: str) -> bool:
        return user == "alice"

    def too_many_failures(self, source: str, username: str) -> bool:
        return username == "eager"


class Site:
    """A tracer and the connections it follows."""

    def __init__(self) -> None:
        self.drivers: list[ConnectionDriver] = []
        self.tracer = PacketTracer(lambda: self.drivers, Gate(), loop=asyncio.get_running_loop(), now_ns=lambda: 0)

    def connect(self) -> tuple[ConnectionDriver, Transport]:
        connection = MqttConnection(Limits(), asyncio.get_running_loop().time())
        machine, owner = self.tracer.follow(connection, "mqtt", lambda _driver: Owner(connection))
        driver, transport = ConnectionDriver(machine, owner, write_bytes_max=1 << 16), Transport()
        self.drivers.append(driver)
        driver.connection_made(transport)
        return driver, transport

    def watch(self, client: str = "", address: str = "") -> TraceWatch:
        return self.tracer.watch(TraceFilter(client, address), lambda: None)


def names(events: Sequence[TraceEvent]) -> list[str]:
    return [event.name for event in events]


def in_loop(test: Callable[[Site], Any]) -> None:
    async def run() -> None:
        await test(Site())

    asyncio.run(run())


def test_connections_are_unwrapped_without_a_trace() -> None:
    async def test(site: Site) -> None:
        driver, _ = site.connect()
        assert isinstance(driver.connection, MqttConnection)
        assert driver.trace is None

    in_loop(test)


def test_client_is_selected_before_it_connects() -> None:
    async def test(site: Site) -> None:
        by_id, by_user, by_host, other = (site.watch(name) for name in ("meter7", "alice", "10.0.0.17", "meter8"))
        driver, transport = site.connect()
        driver.data_received(packets.Connect("meter7", 4, username="alice", password=b"wrong").encode())
        await asyncio.sleep(0)
        driver.connection_lost(None)
        assert transport.written == b"\x20\x02\x00\x04"
        for watch in (by_id, by_user, by_host):
            events = watch.take()
            assert names(events) == ["accepted", "CONNECT MQTT", "CONNACK", "login refused", "closed by the gateway"]
            assert {event.client for event in events} == {"meter7"}
            assert events[3].text == "wrong password, or it has expired"
        assert other.take() == []

    in_loop(test)


def test_unselected_client_loses_its_tap() -> None:
    async def test(site: Site) -> None:
        site.watch("meter8")
        driver, _ = site.connect()
        assert isinstance(driver.connection, Tap)
        driver.data_received(packets.Connect("meter7", 4).encode())
        await asyncio.sleep(0)
        assert isinstance(driver.connection, MqttConnection)
        assert driver.trace is None

    in_loop(test)


def test_end_of_the_trace_removes_every_tap() -> None:
    async def test(site: Site) -> None:
        first, second = site.watch("10.0.0.17"), site.watch("meter7")
        driver, _ = site.connect()
        site.tracer.leave(first)
        assert isinstance(driver.connection, Tap)
        site.tracer.leave(second)
        assert isinstance(driver.connection, MqttConnection)
        assert not site.tracer.active

    in_loop(test)


@pytest.mark.parametrize(
    ("user", "busy", "words"),
    [
        ("alice", False, "wrong password"),
        ("bob", False, "unknown user bob"),
        ("", False, "gives no user name"),
        ("eager", True, "too many failed logins"),
        ("alice", True, ""),
    ],
)
def test_reason_of_a_refused_login_is_shown(user: str, busy: bool, words: str) -> None:
    async def test(site: Site) -> None:
        assert words in site.tracer.why_refused(user, "10.0.0.17", busy=busy)

    in_loop(test)


def test_traces_are_bounded() -> None:
    async def test(site: Site) -> None:
        watches = [site.watch() for _ in range(TRACES_MAX)]
        with pytest.raises(TooManyTraces):
            site.watch()
        site.tracer.leave(watches[0])
        site.watch()

    in_loop(test)


def test_events_before_the_client_is_known_are_bounded() -> None:
    async def test(site: Site) -> None:
        watch = site.watch("somebody")
        driver, _ = site.connect()
        tap = driver.trace
        for _ in range(TRACE_EARLY_EVENTS_MAX + 5):
            tap.report(TraceEvent(kind="connection", name="more"))
        tap.watched_by([watch])
        assert len(watch.take()) == TRACE_EARLY_EVENTS_MAX

    in_loop(test)


def test_dissector_that_raises_ends_only_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        watch = site.watch()
        driver, transport = site.connect()

        class Raising:
            protocol, client, user, known = "MQTT", "", "", False

            def read(self, *_: Any) -> Any:
                raise LookupError("a bug")

        driver.trace._dissector = Raising()
        driver.data_received(packets.Connect("meter7", 4).encode())
        await asyncio.sleep(0)
        assert transport.written == b"\x20\x02\x00\x04"
        assert names(watch.take()) == ["accepted", "trace ended"]
        assert "the trace of this connection failed" in caplog.text

    in_loop(test)


def test_requests_and_failed_handshakes_are_selected_by_address_and_user() -> None:
    async def test(site: Site) -> None:
        alice, host, address = site.watch("alice"), site.watch("10.0.0.17"), site.watch(address="plant/#")
        for path in ("/t/plant%2F7", "/t/other", "/api/v1/status"):
            site.tracer.requested(HttpRequest("POST", path, "10.0.0.17:4", "alice", 5, 0, 202))
        site.tracer.tls_refused("mqtts", "10.0.0.17:5", "no certificate")
        requests = ["POST /t/plant%2F7", "POST /t/other", "POST /api/v1/status"]
        assert names(alice.take()) == requests
        assert names(host.take()) == [*requests, "TLS refused"]
        assert names(address.take()) == ["POST /t/plant%2F7", "TLS refused"]

    in_loop(test)


class Router:
    """Router with one destination for all messages."""

    def __init__(self, destination: Destination) -> None:
        self.commit_listeners: EventListeners[[Any]] = EventListeners("commits")
        self.goes = destination

    def publish(self, *_: Any) -> None:
        """Do nothing: the test commits."""

    def destination(self, _address: str, _qos: int) -> Destination:
        return self.goes


def test_runs_above_the_limit_are_not_reported() -> None:
    reported: list[TraceEvent] = []

    def report(event: TraceEvent, _addresses: Any) -> None:
        reported.append(event)

    router, runs = Router(Destination("queue", log=1, log_name="jobs", epoch="e")), TracedRuns()
    sent = [Run("jobs", "c", 1, b"", [b""]) for _ in range(TRACE_RUNS_WAITING_MAX + 1)]
    for number, run in enumerate(sent):
        runs.routed(runs.begin(router, run, (number,), report), router.goes)
    router.commit_listeners.notify(Committed([(1, Stored(at, at, run)) for at, run in enumerate(sent)], None))
    assert [event.sequence for event in reported] == list(range(1, TRACE_RUNS_WAITING_MAX + 1))
    runs.close()
    assert len(router.commit_listeners) == 0


def test_refused_run_is_reported_once() -> None:
    reported: list[TraceEvent] = []

    def report(event: TraceEvent, _addresses: Any = ()) -> None:
        reported.append(event)

    router, runs = Router(Destination("topic")), TracedRuns()
    waiting = runs.begin(router, Run("jobs", "c", 1, b"", [b""]), (7,), report)
    runs.refused(report, (7,), "jobs")
    runs.routed(waiting, router.goes)
    assert reported == []
