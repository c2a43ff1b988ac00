"""The log of an emulated disk's writes is read in QEMU's format."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from images.card.partition import SECTOR
from tests.images.write_log import WriteLog

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(shutil.which("qemu-io") is None, reason="qemu-utils is not installed"),
]

SIZE = 4 << 20
HALF = SIZE // 2
WRITTEN = 16 * SECTOR


def written(folder: Path, *commands: str) -> WriteLog:
    """Run on a disk of zeros: a flushed write, and these commands of qemu-io(1)."""
    log, drive = WriteLog(folder / "log"), folder / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(drive), str(SIZE)], check=True)
    words = [word for each in (f"write -P 0x40 0 {HALF}", "flush", *commands) for word in ("-c", each)]
    subprocess.run(["qemu-io", "--image-opts", "-t", "writeback", *words, log.blockdev(drive)], check=True)
    return log


def left(log: WriteLog, folder: Path, seed: int) -> bytes:
    """Return the disk after a power cut just before qemu-io's last flush."""
    disk = folder / "disk"
    disk.write_bytes(bytes(SIZE))
    log.write(log.left(log.size - SECTOR, random.Random(seed)), disk)
    return disk.read_bytes()


def test_flushed_writes_are_present_and_others_are_unknown(tmp_path: Path) -> None:
    log = written(tmp_path, f"write -P 0x41 {HALF} {WRITTEN}")
    found = [left(log, tmp_path, seed) for seed in range(60)]
    assert {each[:HALF] for each in found} == {b"@" * HALF}
    lengths = {each.count(b"A") for each in found}
    assert {0, WRITTEN} < lengths < set(range(0, WRITTEN + 1, SECTOR)), "all, nothing, or its first sectors"
    assert {each[HALF:] for each in found} == {(b"A" * length).ljust(HALF, b"\0") for length in lengths}


@pytest.mark.parametrize("command", ["write -P 0x41 512 8192", "write -z 1M 64k", "discard 0 64k"])
def test_flushed_writes_are_the_whole_disk(tmp_path: Path, command: str) -> None:
    log = written(tmp_path, command, "flush")
    whole = tmp_path / "whole"
    subprocess.run(["qemu-img", "convert", "-O", "raw", str(tmp_path / "disk.qcow2"), str(whole)], check=True)
    assert left(log, tmp_path, 0) == whole.read_bytes()
