"""Power cuts at random moments of updates: U-Boot starts a complete system afterwards, the old or the new one.

RAUC and the program that writes U-Boot's counters run here, on a device with a log of writes. A power cut leaves all
flushed writes, and of the later ones any part. U-Boot itself then chooses a slot, in an emulator; the slot has to hold
a complete system. The slots are small: no kernel starts, so a cut takes seconds and not minutes.

In a gateway the counters are in a file of a FAT file system, which is written in place; here at the same place, without
the date of the file.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from edge.appliance.update.record import UpdateRecord
from edge.appliance.update.updating import Updater
from images.card import partition
from images.disk import bundle, signing
from images.disk.building import ENVIRONMENT, ENVIRONMENT_BYTES
from images.programs import find
from tests.images.boot_card import FAT_BEGIN, MIB, PROGRAMS, SLOT_MIB, SLOTS_BEGIN, copied, counters, make_card, started
from tests.images.emulated import write_at
from tests.images.recorded_card import DAEMON, RecordedCard
from tests.images.slotted import Slotted, make_system, packed
from tests.images.write_log import Write, WriteLog
from tests.support.seeds import chosen_seed

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE"),
    *(
        pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")
        for name in ("rauc", "dbus-daemon", "fw_setenv", "losetup", DAEMON)
    ),
    *(pytest.mark.skipif(find(name) is None, reason=f"{name} is not installed") for name in PROGRAMS),
]

CUTS: Final = int(os.environ.get("WAYPOST_CUTS", "50"))
"""Number of cuts."""
UPDATES: Final = 3
"""Updates in a row: the first one finds an empty slot, the later ones the system before the last."""
CHOSEN: Final = re.compile(r"waypost: slot ([AB]) \(")
TOOLS: Final = """#!/bin/sh
exec {program} --config {configuration} "$@"
"""


class UpdateStage(NamedTuple):
    """Update of the recording: until its end, the old or the new system starts."""

    end: int
    """Size of the log."""
    builds: frozenset[str]
    """SHA-256 of both systems."""


class UpdateCut(NamedTuple):
    """Content of the card after a power cut."""

    at: int
    """Size of the log."""
    card: Sequence[Write]


class Recording(NamedTuple):
    """Updates of one card."""

    card: Path
    """Card before the first one."""
    log: WriteLog
    stages: Sequence[UpdateStage]


def record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Record the updates: each is installed, started and kept."""
    monkeypatch.setattr(bundle, "MANIFEST", bundle.MANIFEST.replace("verity", "plain"))  # for kernels without dm-verity
    keys = signing.load_keys(folder / "keys", None, None)
    systems = [make_system(folder / f"system-{number}") for number in range(UPDATES + 1)]
    builds = [(each / "root.sha256").read_text().strip() for each in systems]
    card = make_card(folder / "made", ENVIRONMENT)
    write_at(card, SLOTS_BEGIN["A"], systems[0] / "root.ext4")
    stages = []
    with RecordedCard(card, folder / "recorded") as recorded:
        configuration = folder / "fw_env.config"
        place = card.read_bytes().index(counters(folder, ENVIRONMENT), FAT_BEGIN)  # the first file of that content
        configuration.write_text(f"{recorded.file} {place:#x} {ENVIRONMENT_BYTES:#x}\n")
        (folder / "rauc").mkdir()
        tools = TOOLS.format(program='"/usr/bin/${0##*/}"', configuration=configuration)
        slotted = Slotted(folder / "rauc", keys, monkeypatch, slots=recorded.slots, tools=tools)
        try:
            for number in range(1, UPDATES + 1):
                running, other = "AB" if number % 2 else "BA"
                slotted.start(running)
                updater = Updater(slotted.rauc, UpdateRecord(folder / f"machine-{number}"), lambda: None)
                updater.install(str(packed(systems[number], keys, f"0.{number}.0")))
                slotted.stop()
                slotted.start(other)
                assert slotted.rauc.slots().booted.letter == other
                slotted.rauc.mark_good()
                slotted.stop()
                stages.append(UpdateStage(recorded.log.size, frozenset(builds[number - 1 : number + 1])))
        finally:
            slotted.stop()
    return Recording(card, recorded.log, stages)


def choose_cuts(recording: Recording, chance: random.Random) -> Sequence[UpdateCut]:
    """Return cuts that leave different cards: half at random bytes, half at random requests, mostly small ones."""
    ends, found = recording.log.ends(), dict[Hashable, UpdateCut]()
    while len(found) < CUTS:
        at = chance.choice(ends) if len(found) % 2 else chance.randrange(ends[0], ends[-1])
        cut = UpdateCut(at, recording.log.left(at, chance))
        found.setdefault(tuple(cut.card), cut)
    return list(found.values())


def slot_of(card: Path, letter: str) -> str:
    """Return the SHA-256 of a slot's content."""
    with card.open("rb") as source:
        source.seek(SLOTS_BEGIN[letter])
        return hashlib.sha256(source.read(SLOT_MIB * MIB)).hexdigest()


def test_recording_ends_with_the_last_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(tmp_path, monkeypatch)
    card = copied(recording.card, tmp_path / "after")
    recording.log.write(recording.log.in_order(), card)
    assert {slot_of(card, letter) for letter in "AB"} == recording.stages[-1].builds
    assert b"BOOT_ORDER=B A" in (partition.read_file(card, FAT_BEGIN, "rauc.env") or b"")


def test_power_cut_at_any_moment_of_an_update_leaves_a_bootable_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(chosen_seed())
    recording = record(tmp_path, monkeypatch)
    cuts = choose_cuts(recording, chance)
    ends = recording.log.ends()
    print(f"{UPDATES} updates, {len(ends)} requests, {recording.log.size >> 20} MiB, {len(cuts)} cuts", flush=True)
    failed, chosen = [], [0, 0]
    for number, cut in enumerate(cuts, 1):
        folder = tmp_path / f"cut-{number}"
        card = copied(recording.card, folder)
        recording.log.write(cut.card, card)
        held = {letter: slot_of(card, letter) for letter in "AB"}
        told = started(card, folder)
        stage = next(each for each in recording.stages if cut.at <= each.end)
        match = CHOSEN.search(told)
        said = f"cut {number} of {len(cuts)}, at {cut.at} of {ends[-1]}"
        if match is None or held[match[1]] not in stage.builds:
            failed.append(f"{said}: slot {match[1] if match else '-'} of {held} is started\n{told}")
            print(failed[-1], flush=True)
            continue
        chosen["AB".index(match[1])] += 1
        print(f"{said}: slot {match[1]} is started, and complete", flush=True)
        shutil.rmtree(folder)
    print(f"{len(cuts)} cuts: {chosen[0]} times slot A, {chosen[1]} times slot B", flush=True)
    assert not failed, failed
