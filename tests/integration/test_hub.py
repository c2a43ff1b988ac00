"""A hub process and its peers: gateways over AMQP, people over HTTP, and hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.engine import DeliveryState
from bridge.message import Run
from bridge.plain import Hop, data_section, messages
from tests.support.gateway_peer import EPOCH, GatewayPeer
from tests.support.lake import read_columns

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0


class HubProcess:
    """`waypost hub run` as a process."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        command = [sys.executable, "-m", "edge.appliance.main", "hub", "run", "--data", str(data), "--dev"]
        self.process = subprocess.Popen(
            [*command, "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            _, errors = self.process.communicate(timeout=DEADLINE_S)
            raise AssertionError(f"no ready line: {line!r}\n{errors}")
        self.ready = line
        places = dict(word.split("=") for word in line.split()[1:])
        self.amqp, self.http = ((h, int(p)) for h, _, p in (places[n].rpartition(":") for n in ("amqp", "http")))

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http[0]}:{self.http[1]}{path}", timeout=5) as answer:
            body = answer.read()
        return json.loads(body) if answer.headers["content-type"] == "application/json" else body.decode()

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and the log."""
        self.process.send_signal(signal.SIGTERM)
        out, errors = self.process.communicate(timeout=DEADLINE_S)
        assert out == "", "exactly one line on stdout"
        return self.process.returncode, errors


@contextlib.contextmanager
def hub(data: Path, *options: str) -> Iterator[HubProcess]:
    running = HubProcess(data, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


def test_from_a_gateway_to_the_lake(tmp_path: Path) -> None:
    """Batches, an overlap, a status and a ledger range land; again over a new connection, and after SIGTERM and a
    restart.
    """

    async def first(running: HubProcess) -> None:
        client = await GatewayPeer("gw1").connect(running.amqp)
        client.batch(0, "a", 0, 100)
        client.batch(1, "b", 0, 10)
        client.batch(2, "a", 50, 100)
        client.send("status", 3, data_section(msgspec.json.encode({"state": "running", "backlog_messages": 7})))
        entry = {"epoch": EPOCH, "address": "a", "first_sequence": 150, "last_sequence": 199, "reason": "expired"}
        client.send("ledger", 4, data_section(msgspec.json.encode(entry)))
        client.send("telemetry", 5, data_section(b"this is no batch"))
        await client.until(lambda: len(client.outcomes) == 6)
        assert set(client.outcomes.values()) == {DeliveryState.ACCEPTED}, "what cannot be read is kept in quarantine"
        second = await GatewayPeer("gw1").connect(running.amqp)
        await client.until(lambda: client.over)
        assert client.closed is not None
        assert client.closed.name == "amqp:connection:forced"
        second.batch(0, "a", 200, 10)
        await second.until(lambda: second.outcomes == {0: DeliveryState.ACCEPTED})
        status = running.get("/api/v1/status")
        assert status["totals"]["rows"] == 170
        assert status["totals"]["duplicates"] == 50
        gateway = running.get("/api/v1/gateways/gw1")
        assert gateway["connected"] is True
        assert gateway["landed"] == 170
        assert gateway["status"]["backlog_messages"] == 7
        assert [(m["address"], m["mark"], m["contiguous"], m["missing"]) for m in gateway["marks"]] == [
            ("a", 209, 149, 50),
            ("b", 9, 9, 0),
        ]
        assert "waypost_hub_messages_landed_total 170.0" in running.get("/metrics")
        assert running.get("/healthz")["ok"] is True
        assert [one["name"] for one in running.get("/healthz")["problems"]] == ["quarantine"]
        second.close()

    async def again(running: HubProcess) -> None:
        client = await GatewayPeer("gw1").connect(running.amqp)
        client.batch(0, "a", 0, 215)
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        client.close()

    with hub(tmp_path) as running:
        asyncio.run(first(running))
        assert running.stop()[0] == 0
    with hub(tmp_path) as running:
        asyncio.run(again(running))
        code, log = running.stop()
        assert code == 0
        assert "Traceback" not in log
    telemetry = read_columns(
        tmp_path / "lake", "telemetry", "gateway", "address", "sequence", "body", "clock_quality", "lane"
    )
    expected = [
        ("gw1", address, s, b"%d" % s, "good", "live") for address, n in (("a", 215), ("b", 10)) for s in range(n)
    ]
    assert telemetry == expected
    assert read_columns(tmp_path / "lake", "quarantine", "gateway", "link", "content") == [
        ("gw1", "telemetry", data_section(b"this is no batch"))
    ]
    assert read_columns(tmp_path / "lake", "ledger", "address", "first_sequence", "last_sequence") == [("a", 150, 199)]
    states = [state for (state,) in read_columns(tmp_path / "lake", "gateway_status", "state")]
    assert states.count("running") == 1
    assert states.count("connected") == 3


def test_plain_messages_land_under_their_names(tmp_path: Path) -> None:
    async def scenario(running: HubProcess) -> None:
        client = await GatewayPeer("gw1", batching=False).connect(running.amqp)
        run = Run("a", "device-1", 1, b"", [b"0", b"1", b"2"], time.time_ns())
        for tag, message in enumerate(messages(Hop("gw1", EPOCH), 0, run)):
            client.send("telemetry", tag, message)
        client.send("telemetry", 3, messages(Hop("other", EPOCH), 9, run)[0])
        client.send("telemetry", 4, data_section(b"nameless"))
        await client.until(lambda: len(client.outcomes) == 5)
        assert [client.outcomes[tag] for tag in range(5)] == [DeliveryState.ACCEPTED] * 3 + [DeliveryState.REJECTED] * 2
        client.close()

    with hub(tmp_path) as running:
        asyncio.run(scenario(running))
        assert running.stop()[0] == 0
    assert read_columns(tmp_path / "lake", "telemetry", "sequence", "device", "body") == [
        (i, "device-1", b"%d" % i) for i in range(3)
    ]


def test_connections_that_come_and_go_do_not_keep_landing_from_going_on(tmp_path: Path) -> None:
    """Landing continues while connections open and close quickly, each leaving a batch behind; one gateway stays."""

    async def come_and_go(running: HubProcess, over: asyncio.Event, sent: list[int]) -> None:
        while not over.is_set():
            client = await GatewayPeer("restless").connect(running.amqp)
            client.batch(0, "a", len(sent), 1)
            sent.append(len(sent))
            await asyncio.sleep(0)  # the batch is sent
            assert client.driver is not None
            client.engine.close()
            client.driver.flush_soon()
            await client.until(lambda gone=client: gone.over)  # type: ignore[misc]

    async def scenario(running: HubProcess) -> list[int]:
        over, sent = asyncio.Event(), list[int]()
        restless = asyncio.create_task(come_and_go(running, over, sent))
        client = await GatewayPeer("steady").connect(running.amqp)
        for tag in range(15):
            client.batch(tag, "a", tag, 1)
            await client.until(lambda tag=tag: tag in client.outcomes)  # type: ignore[misc]
        over.set()
        await restless
        assert set(client.outcomes.values()) == {DeliveryState.ACCEPTED}
        client.close()
        return sent

    with hub(tmp_path, "--config", str(quick(tmp_path))) as running:
        sent = asyncio.run(scenario(running))
        assert running.get("/healthz") == {"ok": True, "problems": []}
        code, log = running.stop()
    assert code == 0
    assert "Traceback" not in log
    assert log.count("gateway restless connected") < 10, "not a line for each of them"
    assert len(sent) > 15
    assert read_columns(tmp_path / "lake", "telemetry", "gateway", "sequence") == [
        *(("restless", sequence) for sequence in sent),
        *(("steady", sequence) for sequence in range(15)),
    ]


def quick(tmp_path: Path) -> Path:
    """Configuration in which a batch waits as briefly as possible for others."""
    path = tmp_path / "hub.yaml"
    path.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n  gatherMilliseconds: 20\n")
    return path


def test_garbage_on_either_port_leaves_the_hub_serving(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    heads = [b"", b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"MQTT"]

    async def scenario(running: HubProcess) -> None:
        client = await GatewayPeer("gw1").connect(running.amqp)
        client.batch(0, "a", 0, 5)
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        client.close()

    with hub(tmp_path) as running:
        for number in range(40):
            endpoint = running.amqp if number % 4 else running.http
            with socket.create_connection(endpoint, timeout=5) as peer, contextlib.suppress(OSError):
                peer.sendall(chance.choice(heads) + chance.randbytes(chance.randrange(2_000)))
        asyncio.run(scenario(running))
        assert running.get("/healthz") == {"ok": True, "problems": []}
        code, log = running.stop()
    assert code == 0
    assert "Traceback" not in log


def test_the_api_refuses_what_is_too_much_or_not_there(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        for path, code in (
            ("/api/v1/gateways?limit=0", 400),
            ("/api/v1/gateways?limit=100000", 400),
            ("/api/v1/gateways?limit=x", 400),
            ("/api/v1/gateways?connected=maybe", 400),
            ("/api/v1/gateways/nobody", 404),
            ("/nothing", 404),
            ("/api/v1/commands/a%00b", 400),  # PostgreSQL rejects NUL; the registry is fine
            ("/api/v1/commands?gateway=a%00b", 400),
            ("/api/v1/gateways/a%00b", 400),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                running.get(path)
            assert caught.value.code == code
            caught.value.close()
        assert running.get("/api/v1/gateways") == {"gateways": [], "next": None}
        page = running.get("/")
        assert "<title>Waypost hub</title>" in page
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", ""), "the page loads nothing from elsewhere"
        assert "https://" not in page


def refused(*options: str, cwd: Path = ROOT) -> tuple[int, str]:
    """Start a hub that refuses to run; return the exit code and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "edge.appliance.main", "hub", "run", *options],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


