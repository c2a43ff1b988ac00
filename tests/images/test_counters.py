"""Power cuts while U-Boot writes its counters: the slot of the last complete order is chosen, never an older system.

The card has no system, only the boot partition, so one start takes seconds.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from images.card import partition
from images.disk import building
from images.disk.building import ENVIRONMENT_BYTES
from images.emulator import machine
from images.programs import find, run
from tests.images.emulated import Emulated
from tests.images.write_log import Write, WriteLog

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(3600),
    *(
        pytest.mark.skipif(find(name) is None, reason=f"{name} is not installed")
        for name in ("qemu-system-aarch64", "mkimage", "mkenvimage", "mkfs.vfat", "mcopy", "sfdisk", "fsck.vfat")
    ),
]

MIB: Final = 1 << 20
FAT_BEGIN: Final = 4 * MIB
FAT_MIB: Final = 40
TABLE: Final = f"""\
label: dos
label-id: 0x67617465
start=8192, size={FAT_MIB * 2048}, type=c, bootable
start={(FAT_MIB + 4) * 2048}, size=8192, type=83
start={(FAT_MIB + 8) * 2048}, size=8192, type=83
start={(FAT_MIB + 12) * 2048}, size=8192, type=83
"""
START_S: Final = 300.0
CUTS_MAX: Final = 24
"""Cuts that are tried, spread over all writes."""
UPDATED: Final = "BOOT_ORDER=B A\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n"
"""Counters after an update: slot B is the system, and slot A has an older one."""


def counters(folder: Path, variables: str) -> bytes:
    """Return a file of counters."""
    (folder / "variables").write_text(variables)
    target = folder / "counters"
    run("mkenvimage", "-s", str(ENVIRONMENT_BYTES), "-o", target, folder / "variables", log=folder / "log")
    return target.read_bytes()


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Card with a boot partition alone, and the counters of an updated gateway."""
    folder = tmp_path_factory.mktemp("card")
    parts, system, log = folder / "parts", folder / "system", folder / "log"
    for each in (parts, system / "firmware"):
        each.mkdir(parents=True)
    (system / "root.sha256").write_text("0" * 64)
    building.make_boot_files(parts, "qemu", system, log)
    fat, made = folder / "fat", folder / "card.img"
    with fat.open("wb") as file:
        file.truncate(FAT_MIB * MIB)
    run("mkfs.vfat", "-F", "32", fat, log=log)
    for name in ("rauc.env", "rauc.bak"):
        (parts / name).write_bytes(counters(folder, UPDATED))
    run("mcopy", "-i", fat, *(parts / name for name in ("boot.scr", "rauc.env", "rauc.bak")), "::", log=log)
    with made.open("wb") as file:
        file.truncate(64 * MIB)
    run("sfdisk", "-q", made, log=log, given=TABLE)
    run("dd", f"if={fat}", f"of={made}", "bs=1M", f"seek={FAT_BEGIN // MIB}", "conv=notrunc", log=log)
    return made


def copied(card: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    copy = folder / "card.img"
    subprocess.run(["cp", "--sparse=always", str(card), str(copy)], check=True)
    return copy


def started(card: Path, folder: Path, log: WriteLog | None = None, *, until: str = "does not start") -> str:
    """Start a card until it has tried a slot; return its console."""
    emulated = Emulated(machine.make_disk(card, folder, folder / "log"), folder / "console", {}, log)
    try:
        emulated.wait_for(until, timeout_s=START_S)
        return emulated.told
    finally:
        emulated.cut_off()


def cuts(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Yield what a power cut leaves of writes in order: some complete ones, and the first sectors of the next."""
    for number, write in enumerate(writes):
        sectors = write.size // partition.SECTOR
        for kept in sorted({0, 1, sectors // 2, sectors - 1} - {sectors}):
            yield [*writes[:number], write._replace(size=kept * partition.SECTOR)]
    yield list(writes)


def test_damaged_counters_are_replaced_by_their_copy(card: Path, tmp_path: Path) -> None:
    copy = copied(card, tmp_path)
    for damaged in (b"\xff" * ENVIRONMENT_BYTES, b""):
        partition.write_file(copy, FAT_BEGIN, "rauc.env", damaged)
        told = started(copy, tmp_path)
        assert "rauc.env is damaged" in told
        assert "waypost: slot B (A 3, B 2 tries left)" in told


def test_defaults_apply_without_either(card: Path, tmp_path: Path) -> None:
    copy = copied(card, tmp_path)
    for name in ("rauc.env", "rauc.bak"):
        partition.write_file(copy, FAT_BEGIN, name, b"\xff" * ENVIRONMENT_BYTES)
    told = started(copy, tmp_path)
    assert "the counters are damaged, defaults are taken" in told
    assert "waypost: slot A (A 2, B 3 tries left)" in told


def test_power_cut_in_any_write_of_the_boot_loader_keeps_the_order(card: Path, tmp_path: Path) -> None:
    copy, log = copied(card, tmp_path), WriteLog(tmp_path / "writes")
    told = started(copy, tmp_path, log)
    assert "waypost: slot B (A 3, B 2 tries left)" in told
    writes = log.in_order()
    assert writes, "U-Boot writes the counters"
    left = list(cuts(writes))
    step = max(1, len(left) // CUTS_MAX)
    print(f"{len(writes)} writes of {sum(each.size for each in writes)} bytes, {len(left[::step])} cuts", flush=True)
    for number, each in enumerate(left[::step]):
        folder = tmp_path / f"cut-{number}"
        after = copied(card, folder)
        log.write(each, after)
        told = started(after, folder)
        assert "waypost: slot B (A 3, B " in told, f"cut {number}: {told}"
        assert "defaults are taken" not in told, f"cut {number}: {told}"
        shutil.rmtree(folder)
