"""A gateway mirrors a running Mosquitto, both are compared, and clients move over under load without a loss."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final, NamedTuple

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edge.appliance.shadow.report import ShadowReport, read_report
from tests.support.command import error_of, item_in, items_of, output_of, run_waypost
from tests.support.configured_gateway import resources, user
from tests.support.mosquitto import Mosquitto, installed
from tests.support.paho_client import WAIT_S, publish_messages
from tests.support.paho_loop import running_loop
from tests.support.processes import Waypost, free_port, gateway_at, wait_until

pytestmark = installed
TOPICS: Final = ("plant/1/t", "plant/2/t", "cmd/1")
COMPARE_S: Final = 300.0


class MovingSite(NamedTuple):
    """The old broker, the gateway, and the folder of the gateway's data."""

    old: Mosquitto
    gateway: Waypost
    data: str


@contextlib.contextmanager
def site_in(folder: Path, *settings: str) -> Iterator[MovingSite]:
    """Run both, without a mirror. Users are those of the gateway."""
    text = resources(user("app", "send, recv"), listeners=("mqtt", "http"))
    (folder / "gw.yaml").write_text(text.replace('mqtt: "127.0.0.1:0"', f'mqtt: "127.0.0.1:{free_port()}"'))
    data = folder / "gw"
    output_of("apply", "--data", str(data), "-f", str(folder / "gw.yaml"))
    with Mosquitto(folder / "old", *settings).running() as old, gateway_at(data) as gateway:
        yield MovingSite(old, gateway, str(data))


@contextlib.contextmanager
def comparing(site: MovingSite, *options: str, code: int = 0) -> Iterator[None]:
    """Compare while the body runs; end the comparison with SIGTERM by its time."""
    words = ("shadow", "compare", "--data", site.data, "--json", *options)
    with ThreadPoolExecutor(1) as pool:
        done: Future[CompletedProcess[str]] = pool.submit(run_waypost, *words, timeout_s=COMPARE_S)
        wait_until(lambda: reported(site) is not None, timeout_s=WAIT_S, what="the comparison runs")
        yield
        result = done.result(COMPARE_S)
    assert (result.returncode, "Traceback" in result.stderr) == (code, False), result.stdout + result.stderr


def reported(site: MovingSite) -> ShadowReport | None:
    return read_report(Path(site.data))


def verdicts(site: MovingSite) -> dict[str, str]:
    return {each["address"]: each["verdict"] for each in items_of("shadow", "report", "--data", site.data)}


def start(site: MovingSite, *options: str) -> None:
    output_of("shadow", "start", "--data", site.data, "--from", f"127.0.0.1:{site.old.port}", *options)
    wait_until(lambda: mirror_state(site) == "connected", timeout_s=WAIT_S, what="the mirror is connected")


def mirror_state(site: MovingSite) -> str:
    [status] = items_of("bridge", "status", "--data", site.data)
    return next((each["state"] for each in status["connectors"] if each["name"] == "shadow"), "")


