"""Only the hub's own user can read what gateways send, even if another user created the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault.hostile.web import ask
from tests.support.processes import edge, hub, wait_until

WAIT_S = 30.0


def open_to_others(folder: Path) -> list[str]:
    every = [folder, *folder.rglob("*")]
    return [f"{path} {path.lstat().st_mode & 0o7777:o}" for path in every if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("umask", [0o022, 0o000], ids=oct)
def test_files_of_a_hub_are_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with hub(tmp_path) as running:
            forward = ("--hub", f"amqp://127.0.0.1:{running.port('amqp')}", "--gateway", "gw1", "--forward", "plant/#")
            with edge(tmp_path, "gw", *forward) as gateway:
                assert ask(gateway.port("http"), "POST", "/t/plant/7", body=b"21.5").status == 202
                telemetry = tmp_path / "hub" / "lake" / "telemetry"
                wait_until(lambda: any(telemetry.rglob("*.parquet")), timeout_s=WAIT_S, what="it landed")
            assert not open_to_others(tmp_path / "hub")
            assert running.stop() == 0
    finally:
        os.umask(before)


def test_readable_files_of_an_older_version_become_private(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        assert running.stop() == 0
    data = tmp_path / "hub"
    outside = tmp_path / "outside"
    outside.write_text("somebody else's")
    outside.chmod(0o644)
    (data / "lake" / "elsewhere").symlink_to(outside)
    for path in (data, *data.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    with hub(tmp_path) as running:
        (data / "lake" / "elsewhere").unlink()
        assert not open_to_others(data)
        assert running.stop() == 0
    assert outside.stat().st_mode & 0o777 == 0o644
