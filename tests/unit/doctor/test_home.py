"""Checks of the data directory: its owner, its permissions, its configuration and its store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.resources.parse import parse
from edge.appliance.doctor import home
from edge.appliance.doctor.check import CheckContext, CheckResult, Level, context_of, examine
from edge.appliance.main import run
from edge.broker.configuration import AddressConfiguration, BrokerConfiguration
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.output.errors import Exit
from tests.support.command import items_in
from tests.support.stores import Made, change, make
from tests.unit.doctor.check_context import bad, found, levels, machine

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: north}
spec: {listeners: {mqtt: "127.0.0.1:0"}}
"""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    (tmp_path / "data").mkdir(mode=0o700)
    return make(tmp_path / "data")


class TestDirectory:
    def test_modes_are_checked(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        assert levels(home.directory(machine(tmp_path / "root", data=tmp_path))) == [("data directory", "ok")]
        tmp_path.chmod(0o755)
        [result] = bad(home.directory(machine(tmp_path / "root", data=tmp_path)))
        assert (result.level, result.next_step) == (Level.WARN, f"chmod 700 {tmp_path}")

    def test_directory_of_another_user_is_a_finding(self, tmp_path: Path) -> None:
        [result] = bad(home.directory(machine(tmp_path / "root", data=tmp_path, uid=4242)))
        assert result.level is Level.FAIL
        assert "chown" in result.next_step

    def test_missing_path_and_file_are_findings(self, tmp_path: Path) -> None:
        [result] = bad(home.directory(machine(tmp_path / "root", data=tmp_path / "new")))
        assert result.level is Level.WARN
        (tmp_path / "file").write_text("")
        [result] = bad(home.directory(machine(tmp_path / "root", data=tmp_path / "file")))
        assert result.level is Level.FAIL

    def test_unreadable_directory_is_a_finding(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("os.access", lambda *_args, **_options: False)
        with pytest.raises(SystemExit) as ended:
            run(["doctor", "--data", str(made.path.parent), "--json"])
        assert ended.value.code == Exit.FAILED
        results = items_in(capsys.readouterr().out)
        [result] = [result for result in results if result["name"] == "data directory"]
        assert result["level"] == "fail"

    def test_unreadable_file_names_the_user_who_can_read_it(self, tmp_path: Path) -> None:
        def forbidden(_: CheckContext) -> Iterator[CheckResult]:
            raise PermissionError(errno.EACCES, "Permission denied", "/data/store.sqlite")

        [result] = bad(examine([("store", forbidden)], machine(tmp_path)))
        assert (result.seen, result.level) == ("/data/store.sqlite: Permission denied", Level.WARN)
        assert "as the gateway's user" in result.next_step


class TestSecrets:
    def test_files_readable_by_others_are_findings(self, made: Made) -> None:
        around = machine(made.path.parent / "root", data=made.path.parent)
        assert bad(home.secrets(around)) == []
        (made.path.parent / "credentials.db").write_bytes(b"")
        (made.path.parent / "credentials.db").chmod(0o640)
        made.path.chmod(0o604)
        results = bad(home.secrets(around))
        assert {result.next_step for result in results} == {
            f"chmod 600 {made.path.parent / 'credentials.db'}", f"chmod 600 {made.path}"
        }  # fmt: skip
        assert all(result.level is Level.FAIL for result in results)

    def test_resources_and_copies_of_the_store_are_checked(self, made: Made) -> None:
        around = machine(made.path.parent / "root", data=made.path.parent)
        repository = Repository(made.path.parent)
        repository.apply(parse(KINDS, GATEWAY, "x"))
        copy = made.path.with_name(made.path.name + ".schema-4")
        copy.write_bytes(b"")
        copy.chmod(0o600)
        assert bad(home.secrets(around)) == []
        repository.path.chmod(0o644)
        copy.chmod(0o644)
        steps = [result.next_step for result in bad(home.secrets(around))]
        assert steps == [f"chmod 600 {copy}", f"chmod 600 {repository.path}"]


class TestConfiguration:
    def test_empty_configuration_is_reported(self, tmp_path: Path) -> None:
        around = context_of(tmp_path, running=False, environment={}, timeout_s=1)
        assert [result.level for result in bad(home.configuration(around))] == [Level.WARN]

    def test_applied_configuration_is_reported(self, tmp_path: Path) -> None:
        Repository(tmp_path).apply(parse(KINDS, GATEWAY, "x"))
        around = context_of(tmp_path, running=False, environment={}, timeout_s=1)
        assert bad(home.configuration(around)) == []
        assert around.configuration.gateway == "north"

    def test_configuration_given_and_not_applied_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "gateway.yaml").write_text(GATEWAY)
        config = tmp_path / "gateway.yaml"
        around = context_of(tmp_path, running=False, environment={}, timeout_s=1, config=config)
        assert bad(home.configuration(around)) == []
        assert around.configuration.gateway == "north"
        config.write_text("kind: Nothing")
        around = context_of(tmp_path, running=False, environment={}, timeout_s=1, config=config)
        assert [result.level for result in bad(home.configuration(around))][:1] == [Level.FAIL]

    def test_damaged_configuration_is_a_failure(self, tmp_path: Path) -> None:
        repository = Repository(tmp_path)
        repository.apply(parse(KINDS, GATEWAY, "x"))
        repository.path.write_bytes(b"{")
        around = context_of(tmp_path, running=False, environment={}, timeout_s=1)
        [result] = bad(home.configuration(around))
        assert result.level is Level.FAIL
        assert "damaged" in result.seen


class TestStore:
    def test_kept_copies_are_named(self, made: Made) -> None:
        around = machine(made.path.parent / "root", data=made.path.parent)
        assert "store copies" not in [result.name for result in home.store(around)]
        made.path.with_name(f"{made.path.name}.damaged-20260101T000000Z").write_bytes(b"kept")
        [named] = [result for result in home.store(around) if result.name == "store copies"]
        assert named.level is Level.OK
        assert "store.sqlite.damaged-20260101T000000Z" in named.seen

    def test_sound_store_passes(self, made: Made) -> None:
        results = found(home.store, machine(made.path.parent / "root", data=made.path.parent))
        assert results["store"].level is Level.OK
        assert "354 messages wait for 2 consumers" in results["backlog"].seen

    def test_damaged_store_is_a_failure(self, made: Made) -> None:
        change(made.path, "UPDATE cursor SET position = 900 WHERE name = 'queue'")
        results = bad(home.store(machine(made.path.parent / "root", data=made.path.parent)))
        assert results[0].level is Level.FAIL
        assert "store repair" in results[0].next_step

    def test_file_that_is_no_store_is_a_failure(self, tmp_path: Path) -> None:
        (tmp_path / "store.sqlite").write_bytes(b"x" * 10_000)
        assert any(r.level is Level.FAIL for r in bad(home.store(machine(tmp_path / "root", data=tmp_path))))

    def test_too_large_store_is_not_checked_completely(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(home, "WALK_BYTES_MAX", 1000)
        result = found(home.store, machine(made.path.parent / "root", data=made.path.parent))["store"]
        assert "too large for a full check here" in result.seen

    @pytest.mark.parametrize(
        ("written_mb", "level", "words"),
        [(100, "ok", "days left"), (900_000, "warn", "days left"), (1_000_000, "fail", "endurance is exceeded")],
    )
    def test_worn_card_is_reported(self, made: Made, written_mb: int, level: str, words: str) -> None:
        change(made.path, "DELETE FROM wear")
        change(made.path, f"INSERT INTO wear VALUES (0, 3500, 10, 20, {written_mb * 10**6})")
        configuration = BrokerConfiguration(endurance_bytes=1e12)
        around = machine(made.path.parent / "root", data=made.path.parent, configuration=configuration)
        result = found(home.store, around)["card wear"]
        assert result.level.value == level
        assert words in result.seen
        assert bool(result.next_step) == (level != "ok")

    def test_card_without_a_rating_names_the_setting(self, made: Made) -> None:
        change(made.path, "DELETE FROM wear")
        change(made.path, "INSERT INTO wear VALUES (0, 3500, 10, 20, 30000000000)")
        result = found(home.store, machine(made.path.parent / "root", data=made.path.parent))["card wear"]
        assert result.level is Level.OK
        assert result.seen.startswith("20 B by the gateway, 2.0 bytes written per byte of messages; 30.0 GB to the")
        assert "spec.storage.enduranceTerabytes" in result.seen

    def test_missing_room_is_reported_before_devices_are_refused(self, made: Made) -> None:
        def told(configuration: BrokerConfiguration) -> list[tuple[str, str]]:
            around = machine(made.path.parent / "root", data=made.path.parent, configuration=configuration)
            return levels(result for result in bad(home.store(around)) if result.name == "room")

        assert told(BrokerConfiguration()) == []
        assert told(BrokerConfiguration(limits=Limits(free_floor_bytes=1 << 62))) == [("room", "fail")]
        kept = home.figures_of(made.path).logs[0]
        pattern = kept.name.partition(" ")[2]
        full = AddressConfiguration(AddressRule(pattern, AddressType.QUEUE), AddressPolicy(quota_bytes=kept.bytes))
        assert told(BrokerConfiguration(addresses=(full,))) == [("room", "warn")]

    @pytest.mark.parametrize(("hours", "level"), [(1.0, "fail"), (40.0, "warn"), (1000.0, "ok")])
    def test_store_close_to_full_is_reported(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, hours: float, level: str
    ) -> None:
        figures = home.figures_of(made.path)
        figures.room.hours_to_full = hours
        monkeypatch.setattr(home, "figures_of", lambda *_args, **_kw: figures)
        result = found(home.store, machine(made.path.parent / "root", data=made.path.parent))["backlog"]
        assert result.level.value == level
