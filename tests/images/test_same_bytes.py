"""Equal parts give the same root and the same image, without files of an earlier build."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from images.disk import building as disk
from images.disk import signing
from images.frozen import cross
from images.package import deb
from images.rootfs import building as rootfs
from images.steps import BuildSteps, default_cache
from tests.images.emulated import MARKS, mirror

pytestmark = [*MARKS]


def made_anew(cache: Path) -> Path:
    """Build root and image from the existing parts."""
    known, packages = BuildSteps(default_cache()), mirror()
    package = deb.build_package(known, cross.freeze(known, packages), "aarch64")
    archive, keys = rootfs.build_base(known, packages), signing.load_keys(default_cache(), None, None)
    return disk.build(BuildSteps(cache), "qemu", archive=archive, package=package, keys=keys)


def sums(folder: Path) -> dict[str, str]:
    """Return the sums of all files but the signature: two signatures of one file differ (ECDSA)."""
    files = (path for path in folder.iterdir() if path.suffix != ".p7s")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_root_and_image_are_rebuilt_with_the_same_bytes(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = sums(image)
    assert sums(made_anew(tmp_path)) == expected
    with capsys.disabled():
        print("\n" + "\n".join(f"{digest}  {name}, twice" for name, digest in sorted(expected.items())))
