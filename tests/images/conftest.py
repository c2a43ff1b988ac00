from __future__ import annotations

from pathlib import Path

import pytest

from images.building import build_image
from images.debian import Mirror
from images.steps import BuildSteps, default_cache


@pytest.fixture(scope="session")
def image() -> Path:
    """Folder with all files of an image for the emulator."""
    cache = default_cache()
    return build_image(BuildSteps(cache), cache, "qemu", Mirror(), (None, None))
