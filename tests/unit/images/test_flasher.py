"""`waypost-flash` as a program of its own: the command of its name, and errors without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.version import VERSION
from images.flashing.cli import flash
from images.flashing.program import NAME, make_command, restore_library_path, run

LEFT_OUT = ("edge.appliance", "edge.broker", "edge.configuration", "cloud", "spark", "cryptography", "proton", "uvloop")
"""Packages that flashing does not need."""


def test_command_has_the_name_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{NAME} {VERSION}\n"
    program = [sys.executable, "-m", "images.flashing.program", "--help"]  # where nothing has named it otherwise
    shown = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert f"sudo {NAME} waypost-" in shown
    assert "waypost flash" not in shown
    assert len(make_command().params) == len(flash.params) + 1, "the command itself is unchanged"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere.img", "/dev/sdx"], 2, "nowhere.img does not exist"),
        (["--nonsense"], 2, f"see {NAME} --help"),
        (["--json"], 2, "--json requires --list"),
        (["--list", "--yes"], 0, ""),
    ],
)
def test_errors_name_the_next_step(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    told = capsys.readouterr().err
    assert said in told
    assert "waypost flash" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"LD_LIBRARY_PATH": "/tmp/_MEI1"}, {}),
        ({"LD_LIBRARY_PATH": "/tmp/_MEI1", "LD_LIBRARY_PATH_ORIG": "/opt"}, {"LD_LIBRARY_PATH": "/opt"}),
        ({"PATH": "/bin"}, {"PATH": "/bin"}),
    ],
)
def test_other_programs_load_their_own_libraries(given: dict[str, str], left: dict[str, str]) -> None:
    restore_library_path(given)
    assert given == left


def test_it_imports_nothing_of_a_gateway(tmp_path: Path) -> None:
    """Each import would be a part of the download."""
    script = (
        "import sys, images.flashing.program, images.flashing.cards, images.flashing.page, images.card.settings\n"
        f"print([name for name in sys.modules if name.startswith({LEFT_OUT!r})])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
