"""The launcher: what it says where set-up cannot succeed, what a command brings, and when it compiles the C files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMPILERS = ("cc", "gcc", "c99", "c89", "pkg-config", "pkgconf", "sudo")


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


def start(venv: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `./waypost edge --help`, or another command, with an environment of its own."""
    environment = {**os.environ, "WAYPOST_VENV": str(venv), "WAYPOST_APT": "never", **settings}
    environment.pop("PYTHONPATH", None)
    words = [str(ROOT / "waypost"), *(command or ("edge", "--help"))]
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL
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


SOURCE = Path("bridge", "engine", "loops.c")
STUB = """#!/bin/sh
# Stands for the environment's Python, and notes what it is asked.
printf '%s\\n' "$*" >> "${0%/*}/asked"
case "$*" in *hatch_build.py) : > "${0%/*}/../../bridge/_native.abi3.so" ;; esac
[ ! -f "${0%/*}/killed" ] || case "$*" in *"$(cat "${0%/*}/killed")"*) kill -9 $$ ;; esac
"""


class TestSetUp:
    """Set-up of a checkout with the C files, in an environment whose Python does nothing."""

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        root = tmp_path / "checkout"
        for name in ("waypost", *LOCKS, "pyproject.toml", "hatch_build.py"):
            root.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, root)
        for path in (*ROOT.glob("bridge/*.[ch]"), *ROOT.glob("bridge/engine/*.c"), *ROOT.glob("edge/broker/*/*.c")):
            (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path.relative_to(ROOT))
        programs = root / ".venv" / "bin"
        programs.mkdir(parents=True)
        (programs / "python").write_text(STUB)
        (programs / "python").chmod(0o755)
        return root

    @staticmethod
    def start(root: Path, command: str = "edge") -> tuple[list[str], str]:
        """What Python was asked, and what the launcher said."""
        asked = root / ".venv/bin/asked"
        asked.write_text("")
        environment = {**os.environ, "WAYPOST_APT": "never"}
        environment.pop("WAYPOST_VENV", None)
        done = subprocess.run(
            [str(root / "waypost"), command], env=environment, capture_output=True, text=True, timeout=100, check=False
        )
        if done.returncode == 2 and "missing packages" in done.stderr:
            pytest.skip("no compiler, or what it needs, here")
        assert done.returncode == 0, done.stderr
        return asked.read_text().splitlines(), done.stderr

    @staticmethod
    def compiled(asked: list[str]) -> int:
        return sum(line.endswith("hatch_build.py") for line in asked)

    def test_set_up_compiles_the_c_files_and_a_later_start_does_not(self, checkout: Path) -> None:
        asked, said = self.start(checkout)
        assert self.compiled(asked) == 1
        assert "  C extension" in said
        assert asked[-1] == "-P -m edge.appliance.main edge"
        asked, said = self.start(checkout)
        assert (asked, said) == (["-P -m edge.appliance.main edge"], "")

    def test_the_next_start_after_a_change_of_a_c_file_compiles_again(self, checkout: Path) -> None:
        self.start(checkout)
        with (checkout / SOURCE).open("a") as source:
            source.write("/* newer */\n")
        assert self.compiled(self.start(checkout)[0]) == 1
        assert self.compiled(self.start(checkout)[0]) == 0

    def test_an_extension_that_was_deleted_is_compiled_again(self, checkout: Path) -> None:
        self.start(checkout)
        (checkout / "bridge/_native.abi3.so").unlink()
        assert self.compiled(self.start(checkout)[0]) == 1

    def test_set_up_ends_where_the_c_files_cannot_be_compiled(self, checkout: Path) -> None:
        (checkout / ".venv/bin/killed").write_text("hatch_build.py")
        for _ in range(2):
            with pytest.raises(AssertionError, match="set-up failed at: C extension"):
                self.start(checkout)
        (checkout / ".venv/bin/killed").unlink()
        assert self.compiled(self.start(checkout)[0]) == 1

    @pytest.mark.parametrize(
        ("command", "killed", "kept"), [("analytics", "spark.setup install", True), ("edge", "--editable", False)]
    )
    def test_only_packages_that_may_be_half_there_are_installed_again(
        self, checkout: Path, command: str, killed: str, kept: bool
    ) -> None:
        (checkout / ".venv/bin/killed").write_text(killed)
        with pytest.raises(AssertionError, match="set-up failed at"):
            self.start(checkout, command)
        assert (checkout / ".venv/.waypost-step").exists() is not kept
        if kept:
            (checkout / ".venv/bin/killed").unlink()
            assert "Ready after" in self.start(checkout, command)[1]

    def test_each_command_brings_its_own_packages_and_no_others(self, checkout: Path) -> None:
        assert self.brought(checkout, "edge") == ["gateway"]
        assert self.brought(checkout, "store") == []
        assert self.brought(checkout, "hub") == ["hub"]
        assert self.brought(checkout, "image") == ["images"]
        assert self.brought(checkout, "analytics") == ["analytics"]
        assert self.brought(checkout, "demo") == []

    def test_the_packages_of_the_tests_are_those_of_every_command(self, checkout: Path) -> None:
        assert self.brought(checkout, "test") == ["development"]
        for command in ("edge", "hub", "analytics", "image", "demo"):
            assert self.brought(checkout, command) == []

    def test_a_changed_lock_sets_up_only_the_commands_that_need_it(self, checkout: Path) -> None:
        for command in ("edge", "hub"):
            self.start(checkout, command)
        with (checkout / "requirements-hub.lock").open("a") as lock:
            lock.write("# another pin\n")
        assert self.brought(checkout, "edge") == []
        assert self.brought(checkout, "hub") == ["hub"]

    @pytest.mark.parametrize("word", ["--version", "--help"])
    def test_help_and_version_need_no_set_up(self, checkout: Path, word: str) -> None:
        """A stub answers for the environment's Python; without one the checkout has to do."""
        shutil.copytree(ROOT / "edge/appliance", checkout / "edge/appliance", ignore=shutil.ignore_patterns("*.so"))
        for name in ("edge/__init__.py", "bridge/__init__.py", "bridge/version.py"):
            shutil.copy(ROOT / name, checkout / name)
        shutil.rmtree(checkout / ".venv")
        done = subprocess.run(
            [str(checkout / "waypost"), word],
            env={name: value for name, value in os.environ.items() if name != "WAYPOST_VENV"},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert ("waypost 0." if word == "--version" else "Run a gateway.") in done.stdout
        assert not (checkout / ".venv").exists()

    def brought(self, checkout: Path, command: str) -> list[str]:
        """Return the sets of packages that a command installed."""
        asked, _ = self.start(checkout, command)
        locks = [Path(line.split(" -r ")[1]).stem for line in asked if "--no-build-isolation -r " in line]
        return [lock.removeprefix("requirements").removeprefix("-") or "development" for lock in locks]


def test_modules_are_compiled_once_whatever_the_environment_says(tmp_path: Path) -> None:
    """Images of containers set it; then each start took a second longer."""
    done = start(Path(sys.prefix), PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert any(tmp_path.rglob("main.*.pyc"))
