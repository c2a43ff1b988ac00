"""An incompletely written slot: no shell opens, the console shows the error, and the other slot serves."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from images.card import partition
from images.disk.building import ENVIRONMENT, ENVIRONMENT_BYTES
from images.emulator import machine
from images.programs import run
from tests.images.emulated import MARKS, Emulated, begin, decompressed, free_ports, write_at

pytestmark = [*MARKS]

INIT = "/usr/lib/systemd/systemd"
SLOT_A, SLOT_B = 2, 3
MIB = 1 << 20


def zeroed(root: Path) -> None:
    size = root.stat().st_size
    root.write_bytes(b"")
    with root.open("r+b") as file:
        file.truncate(size)


def without_init(root: Path) -> None:
    run("debugfs", "-w", "-R", f"rm {INIT}", root, log=root.with_name("log"))


def with_an_init_of_zeros(root: Path) -> None:
    without_init(root)
    zeros = root.with_name("zeros")
    zeros.write_bytes(bytes(MIB))
    commands = root.with_name("commands")
    commands.write_text(f"write {zeros} {INIT}\nset_inode_field {INIT} mode 0100755\n")
    run("debugfs", "-w", "-f", commands, root, log=root.with_name("log"))


def with_slot_b_first(image: Path, folder: Path, broken: Callable[[Path], None]) -> Path:
    """Return the disk of a card that tries slot B first: a broken copy of slot A."""
    card, log = decompressed(image, folder), folder / "log"
    root = folder / "root.ext4"
    size = begin(card, SLOT_B) - begin(card, SLOT_A)
    words = (f"if={card}", f"of={root}", "bs=1M", f"skip={begin(card, SLOT_A)}", f"count={size}")
    subprocess.run(["dd", *words, "iflag=skip_bytes,count_bytes", "conv=sparse"], check=True, capture_output=True)
    broken(root)
    write_at(card, begin(card, SLOT_B), root)
    variables, environment = folder / "variables", folder / "rauc.env"
    variables.write_text(ENVIRONMENT.replace("=A B", "=B A"))
    run("mkenvimage", "-s", str(ENVIRONMENT_BYTES), "-o", environment, variables, log=log)
    partition.write_file(card, begin(card, 1), environment.name, environment.read_bytes())
    return machine.make_disk(card, folder, log)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (zeroed, "waypost: slot B does not start"),
        (without_init, "waypost: slot B holds no /sbin/init"),
        (with_an_init_of_zeros, "Kernel panic"),
    ],
)
def test_torn_slot_falls_back_to_the_other(
    image: Path, tmp_path: Path, broken: Callable[[Path], None], why: str
) -> None:
    emulated = Emulated(with_slot_b_first(image, tmp_path, broken), tmp_path / "console", free_ports())
    try:
        emulated.wait_for(machine.SERVES)
        told = emulated.told
        print(f"{broken.__name__}: {emulated.cpu_s:.0f} s of processor until slot A serves")
    finally:
        emulated.cut_off()
    for left in (2, 1, 0):
        assert f"waypost: slot B (A 3, B {left} tries left)" in told
    assert told.count(why) == 3, told
    assert "waypost: slot A (A 2, B 0 tries left)" in told
    assert "(initramfs)" not in told
