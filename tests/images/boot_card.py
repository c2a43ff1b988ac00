"""Card with U-Boot's script and counters, and slots that are too small for a system: one start takes seconds."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from images.disk import building
from images.disk.building import ENVIRONMENT_BYTES
from images.emulator import machine
from images.programs import run
from tests.images.emulated import Emulated
from tests.images.write_log import WriteLog

PROGRAMS: Final = ("qemu-system-aarch64", "mkimage", "mkenvimage", "mkfs.vfat", "mcopy", "sfdisk", "fsck.vfat")
MIB: Final = 1 << 20
FAT_BEGIN: Final = 4 * MIB
FAT_MIB: Final = 40
SLOT_MIB: Final = 8
SLOTS_BEGIN: Final = {"A": FAT_BEGIN + FAT_MIB * MIB, "B": FAT_BEGIN + (FAT_MIB + SLOT_MIB) * MIB}
TABLE: Final = f"""\
label: dos
label-id: 0x67617465
start=8192, size={FAT_MIB * 2048}, type=c, bootable
start={SLOTS_BEGIN["A"] // 512}, size={SLOT_MIB * 2048}, type=83
start={SLOTS_BEGIN["B"] // 512}, size={SLOT_MIB * 2048}, type=83
start={SLOTS_BEGIN["B"] // 512 + SLOT_MIB * 2048}, size=8192, type=83
"""
START_S: Final = 300.0


def counters(folder: Path, variables: str) -> bytes:
    """Return a file of counters."""
    (folder / "variables").write_text(variables)
    target = folder / "counters"
    run("mkenvimage", "-s", str(ENVIRONMENT_BYTES), "-o", target, folder / "variables", log=folder / "log")
    return target.read_bytes()


def make_card(folder: Path, variables: str) -> Path:
    """Return a card with these counters and empty slots."""
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
        (parts / name).write_bytes(counters(folder, variables))
    run("mcopy", "-i", fat, *(parts / name for name in ("boot.scr", "rauc.env", "rauc.bak")), "::", log=log)
    with made.open("wb") as file:
        file.truncate(80 * MIB)
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
