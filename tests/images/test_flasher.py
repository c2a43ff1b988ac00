"""`waypost-flash`, frozen: small, the same at each build, and it starts where there is nothing of Waypost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bridge.version import VERSION
from edge.card.location import FILE
from images.card import partition
from images.card.settings import apply_arguments
from images.debian import Mirror
from images.disk import filesystem
from images.frozen import cross
from images.frozen.flasher import freeze_flasher
from images.programs import find
from images.steps import BuildSteps, default_cache
from tests.unit.images import published_image

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils is not installed"),
    pytest.mark.timeout(900),
]

BYTES_MAX = 40_000_000
"""Size of the download; a checkout has 1.9 GB."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return freeze_flasher(BuildSteps(tmp_path_factory.mktemp("first")), os.uname().machine, Mirror())


def call(program: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **variables}
    return subprocess.run([program, *words], capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_it_is_small_and_the_same_at_each_build(program: Path, tmp_path: Path) -> None:
    assert program.stat().st_size < BYTES_MAX
    again = freeze_flasher(BuildSteps(tmp_path / "second"), os.uname().machine, Mirror())
    assert filesystem.compute_sha256(again) == filesystem.compute_sha256(program)


def test_it_lists_disks_without_anything_else(program: Path, tmp_path: Path) -> None:
    moved = tmp_path / "waypost-flash"
    shutil.copy2(program, moved)
    assert call(moved, "--version").stdout == f"waypost-flash {VERSION}\n"
    listed = call(moved, "--list", "--json")
    assert listed.returncode == 0, listed.stderr
    assert {"path", "size", "card", "why"} <= set(json.loads(listed.stdout)["items"][0])


@pytest.mark.skipif(any(find(each) is None for each in published_image.PROGRAMS), reason="mtools or dosfstools missing")
def test_it_verifies_and_writes_an_image(program: Path, tmp_path: Path) -> None:
    source = published_image.card(tmp_path)
    image, certificate = published_image.hand_out(tmp_path, source)
    target = tmp_path / "written"
    done = call(program, str(image), str(target), "--certificate", str(certificate), "--yes")
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.skipif(any(find(each) is None for each in published_image.PROGRAMS), reason="mtools or dosfstools missing")
def test_it_writes_the_settings_of_a_gateway(program: Path, tmp_path: Path) -> None:
    source = published_image.card(tmp_path)
    image, certificate = published_image.hand_out(tmp_path, source)
    target, settings = tmp_path / "written", tmp_path / "hall.yaml"
    settings.write_bytes(apply_arguments(["name=hall", "wifi.ssid=x", "wifi.country=DE"], None).card.text)
    given = (str(image), str(target), "--config", str(settings))
    done = call(program, *given, "--certificate", str(certificate), "--yes")
    assert done.returncode == 0, done.stderr
    assert partition.read_file(target, published_image.BEGIN, FILE) == settings.read_bytes()


@pytest.mark.timeout(5400)
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@pytest.mark.skipif(os.uname().machine == "aarch64", reason="this machine needs no emulator")
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="gcc-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="qemu-user-static is not installed")
@pytest.mark.skipif(any(find(each) is None for each in published_image.PROGRAMS), reason="mtools or dosfstools missing")
def test_program_for_arm64_lists_disks_and_writes_an_image(tmp_path: Path) -> None:
    """Run it in the emulator with the C library of Debian 12 for arm64, and starts this machine's openssl."""
    steps, mirror = BuildSteps(default_cache()), Mirror()
    program, root = freeze_flasher(steps, "aarch64", mirror), cross.unpack_python(steps, mirror)
    print(f"{program.name}: {program.stat().st_size / 1e6:.1f} MB")
    assert program.stat().st_size < BYTES_MAX
    library = {"QEMU_LD_PREFIX": str(root)}
    assert "sudo waypost-flash waypost-" in call(program, "--help", **library).stdout
    listed = call(program, "--list", "--json", **library)
    assert listed.returncode == 0, listed.stderr
    source = published_image.card(tmp_path)
    image, certificate = published_image.hand_out(tmp_path, source)
    target = tmp_path / "written"
    done = call(program, str(image), str(target), "--certificate", str(certificate), "--yes", **library)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == source.read_bytes()
