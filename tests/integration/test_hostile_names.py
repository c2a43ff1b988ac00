"""Client ids, topics and users with hostile names: over every command, page, log and file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.broker.mqtt import packets
from tests.support.command import output_of, run_waypost
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.names import HOSTILE
from tests.support.processes import Waypost, edge

TOPICS = [name for name in HOSTILE if not set("+#") & set(name)]
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


WIDE = {**os.environ, "COLUMNS": "300"}
"""Environment in which tables are not wrapped."""


def plain(text: str) -> str:
    """Assert that `text` has no terminal control characters, and return it."""
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
    return text


def page(gateway: Waypost, path: str) -> str:
    answer = ask(gateway, "GET", path)
    assert answer.status == 200
    return answer.body.decode()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Gateway with stored messages of hostile clients on hostile topics."""
    with edge(tmp_path_factory.mktemp("names"), "gw") as running:
        for number, name in enumerate(TOPICS):
            with Raw(running, 5).connect(f"reader {name}", clean_start=False) as reader:
                reader.subscribe(f"{name}/{number}", qos=1)
            with Raw(running, 4).connect(f"writer {name}") as writer:
                body = f"{name}{number}".encode()
                writer.send(packets.Publish(f"queue/{name}", body, qos=1, packet_id=1, retain=True))
                assert isinstance(writer.receive(), packets.PubAck)
                writer.send(b"\xf0\xff\xff\xff\xff")  # and ends with bytes that are not a packet
                writer.rest()
        yield running


@pytest.mark.parametrize("words", [("store", "info"), ("store", "verify"), ("doctor",), ("status",), ("get",)])
@pytest.mark.parametrize("as_json", [False, True])
def test_commands_print_no_control_characters(gateway: Waypost, words: tuple[str, ...], as_json: bool) -> None:
    where = ["--data", str(gateway.data)]
    if words == ("status",):
        where = ["--http", f"127.0.0.1:{gateway.port('http')}"]
    done = run_waypost(*words, *where, *(["--json"] if as_json else []), environment=WIDE)
    text = plain(done.stdout)
    plain(done.stderr)
    if as_json:
        json.loads(text)
    if words == ("store", "info") and not as_json:
        assert "queue/[/]" in text, "shown as it is spelled, not obeyed"


def test_lists_of_users_print_no_control_characters(gateway: Waypost) -> None:
    where = ("--data", str(gateway.data))
    for name in HOSTILE:
        done = run_waypost("user", "add", *where, "--generate", "--allow", "send:%u/#", "--", name, environment=WIDE)
        plain(done.stdout)
        plain(done.stderr)
    for as_json in ((), ("--json",)):
        plain(run_waypost("user", "list", *where, *as_json, environment=WIDE).stdout)


def test_log_has_no_forged_lines(gateway: Waypost) -> None:
    text = plain(gateway.log.read_text())
    assert not any(line.startswith("2026-01-01 00:00:00") for line in text.split("\n")), "a line of its own"


def test_metrics_have_no_forged_series(gateway: Waypost) -> None:
    text = plain(page(gateway, "/metrics"))
    assert "\nwaypost_forged" not in text


def test_status_has_the_names_unchanged(gateway: Waypost) -> None:
    addresses = {one["address"] for one in json.loads(page(gateway, "/api/v1/status"))["addresses"]}
    assert {f"queue/{name}" for name in TOPICS} <= addresses


def test_exported_csv_has_no_formulas(gateway: Waypost, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    output_of("store", "export", "--data", str(gateway.data), "--out", str(out))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["address"] for row in rows} >= {f"queue/{name}" for name in TOPICS}
    for row in rows:
        assert not any(cell.startswith(FORMULAS) for cell in row.values()), row


def test_exported_ndjson_has_the_names_unchanged(gateway: Waypost, tmp_path: Path) -> None:
    out = tmp_path / "out.ndjson"
    output_of("store", "export", "--data", str(gateway.data), "--out", str(out))
    lines = out.read_text().split("\n")[:-1]
    assert {json.loads(line)["address"] for line in lines} >= {f"queue/{name}" for name in TOPICS}
