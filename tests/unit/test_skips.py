"""A test run reports its duration, and in its last line the skipped tests with their reasons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import DEFAULT_MARKS
from tests.conftest import DURATION, ROOT

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


@pytest.mark.parametrize(("options", "said"), [
    ((), True), (("test_some.py",), False), (("-m", "not slow"), False),
])  # fmt: skip
def test_run_of_all_tests_states_its_duration(tmp_path: Path, options: tuple[str, ...], said: bool) -> None:
    assert f"-m '{DEFAULT_MARKS}'" in (ROOT / "pyproject.toml").read_text()
    (tmp_path / "test_some.py").write_text(TESTS)
    settings = f"[pytest]\ntestpaths = .\naddopts = -m '{DEFAULT_MARKS}'\nmarkers =\n  slow\n  images\n"
    (tmp_path / "pytest.ini").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *options], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (DURATION in done.stdout) is said
