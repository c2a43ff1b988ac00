"""Tools for a store next to a running gateway: under load, after SIGKILL, and in agreement with it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import document_of, output_of
from tests.support.processes import edge, wait_until
from tests.support.publisher import Publisher


def test_tools_agree_with_a_gateway_under_load_and_after_a_kill(tmp_path: Path) -> None:
    data = str(tmp_path / "gw")
    gateway = edge(tmp_path, "gw").start()
    publishers = [Publisher(f"device{i}", gateway.port("mqtt"), f"queue/{i}") for i in range(3)]
    try:
        for publisher in publishers:
            publisher.start()
        wait_until(lambda: min(len(p.acked) for p in publishers) > 200, timeout_s=30, what="messages acknowledged")
        for _ in range(3):
            output_of("store", "verify", "--data", data)
        out = tmp_path / "out.ndjson"
        acked = [list(publisher.acked) for publisher in publishers]
        output_of("store", "export", "--data", data, "--out", str(out))
        info = document_of("store", "info", "--data", data)
        assert info["running"] is True
        assert info["messages"] >= sum(map(len, acked))
        gateway.kill()
    finally:
        for publisher in publishers:
            publisher.end()
    bodies = {json.loads(line)["text"].encode() for line in out.read_text().splitlines()}
    assert bodies >= {body for part in acked for body in part}, "what was acknowledged before is in the export"
    output_of("store", "verify", "--data", data)
    left = {(log["name"], log["messages"]) for log in document_of("store", "info", "--data", data)["logs"]}
    assert all(messages >= len(publishers[int(name[-1])].acked) for name, messages in left)
    with gateway:
        assert gateway.stop() == 0
    output_of("store", "verify", "--data", data)
