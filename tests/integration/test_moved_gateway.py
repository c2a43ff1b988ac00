"""A gateway with a backlog moves to another directory: the lake has every message once, whatever runs afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import run_waypost
from tests.support.uplinked_gateway import UplinkedGateway, stopped


@pytest.fixture
def fleet(tmp_path: Path) -> UplinkedGateway:
    return UplinkedGateway(tmp_path)


def replace(fleet: UplinkedGateway, *words: str, code: int = 0) -> str:
    done = run_waypost("replace", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def test_backlog_arrives_once_from_the_new_place(fleet: UplinkedGateway) -> None:
    gateway, old, new = fleet.gateway, fleet.data, fleet.folder / "new-card"
    archive = str(fleet.folder / "gw1.gateway")
    with gateway:
        fleet.publish("waiting")  # without a hub
        stopped(gateway)
    replace(fleet, "export", archive, "--data", str(old), "--yes")
    refused = run_waypost("run", "--dev", "--data", str(old), "--mqtt", "127.0.0.1:0")
    assert refused.returncode
    assert "must not run here too" in refused.stderr
    replace(fleet, "import", archive, "--data", str(new), "--yes")
    arguments = list(gateway.arguments)
    gateway.arguments = [str(new) if word == str(old) else word for word in arguments]
    assert gateway.arguments != arguments
    with fleet.hub:
        with gateway:
            fleet.publish("moved")
            fleet.arrived()
            stopped(gateway)
        replace(fleet, "cancel", "--data", str(old), "--yes")  # against the advice: its backlog is sent again
        gateway.arguments = arguments
        with gateway:
            fleet.publish("old-again")
            fleet.arrived()
            stopped(gateway)
    bodies = fleet.bodies()
    assert set(bodies) == set(fleet.acked)
    assert max(bodies.values()) == 1
    assert fleet.unexplained() == set()
    epochs = {tag: {row["epoch"] for row in fleet.rows("telemetry") if row["body"].startswith(tag)} for tag in TAGS}
    assert all(len(found) == 1 for found in epochs.values())
    assert len(set.union(*epochs.values())) == 3, "no number is given out twice"


TAGS = (b"waiting", b"moved", b"old-again")
