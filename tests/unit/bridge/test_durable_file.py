"""Replacement of a file: durable with its name, private, and whole at any moment."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from bridge.durable_file import replace_file
from edge.broker.security.operator_token import FILE, operator_token


def test_content_is_synced_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, bool]] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / FILE).exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    assert operator_token(tmp_path) == (tmp_path / FILE).read_text().strip()
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_umask_does_not_change_the_mode(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "file", b"content", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_link_in_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "file.new").symlink_to(tmp_path / "other")
    replace_file(tmp_path / "file", b"content")
    assert (tmp_path / "other").read_bytes() == b"other"
    assert (tmp_path / "file").read_bytes() == b"content"
