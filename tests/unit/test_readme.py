"""README and docs are correct: every path exists, and every command exists with its options."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bridge.resources import parse
from edge.appliance.commands import COMMANDS
from edge.appliance.main import load
from edge.configuration.kinds import KINDS
from launcher.__main__ import IN_CHECKOUT
from tests.support.checkout import ROOT
from tests.support.pages import BLOCK, ENROLLED, OTHER_KINDS, PAGES, README, name

PATH_OF_A_READING = ROOT / "docs/explanation/path-of-a-reading.md"
README_LINES_MAX = 150
STEPS = [
    "edge/broker/listeners",
    "edge/broker/mqtt",
    "edge/broker/amqp",
    "edge/broker/router",
    "edge/broker/store",
    "bridge/uplink.py",
    "bridge/intake.py",
    "cloud/hub",
    "cloud/lake",
    "spark/jobs",
    "cloud/console",
]
"""The path of one reading, in order."""
FOLDERS = ("bridge", "edge", "cloud", "spark", "images", "simulator", "firmware_examples", "tests", ".ci")


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield (page, words) of every ``waypost …`` in blocks of shell and in inline code."""
    for page in PAGES:
        text = page.read_text()
        blocks = [block for language, block in BLOCK.findall(text) if language in ("sh", "console")]
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`((?:\./)?waypost [^`]*)`", text)
        for line in lines:
            if found := re.match(r"(?:sudo )?(?:\./)?waypost ([a-z].*)", line):
                words = shlex.split(found[1], comments=True)
                yield name(page), list(itertools.takewhile(lambda word: word not in ("&&", "|", ";", ">"), words))


COMMAND_LINES = list(command_lines())


def test_readme_is_two_screens() -> None:
    assert len(README.read_text().splitlines()) <= README_LINES_MAX


def test_path_of_one_reading_is_in_order() -> None:
    table = PATH_OF_A_READING.read_text()
    places = [table.index(f"`{step}`") for step in STEPS]
    assert places == sorted(places)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_named_exists(page: Path) -> None:
    named = [each for each in re.findall(r"`([\w./-]+)`", page.read_text()) if each.split("/")[0] in FOLDERS]
    for each in named:
        if "/" not in each and each not in FOLDERS:
            continue
        path = ROOT / each
        assert path.exists(), f"{name(page)} names {each}, which is gone"
        code = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc"]
        assert any(file.stat().st_size for file in code), f"{name(page)} names {each}, which is empty"


@pytest.mark.parametrize("page", [README, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"], ids=name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize(
    ("page", "words"), COMMAND_LINES, ids=lambda each: each if isinstance(each, str) else " ".join(each)
)
def test_every_command_exists_with_its_options(page: str, words: list[str]) -> None:
    if {words[0], " ".join(words[:2])} & {*IN_CHECKOUT, "COMMAND"}:
        return
    assert words[0] in COMMANDS, f"{page}: no command {words[0]}"
    command = load(words[0], COMMANDS[words[0]])
    for word in words[1:]:
        if isinstance(command, click.Group) and re.match(r"[a-z]", word):
            found = command.get_command(click.Context(command), word.rstrip(",.;:"))
            assert found is not None, f"{page}: `{words[0]}` has no {word}"
            command = found
        elif word.startswith("-") and word not in ("-", "--help", "-h"):
            options = {option for parameter in command.params for option in parameter.opts}
            assert word.partition("=")[0].rstrip(",.;:") in options, f"{page}: `{' '.join(words)}` has no {word}"


def test_commands_in_the_text_exist() -> None:
    also = re.search(r"# also: (.*)", README.read_text())
    assert also is not None
    assert {word.strip() for word in also[1].split(",")} <= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_example_configurations_are_valid(page: Path) -> None:
    """Blocks of ``yaml`` with an ``apiVersion`` are valid resources of a gateway, except other programs' kinds."""
    for language, block in BLOCK.findall(page.read_text()):
        if language == "yaml" and "apiVersion" in block and not OTHER_KINDS.search(block):
            written = block if "kind: Gateway" in block else f"{block}---\n{ENROLLED}"
            resources = parse.parse(KINDS, written, name(page))
            assert resources
            assert KINDS.validate(resources) == []
