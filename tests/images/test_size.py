"""Size of an image as a download and on a card, of an update over the network, and a second build that does nothing."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from bridge.block_index import BlockIndex
from edge.appliance.update.copy_plan import CopyPlan
from edge.appliance.update.own_pieces import OwnPieces
from images.building import build_bundle, build_image
from images.disk.building import image_name
from images.programs import find, run
from images.steps import BuildSteps, default_cache
from tests.images.emulated import MARKS, begin, decompressed, mirror

pytestmark = [*MARKS]

COMPRESSED_MIB_MAX: Final = 170
ROOT_MIB_MAX: Final = 600
"""Largest content of the root. Images of other gateways have 400 and more, without a gateway."""
FETCHED_MIB_MAX: Final = 30
"""Most that a release with another gateway fetches."""
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


@pytest.mark.skipif(find("rauc") is None, reason="rauc is not installed")
def test_update_to_another_gateway_fetches_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An upper bound: the running system has all files of the new one but the gateway's, of which it has none."""
    cache, log, tree = default_cache(), tmp_path / "log", tmp_path / "running"
    made = build_bundle(BuildSteps(cache), cache, mirror(), (None, None))
    run("unsquashfs", "-no-progress", "-dest", tmp_path / "content", made.file, log=log)
    tree.mkdir()
    run("debugfs", "-R", f"rdump / {tree}", tmp_path / "content" / "rootfs.ext4", log=log)
    shutil.rmtree(tree / "usr/lib/waypost")
    index = BlockIndex.decode(made.block_index.read_bytes())
    wanted = {digest for block in index.blocks for digest in block.pieces()}
    fetched = (index.size - CopyPlan.make(index, OwnPieces(tree, wanted)).copied_bytes) / (1 << 20)
    with capsys.disabled():
        print(f"\n{fetched:.1f} of {index.size / (1 << 20):.0f} MiB fetched")
    assert fetched <= FETCHED_MIB_MAX


@pytest.mark.usefixtures("image")
def test_unchanged_inputs_rebuild_nothing() -> None:
    steps, began = BuildSteps(default_cache(), say=lambda _: None), time.monotonic()
    build_image(steps, default_cache(), "qemu", mirror(), (None, None))
    assert set(steps.seconds.values()) == {0.0}, steps.seconds
    assert time.monotonic() - began <= UNCHANGED_S
