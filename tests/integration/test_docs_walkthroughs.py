"""Every command in the README and on a page of the documentation runs, and prints what the page shows.

`tests.support.walkthrough` documents which parts of a page are run.
"""

from __future__ import annotations

import re
import shutil
import ssl
import time
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT
from tests.support.walkthrough import LAUNCHER, Directive, Reader, commands, is_transcript, steps

ALWAYS = [ROOT / "README.md", *(path for path in (ROOT / "docs/tutorials").glob("*.md") if commands(path))]
PAGES = sorted({*ALWAYS, *(path for path in (ROOT / "docs").rglob("*.md") if is_transcript(path))})
TLS = ROOT / "docs/tutorials/first-gateway.md"
DASHBOARD = ROOT / "docs/tutorials/first-dashboard.md"
"""Runs all of Spark's jobs several times, which takes four minutes."""
FIRST_READING_S_MAX = 180.0
"""Longest time until readings of a gateway with TLS are in the lake; about 15 s on an idle machine."""
SILENT = ("mosquitto_pub",)
"""Programs that print nothing when they succeed."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page == DASHBOARD else (), id=name(page)) for page in PAGES]
)
def test_commands_print_the_output_on_the_page(page: Path, folder: Path) -> None:
    for program in {command.program for command in commands(page)} - {"./waypost"}:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    reader, begun = Reader(folder), time.monotonic()
    try:
        for step in steps(page):
            reader.take(step)
            if page == TLS and isinstance(step, Directive):
                assert time.monotonic() - begun < FIRST_READING_S_MAX
        if page == TLS:
            assert_consoles_open(reader, folder / "data/fleet/authority/ca.pem")
    finally:
        reader.close()


def assert_consoles_open(reader: Reader, authority: Path) -> None:
    """Both consoles are at the documented address, and only for the users that the page adds."""
    text = TLS.read_text()
    users = re.findall(r"^# (\S+): added\n# password: (\S+)", text, re.MULTILINE)[-2:]
    consoles = re.findall(r"Open <(http\S+)>", text)
    context = ssl.create_default_context(cafile=authority)
    assert len(consoles) == len(users) == 2
    for place, (user, password) in zip(consoles, users, strict=True):
        url = reader.translate(place)
        page = httpx.get(url, verify=context)
        assert (page.status_code, "<title>Waypost" in page.text) == (200, True)
        status = f"{url.rstrip('/')}/api/v1/status"
        assert httpx.get(status, verify=context).status_code == 401
        assert httpx.get(status, verify=context, auth=(user, reader.passwords[password])).status_code == 200


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page == DASHBOARD else (), id=name(page)) for page in PAGES]
)
def test_every_command_on_a_page_shows_its_output(page: Path) -> None:
    shown = [each for each in commands(page) if each.program not in SILENT and not each.starts(*LAUNCHER)]
    assert not [each.words for each in shown if not each.lines]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page == DASHBOARD else (), id=name(page)) for page in PAGES]
)
def test_no_secret_is_on_a_command_line(page: Path) -> None:
    """`ps` shows command lines to every user."""
    assert not [each.words for each in commands(page) if {"--token", "--password"} & set(each.words)]
