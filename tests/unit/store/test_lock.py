"""One process may hold a directory; inspections do not block it."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.broker.store.errors import StoreBusy
from edge.broker.store.lock import ATTEMPT_INTERVAL_S, LOCK_NAME, DirectoryLock, is_held


@contextmanager
def held(directory: Path) -> Iterator[None]:
    lock = DirectoryLock(directory)
    try:
        yield
    finally:
        lock.release()


def test_lock_is_exclusive(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    assert not (tmp_path / LOCK_NAME).exists(), "nothing is made where nothing is"
    with held(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(StoreBusy):
            DirectoryLock(tmp_path)
    assert not is_held(tmp_path)


def test_inspection_changes_nothing(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    path = tmp_path / LOCK_NAME
    path.write_text("4242\n")
    path.chmod(0o400)
    assert not is_held(tmp_path)
    assert path.read_text() == "4242\n"


def test_gateway_starts_during_an_inspection(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    with (tmp_path / LOCK_NAME).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_held(tmp_path), "another one who looks is no gateway"
        threading.Timer(2 * ATTEMPT_INTERVAL_S, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with held(tmp_path):
            assert is_held(tmp_path)


def test_lock_file_removed_by_its_holder_is_not_reused(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    threading.Timer(2 * ATTEMPT_INTERVAL_S, first.discard).start()
    with held(tmp_path):  # it has opened the file that is being removed
        assert (tmp_path / LOCK_NAME).exists()
        with pytest.raises(StoreBusy):
            DirectoryLock(tmp_path)
