"""`waypost bridge` with a running gateway and hub: cut, resume, probe, drain, and verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.appliance.main import run
from tests.support.command import item_in, items_in
from tests.support.paho_client import mqtt_client
from tests.support.processes import edge, free_port, hub, landing_soon, wait_until


@pytest.mark.timeout(240)
def test_bridge_is_shown_paused_and_resumed_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    gateway = edge(tmp_path, "gw1", f"--hub=amqp://127.0.0.1:{port}", "--gateway=gw1", "--forward=load/#")

    def bridge(*words: str, code: int = 0) -> Any:
        found = run(["bridge", *words, "--http", f"127.0.0.1:{gateway.port('http')}", "--json"])
        said = capsys.readouterr()
        assert found == code, said.err
        return items_in(said.out)

    def connector(name: str = "") -> dict[str, Any]:
        [status] = bridge("status")
        (one,) = status["connectors"]
        return one  # type: ignore[no-any-return]

    with (
        hub(tmp_path, f"--amqp=127.0.0.1:{port}", *landing_soon(tmp_path)),
        gateway,
        mqtt_client(gateway, "d") as client,
    ):
        wait_until(lambda: connector()["state"] == "connected", timeout_s=30, what="the uplink is up")
        (probed,) = bridge("test")
        assert (probed["connector"], probed["ok"], probed["forwarders"]) == (
            "hub",
            True,
            [connector()["forwarders"][0]["name"]],
        )
        assert 0 < probed["round_trip_s"] < 20
        bridge("pause", "hub")
        for number in range(40):
            client.publish(f"load/{number % 2}", b"x" * 50, 1)
        wait_until(lambda: connector()["backlog_messages"] == 40, timeout_s=20, what="the backlog is known")
        cut = connector()
        assert cut["state"] == "paused"
        assert cut["backlog_bytes"] == 2_000
        (refused,) = bridge("test", "hub", code=1)
        assert refused["why"] == "it is paused"
        assert run(["bridge", "drain", "--timeout", "1", "--http", f"127.0.0.1:{gateway.port('http')}"]) == 1
        assert "40 messages still wait after 1 s: hub (paused)" in capsys.readouterr().err
        wait_until(lambda: connector()["backlog_oldest_at"] is not None, timeout_s=30, what="the oldest is known")
        assert run(["bridge", "pause", "nobody", "--http", f"127.0.0.1:{gateway.port('http')}"]) == 1
        assert "connector 'nobody' not found; configured: hub" in capsys.readouterr().err
        bridge("resume")
        wait_until(lambda: connector()["manifest_hour"] is not None, timeout_s=30, what="the hub asks for manifests")
        [drained] = bridge("drain", "--timeout", "60")
        assert (drained["drained"], drained["waiting"]) == (True, 0)
        assert connector()["accepted"] == 40
        assert run(["prove", "--lake", str(tmp_path / "hub" / "lake"), "--json"]) == 0
        proof = item_in(capsys.readouterr().out)
    assert [(one["accepted"], one["landed"], one["unstated"]) for one in proof["streams"]] == [(20, 20, 0)] * 2
    assert proof["complete"]
