"""The file system of the data partition: ext4 and f2fs write the same store, and their power is cut.

The figures are in `images/decisions/0010-ext4-for-the-data.md`. Run it with `-s` to see them.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest

from images.disk import filesystem
from images.disk.building import DATA_MIB
from images.programs import find
from tests.images import flash_wear, user_mode
from tests.images.data_load import BODY_BYTES, Act, Found, Noted
from tests.images.flash_wear import Card, Written
from tests.images.write_log import Write, WriteLog
from tests.support.seeds import chosen_seed

KINDS: Final = ("ext4", "f2fs")
PROGRAMS: Final = (*user_mode.PROGRAMS, "mkfs.f2fs", "fsck.f2fs", "mke2fs", "resize2fs", "e2fsck")
pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    *(pytest.mark.skipif(find(name) is None, reason=f"{name} is not installed") for name in PROGRAMS),
]

CUTS: Final = int(os.environ.get("WAYPOST_CUTS", "50"))
"""Power cuts of each file system."""
COMMITS: Final = 1_500
DISK_BYTES: Final = 1 << 30
OPEN_BLOCKS: Final = (1, 2, 4, 6, 8, 16)
SHARE_MAX: Final = 1.25
"""Most bytes of ext4, as a share of those of f2fs, to the disk and in the model of a card: with more, decide again."""


class Recording(NamedTuple):
    """Writes of one load."""

    kind: str
    disk: Path
    """Disk before it."""
    log: WriteLog
    history: Sequence[Noted]
    seed: int


class Usage(NamedTuple):
    """Cost of a part of a load."""

    message_bytes: int
    commits: int
    written: Written
    programmed: Mapping[int, int]
    """Bytes that a card programs, by its number of open blocks."""

    def __str__(self) -> str:
        share = self.written.size / self.message_bytes
        cards = ", ".join(f"{blocks}: {size / self.message_bytes:.0f}" for blocks, size in self.programmed.items())
        return (
            f"{share:.1f} bytes a byte, {self.written.flushes / self.commits:.2f} flushes and "
            f"{self.written.writes / self.commits:.2f} writes a commit, "
            f"{100 * self.written.in_order / self.written.size:.0f} % in order; programmed by open blocks: {cards}"
        )


def make_disk(kind: str, folder: Path) -> Path:
    """Make an empty data partition: ext4 as on a card, which grows at its first start, or f2fs with its defaults."""
    disk, tree = folder / "disk", folder / "tree"
    if kind == "ext4":
        tree.mkdir()
        log = folder / "log"
        filesystem.make(disk, tree, mebibytes=DATA_MIB, label="waypost-data", date=1577836800, journal=True, log=log)
        os.truncate(disk, DISK_BYTES)
        subprocess.run([find("resize2fs") or "", str(disk)], check=True, capture_output=True)
    else:
        disk.touch()
        os.truncate(disk, DISK_BYTES)
        subprocess.run([find("mkfs.f2fs") or "", "-q", str(disk)], check=True, capture_output=True)
    return disk


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Recording]:
    """Run the same load on both file systems."""
    seed, found = chosen_seed(), {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        disk, history = make_disk(kind, folder), folder / "history"
        with user_mode.RecordedDisk(disk, folder / "recorded") as recorded:
            words = ("write", kind, str(seed), user_mode.RECORDED, str(recorded.log.file), str(history), str(COMMITS))
            user_mode.run_module(folder / "machine", "tests.images.data_load", *words, recorded=recorded)
        lines = history.read_bytes().splitlines()
        noted = [msgspec.json.decode(line, type=Noted) for line in lines]
        found[kind] = Recording(kind, disk, recorded.log, noted, seed)
    return found


def measure(recording: Recording, begin: Noted, end: Noted) -> Usage:
    """Measure the part of a load between two notes."""
    log = recording.log
    part = [(write, is_flush) for at, write, is_flush in log.requests(end.size) if at > begin.size]
    programmed = {}
    for blocks in OPEN_BLOCKS:
        card = Card(blocks)
        for write, _ in part:
            card.write(write)
        card.close()
        programmed[blocks] = card.programmed
    commits = sum(each.act is Act.ACKED and begin.size < each.size <= end.size for each in recording.history)
    message_bytes = (end.position - begin.position) * BODY_BYTES
    return Usage(message_bytes, commits, flash_wear.count_writes(part), programmed)


def test_ext4_writes_as_little_as_f2fs(recordings: Mapping[str, Recording]) -> None:
    usual = {}
    for kind, recording in recordings.items():
        started, warm = (each for each in recording.history if each.act in {Act.STARTED, Act.WARM})
        end = msgspec.structs.replace(recording.history[-1], size=recording.log.size)
        print(f"{kind}, after a start: {measure(recording, started, warm)}")
        usual[kind] = measure(recording, warm, end)
        print(f"{kind}, later: {usual[kind]}", flush=True)
        assert usual[kind].written.flushes >= usual[kind].commits, "each commit is flushed"
    ext4, f2fs = usual["ext4"], usual["f2fs"]
    assert ext4.written.size <= SHARE_MAX * f2fs.written.size
    assert ext4.programmed[6] <= SHARE_MAX * f2fs.programmed[6]


class DiskCut(NamedTuple):
    """Content of a disk after a power cut."""

    at: int
    """Size of the log."""
    left: Sequence[Write]


def choose_cuts(recording: Recording, chance: random.Random) -> Sequence[DiskCut]:
    """Return cuts while the store is used: half at random bytes of the log, half at random requests, mostly small."""
    log, begin = recording.log, recording.history[0].size
    ends = [end for end in log.ends() if end > begin]
    places = [chance.choice(ends) if number % 2 else chance.randrange(begin, ends[-1]) for number in range(CUTS)]
    return [DiskCut(at, log.left(at, chance)) for at in places]


def find_problem(recording: Recording, cut: DiskCut, found: Found) -> str:
    """Return what is wrong with a store after a cut, or nothing: acknowledged messages are there, or have landed."""
    noted = [each for each in recording.history if each.size <= cut.at]
    acked = max((each.position for each in noted if each.act is Act.ACKED), default=0)
    landed = max((each.position for each in noted if each.act is Act.LANDED), default=0)
    if found.error:
        return found.error
    if found.first > landed:
        return f"{found.first - landed} messages that have not landed are gone"
    return f"{acked - found.next} acknowledged messages are lost" if found.next < acked else ""


def check_file_system(kind: str, disk: Path) -> str:
    """Return what fsck finds in a file system that was mounted and unmounted since, or nothing."""
    words = ["e2fsck", "-fn"] if kind == "ext4" else ["fsck.f2fs", "--dry-run"]
    done = subprocess.run([find(words[0]) or "", *words[1:], str(disk)], capture_output=True, text=True, check=False)
    return f"{words[0]}: {done.stdout}{done.stderr}" if done.returncode or "[Fail]" in done.stdout else ""


def after_cuts(recording: Recording, cuts: Sequence[DiskCut], folder: Path) -> Sequence[tuple[str, bool]]:
    """Mount the disks after these cuts as a gateway does, and use their stores.

    Return what is wrong with each, or nothing; and whether fsck had to repair its file system.
    """
    folder.mkdir()
    disks = [folder / f"disk-{number}" for number in range(len(cuts))]
    for disk, cut in zip(disks, cuts, strict=True):
        subprocess.run(["cp", "--sparse=always", str(recording.disk), str(disk)], check=True)
        recording.log.write(cut.left, disk)
    names = [f"/dev/ubd{chr(ord('a') + number)}" for number in range(len(cuts))]
    words = ("check", recording.kind, str(recording.seed), *names)
    said = user_mode.run_module(folder / "machine", "tests.images.data_load", *words, disks=disks)
    found = [msgspec.json.decode(line, type=Found) for line in said.splitlines()]
    outcomes = [
        (find_problem(recording, cut, each) or check_file_system(recording.kind, disk), each.repaired)
        for cut, each, disk in zip(cuts, found, disks, strict=True)
    ]
    shutil.rmtree(folder)
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_power_cut_leaves_each_acknowledged_message(
    kind: str, recordings: Mapping[str, Recording], tmp_path: Path
) -> None:
    recording = recordings[kind]
    cuts = choose_cuts(recording, random.Random(recording.seed))
    failed, repaired = [], 0
    for begin in range(0, len(cuts), user_mode.DISKS_MAX):
        several = cuts[begin : begin + user_mode.DISKS_MAX]
        outcomes = after_cuts(recording, several, tmp_path / f"{begin}")
        for cut, (problem, by_fsck) in zip(several, outcomes, strict=True):
            repaired += by_fsck
            if problem:
                failed.append(f"cut at {cut.at} of {recording.log.size}: {problem}")
                print(failed[-1], flush=True)
    print(f"{kind}: {len(cuts)} cuts, {repaired} repaired by fsck, {len(failed)} with something wrong", flush=True)
    assert not failed, failed
