"""Pictures of the consoles: each page has one, it is of the page as it is now, and a page of the docs shows it."""

from __future__ import annotations

import json
import re

import pytest

from tests.console.pictures import BYTES_MAX, FOLDER, RECORD, ConsolePicture, pictures, sources_of
from tests.console.settings_picture import PICTURE, source_of
from tests.console.settings_picture import RECORD as SETTINGS_RECORD
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "how-to" / "use-the-consoles.md"
MAKE = "run `make pictures`, look at the new pictures, and commit them"


@pytest.mark.parametrize("picture", list(pictures()), ids=lambda picture: picture.name)
def test_page_has_a_picture_of_its_present_source(picture: ConsolePicture) -> None:
    recorded = json.loads((FOLDER / RECORD).read_text())
    assert (FOLDER / f"{picture.name}.webp").exists(), f"{picture.name} has no picture: {MAKE}"
    assert recorded.get(picture.name) == sources_of(picture), f"{picture.page.module} changed since: {MAKE}"


def test_picture_of_the_settings_page_is_of_the_present_one() -> None:
    assert PICTURE.exists()
    assert SETTINGS_RECORD.read_text().strip() == source_of(), f"settings.html changed since: {MAKE}"


def test_docs_show_every_picture() -> None:
    shown = set(re.findall(r"\(\.\./pictures/consoles/([\w-]+)\.webp\)", PAGE.read_text()))
    assert shown == {picture.name for picture in pictures()}


def test_pictures_are_small_and_all_are_used() -> None:
    files = list(FOLDER.glob("*.webp"))
    assert {path.stem for path in files} == {picture.name for picture in pictures()}
    assert sum(path.stat().st_size for path in files) <= BYTES_MAX
