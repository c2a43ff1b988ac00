"""`waypost hub backup | restore | move-registry | migrate`."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from cloud.hub import sealed_file
from cloud.hub.data import WRITER
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from edge.appliance.main import run
from edge.output.errors import Exit

PASSPHRASE = "correct horse battery"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the data directory of a hub that has run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = tmp_path / "hub"
    made.mkdir(mode=0o700)
    (made / WRITER).write_text("0" * 32)
    (made / "authority").mkdir()
    (made / "authority" / "authority.pem").write_text("key")
    with contextlib.closing(open_registry(sqlite_url(made / "registry.db")).database):
        return made


@pytest.fixture
def passphrase(tmp_path: Path) -> str:
    file = tmp_path / "passphrase"
    file.write_text(PASSPHRASE + "\nnot part of it\n")
    return f"--passphrase-file={file}"


def hub(*words: str | Path) -> int:
    return run(["hub", *map(str, words)])


def test_backup_is_checked_and_restored(data: Path, passphrase: str, tmp_path: Path) -> None:
    file, new = tmp_path / "hub.backup", tmp_path / "new"
    assert hub("backup", "--data", data, passphrase, file) == 0
    assert hub("backup", "--data", data, passphrase, file) == Exit.USAGE, "it exists"
    assert hub("restore", "--check", "--data", new, passphrase, file) == 0
    assert not new.exists()
    assert hub("restore", "--data", new, passphrase, file) == 0
    assert (new / "authority" / "authority.pem").read_text() == "key"
    assert (new / "registry.db").exists()
    assert hub("restore", "--data", new, passphrase, file) == Exit.USAGE, "it is there"
    assert hub("restore", "--data", new, "--replace", passphrase, file) == 0
    file.write_bytes(file.read_bytes()[:-1])
    assert hub("restore", "--check", "--data", new, passphrase, file) == Exit.USAGE


def test_registry_of_a_configuration_needs_no_data_directory(data: Path, passphrase: str, tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    url = f"sqlite:///{data / 'registry.db'}"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{url}'}}\n")
    assert hub("backup", "--config", config, passphrase, tmp_path / "hub.backup") == 0
    assert hub("migrate", "--check", "--config", config) == 0
    assert hub("backup", passphrase, tmp_path / "another") == Exit.USAGE


def test_short_passphrase_is_refused(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("short")
    assert hub("backup", "--data", data, f"--passphrase-file={file}", tmp_path / "b") == Exit.USAGE


def test_moved_registry_is_refused_afterwards(data: Path, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'new.db'}"
    assert hub("move-registry", "--data", data, "--to", target) == 0
    assert hub("migrate", "--data", data) == Exit.FAILED
    assert hub("move-registry", "--data", data, "--to", target) == Exit.FAILED
    secret = "postgresql://ann:secret@127.0.0.1/waypost"
    assert hub("move-registry", "--data", data, "--to", secret) == Exit.USAGE
    assert hub("move-registry", "--data", data, "--to", "nothing") == Exit.FAILED


def test_migration_is_shown_and_made(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(data / "registry.db")) as database:
        database.execute("ALTER TABLE gateways DROP COLUMN observed")
        database.execute("UPDATE schema_version SET version = 15")
        database.commit()
    assert hub("migrate", "--check", "--data", data) == Exit.FAILED
    assert "column gateways.observed" in capsys.readouterr().out
    assert hub("migrate", "--data", data) == 0
    assert hub("migrate", "--check", "--data", data) == 0


def test_header_with_too_high_a_cost_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sealed"
    with file.open("wb") as written:
        sealed_file.SealedWriter(written, PASSPHRASE, cost=16).finish()
    whole = file.read_bytes()
    header = msgspec.msgpack.encode(sealed_file.SealHeader(b"s" * 16, 2 * sealed_file.COST_MAX))
    file.write_bytes(sealed_file.MAGIC + len(header).to_bytes(4, "big") + header + whole[-16:])
    with file.open("rb") as read, pytest.raises(sealed_file.SealBroken):
        sealed_file.SealedReader(read, PASSPHRASE)


def test_content_of_any_size_is_read_as_it_was_written(tmp_path: Path) -> None:
    block = sealed_file.BLOCK_BYTES
    for size in (0, 1, block - 1, block, block + 1, 3 * block):
        content = bytes(range(256)) * (size // 256 + 1)
        file = tmp_path / str(size)
        with file.open("wb") as written:
            sealed = sealed_file.SealedWriter(written, PASSPHRASE, cost=16)
            sealed.write(content[:size])
            sealed.finish()
        with file.open("rb") as read:
            assert sealed_file.SealedReader(read, PASSPHRASE).readall() == content[:size]
