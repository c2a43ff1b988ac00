"""The README says what is: every path in it exists, every command in it is one, with the options it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from bridge.resources import parse
from edge.appliance.commands import COMMANDS
from edge.appliance.main import load
from edge.configuration.kinds import KINDS
from launcher.__main__ import IN_CHECKOUT

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
STEPS = [
    "edge/broker/listeners",
    "edge/broker/mqtt",
    "edge/broker/amqp",
    "edge/broker/router/router.py",
    "edge/broker/store",
    "bridge/uplink.py",
    "bridge/intake.py",
    "cloud/hub",
    "cloud/lake",
    "spark/jobs",
    "cloud/console",
]
"""The path of one reading, in order."""


def command_lines() -> list[list[str]]:
    """Words of every ``./waypost …`` in blocks of shell and in inline code."""
    lines = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
    lines += re.findall(r"`(\./waypost [^`]*)`", README)
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("./waypost ")]


def test_the_path_of_one_reading_is_there_in_order() -> None:
    table = README[README.index("## The path of one reading") : README.index("## Where to start")]
    places = [table.index(f"`{step}`") for step in STEPS]
    assert places == sorted(places)


def test_every_path_named_exists() -> None:
    tops = ("bridge", "edge", "cloud", "spark", "images", "firmware_examples", "tests", ".ci")
    named = [name for name in re.findall(r"`([\w./-]+)`", README) if name.split("/")[0] in tops]
    named += [word for words in command_lines() for word in words if word.startswith("tests/")]
    assert len(named) > len(STEPS)
    for name in named:
        path = ROOT / name
        assert path.exists(), f"README names {name}, which is gone"
        code = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc"]
        assert any(file.stat().st_size for file in code), f"README names {name}, which is empty"


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_every_command_exists_with_its_options(words: list[str]) -> None:
    if words[0] in {*IN_CHECKOUT, "--yes"}:
        return
    command = load(words[0], COMMANDS[words[0]])
    for word in words[1:]:
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"`{words[0]}` has no {word}"
            command = found
        elif word.startswith("-") and word not in ("-", "--help"):
            options = {option for parameter in command.params for option in parameter.opts}
            assert word in options, f"`{words[0]}` has no {word}"


def test_what_serves_side_by_side_has_ports_of_its_own() -> None:
    """The sections are read one after the other, and what serves in one goes on in the next."""
    served: dict[str, str] = {}
    every = "\n".join(block for language, block in BLOCKS if language == "sh")
    serving = re.findall(r"^\./waypost ((?:edge|hub) run .*)\n# ready (.*)", every, re.MULTILINE)
    assert len(serving) > 3
    for command, ready in serving:
        if "# stop the first gateway" in command:
            continue
        for port in re.findall(r":(\d+)", ready):
            assert port not in served, f"{command} and {served[port]} listen on port {port}"
            served[port] = command


def test_the_lake_that_is_read_is_that_of_the_first_hub() -> None:
    (data,) = re.findall(r"^\./waypost hub run --data (\S+)  ", README, re.MULTILINE)
    lakes = {words[words.index("--lake") + 1] for words in command_lines() if "--lake" in words}
    assert lakes == {f"{data}/lake"}


def test_the_commands_named_in_passing_exist() -> None:
    also = re.search(r"# also: (.*)", README)
    assert also is not None
    assert {word.strip() for word in also[1].split(",")} <= set(COMMANDS)


def test_the_example_configuration_is_valid() -> None:
    [text] = [block for language, block in BLOCKS if language == "yaml"]
    resources = parse.parse(KINDS, text, "README.md")
    assert len(resources) == 2
    assert KINDS.validate(resources) == []


def test_the_four_users_are_there() -> None:
    for user in (
        "You set up gateways",
        "Your devices connect, with or without an uplink",
        "You configure the bridge",
        "You read the fleet's telemetry",
    ):
        assert f"### {user}\n" in README


def test_the_promise_comes_first() -> None:
    head = README[: README.index("## ")]
    assert "An acknowledgement from Waypost means: on disk." in head
    assert len(head.splitlines()) <= 20
