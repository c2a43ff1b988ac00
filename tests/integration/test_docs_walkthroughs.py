"""Every command that a page of the documentation shows is run, and prints what the page says.

See `tests.support.walkthrough` for what of a page is run.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.walkthrough import LAUNCHER, Reader, commands, steps

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if commands(path))
SILENT = ("mosquitto_pub",)
"""Programs that print nothing when they succeed."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to type in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_print_what_the_page_says(page: Path, folder: Path) -> None:
    for program in {command.program for command in commands(page)} - {"./waypost"}:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    reader = Reader(folder)
    try:
        for step in steps(page):
            reader.take(step)
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_shows_what_it_prints(page: Path) -> None:
    shown = [each for each in commands(page) if each.program not in SILENT and not each.starts(*LAUNCHER)]
    assert not [each.words for each in shown if not each.lines]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_secret_is_on_a_command_line(page: Path) -> None:
    """`ps` shows command lines to every user."""
    assert not [each.words for each in commands(page) if {"--token", "--password"} & set(each.words)]
