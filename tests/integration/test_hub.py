"""A hub process and its peers: gateways over AMQP, people over HTTP, and hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from bridge.engine import DeliveryState
from bridge.message import Run
from bridge.plain import Hop, data_section, messages
from tests.support.command import error_of
from tests.support.gateway_peer import EPOCH, GatewayPeer
from tests.support.http_client import ask, document
from tests.support.lake import read_columns
from tests.support.processes import Waypost, hub


def stop(running: Waypost) -> str:
    """Stop a hub that has printed one line; return its log."""
    assert running.process is not None
    assert running.process.stdout is not None
    running.process.terminate()
    assert running.process.stdout.read() == "", "exactly one line on stdout"
    assert running.ends() == 0
    return running.log.read_text()


def test_batches_status_and_ledger_reach_the_lake(tmp_path: Path) -> None:
    """Batches, an overlap, a status and a ledger range land; again over a new connection, and after SIGTERM and a
    restart.
    """

    async def first(running: Waypost) -> None:
        client = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        client.batch(0, "a", 0, 100)
        client.batch(1, "b", 0, 10)
        client.batch(2, "a", 50, 100)
        client.send("status", 3, data_section(msgspec.json.encode({"state": "running", "backlog_messages": 7})))
        entry = {"epoch": EPOCH, "address": "a", "first_sequence": 150, "last_sequence": 199, "reason": "expired"}
        client.send("ledger", 4, data_section(msgspec.json.encode(entry)))
        client.send("telemetry", 5, data_section(b"this is no batch"))
        await client.until(lambda: len(client.outcomes) == 6)
        assert set(client.outcomes.values()) == {DeliveryState.ACCEPTED}, "what cannot be read is kept in quarantine"
        second = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        await client.until(lambda: client.over)
        assert client.closed is not None
        assert client.closed.name == "amqp:connection:forced"
        second.batch(0, "a", 200, 10)
        await second.until(lambda: second.outcomes == {0: DeliveryState.ACCEPTED})
        status = document(running, "/api/v1/status")
        assert status["totals"]["rows"] == 170
        assert status["totals"]["duplicates"] == 50
        gateway = document(running, "/api/v1/gateways/gw1")
        assert gateway["connected"] is True
        assert gateway["landed"] == 170
        assert gateway["status"]["backlog_messages"] == 7
        assert [(m["address"], m["mark"], m["contiguous"], m["missing"]) for m in gateway["marks"]] == [
            ("a", 209, 149, 50),
            ("b", 9, 9, 0),
        ]
        assert "waypost_hub_messages_landed_total 170.0" in ask(running, "GET", "/metrics").body.decode()
        assert document(running, "/healthz")["ok"] is True
        assert [one["name"] for one in document(running, "/healthz")["problems"]] == ["quarantine"]
        second.close()

    async def again(running: Waypost) -> None:
        client = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        client.batch(0, "a", 0, 215)
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        client.close()

    with hub(tmp_path) as running:
        asyncio.run(first(running))
        stop(running)
    with hub(tmp_path) as running:
        asyncio.run(again(running))
        log = stop(running)
        assert "Traceback" not in log
    telemetry = read_columns(
        tmp_path / "hub" / "lake", "telemetry", "gateway", "address", "sequence", "body", "clock_quality", "lane"
    )
    expected = [
        ("gw1", address, s, b"%d" % s, "good", "live") for address, n in (("a", 215), ("b", 10)) for s in range(n)
    ]
    assert telemetry == expected
    assert read_columns(tmp_path / "hub" / "lake", "quarantine", "gateway", "link", "content") == [
        ("gw1", "telemetry", data_section(b"this is no batch"))
    ]
    assert read_columns(tmp_path / "hub" / "lake", "ledger", "address", "first_sequence", "last_sequence") == [
        ("a", 150, 199)
    ]
    states = [state for (state,) in read_columns(tmp_path / "hub" / "lake", "gateway_status", "state")]
    assert states.count("running") == 1
    assert states.count("connected") == 3


def test_plain_messages_land_under_their_names(tmp_path: Path) -> None:
    async def scenario(running: Waypost) -> None:
        client = await GatewayPeer("gw1", batching=False).connect(running.endpoints["amqp"])
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
        stop(running)
    assert read_columns(tmp_path / "hub" / "lake", "telemetry", "sequence", "device", "body") == [
        (i, "device-1", b"%d" % i) for i in range(3)
    ]


def test_short_connections_do_not_stop_landing(tmp_path: Path) -> None:
    """Landing continues while connections open and close quickly, each leaving a batch behind; one gateway stays."""

    async def come_and_go(running: Waypost, over: asyncio.Event, sent: list[int]) -> None:
        while not over.is_set():
            client = await GatewayPeer("restless").connect(running.endpoints["amqp"])
            client.batch(0, "a", len(sent), 1)
            sent.append(len(sent))
            await asyncio.sleep(0)  # the batch is sent
            assert client.driver is not None
            client.engine.close()
            client.driver.flush_soon()
            await client.until(lambda gone=client: gone.over)  # type: ignore[misc]

    async def scenario(running: Waypost) -> list[int]:
        over, sent = asyncio.Event(), list[int]()
        restless = asyncio.create_task(come_and_go(running, over, sent))
        client = await GatewayPeer("steady").connect(running.endpoints["amqp"])
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
        assert document(running, "/healthz") == {"ok": True, "problems": []}
        log = stop(running)
    assert "Traceback" not in log
    assert log.count("gateway restless connected") < 10, "not a line for each of them"
    assert len(sent) > 15
    assert read_columns(tmp_path / "hub" / "lake", "telemetry", "gateway", "sequence") == [
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

    async def scenario(running: Waypost) -> None:
        client = await GatewayPeer("gw1").connect(running.endpoints["amqp"])
        client.batch(0, "a", 0, 5)
        await client.until(lambda: client.outcomes == {0: DeliveryState.ACCEPTED})
        client.close()

    with hub(tmp_path) as running:
        for number in range(40):
            endpoint = running.endpoints["amqp"] if number % 4 else running.endpoints["http"]
            with socket.create_connection(endpoint, timeout=5) as peer, contextlib.suppress(OSError):
                peer.sendall(chance.choice(heads) + chance.randbytes(chance.randrange(2_000)))
        asyncio.run(scenario(running))
        assert document(running, "/healthz") == {"ok": True, "problems": []}
        log = stop(running)
    assert "Traceback" not in log


def test_api_refuses_invalid_and_unknown_requests(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        for path, code in (
            ("/api/v1/gateways?limit=0", 400),
            ("/api/v1/gateways?limit=100000", 400),
            ("/api/v1/gateways?limit=x", 400),
            ("/api/v1/gateways?state=maybe", 400),
            ("/api/v1/gateways?sort=luck", 400),
            ("/api/v1/gateways?selector=a=b=c", 400),
            ("/api/v1/gateways?after=x", 400),
            ("/api/v1/events?topics=weather", 400),
            ("/api/v1/gateways/nobody", 404),
            ("/nothing", 404),
            ("/api/v1/commands/a%00b", 400),  # PostgreSQL rejects NUL; the registry is fine
            ("/api/v1/commands?gateway=a%00b", 400),
            ("/api/v1/gateways/a%00b", 400),
        ):
            assert ask(running, "GET", path).status == code
        assert document(running, "/api/v1/gateways") == {"gateways": [], "next": None, "total": 0}
        page = ask(running, "GET", "/").body.decode()
        assert "<title>Waypost hub</title>" in page
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", ""), "the page loads nothing from elsewhere"
        assert "https://" not in page


def refusal(*options: str) -> str:
    """Start a hub that refuses to run; return its error."""
    return error_of("hub", "run", *options, code=2)


FREE = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")


def test_wrong_usage_ends_in_one_clear_line(tmp_path: Path) -> None:
    assert "no host" in refusal("--data", str(tmp_path / "hub"), *FREE, "--name", "no host")
    assert "loopback" in refusal("--data", str(tmp_path / "hub"), "--dev", "--amqp", "0.0.0.0:0")
    config = tmp_path / "hub.yaml"
    config.write_text("apiVersion: waypost/v1\nkind: Hub\nspec:\n  ampq: x\n")
    assert f"{config}:4: spec.ampq" in refusal("--data", str(tmp_path / "hub"), "--dev", "--config", str(config), *FREE)


def test_place_in_use_ends_in_one_clear_line(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        assert "in use by another hub" in refusal("--data", str(tmp_path / "hub"), "--dev", *FREE)
        own = ("--amqp", f"127.0.0.1:{running.port('amqp')}", "--http", f"127.0.0.1:{running.port('http')}")
        error = refusal("--data", str(tmp_path / "hub"), "--dev", *own)
        assert "in use by another hub" in error
        assert "port" not in error
        taken = f"127.0.0.1:{running.port('amqp')}"
        for options in (("--amqp", taken, "--http", "127.0.0.1:0"), ("--amqp", "127.0.0.1:0", "--http", taken)):
            assert "the port is in use" in refusal("--data", str(tmp_path / "other"), "--dev", *options)
        stop(running)


def test_unusable_data_end_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be used" in refusal("--data", str(tmp_path / "file"), "--dev", *FREE)
    with hub(tmp_path) as running:
        stop(running)
    with contextlib.closing(sqlite3.connect(tmp_path / "hub" / "registry.db")) as database:
        database.execute("UPDATE schema_version SET version = 99")
        database.commit()
    assert "newer version" in refusal("--data", str(tmp_path / "hub"), "--dev", *FREE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unreadable_directory_ends_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert "cannot be used" in refusal("--data", str(tmp_path / "closed"), "--dev", *FREE)
