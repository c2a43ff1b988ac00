"""Output of `waypost bridge`: rates, the terminal, draining, and the effects of a configuration."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge.appliance.crossing.documents import BridgeStatus, ConnectorStatus, ForwarderStatus
from edge.appliance.crossing.drain import MANIFEST_S, wait_drained
from edge.appliance.crossing.plan import planned
from edge.appliance.crossing.printing import show
from edge.appliance.crossing.status import RATE_S, LinkRates
from edge.appliance.main import run
from edge.output.errors import CommandError, Exit
from edge.remote.client import ConsoleClient
from tests.support.stores import FORWARDER, change, make

NOW_S = 1_795_250_000.0

CONNECTOR = ConnectorStatus(
    name="hub",
    type="waypost",
    state="connected",
    since=NOW_S - 60,
    endpoint="amqp://hub:5672",
    peer="hub-1",
    attempts=0,
    last_error=None,
    backlog_messages=1_200,
    backlog_bytes=120_000,
    backlog_oldest_at=NOW_S - 7_500,
    accepted=5_000,
    accepted_per_s=20.0,
    drain_s=120.0,
    manifest_hour=NOW_S - NOW_S % 3_600,
    manifest_waiting=3,
    manifest_due=False,
    forwarders=[ForwarderStatus("up", "out", "plant/#", "hub", 1_200)],
)
BRIDGE = BridgeStatus(
    gateway="gw1",
    epoch="5441eebd2f4b",
    public_key="ed25519:AAAA",
    room_bytes=36_000_000,
    stored_bytes_per_s=1_000.0,
    autonomy_hours=10.0,
    connectors=[CONNECTOR],
)


def with_connector(**fields: Any) -> BridgeStatus:
    return msgspec.structs.replace(BRIDGE, connectors=[msgspec.structs.replace(CONNECTOR, **fields)])


def test_rates_cover_the_last_minute() -> None:
    rates = LinkRates()
    assert rates.per_second("hub") == (0.0, 0.0)
    for second in range(2 * RATE_S):
        rates.add("hub", float(second), 10 * second if second > RATE_S else 0, 1_000 - 5 * second)
    accepted, shrinks = rates.per_second("hub")
    assert accepted == pytest.approx((2 * RATE_S - 1) * 10 / RATE_S)
    assert shrinks == pytest.approx(5.0)
    rates.keep(set())
    assert rates.per_second("hub") == (0.0, 0.0)


def test_output_contains_the_complete_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show(BRIDGE, NOW_S)
    said = capsys.readouterr().out
    for words in (
        "1,200 messages, about 120.0 kB, the oldest 2 h old",
        "20.0 messages/s accepted",
        "in 2 min",
        "36.0 MB of messages, 10.0 hours at 1.0 kB/s",
        "3 statements wait",
        "plant/# -> hub, 1,200 wait",
    ):
        assert words in said
    show(msgspec.structs.replace(BRIDGE, left={"hub/old": 7}), NOW_S)
    assert "up to 7 messages wait for hub/old, which is no longer configured" in capsys.readouterr().out
    show(with_connector(forwarders=[ForwarderStatus("up", "out", "jobs", "hub", 0, "'jobs' is full")]), NOW_S)
    assert "it receives nothing: 'jobs' is full" in capsys.readouterr().out
    show(with_connector(forwarders=[ForwarderStatus("down", "in", "jobs", "far/#", 0, rejected=3)]), NOW_S)
    assert "3 messages from the peer rejected" in capsys.readouterr().out
    one = ForwarderStatus("down", "in", "jobs", "far/#", 1, rejected=1)
    show(with_connector(backlog_messages=1, manifest_waiting=1, forwarders=[one]), NOW_S)
    said = capsys.readouterr().out
    for words in ("1 message, about", "1 statement waits", "far/#, 1 waits", "1 message from the peer rejected"):
        assert words in said
    show(with_connector(state="connecting", last_error="hub: refused", drain_s=None, backlog_oldest_at=None), NOW_S)
    said = capsys.readouterr().out
    assert "hub: refused (0 attempts)" in said
    assert "not before the link is back" in said


def test_output_shows_recent_messages_the_cost_of_the_month_and_quiet_hours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show(with_connector(live_messages=7, budget_bytes=500_000_000, spent_bytes=405_000_000, quiet=True), NOW_S)
    said = capsys.readouterr().out
    assert "; 7 of them since the link is up; quiet hours" in said
    assert "405.0 MB of 500.0 MB of this month (81 %)" in said


class Draining:
    """A bridge with a clock of its own; its backlog shrinks at each look."""

    def __init__(self, backlogs: list[int], statements: list[int]) -> None:
        self.now_s = 0.0
        self.backlogs = backlogs
        self.statements = statements
        self.asked = False
        self.left: dict[str, int] = {}

    def status(self) -> BridgeStatus:
        return msgspec.structs.replace(self._status(), left=self.left)

    def _status(self) -> BridgeStatus:
        backlog = self.backlogs.pop(0) if len(self.backlogs) > 1 else self.backlogs[0]
        waiting = 0
        if self.asked:
            waiting = self.statements.pop(0) if len(self.statements) > 1 else self.statements[0]
        return with_connector(backlog_messages=backlog, manifest_waiting=waiting, manifest_due=False)

    def state(self) -> None:
        self.asked = True

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, timeout_s: float) -> Any:
        return wait_drained(self.status, self.state, timeout_s, clock_s=lambda: self.now_s, pause=self.pause)


def test_draining_ends_when_nothing_waits_and_it_is_stated() -> None:
    draining = Draining([30, 20, 10, 0], [5, 2, 0])
    left = draining.wait(60)
    assert (left.drained, left.waiting, draining.asked) == (True, 0, True)


def test_draining_reports_what_still_waits_at_the_timeout() -> None:
    left = Draining([30, 20], [0]).wait(5)
    assert (left.drained, left.waiting) == (False, 20)
    assert "20 messages still wait after 5 s: hub (connected)" in left.why


def test_draining_reports_a_hub_that_does_not_take_the_manifest() -> None:
    draining = Draining([0], [4])
    left = draining.wait(60)
    assert (left.drained, left.why) == (False, "no message waits, but the hub has not confirmed the manifest")
    assert draining.now_s >= MANIFEST_S


def test_draining_reports_the_backlog_of_removed_forwarders() -> None:
    draining = Draining([3, 0], [0])
    draining.left = {"hub/old": 7, "hub/older": 0}
    left = draining.wait(60)
    assert (left.drained, left.waiting, draining.asked) == (False, 7, True)
    assert "hub/old (7 at most)" in left.why


BASE = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {hub: {url: "amqp://one:5672"}}}
---
{apiVersion: enmasse.io/v1beta1, kind: Address, metadata: {name: default.plant},
  spec: {address: plant/#, type: topic, forwarders: [{name: plant, remoteAddress: hub}]}}
"""

