"""Size of an image as a download and on a card, and reproducibility of a second build."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from images.building import build_image
from images.disk.building import image_name
from images.programs import find
from images.steps import BuildSteps, default_cache
from tests.images.emulated import MARKS, begin, decompressed, mirror

pytestmark = [*MARKS]

COMPRESSED_MIB_MAX: Final = 170
ROOT_MIB_MAX: Final = 600
"""Largest content of the root. Images of other gateways have 400 and more, without a gateway."""
UNCHANGED_S: Final = 120.0


def test_image_is_small(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compressed = (image / f"{image_name('qemu')}.img.zst").stat().st_size / (1 << 20)
    plain = decompressed(image, tmp_path)
    words = [find("dumpe2fs") or "dumpe2fs", "-h", f"{plain}?offset={begin(plain, 2)}"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    numbers = {line.partition(":")[0]: line.partition(":")[2].strip() for line in said.splitlines()}
    used = int(numbers["Block count"]) - int(numbers["Free blocks"])
    held = used * int(numbers["Block size"]) / (1 << 20)
    with capsys.disabled():
        print(f"\n{compressed:.0f} MiB compressed, {held:.0f} MiB in the root")
    assert compressed <= COMPRESSED_MIB_MAX
    assert held <= ROOT_MIB_MAX


@pytest.mark.usefixtures("image")
def test_unchanged_inputs_rebuild_nothing() -> None:
    steps, began = BuildSteps(default_cache(), say=lambda _: None), time.monotonic()
    build_image(steps, default_cache(), "qemu", mirror(), (None, None))
    assert set(steps.seconds.values()) == {0.0}, steps.seconds
    assert time.monotonic() - began <= UNCHANGED_S