class MovingClient:
    """Paho client that can move from one broker to the other, with a session that stays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[bytes] = []
        self._client: paho.Client | None = None

    def connect(self, port: int, *filters: str, password: str | None = None) -> None:
        """Connect and subscribe; return when the broker has answered."""
        self.close()
        client = paho.Client(CallbackAPIVersion.VERSION2, self.name, clean_session=False)
        if password is not None:
            client.username_pw_set(password, password)
        ready = threading.Event()
        client.on_message = lambda _c, _d, message: self.received.append(bytes(message.payload))
        client.on_subscribe = lambda *_: ready.set()
        client.on_connect = lambda c, *_: c.subscribe([(each, 1) for each in filters]) if filters else ready.set()
        client.reconnect_delay_set(1, 1)
        client.connect("127.0.0.1", port)
        client.loop_start()
        assert ready.wait(WAIT_S)
        self._client = client

    def publish(self, topic: str, body: bytes, *, retain: bool = False) -> None:
        """Publish with QoS 1 and wait for the acknowledgement."""
        assert self._client is not None
        info = self._client.publish(topic, body, 1, retain)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None


class Load:
    """Publishers, each with numbered messages to its topic, which move one by one while they publish."""

    def __init__(self, topics: Sequence[str], pause_s: float) -> None:
        self.acknowledged: list[bytes] = []
        self._topics = topics
        self._pause_s = pause_s
        self._target: dict[str, tuple[int, str | None]] = {}
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def running(self, port: int) -> Iterator[None]:
        for topic in self._topics:
            self._target[topic] = (port, None)
        with ThreadPoolExecutor(len(self._topics)) as pool:
            running = [pool.submit(self._publish, topic) for topic in self._topics]
            try:
                yield
            finally:
                self._stopped.set()
                for each in running:
                    each.result(COMPARE_S)

    def move(self, topic: str, port: int, password: str) -> None:
        self._target[topic] = (port, password)

    def _publish(self, topic: str) -> None:
        client, number = MovingClient(f"publisher-{topic.replace('/', '-')}"), 0
        at: tuple[int, str | None] = (0, None)
        while not self._stopped.is_set():
            if at != (at := self._target[topic]):
                client.connect(at[0], password=at[1])
            body = b"%s %d" % (topic.encode(), number)
            client.publish(topic, body)
            self.acknowledged.append(body)
            number += 1
            time.sleep(self._pause_s)
        client.close()


def test_clients_move_under_load_without_a_loss(tmp_path: Path) -> None:
    with site_in(tmp_path) as site:
        publish_messages(site.old.port, "kept/a", [b"1"], retain=True)
        load, reader = Load(TOPICS, 0.01), MovingClient("reader")
        reader.connect(site.old.port, "plant/#", "cmd/#")
        with load.running(site.old.port):
            start(site)
            with comparing(site, "--for", "10", "--patience", "2"):
                pass
            counts = {each["address"]: each for each in items_of("shadow", "report", "--data", site.data)}
            assert {counts[topic]["verdict"] for topic in (*TOPICS, "kept/a")} == {"equal"}
            assert counts["kept/a"]["retained"] == "equal"
            assert all(counts[topic]["equal"] > 20 for topic in TOPICS)
            other = MovingClient("reader-here")  # a subscriber moves: it has both until it is sure
            other.connect(site.gateway.port("mqtt"), "plant/#", "cmd/#", password="app")
            mark = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > mark + 50, timeout_s=WAIT_S, what="messages at both")
            reader.close()
            busy = error_of("shadow", "finish", "--data", site.data, "--quiet", "1", code=1)
            assert busy.startswith("error[shadow-busy]")
            for topic in TOPICS:
                load.move(topic, site.gateway.port("mqtt"), "app")
            mark = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > mark + 50, timeout_s=WAIT_S, what="messages of moved clients")
            publish_messages(site.old.port, "kept/late", [b"2"], retain=True)
            result = item_in(output_of("shadow", "finish", "--data", site.data, "--quiet", "1", "--json"))
        got = reader.received + other.received
        wait_until(lambda: set(load.acknowledged) <= set(reader.received + other.received), timeout_s=WAIT_S,
                   what=f"{len(load.acknowledged)} messages, {len(got)} came")  # fmt: skip
        other.close()
        assert result["retained_differing"] == []
        assert retained(site) >= {("kept/a", b"1"), ("kept/late", b"2")}
        assert error_of("shadow", "compare", "--data", site.data, code=2).startswith("error[shadow-not-found]")
        assert "shadow" not in output_of("get", "--data", site.data, "-o", "yaml")
        assert sessions_left(site.old) == 0


def retained(site: MovingSite) -> set[tuple[str, bytes]]:
    """Return the retained messages of the gateway."""
    found: set[tuple[str, bytes]] = set()
    client = paho.Client(CallbackAPIVersion.VERSION2, "late")
    client.username_pw_set("app", "app")
    client.on_message = lambda _c, _d, message: found.add((message.topic, bytes(message.payload)))
    client.connect("127.0.0.1", site.gateway.port("mqtt"))
    with running_loop(client):
        client.subscribe("kept/#", 1)
        wait_until(lambda: len(found) >= 2, timeout_s=WAIT_S, what="retained messages")
    return found


def sessions_left(old: Mosquitto) -> int:
    """Return 1 if the broker still has the session of the mirror."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "hall-shadow", clean_session=False)
    present: list[bool] = []
    client.on_connect = lambda _c, _d, flags, *_: present.append(flags.session_present)
    client.connect("127.0.0.1", old.port)
    with running_loop(client):
        wait_until(lambda: bool(present), timeout_s=WAIT_S, what="CONNACK")
    return int(present[0])


