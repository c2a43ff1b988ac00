"""The launcher's first start, where it cannot succeed: what it says, and that it can be started again."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMPILERS = ("cc", "gcc", "c99", "c89", "pkg-config", "pkgconf", "sudo")


def start(venv: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """`./waypost --version` with an environment of its own."""
    environment = {**os.environ, "WAYPOST_VENV": str(venv), "WAYPOST_APT": "never", **settings}
    environment.pop("PYTHONPATH", None)
    command = [str(ROOT / "waypost"), "--version"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def without_compiler(tmp_path: Path) -> str:
    """A PATH with this machine's programs, but for the compiler's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = programs / program.name
            if program.name not in COMPILERS and not link.is_symlink():
                link.symlink_to(program)
    return str(programs)


def test_a_start_that_misses_packages_names_them_each_time(tmp_path: Path, without_compiler: str) -> None:
    for _ in range(2):
        done = start(tmp_path / "env", PATH=without_compiler)
        assert done.returncode == 2
        assert "missing packages: " in done.stderr
        assert "gcc" in done.stderr
        assert "sudo apt-get install" in done.stderr or "apt-get install -y" in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("pkg-config") is None, reason="no compiler here")
def test_a_start_without_network_says_which_step_failed_each_time(tmp_path: Path) -> None:
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
    }
    for _ in range(2):
        done = start(tmp_path / "env", **nowhere)
        assert done.returncode == 1
        assert "set-up failed at: Build tools" in done.stderr
        assert "start again" in done.stderr


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.txt").write_text("mine")
    done = start(tmp_path / "env")
    assert done.returncode == 2
    assert "is not empty and not a Python environment" in done.stderr
    assert (tmp_path / "env" / "thesis.txt").read_text() == "mine"
