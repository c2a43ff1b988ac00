"""Completion by a shell: the scripts, and the words that they ask for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge.appliance.commands import COMMANDS, HIDDEN
from edge.appliance.completion import SHELLS
from edge.appliance.main import run

ROOT = Path(__file__).parents[3]


def completed(line: str) -> list[str]:
    """Return the words that bash gets for a line, of which the last word is completed."""
    words = line.split(" ")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "_WAYPOST_COMPLETE": "bash_complete",
        "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-m", "edge.appliance.main"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [each.partition(",")[2] for each in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("waypost stat", ["status"]),
        ("waypost store ex", ["export"]),
        ("waypost get --out", ["--output"]),
        ("waypost completion ", list(SHELLS)),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_all_commands_but_hidden_ones_are_offered() -> None:
    assert completed("waypost ") == [name for name in COMMANDS if name not in HIDDEN]


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "_WAYPOST_COMPLETE" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=30)
