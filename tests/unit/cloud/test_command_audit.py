"""Lines of the audit that commands on the data directory of a hub write: action, subject and tenant."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from cloud.hub.data import WRITER
from cloud.hub.enrolment.files import ServerCertificate, load_own_authority
from cloud.hub.registry.alerts import AlertChanges, AlertRecord, Alerts
from cloud.hub.registry.audit import AuditFilter, AuditReader
from cloud.hub.registry.commands import CommandRecord, Commands, CommandState
from cloud.hub.registry.enrolments import Enrolments, TokenRecord
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.rollouts import RolloutRecord, Rollouts
from cloud.hub.rollout import MemberPhase, RolloutMember, RolloutState
from edge.appliance.main import run

NOW_US = time.time_ns() // 1_000
LATER_US = NOW_US + 3_600_000_000


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = tmp_path / "hub"
    made.mkdir(mode=0o700)
    (made / WRITER).write_text("0" * 32)
    with contextlib.closing(open_registry(sqlite_url(made / "registry.db")).database):
        return made


def line_of(data: Path, *words: str) -> tuple[str, str, str]:
    """Run a command; return action, subject and tenant of the line that it has added."""
    before = len(lines(data))
    assert run([*words, "--data", str(data)]) == 0
    after = lines(data)
    assert len(after) == before + 1
    return after[0]


def lines(data: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(AuditReader(sqlite_url(data / "registry.db"))) as audit:
        found = audit.page(AuditFilter(), 100).entries
    return [(each.entry.action, each.entry.subject, each.entry.tenant) for each in found]


def test_token(data: Path) -> None:
    with contextlib.closing(Enrolments(sqlite_url(data / "registry.db"))) as enrolments:
        enrolments.add([TokenRecord("t1", b"digest", "acme", None, NOW_US, LATER_US)])
    assert line_of(data, "token", "revoke", "t1") == ("token.revoke", "t1", "acme")


def test_bundle(data: Path, tmp_path: Path) -> None:
    (tmp_path / "next.raucb").write_bytes(b"hsqs")
    assert line_of(data, "hub", "bundle", "add", str(tmp_path / "next.raucb")) == (
        "bundle.add",
        str(tmp_path / "next.raucb"),
        "",
    )
    assert line_of(data, "hub", "bundle", "remove", "next.raucb") == ("bundle.remove", "next.raucb", "")


def test_roll_out(data: Path) -> None:
    going = RolloutRecord("r1", "acme", NOW_US, "ann", "", [], 5.0, False, 1.0, 9.0, 0, 0, RolloutState.RUNNING, "")
    with contextlib.closing(open_registry(sqlite_url(data / "registry.db")).database) as database:
        for name in ("r1", "r2"):
            Rollouts(database).add(going._replace(id=name), [RolloutMember("hall", 0, MemberPhase.WAITING, NOW_US)])
    for word in ("pause", "resume", "abort"):
        assert line_of(data, "rollout", word, "r1") == (f"rollout.{word}", "r1", "acme")
    assert line_of(data, "rollout", "abort", "r2", "--take-back") == ("rollout.abort", "r2", "acme")


def test_command(data: Path) -> None:
    waiting = CommandRecord(
        number=0,
        id="c1",
        tenant="acme",
        gateway="hall",
        device="pump7",
        name="speed",
        content_type=None,
        payload=b"",
        correlation_id=None,
        reply_to=None,
        wants_response=False,
        sent_by="",
        created_at=NOW_US,
        expires_at=LATER_US,
        state=CommandState.WAITING.value,
        reason="",
        changed_at=NOW_US,
    )
    with contextlib.closing(Commands(sqlite_url(data / "registry.db"))) as commands:
        commands.add(waiting, gateway_max=9, tenant_max=9, known=True)
    assert line_of(data, "command", "cancel", "c1") == ("command.cancel", "c1", "acme")


@pytest.mark.parametrize("tenant", ["acme", ""])
def test_alert_of_a_tenant_and_of_the_hub(data: Path, tenant: str) -> None:
    record = AlertRecord("a1", "h", "GatewayAway", "warning", tenant, "", "", "", "away", "look", NOW_US, NOW_US, 1)
    with contextlib.closing(Alerts(sqlite_url(data / "registry.db"))) as alerts:
        alerts.apply("h", AlertChanges(opened=[record]), NOW_US, 9, 0)
    assert line_of(data, "alert", "ack", "a1") == ("alert.acknowledge", "a1", tenant)


@pytest.mark.parametrize(("options", "tenant"), [(("--tenant", "acme"), "acme"), ((), "")])
def test_mute_of_a_tenant_and_of_all(data: Path, options: tuple[str, ...], tenant: str) -> None:
    words = ("alert", "mute", "--for", "1h", "--reason", "works", *options)
    assert line_of(data, *words) == ("mute.create", "works", tenant)
    with contextlib.closing(Alerts(sqlite_url(data / "registry.db"))) as alerts:
        [mute] = alerts.mutes(NOW_US)
    assert mute.tenant == tenant
    assert line_of(data, "alert", "unmute", mute.id) == ("mute.end", mute.id, tenant)


def test_certificate_of_the_hub(data: Path) -> None:
    now = time.time()
    ServerCertificate(data, load_own_authority(data, now, "hub"), ["localhost"]).keep(now)
    assert line_of(data, "hub", "revoke-certificate") == ("hub-certificate.revoke", "", "")


class TestUsers:
    def test_each_change_has_a_line(self, data: Path) -> None:
        assert line_of(data, "hub", "user", "add", "bea@acme") == ("user.create", "bea@acme", "acme")
        assert line_of(data, "hub", "user", "remove", "bea@acme") == ("user.remove", "bea@acme", "acme")
        assert run(["hub", "user", "remove", "bea@acme", "--data", str(data)]) == 1
        assert len(lines(data)) == 2

    def test_before_the_first_start_there_is_no_audit(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["hub", "user", "add", "bea@acme", "--data", str(tmp_path)]) == 0
        assert not (tmp_path / "registry.db").exists()
        assert "audit" not in capsys.readouterr().err

    def test_a_registry_elsewhere_has_to_be_given(self, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for file in data.glob("registry.db*"):
            file.unlink()
        assert run(["hub", "user", "add", "bea@acme", "--data", str(data)]) == 0
        assert not (data / "registry.db").exists()
        assert "not in the audit: its registry is elsewhere: give --config" in capsys.readouterr().err
