"""Data directories that are refused, and content of core dumps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.hub.data import DataError, data_directory
from edge.broker.store.errors import StoreInaccessible
from edge.broker.store.lock import DirectoryLock, is_held
from edge.broker.store.sqlite import make_directory
from edge.health.data_owner import directory_fault


def test_own_directory_is_accepted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert directory_fault(tmp_path) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_directory_writable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert "chmod 0700" in (directory_fault(tmp_path) or "")
    with pytest.raises(StoreInaccessible):
        make_directory(tmp_path)
    before = os.umask(0o022)
    try:
        with pytest.raises(DataError), data_directory(tmp_path):
            pass
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [], "nothing is made in it"


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "chown" in (directory_fault(tmp_path) or "")


def test_root_of_a_volume_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    assert directory_fault(tmp_path) is None


def test_lock_that_is_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    victim, data = tmp_path / "victim", tmp_path / "data"
    data.mkdir(0o700)
    victim.write_text("kept")
    (data / "store.lock").symlink_to(victim)
    (data / "hub.lock").symlink_to(victim)
    with pytest.raises(StoreInaccessible):
        DirectoryLock(data)
    before = os.umask(0o022)
    try:
        with pytest.raises(DataError), data_directory(data):
            pass
    finally:
        os.umask(before)
    assert not is_held(data)
    assert victim.read_text() == "kept"


def test_core_dump_contains_no_memory_of_the_process() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "from edge.health.data_owner import forbid_core_dumps as forbid; forbid(); import resource\n"
            "print(resource.getrlimit(resource.RLIMIT_CORE), open('/proc/self/coredump_filter').read())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told == ["(0,", "0)", "00000000"]
