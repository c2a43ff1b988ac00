"""The applied resources on disk: versions, atomic changes, damage, locks and a full disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.resources import parse
from bridge.resources.errors import ConfigurationRejected
from bridge.resources.resource import Resource
from edge.configuration import repository
from edge.configuration.file import RepositoryError
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository


def address(name: str, type_: str = "queue", more: str = "") -> list[Resource]:
    text = f"{{apiVersion: waypost/v1, kind: Address, metadata: {{name: {name}}}, "
    return parse.parse(KINDS, text + f"spec: {{address: {name}, type: {type_}{more}}}}}", "a.yaml")


def test_empty_directory_is_version_zero_and_stays_untouched(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    assert store.version == 0
    assert store.load().resources == ()
    assert list(tmp_path.iterdir()) == []


def test_apply_adds_replaces_and_counts(tmp_path: Path) -> None:
    store = Repository(tmp_path / "new" / "data")
    assert store.apply(address("a") + address("b"))[0] == 1
    version, changes = store.apply(address("a", "topic") + address("b") + address("c"))
    assert version == store.version == 2
    assert [(change.name, change.verb) for change in changes] == [
        ("a", "changed"),
        ("b", "unchanged"),
        ("c", "created"),
    ]
    loaded = Repository(tmp_path / "new" / "data").load()
    assert loaded.version == 2
    assert {resource.name: resource.document["spec"]["type"] for resource in loaded.resources} == {
        "a": "topic",
        "b": "queue",
        "c": "queue",
    }


def test_repeated_apply_writes_nothing(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    store.apply(address("a"))
    before = store.path.stat()
    assert store.apply(address("a")) == (
        1,
        [repository.ResourceChange("Address", "a", *(address("a")[0].document,) * 2)],
    )
    assert store.path.stat().st_mtime_ns == before.st_mtime_ns
    assert store.path.stat().st_ino == before.st_ino


def test_invalid_whole_changes_nothing(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    store.apply(address("dead", "deadletter") + address("a", more=", deadletter: dead"))
    content = store.path.read_bytes()
    with pytest.raises(ConfigurationRejected, match="deadletter"):
        store.apply(address("b") + address("dead", "queue"))
    with pytest.raises(ConfigurationRejected, match='"dead"'):
        store.delete([("Address", "dead")])
    assert store.path.read_bytes() == content
    assert store.version == 1


def test_delete_removes_resources(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    store.apply(address("a") + address("b"))
    version, changes = store.delete([("Address", "a"), ("Address", "nowhere")])
    assert (version, [(change.name, change.verb) for change in changes]) == (2, [("a", "deleted")])
    assert [resource.name for resource in store.load().resources] == ["b"]


def test_plan_writes_nothing(tmp_path: Path) -> None:
    assert [change.verb for change in Repository(tmp_path).plan(address("a"))] == ["created"]
    assert list(tmp_path.iterdir()) == []


def test_change_of_another_process_changes_the_version(tmp_path: Path) -> None:
    reader, writer = Repository(tmp_path), Repository(tmp_path)
    for expected in range(1, 4):
        writer.apply(address(f"a{expected}"))
        assert reader.version == expected


def test_simultaneous_changes_lose_nothing(tmp_path: Path) -> None:
    def work(start: int) -> None:
        for i in range(start, start + 10):
            Repository(tmp_path).apply(address(f"a{i}"))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Repository(tmp_path).version == 30
    assert len(Repository(tmp_path).load().resources) == 30


def test_files_are_private(tmp_path: Path) -> None:
    store = Repository(tmp_path / "data")
    store.apply(address("a"))
    assert store.folder.stat().st_mode & 0o077 == 0
    assert store.path.stat().st_mode & 0o077 == 0
    assert store.folder.parent.stat().st_mode & 0o077 == 0, "a data directory made by this"


def test_failed_write_keeps_the_old_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Repository(tmp_path)
    store.apply(address("a"))
    content = store.path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RepositoryError, match=os.strerror(errno.ENOSPC)):
        store.apply(address("b"))
    assert store.path.read_bytes() == content
    monkeypatch.undo()
    assert store.apply(address("b"))[0] == 2


def test_new_file_is_synced_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        order.append("sync " + ("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"))
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Any:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    Repository(tmp_path).apply(address("a"))
    assert order[:3] == ["sync file", "rename", "sync folder"], "its history follows"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff"])
def test_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    store = Repository(tmp_path)
    store.folder.mkdir()
    store.path.write_bytes(content)
    for use in (lambda: store.version, store.load, lambda: store.apply(address("a"))):
        with pytest.raises(RepositoryError, match="damaged"):
            use()
    assert store.path.read_bytes() == content


def test_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    store.folder.mkdir()
    store.path.write_bytes(msgspec.json.encode({"format": 2, "version": 9, "resources": {"a": 1}}))
    with pytest.raises(RepositoryError, match="newer program"):
        store.load()


def test_invalid_edit_is_found_when_loading(tmp_path: Path) -> None:
    store = Repository(tmp_path)
    store.apply(address("a"))
    store.path.write_text(store.path.read_text().replace("queue", "qeue"))
    with pytest.raises(ConfigurationRejected, match='"qeue"'):
        store.load()


def test_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(RepositoryError, match="cannot"):
        Repository(tmp_path / "data").apply(address("a"))