FREE = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")


def test_wrong_usage_ends_in_one_clear_line(tmp_path: Path) -> None:
    code, words = refused("--data", str(tmp_path), *FREE, "--name", "no host")
    assert code == 2
    assert "no host" in words
    code, words = refused("--data", str(tmp_path), "--dev", "--amqp", "0.0.0.0:0")
    assert code == 2
    assert "loopback" in words
    config = tmp_path / "hub.yaml"
    config.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n  ampq: x\n")
    code, words = refused("--data", str(tmp_path), "--dev", "--config", str(config), *FREE)
    assert code == 2
    assert f"{config}:4: spec.ampq" in words


def test_a_place_that_is_taken_ends_in_one_clear_line(tmp_path: Path) -> None:
    with hub(tmp_path / "data") as running:
        code, words = refused("--data", str(tmp_path / "data"), "--dev", *FREE)
        assert code == 2
        assert "in use by another hub" in words
        own = ("--amqp", f"127.0.0.1:{running.amqp[1]}", "--http", f"127.0.0.1:{running.http[1]}")
        code, words = refused("--data", str(tmp_path / "data"), "--dev", *own)
        assert code == 2
        assert "in use by another hub" in words
        assert "port" not in words
        taken = f"127.0.0.1:{running.amqp[1]}"
        for options in (("--amqp", taken, "--http", "127.0.0.1:0"), ("--amqp", "127.0.0.1:0", "--http", taken)):
            code, words = refused("--data", str(tmp_path / "other"), "--dev", *options)
            assert code == 2
            assert "the port is in use" in words
        assert running.stop()[0] == 0


def test_data_that_cannot_be_used_end_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, words = refused("--data", str(tmp_path / "file"), "--dev", *FREE)
    assert code == 2
    assert "cannot be used" in words
    with hub(tmp_path / "newer") as running:
        assert running.stop()[0] == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "newer" / "registry.db")) as database:
        database.execute("UPDATE schema_version SET version = 99")
        database.commit()
    code, words = refused("--data", str(tmp_path / "newer"), "--dev", *FREE)
    assert code == 2
    assert "newer version" in words


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unreadable_directory_ends_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    code, words = refused("--data", str(tmp_path / "closed"), "--dev", *FREE)
    assert code == 2
    assert "cannot be used" in words