PLANT = "hub/default.plant/plant"
"""Connector, resource and name of the forwarder."""


@pytest.mark.parametrize("folder", ["gw", "h#sh?x=%31 y"])
def test_plan_shows_additions_changes_and_removals(tmp_path: Path, folder: str) -> None:
    data, file = tmp_path / folder, tmp_path / "gateway.yaml"
    made = make(data)
    assert change(made.path, f"UPDATE cursor SET name = 'forwarder/{PLANT}' WHERE name = ?", FORWARDER)
    with sqlite3.connect(made.path) as connection:
        ((waiting,),) = connection.execute(f"SELECT behind FROM backlog WHERE cursor = 'forwarder/{PLANT}'").fetchall()
    connection.close()
    file.write_text(BASE)
    added = planned(data, [str(file)])
    assert [(one.kind, one.name, one.change, one.waiting) for one in added] == [
        ("connector", "hub", "added", 0),
        ("forwarder", PLANT, "added", waiting),
    ]
    assert f"continues at its cursor, with {waiting} messages" in added[1].sentence
    assert run(["apply", "--data", str(data), "-f", str(file)]) == 0
    assert planned(data, [str(file)]) == []
    file.write_text(
        BASE.replace("one:5672", "two:5672").replace(
            "{name: plant, remoteAddress: hub}", "{name: other, remoteAddress: hub}"
        )
    )
    changed = planned(data, [str(file)])
    assert [(one.kind, one.name, one.change) for one in changed] == [
        ("connector", "hub", "changed"),
        ("forwarder", "hub/default.plant/other", "added"),
        ("forwarder", PLANT, "removed"),
    ]
    assert "dials two:5672" in changed[0].sentence
    assert "starts with messages that arrive from then on" in changed[1].sentence
    assert f"{waiting} messages that wait for it stay stored" in changed[2].sentence
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([folder, "gateway.yaml"]), "nothing else is made"


def test_invalid_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(BASE.replace("forwarders", "forwarder"))
    assert run(["bridge", "plan", "--data", str(tmp_path), "-f", str(file)]) == 2
    assert "error[configuration-rejected]" in capsys.readouterr().err


def test_missing_gateway_is_an_unreachable_peer(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["status"], ["pause"], ["drain"], ["test"]):
        assert run(["bridge", *words, "--http", "127.0.0.1:9"]) == 3
        assert "does not answer" in capsys.readouterr().err


def test_busy_gateway_is_not_reported_as_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ConsoleClient(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(CommandError, match="timed out") as raised:
            client.ask("status", answer_s=0.05)
    assert raised.value.exit_code == Exit.UNREACHABLE
    assert "it may be busy" in raised.value.hint
