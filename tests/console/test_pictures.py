"""Pictures of the docs can be made again, and are of the design as it is now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.demo_world import demo_world
from tests.console.pictures import FOLDER, RECORD, make, pictures, record

pytestmark = pytest.mark.slow


def test_pictures_are_of_the_present_design() -> None:
    assert json.loads((FOLDER / RECORD).read_text()) == record(), "run `make pictures`"


@pytest.mark.timeout(300)
def test_pictures_can_be_made(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "plant").mkdir()
    with demo_world(tmp_path / "plant") as world:
        make(browser, world, tmp_path / "pictures")
    made = {path.stem for path in (tmp_path / "pictures").glob("*.webp")}
    assert made == {picture.name for picture in pictures()}
