"""Backups of a hub: made while it runs, for every database, and restored to a lake that knows more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloud.hub import backup
from cloud.hub.backup import BackupError, check_backup, restore_backup, write_backup
from cloud.hub.registry.audit import Audit, AuditEntry
from cloud.hub.registry.faults import RegistryForeign, RegistryLeft, RegistryTooNew
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.hub.registry.views import SavedView
from cloud.lake.delta import DeltaLake
from cloud.lake.faults import LakeError
from cloud.place.place import parse
from edge.broker.security.credentials import CredentialFile
from tests.contract.registry.conftest import THERE, Place
from tests.contract.registry.delta_landings import land, landed
from tests.contract.registry.landings import PUMP, TEMPERATURE

NAME = 'bo\\x"é\0'
"""Name with characters that databases treat specially."""
PASSPHRASE = "correct horse battery"
COST = 16
"""Cheap key: its price is not tested."""


@pytest.fixture
def hub(place: Place, tmp_path: Path) -> Path:
    """Return the data directory of a hub with its registry in `place`, its lake, users and an authority."""
    data = tmp_path / "hub"
    registry = place.open()
    registry.views.put("ann", SavedView(NAME.replace("\0", ""), "fleet", "q=1"), 9)
    land(registry, data / "lake", (TEMPERATURE, 0, 9), (PUMP, 0, 9))
    with CredentialFile.open(data):
        pass
    (data / "authority").mkdir()
    (data / "authority" / "authority.pem").write_text("key")
    (data / "authority" / "lock").write_text("")
    return data


@pytest.fixture
def file(hub: Path, place: Place, tmp_path: Path) -> Path:
    file = tmp_path / "hub.backup"
    write_backup(file, hub, place.url, PASSPHRASE, cost=COST)
    return file


def test_restored_hub_lands_what_the_lake_does_not_have(
    hub: Path, place: Place, file: Path, make_place: Callable[[], Place], tmp_path: Path
) -> None:
    running = place.open()
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"ann" not in file.read_bytes()
    summary = check_backup(file, PASSPHRASE)
    assert (summary.manifest.schema, summary.rows["gateways"]) == (SCHEMA_VERSION, 2)
    assert summary.files == {"credentials.db", "authority/authority.pem"}
    gw3 = TEMPERATURE._replace(gateway="gw3")
    land(running, hub / "lake", (TEMPERATURE, 10, 19))
    land(running, hub / "lake", (gw3, 0, 4))
    restored, data = make_place(), tmp_path / "new"
    data.mkdir()
    found = restore_backup(file, PASSPHRASE, data, restored.url, parse(str(hub / "lake")))
    assert found.summary == summary
    assert (found.beyond, found.unknown_gateways) == (1, {("default", "gw3")})
    again = restored.open(THERE)
    land(again, hub / "lake", (TEMPERATURE, 5, 24), (PUMP, 0, 12), (gw3, 0, 6))
    assert not again.commits.is_older_copy, "the restore has repaired it"
    assert landed(hub / "lake", "gw1") == list(range(25))
    assert landed(hub / "lake", "gw2") == list(range(13))
    assert landed(hub / "lake", "gw3") == list(range(7)), "the backup does not know this gateway"
    assert [view.page for view in again.views.of("ann")] == ["fleet"]
    assert again.registry_id == running.registry_id
    assert (data / "authority" / "authority.pem").read_text() == "key"
    assert (data / "authority" / "authority.pem").stat().st_mode & 0o777 == 0o600
    with CredentialFile.open(data) as users:
        assert users.load().users == {}


def test_restore_refuses_what_is_there_unless_asked(hub: Path, place: Place, file: Path, tmp_path: Path) -> None:
    lake, data = parse(str(hub / "lake")), tmp_path / "new"
    data.mkdir()
    with pytest.raises(RegistryForeign):
        restore_backup(file, PASSPHRASE, data, place.url, lake)
    with pytest.raises(BackupError, match="exists already"):
        restore_backup(file, PASSPHRASE, hub, place.url, lake)
    running = place.open()
    land(running, hub / "lake", (TEMPERATURE, 10, 19))
    running.close()
    (hub / "authority" / "authority.pem").write_text("another")
    restore_backup(file, PASSPHRASE, hub, place.url, lake, replace=True)
    assert (hub / "authority" / "authority.pem").read_text() == "key"
    land(place.open(THERE), hub / "lake", (TEMPERATURE, 0, 29))
    assert landed(hub / "lake", "gw1") == list(range(30))


def test_interrupted_restore_is_refused_by_hubs_and_repeated(
    hub: Path, file: Path, make_place: Callable[[], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored, data, lake = make_place(), tmp_path / "new", parse(str(hub / "lake"))
    data.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(backup, "DeltaLake", _unreadable)
        with pytest.raises(LakeError):
            restore_backup(file, PASSPHRASE, data, restored.url, lake)
    with pytest.raises(RegistryLeft):
        restored.open()
    assert not (data / "authority").exists()
    restore_backup(file, PASSPHRASE, data, restored.url, lake)
    land(restored.open(THERE), hub / "lake", (TEMPERATURE, 0, 12))
    assert landed(hub / "lake", "gw1") == list(range(13))


def _unreadable(_place: object) -> DeltaLake:
    raise LakeError("the lake cannot be read")


def test_file_that_was_cut_or_changed_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for at in (0, 10, 30, 60, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:at])
        with pytest.raises(BackupError):
            check_backup(file, PASSPHRASE)
        changed = bytearray(whole)
        changed[at] ^= 1
        file.write_bytes(changed)
        with pytest.raises(BackupError):
            check_backup(file, PASSPHRASE)
    file.write_bytes(whole)
    with pytest.raises(BackupError, match="passphrase"):
        check_backup(file, PASSPHRASE + "!")
    assert check_backup(file, PASSPHRASE).rows["gateways"] == 2


def test_existing_file_and_short_passphrase_are_refused(hub: Path, place: Place, file: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="exists already"):
        write_backup(file, hub, place.url, PASSPHRASE, cost=COST)
    short = PASSPHRASE[: backup.PASSPHRASE_CHARACTERS_MIN - 1]
    with pytest.raises(BackupError, match="too short"):
        write_backup(tmp_path / "another", hub, place.url, short, cost=COST)
    assert sorted(each.name for each in tmp_path.glob("another*")) == []


def test_lake_that_is_missing_is_refused(file: Path, make_place: Callable[[], Place], tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    with pytest.raises(BackupError, match="no tables"):
        restore_backup(file, PASSPHRASE, new, make_place().url, parse(str(new / "lake")))


def test_backup_of_a_newer_program_is_refused(
    hub: Path, place: Place, make_place: Callable[[], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "newer.backup"
    with monkeypatch.context() as patch:
        patch.setattr(backup, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        write_backup(file, hub, place.url, PASSPHRASE, cost=COST)
    (tmp_path / "new").mkdir()
    with pytest.raises(RegistryTooNew):
        restore_backup(file, PASSPHRASE, tmp_path / "new", make_place().url, parse(str(hub / "lake")))


def test_numbers_continue_after_a_restore(
    hub: Path, place: Place, make_place: Callable[[], Place], tmp_path: Path
) -> None:
    entry = AuditEntry(1, NAME, "", "", "a.b", "s", None, None, 200, "")
    audit = Audit(place.url)
    audit.add([entry, entry])
    audit.close()
    file, target, data = tmp_path / "another", make_place(), tmp_path / "new"
    data.mkdir()
    write_backup(file, None, place.url, PASSPHRASE, cost=COST)
    restore_backup(file, PASSPHRASE, data, target.url, parse(str(hub / "lake")))
    restored = Audit(target.url)
    restored.add([entry])
    restored.close()
    found = target.execute('SELECT number, "user" FROM audit ORDER BY number')
    assert [row[0] for row in found] == [1, 2, 3]
    assert len({row[1] for row in found}) == 1
