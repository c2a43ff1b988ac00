"""A full queue is a problem in every view, and disappears after the queue is emptied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import Waypost, free_port, wait_until

WAIT_S = 30.0
QUOTA_BYTES = 1000
RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw1}}, spec: {{listeners: {{http: "127.0.0.1:{port}"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.small}},
  spec: {{address: small, type: queue, quota: {{bytes: 1000}}}}}}
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge.appliance.main", *arguments],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def test_a_full_queue_is_said_everywhere(tmp_path: Path) -> None:
    port, data = free_port(), str(tmp_path / "gw")
    (tmp_path / "gateway.yaml").write_text(RESOURCES.format(port=port))
    assert command("apply", "--data", data, "-f", str(tmp_path / "gateway.yaml")).returncode == 0
    gateway = Waypost(tmp_path / "gateway.log", "edge", "run", "--data", data)
    gateway.environment = {**os.environ, "WAYPOST_PROGRAM": "./waypost"}
    with gateway:
        assert ask(port, "/healthz") == (200, b'{"ok":true,"problems":[]}')
        assert ask(port, "/t/small", b"x" * QUOTA_BYTES)[0] == 202
        assert ask(port, "/t/small", b"x")[0] == 507
        wait_until(lambda: ask(port, "/healthz")[0] == 503, timeout_s=WAIT_S, what="it is noticed")
        [problem] = json.loads(ask(port, "/healthz")[1])["problems"]
        assert problem["name"] == "address small"
        assert "messages are refused" in problem["what"]
        assert "quota.bytes" in problem["next_step"]
        assert "(./waypost store info)" in problem["next_step"]
        status: dict[str, Any] = json.loads(ask(port, "/api/v1/status")[1])
        assert status["problems"] == [problem]
        assert status["messages"].items() >= {"received": 2, "acknowledged": 1, "refused": 1}.items()
        shown = command("edge", "status", "--http", f"127.0.0.1:{port}").stdout
        for part in ("name", "what", "since", "next_step"):
            assert problem[part] in shown
        assert 'waypost_problem_since_timestamp_seconds{problem="address small"' in ask(port, "/metrics")[1].decode()
        found = json.loads(command("doctor", "--data", data, "--json").stdout)["results"]
        assert [one["next_step"] for one in found if one["name"] == "health"] == [problem["next_step"]]
        assert "room" not in [one["name"] for one in found], "the doctor says the same thing once"
        assert ask(port, "/c/small?settle=auto")[0] == 200
        wait_until(lambda: ask(port, "/t/small", b"x")[0] == 202, timeout_s=WAIT_S, what="there is room again")
        left = json.loads(ask(port, "/healthz")[1])["problems"]
        assert not [one for one in left if "used up" in one["what"]], "for a minute it says that some were refused"


def test_two_gateways_with_one_identity_are_said_at_the_hub_and_at_both(tmp_path: Path) -> None:
    places = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
    hub = Waypost(tmp_path / "hub.log", "hub", "run", "--dev", "--data", str(tmp_path / "hub"), *places)
    with hub:
        to_hub = ("--hub", f"amqp://127.0.0.1:{hub.port('amqp')}", "--gateway", "gw1", "--forward", "plant/#")
        near = [
            Waypost(tmp_path / f"{name}.log", "edge", "run", "--dev", "--data", str(tmp_path / name), *places, *to_hub)
            for name in ("first", "second")
        ]
        with near[0], near[1]:
            for running, name in ((hub, "gateway gw1"), (near[0], "connector hub"), (near[1], "connector hub")):
                wait_until(
                    lambda running=running, name=name: (
                        [  # type: ignore[misc]
                            each["name"]
                            for each in json.loads(ask(running.port("http"), "/api/v1/status")[1])["problems"]
                            if "two machines use" in each["what"]
                        ]
                        == [name]
                    ),
                    timeout_s=WAIT_S,
                    what=f"{running.log.name} says that two machines use gw1",
                )
