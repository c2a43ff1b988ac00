"""Portable C core for devices: its contract with a gateway in memory, on this machine and on an emulated Cortex-M3."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fault.firmware.programs import C_FLAGS, C_SANITIZERS, EXAMPLES, NO_LEAK_CHECK

FOLDER = EXAMPLES / "portable_c"
CHECK = Path(__file__).with_name("firmware") / "core_check.c"
SOURCES = (str(CHECK), str(FOLDER / "waypost_device.c"), f"-I{FOLDER}")
QEMU = (
    *("qemu-system-arm", "-M", "mps2-an385", "-display", "none", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native"),
)
arm_compiler = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="gcc-arm-none-eabi is not installed"
)


def run(*command: str) -> str:
    """Run a command that succeeds; return what it prints."""
    environment = {**os.environ, "ASAN_OPTIONS": NO_LEAK_CHECK}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_core_on_this_machine_under_sanitizers(tmp_path: Path) -> None:
    """Run a life with a reset, a torn slot and a full ring, then 400 lives with a gateway that sends any bytes."""
    run("gcc", *C_FLAGS, *C_SANITIZERS, *SOURCES, "-o", str(tmp_path / "check"))
    assert run(str(tmp_path / "check")) == "ok\n"


@pytest.mark.slow
@arm_compiler
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="qemu-system-arm is not installed")
def test_core_on_an_emulated_cortex_m3(tmp_path: Path) -> None:
    program = str(tmp_path / "check.elf")
    board = ("-mcpu=cortex-m3", "-mthumb", "-Os", "--specs=rdimon.specs", "-Wl,--section-start=.vectors=0x0")
    run("arm-none-eabi-gcc", "-std=c11", *board, *SOURCES, str(CHECK.with_name("cortex_vectors.c")), "-o", program)
    assert run(*QEMU, "-kernel", program) == "ok\n"


CODE_BYTES_MAX = 16 * 1024
"""Largest code of the portable core on a Cortex-M0+: a small board needs the rest for its network stack."""


@pytest.mark.slow
@arm_compiler
def test_portable_core_fits_on_a_small_board(tmp_path: Path) -> None:
    """Compile it for a Cortex-M0+ with every warning as an error; it needs no allocation and no standard I/O."""
    made = tmp_path / "core.o"
    arm = ("arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", "-Os", "-ffreestanding", "-Wstack-usage=1000")
    source = EXAMPLES / "portable_c" / "waypost_device.c"
    subprocess.run([*arm, *C_FLAGS, "-c", "-o", str(made), str(source)], check=True)
    sizes = subprocess.run(["arm-none-eabi-size", str(made)], capture_output=True, text=True, check=True).stdout
    text, data, bss = map(int, sizes.splitlines()[1].split()[:3])
    assert text <= CODE_BYTES_MAX
    assert (data, bss) == (0, 0), "its state belongs to the caller"
    undefined = subprocess.run(["arm-none-eabi-nm", "-u", str(made)], capture_output=True, text=True, check=True)
    needed = {line.split()[-1] for line in undefined.stdout.splitlines()}
    helpers = {name for name in needed if name.startswith("__")}
    assert needed - helpers <= {"memcmp", "memcpy", "memset", "strchr", "strlen", "strpbrk"}
