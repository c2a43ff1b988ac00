"""U-Boot of a Raspberry Pi with the files of an image: it runs our script, and ignores keys on the console."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from images.building import build_image
from images.disk.building import image_name
from images.emulator import machine
from images.programs import find, run
from images.steps import BuildSteps, default_cache
from tests.images.emulated import BOOT_S, MARKS, begin, mirror
from tests.support.processes import wait_until

pytestmark = [*MARKS]

START_S = 600.0
SYSTEMD = b"systemd[1]"
"""Beginning of systemd's lines in the kernel's log."""


class EmulatedBoard(NamedTuple):
    """Board of QEMU, and how far our image gets on it."""

    board: str
    machine: str
    device_tree: str
    reached: bytes


BOARDS = (
    EmulatedBoard("pi3", "raspi3b", "bcm2837-rpi-3-b.dtb", SYSTEMD),
    EmulatedBoard("pi4", "raspi4b", "bcm2711-rpi-4-b.dtb", b"waypost: slot A (A 2, B 3 tries left)"),
)


def is_emulated(machine: str) -> bool:
    """Return whether the installed QEMU has this board."""
    program = find("qemu-system-aarch64")
    if program is None:
        return False
    return f"\n{machine} " in subprocess.run([program, "-M", "help"], capture_output=True, text=True, check=True).stdout


def pressing_keys(press: Callable[[bytes], object], over: threading.Event) -> None:
    """Press keys, as a person at the console would, until `over` is set."""
    while not over.wait(0.2):
        press(b"x\r\n")


@pytest.mark.parametrize("emulated", BOARDS, ids=lambda each: each.board)
def test_raspberry_pi_starts_with_any_keys_on_the_console(tmp_path: Path, emulated: EmulatedBoard) -> None:
    if not is_emulated(emulated.machine):
        pytest.skip(f"QEMU has no {emulated.machine}")
    cache = default_cache()
    folder = build_image(BuildSteps(cache), cache, emulated.board, mirror(), (None, None))
    drive = machine.make_disk(folder / f"{image_name(emulated.board)}.img.zst", tmp_path, tmp_path / "log")
    plain = tmp_path / f"{image_name(emulated.board)}.img"
    for file in ("u-boot.bin", emulated.device_tree):
        run("mcopy", "-i", f"{plain}@@{begin(plain, 1)}", f"::/{file}", tmp_path, log=tmp_path / "log")
    words = [
        find("qemu-system-aarch64") or "qemu-system-aarch64",
        *("-M", emulated.machine, "-display", "none", "-monitor", "none", "-serial", "null", "-serial", "stdio"),
        *("-drive", f"file={drive},if=sd,format=qcow2"),
        *("-kernel", tmp_path / "u-boot.bin", "-dtb", tmp_path / emulated.device_tree),
    ]
    console = tmp_path / "console"
    over = threading.Event()
    with console.open("wb") as said, subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, bufsize=0) as process:
        assert process.stdin is not None
        keys = threading.Thread(target=pressing_keys, args=(process.stdin.write, over))
        keys.start()
        try:
            limit_s = BOOT_S if emulated.reached is SYSTEMD else START_S
            what = emulated.reached.decode()
            wait_until(lambda: emulated.reached in console.read_bytes(), timeout_s=limit_s, what=what, every_s=1)
        finally:
            over.set()
            keys.join()
            process.kill()
    told = console.read_text(errors="replace")
    assert "waypost: slot A (A 2, B 3 tries left)" in told
    if emulated.board != "pi4":
        assert "waypost: root 67617465-02 on mmc" in told, "it finds its root by the id of the disk"
    assert not [each for each in ("Hit any key", "U-Boot>", "Unknown command") if each in told], told
