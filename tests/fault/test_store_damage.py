"""Damage anywhere in the file: verification does not fail itself, and finds everything that would affect a gateway."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from edge.appliance.store.recovery.verification import Depth, verify
from edge.broker.store.errors import StoreError
from edge.broker.store.wal_frames import FRAME, HEADER, WalLog
from tests.contract.store.rig import sqlite_rig
from tests.support.seeds import chosen_seed
from tests.support.stores import make

SEED = 1
"""Seed of the bytes that every run of the tests changes; ``WAYPOST_SEED=random``, or a number, changes others."""
ROUNDS = 60

Messages = dict[str, list[tuple[int, str, int, bytes]]]


def read(data: Path) -> Messages | None:
    """Return everything that a gateway would deliver, or None when it refuses to start or cannot read."""
    try:
        rig = sqlite_rig(data)
    except StoreError:
        return None
    try:
        return {log.name: rig.read_all(log.log, log.first) for log in rig.store.info().logs}
    finally:
        rig.store.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("sound") / "data"
    make(data, 60)
    return data


def copy(sound: Path, folder: Path) -> Path:
    shutil.copytree(sound, folder)
    return folder


def test_verification_finds_flipped_bytes(sound: Path, tmp_path: Path) -> None:
    seed = chosen_seed(SEED)
    dice = random.Random(seed)
    expected = read(copy(sound, tmp_path / "sound"))
    size = (sound / "store.sqlite").stat().st_size
    seen = 0
    for number in range(ROUNDS):
        data = copy(sound, tmp_path / str(number))
        content = bytearray((data / "store.sqlite").read_bytes())
        # The first bytes of a page matter most: header and cell pointers, then the cells from its end on.
        start = dice.randrange(size // 4096) * 4096 + dice.choice((0, dice.randrange(40), dice.randrange(4096)))
        for offset in range(start, min(start + dice.choice((1, 1, 16, 600)), size)):
            content[offset] ^= dice.randrange(1, 256)
        (data / "store.sqlite").write_bytes(content)
        full, quick = verify(data / "store.sqlite"), verify(data / "store.sqlite", Depth.QUICK)
        delivered = read(data)
        if delivered != expected:
            seen += 1
            assert full.damaged, f"seed {seed}, round {number}: bytes from {start} are not seen"
        if delivered is None:
            assert quick.damaged, f"seed {seed}, round {number}: a gateway refuses to start"
        shutil.rmtree(data)
    assert seen > ROUNDS // 10


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.3, 0.6, 0.9, 0.999])
def test_verification_finds_truncated_file(sound: Path, tmp_path: Path, kept: float) -> None:
    data = copy(sound, tmp_path / "data")
    path = data / "store.sqlite"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(int(size * kept))
    assert verify(path).damaged


def test_truncated_log_is_a_valid_store_with_fewer_messages(tmp_path: Path) -> None:
    """A truncated log is a valid store with fewer messages: losses at the end of SQLite's log are invisible."""
    made = make(tmp_path / "data", 15, crashed=True)
    wal = made.path.with_name("store.sqlite-wal")
    log = WalLog.of(wal)
    assert log is not None
    frames = sum(1 for frame in log.frames() if frame.salts == log.salts)  # the rest is free space
    content = wal.read_bytes()[: HEADER.size + frames * (FRAME.size + log.page_bytes)]
    counts = []
    for cut in range(len(content), 3 * len(content) // 4, -4096 - 11):
        data = tmp_path / str(cut)
        data.mkdir()
        shutil.copy(made.path, data)
        (data / "store.sqlite-wal").write_bytes(content[:cut])
        report = verify(data / "store.sqlite")
        assert report.findings == []
        counts.append(report.messages)
    assert counts[0] == made.messages
    assert len(set(counts)) > 2, "cuts fell into several commits"
