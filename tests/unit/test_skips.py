"""The last line of a test run says what was skipped and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="curl is not installed")
@pytest.mark.parametrize("number", [1, 2])
def test_with_curl(number): ...

def test_with_a_compiler():
    pytest.skip("no compiler")

def test_without(): ...
"""


def last_line(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(folder), str(folder)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_reasons_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    assert last_line(tmp_path) == "skipped 3: 2 because curl is not installed; 1 because no compiler"
    assert "skipped" not in last_line(tmp_path, "-k", "without")
