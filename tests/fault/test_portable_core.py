"""Portable C core for devices: its contract with a gateway in memory, on this machine and on an emulated Cortex-M3."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fault.firmware.programs import C_CORE, C_FLAGS, C_SANITIZERS, EXAMPLES, NO_LEAK_CHECK

FOLDER = EXAMPLES / "portable_c"
_CHECKS = Path(__file__).with_name("firmware")
CHECKS = {
    "device": (_CHECKS / "core_check.c", ("waypost_device",)),
    "update": (_CHECKS / "update_check.c", ("waypost_update", "waypost_manifest", "waypost_http")),
}
"""Programs that check parts of the core."""
QEMU = (
    *("qemu-system-arm", "-M", "mps2-an385", "-display", "none", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native"),
)
arm_compiler = pytest.mark.skipif(
    shutil.which("arm-none-eabi-gcc") is None, reason="gcc-arm-none-eabi is not installed"
)


def sources(check: str) -> list[str]:
    """Return the sources of a check, as arguments of a compiler."""
    program, core = CHECKS[check]
    return [str(program), *(str(FOLDER / f"{name}.c") for name in core), f"-I{FOLDER}"]


def run(*command: str) -> str:
    """Run a command that succeeds; return what it prints."""
    environment = {**os.environ, "ASAN_OPTIONS": NO_LEAK_CHECK}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", CHECKS)
def test_core_on_this_machine_under_sanitizers(tmp_path: Path, check: str) -> None:
    """Run lives with resets at any moment, damaged storage, and a gateway that sends any bytes."""
    run("gcc", *C_FLAGS, *C_SANITIZERS, *sources(check), "-o", str(tmp_path / "check"))
    assert run(str(tmp_path / "check")) == "ok\n"


@pytest.mark.slow
@arm_compiler
@pytest.mark.skipif(shutil.which("qemu-system-arm") is None, reason="qemu-system-arm is not installed")
@pytest.mark.parametrize("check", CHECKS)
def test_core_on_an_emulated_cortex_m3(tmp_path: Path, check: str) -> None:
    program = str(tmp_path / "check.elf")
    board = ("-mcpu=cortex-m3", "-mthumb", "-Os", "--specs=rdimon.specs", "-Wl,--section-start=.vectors=0x0")
    run("arm-none-eabi-gcc", "-std=c11", *board, *sources(check), str(_CHECKS / "cortex_vectors.c"), "-o", program)
    assert run(*QEMU, "-kernel", program) == "ok\n"


CODE_BYTES_MAX = 16 * 1024
"""Largest code of the portable core on a Cortex-M0+: a small board needs the rest for its network stack."""


STRING_FUNCTIONS = {"memcmp", "memcpy", "memset", "strchr", "strcmp", "strlen", "strncmp", "strpbrk"}


@pytest.mark.slow
@arm_compiler
def test_portable_core_fits_on_a_small_board(tmp_path: Path) -> None:
    """Compile it for a Cortex-M0+ with every warning as an error; it needs no allocation and no standard I/O."""
    arm = ("arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", "-Os", "-ffreestanding", "-Wstack-usage=1000")
    code = 0
    for name in C_CORE:
        made = tmp_path / f"{name}.o"
        subprocess.run([*arm, *C_FLAGS, "-c", "-o", str(made), str(FOLDER / f"{name}.c")], check=True)
        sizes = subprocess.run(["arm-none-eabi-size", str(made)], capture_output=True, text=True, check=True).stdout
        text, data, bss = map(int, sizes.splitlines()[1].split()[:3])
        code += text
        assert (data, bss) == (0, 0), "its state belongs to the caller"
        undefined = subprocess.run(["arm-none-eabi-nm", "-u", str(made)], capture_output=True, text=True, check=True)
        needed = {line.split()[-1] for line in undefined.stdout.splitlines()}
        assert {each for each in needed if not each.startswith(("__", "wm_"))} <= STRING_FUNCTIONS
    assert code <= CODE_BYTES_MAX
