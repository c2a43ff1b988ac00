"""The light of a Raspberry Pi shows the state of a gateway without a screen."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from images.rootfs.building import OVERLAY

SCRIPT = OVERLAY / "usr/lib/waypost-system/light"


@pytest.mark.parametrize("called", ["ACT", "led0"])
@pytest.mark.parametrize(("word", "trigger", "delay"), [
    ("working", "timer", "100"), ("waiting", "timer", "1000"), ("done", "default-on", ""),
])  # fmt: skip
def test_blinking_needs_a_module_of_the_debian_kernel(
    tmp_path: Path, called: str, word: str, trigger: str, delay: str
) -> None:
    """The kernel ignores the name of the trigger until its module is loaded (CONFIG_LEDS_TRIGGER_TIMER=m)."""
    light = tmp_path / "sys/class/leds" / called
    for folder in (light, tmp_path / "run/waypost", tmp_path / "stubs"):
        folder.mkdir(parents=True)
    (light / "trigger").write_text("none [mmc0]\n")
    (tmp_path / "run/waypost/light").write_text(f"{word}\n")
    modprobe = tmp_path / "stubs" / "modprobe"
    modprobe.write_text(
        f'#!/bin/sh\ncat "{light}/trigger" > "{tmp_path}/before"\necho "$@" > "{tmp_path}/loaded"\nexit 1\n'
    )
    modprobe.chmod(0o755)
    environment = {"PATH": f"{modprobe.parent}:{os.environ['PATH']}"}
    subprocess.run([str(SCRIPT), str(tmp_path)], check=True, timeout=60, env=environment)
    assert {"ledtrig-timer", "ledtrig-default-on"} <= set((tmp_path / "loaded").read_text().split())
    assert (tmp_path / "before").read_text() == "none [mmc0]\n", "loaded before it is named"
    assert (light / "trigger").read_text() == f"{trigger}\n"
    if delay:
        assert (light / "delay_on").read_text() == (light / "delay_off").read_text() == f"{delay}\n"


def test_machine_without_a_light_is_supported(tmp_path: Path) -> None:
    subprocess.run([str(SCRIPT), str(tmp_path)], check=True, timeout=60)
