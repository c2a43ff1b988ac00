"""A full queue is a problem in every view, and disappears after the queue is emptied."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.command import items_in, output_of, run_waypost
from tests.support.http_client import ask, document, status
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


def waypost(*words: str) -> str:
    """Return what a command prints on a wide terminal."""
    return run_waypost(*words, environment={**os.environ, "COLUMNS": "200"}).stdout


def test_full_queue_is_reported_everywhere(tmp_path: Path) -> None:
    port, data = free_port(), str(tmp_path / "gw")
    (tmp_path / "gateway.yaml").write_text(RESOURCES.format(port=port))
    output_of("apply", "--data", data, "-f", str(tmp_path / "gateway.yaml"))
    gateway = Waypost(tmp_path / "gateway.log", "run", "--data", data)
    gateway.environment = {**os.environ, "WAYPOST_PROGRAM": "./waypost"}
    with gateway:
        assert document(gateway, "/healthz") == {"ok": True, "problems": []}
        assert ask(gateway, "POST", "/t/small", b"x" * QUOTA_BYTES).status == 202
        assert ask(gateway, "POST", "/t/small", b"x").status == 507
        wait_until(lambda: ask(gateway, "GET", "/healthz").status == 503, timeout_s=WAIT_S, what="it is noticed")
        [problem] = ask(gateway, "GET", "/healthz").document["problems"]
        assert problem["name"] == "address small"
        assert "messages are refused" in problem["what"]
        assert "quota.bytes" in problem["next_step"]
        assert "(./waypost store info)" in problem["next_step"]
        shown = status(gateway)
        assert shown["problems"] == [problem]
        assert shown["messages"].items() >= {"received": 2, "acknowledged": 1, "refused": 1}.items()
        printed = waypost("status", "--http", f"127.0.0.1:{port}")
        for part in ("name", "what", "since", "next_step"):
            assert problem[part] in printed
        assert (
            'waypost_problem_since_timestamp_seconds{problem="address small"'
            in ask(gateway, "GET", "/metrics").body.decode()
        )
        found = items_in(waypost("doctor", "--data", data, "--json"))
        assert [one["next_step"] for one in found if one["name"] == "health"] == [problem["next_step"]]
        assert "room" not in [one["name"] for one in found], "the doctor says the same thing once"
        assert ask(gateway, "GET", "/c/small?settle=auto&wait=10").status == 200
        wait_until(
            lambda: ask(gateway, "POST", "/t/small", b"x").status == 202, timeout_s=WAIT_S, what="there is room again"
        )
        left = ask(gateway, "GET", "/healthz").document["problems"]
        assert not [one for one in left if "used up" in one["what"]], "for a minute it says that some were refused"


def test_two_gateways_with_one_identity_are_reported_at_the_hub_and_at_both(tmp_path: Path) -> None:
    places = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
    hub = Waypost(tmp_path / "hub.log", "hub", "run", "--dev", "--data", str(tmp_path / "hub"), *places)
    with hub:
        to_hub = ("--hub", f"amqp://127.0.0.1:{hub.port('amqp')}", "--gateway", "gw1", "--forward", "plant/#")
        near = [
            Waypost(tmp_path / f"{name}.log", "run", "--dev", "--data", str(tmp_path / name), *places, *to_hub)
            for name in ("first", "second")
        ]
        with near[0], near[1]:
            for running, name in ((hub, "gateway gw1"), (near[0], "connector hub"), (near[1], "connector hub")):
                wait_until(
                    lambda running=running, name=name: (
                        [  # type: ignore[misc]
                            each["name"] for each in status(running)["problems"] if "two machines use" in each["what"]
                        ]
                        == [name]
                    ),
                    timeout_s=WAIT_S,
                    what=f"{running.log.name} says that two machines use gw1",
                )