@pytest.mark.slow
def test_differences_and_breaks_are_told_apart(tmp_path: Path) -> None:
    with site_in(tmp_path) as site:
        start(site, "--address", "plant/#")
        here = MovingClient("moved")
        here.connect(site.gateway.port("mqtt"), password="app")
        with comparing(site, "--for", "18", "--patience", "2", code=1):
            wait_until(lambda: judged_from(site) < time.time(), timeout_s=WAIT_S, what="messages are judged")
            publish_messages(site.old.port, "plant/equal", [b"1", b"2", b"2"])
            publish_messages(site.old.port, "plant/twice", [b"1"])
            here.publish("plant/extra", b"only here")
            wait_until(lambda: equal(site, "plant/twice") == 1, timeout_s=WAIT_S, what="the message at both")
            here.publish("plant/twice", b"1")
            wait_until(lambda: "plant/twice" in differing(site), timeout_s=WAIT_S, what="its copy is judged")
            site.old.restart()
        here.close()
        found = verdicts(site)
        assert (found["plant/equal"], found["plant/extra"], found["plant/twice"]) == ("equal", "extra", "duplicated")
        report = reported(site)
        assert report is not None
        assert [each.broker for each in report.gaps] == ["old broker"]


def judged_from(site: MovingSite) -> float:
    """Return the time from which messages of a comparison with a patience of 2 s are judged."""
    report = reported(site)
    return float("inf") if report is None or report.retained_at is None else report.retained_at + 1


def equal(site: MovingSite, address: str) -> int:
    report = reported(site)
    return next((each.equal for each in report.addresses if each.address == address), 0) if report is not None else 0


def differing(site: MovingSite) -> list[str]:
    report = reported(site)
    return [each.address for each in report.addresses if each.duplicated] if report is not None else []


class TestLoops:
    """A bridge between both brokers would send messages in circles."""

    def test_mirror_is_refused(self, tmp_path: Path) -> None:
        with site_in(tmp_path) as site:
            site.old.configure(*bridge_to(site))
            wait_until(lambda: "shadow-loop" in started(site), timeout_s=WAIT_S, what="the bridge is connected")
            assert "shadow" not in output_of("get", "--data", site.data, "-o", "yaml")
            start(site, "--allow-bridge", "old.wp", "--address", "other/#")

    @pytest.mark.slow
    def test_mirror_is_paused_when_a_bridge_connects(self, tmp_path: Path) -> None:
        with site_in(tmp_path) as site:
            start(site)
            with comparing(site, "--for", "15", "--patience", "2"):
                site.old.configure(*bridge_to(site))
                wait_until(lambda: mirror_state(site) == "paused", timeout_s=WAIT_S, what="the mirror is paused")
            report = reported(site)
            assert report is not None
            assert "shadow-loop" in {each.name for each in report.problems}


def bridge_to(site: MovingSite) -> tuple[str, ...]:
    """Return the settings of a bridge in both directions, of topics that are not in use."""
    return (
        "connection wp", f"address 127.0.0.1:{site.gateway.port('mqtt')}", "topic bridged/# both 1",
        "remote_clientid old.wp", "remote_username app", "remote_password app", "restart_timeout 1",
    )  # fmt: skip


def started(site: MovingSite) -> str:
    """Return the error of a start; end the mirror where there is none yet."""
    done = run_waypost("shadow", "start", "--data", site.data, "--from", f"127.0.0.1:{site.old.port}")
    if done.returncode == 0:
        output_of("shadow", "finish", "--data", site.data, "--force")
    return done.stderr


@pytest.mark.slow
def test_kill_of_the_gateway_under_load_loses_nothing(tmp_path: Path) -> None:
    """Publishers at the old broker, a subscriber at the gateway: it is killed under load, then all move."""
    topics = [f"plant/{number}/t" for number in range(20)]
    with site_in(tmp_path) as site:
        load, reader = Load(topics, 0.002), MovingClient("reader")
        start(site)
        reader.connect(site.gateway.port("mqtt"), "plant/#", password="app")
        with load.running(site.old.port):
            with comparing(site, "--for", "60", "--patience", "5"):
                wait_until(lambda: len(load.acknowledged) > 2_000, timeout_s=120, what="load")
                site.gateway.kill()
                site.gateway.start()
                mark = len(load.acknowledged)
                wait_until(lambda: len(load.acknowledged) > mark + 2_000, timeout_s=120, what="load")
            report = reported(site)
            assert report is not None
            assert [each.missing for each in report.addresses if each.missing] == []
            for topic in topics:
                load.move(topic, site.gateway.port("mqtt"), "app")
            mark = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > mark + 2_000, timeout_s=120, what="load at the gateway")
            output_of("shadow", "finish", "--data", site.data, "--quiet", "2")
        wait_until(lambda: set(load.acknowledged) <= set(reader.received), timeout_s=120, what="every message")
        print(f"{len(load.acknowledged)} acknowledged, 0 missing, {len(reader.received)} received")
        reader.close()
