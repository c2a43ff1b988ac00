"""Parts of the tests that boot an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from images.building import build_image
from images.steps import BuildSteps, default_cache
from tests.images.emulated import HOST, mirror
from tests.support.enrolled import EnrolledFleet


@pytest.fixture(scope="session")
def image() -> Path:
    """Folder with all files of an image for the emulator."""
    cache = default_cache()
    return build_image(BuildSteps(cache), cache, "qemu", mirror(), (None, None))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[EnrolledFleet]:
    """Yield a hub that gateways in emulated machines can reach."""
    with EnrolledFleet(tmp_path, "--name", HOST) as made:
        yield made
