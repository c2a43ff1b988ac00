"""Files are deleted or replaced under a running process: no message is acknowledged that no reader could find."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.broker.store.errors import StoreError
from edge.broker.store.files import CHECK_INTERVAL_S, StoreFiles
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import run_of, sqlite_rig


def replace_directory(data: Path) -> None:
    data.rename(data.with_name("moved"))
    shutil.copytree(data.with_name("moved"), data)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the database is deleted": lambda data: (data / FILE_NAME).unlink(),
    "its log is deleted": lambda data: (data / f"{FILE_NAME}-wal").unlink(),
    "the directory is deleted": shutil.rmtree,
    "another directory is put in its place": replace_directory,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_commits_fail_after_the_deletion(tmp_path: Path, change: Callable[[Path], object]) -> None:
    rig = sqlite_rig(tmp_path / "data")
    store = rig.store
    assert isinstance(store.medium, SqliteMedium)
    now = [0.0]
    store.medium._files._clock, store.medium._files._checked_at_s = (lambda: now[0]), 0.0
    log = store.logs.open("queue a")
    store.logs.append(log, run_of(b"1"))
    assert rig.commit().error is None
    assert store.medium.problems == []
    change(tmp_path / "data")
    now[0] += CHECK_INTERVAL_S
    store.logs.append(log, run_of(b"2"))
    error = rig.commit().error
    assert isinstance(error, StoreError)
    assert store.medium.problems == [str(error)]
    store.close()


def test_replaced_directory_is_distinguished_from_a_missing_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    files = StoreFiles(data / FILE_NAME)
    assert not files.replaced
    data.rename(tmp_path / "moved")
    assert not files.replaced, "it may be moved back"
    data.mkdir()
    assert files.replaced


def test_files_moved_back_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.touch()
    now = [0.0]
    files = StoreFiles(path, lambda: now[0])
    path.rename(tmp_path / "elsewhere")
    assert files.check() is None, "as of the last look"
    now[0] += CHECK_INTERVAL_S
    assert files.check() is not None
    (tmp_path / "elsewhere").rename(path)
    assert files.check() is None


def test_log_created_later_is_watched(tmp_path: Path) -> None:
    path, log = tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"
    path.touch()
    now = [0.0]
    files = StoreFiles(path, lambda: now[0])
    log.touch()
    now[0] += CHECK_INTERVAL_S
    assert files.check() is None
    log.unlink()
    now[0] += CHECK_INTERVAL_S
    assert files.check() is not None
