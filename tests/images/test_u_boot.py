"""U-Boot of a Raspberry Pi with the files of an image: it runs our script, and ignores keys on the console."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from images.building import build_image
from images.disk.building import image_name
from images.emulator import machine
from images.programs import find, run
from images.steps import BuildSteps, default_cache
from tests.images.emulated import MARKS, begin, mirror
from tests.support.processes import wait_until

pytestmark = [*MARKS]

BOARD = "pi3"
DEVICE_TREE = "bcm2837-rpi-3-b.dtb"
START_S = 600.0


def pressing_keys(press: Callable[[bytes], object], over: threading.Event) -> None:
    """Press keys, as a person at the console would, until `over` is set."""
    while not over.wait(0.2):
        press(b"x\r\n")


def test_raspberry_pi_starts_with_any_keys_on_the_console(tmp_path: Path) -> None:
    cache = default_cache()
    folder = build_image(BuildSteps(cache), cache, BOARD, mirror(), (None, None))
    drive = machine.make_disk(folder / f"{image_name(BOARD)}.img.zst", tmp_path, tmp_path / "log")
    plain = tmp_path / f"{image_name(BOARD)}.img"
    for file in ("u-boot.bin", DEVICE_TREE):
        run("mcopy", "-i", f"{plain}@@{begin(plain, 1)}", f"::/{file}", tmp_path, log=tmp_path / "log")
    words = [
        find("qemu-system-aarch64") or "qemu-system-aarch64",
        *("-M", "raspi3b", "-display", "none", "-monitor", "none", "-serial", "null", "-serial", "stdio"),
        *("-drive", f"file={drive},if=sd,format=qcow2"),
        *("-kernel", tmp_path / "u-boot.bin", "-dtb", tmp_path / DEVICE_TREE),
    ]
    console = tmp_path / "console"
    over = threading.Event()
    with console.open("wb") as said, subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, bufsize=0) as process:
        assert process.stdin is not None
        keys = threading.Thread(target=pressing_keys, args=(process.stdin.write, over))
        keys.start()
        try:
            starts = b"Starting kernel"
            wait_until(lambda: starts in console.read_bytes(), timeout_s=START_S, what="the kernel starts", every_s=1)
        finally:
            over.set()
            keys.join()
            process.kill()
    told = console.read_text(errors="replace")
    assert "waypost: slot A (A 2, B 3 tries left)" in told
    assert "waypost: root 67617465-02 on mmc" in told, "it finds its root by the id of the disk"
    assert not [each for each in ("Hit any key", "U-Boot>", "Unknown command") if each in told], told
