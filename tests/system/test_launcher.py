"""The launcher: errors when set-up cannot succeed, packages of each command, and compilation of the C files."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from launcher.debian import has_java, install, missing_packages
from launcher.environment import Environment
from launcher.package_sets import PackageSet, sets_of
from launcher.steps import SetUpError, Steps
from tests import DEFAULT_MARKS
from tests.__main__ import arguments_of
from tests.conftest import ROOT

GATEWAY, HUB = PackageSet.GATEWAY, PackageSet.HUB

COMPILERS = ("cc", "gcc", "c99", "c89", "pkg-config", "pkgconf", "sudo")


LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


def start(venv: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `./waypost run --help`, or another command, with its own environment."""
    environment = {**os.environ, "WAYPOST_VENV": str(venv), "WAYPOST_APT": "never", **settings}
    environment.pop("PYTHONPATH", None)
    words = [str(ROOT / "waypost"), *(command or ("run", "--help"))]
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def without_compiler(tmp_path: Path) -> str:
    """Return a PATH with this machine's programs except the compilers."""
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
def test_a_start_without_network_says_which_step_failed(tmp_path: Path) -> None:
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = start(tmp_path / "env", **nowhere)
    assert done.returncode == 1
    assert "set-up failed at: Build tools" in done.stderr
    assert "start again" in done.stderr


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "thesis.txt").write_text("mine")
    done = start(tmp_path / "env")
    assert done.returncode == 2
    assert "is not empty, and not an environment of Waypost" in done.stderr
    assert (tmp_path / "env" / "thesis.txt").read_text() == "mine"


SOURCE = Path("bridge", "engine", "loops.c")
STUB = """#!/bin/sh
# Stands in for the interpreter of the system, for the environment's and for uv. Records its arguments.
printf '%s\\n' "${0##*/} $*" >> "{asked}"
case "${0##*/} $*" in
    *'-m venv '*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
    *'-m pip '*' install '*) cp "$0" "${0%/*}/uv" ;;
    *hatch_build.py) : > "{root}/bridge/_native.abi3.so" ;;
esac
[ ! -f "{killed}" ] || case "$*" in *"$(cat "{killed}")"*) kill -9 $$ ;; esac
"""


class Checkout:
    """Checkout with its C files, set up by an interpreter that installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.venv = self.root / ".venv"
        self.root.mkdir()
        for name in ("waypost", *LOCKS, "pyproject.toml", "hatch_build.py"):
            shutil.copy(ROOT / name, self.root)
        for path in (*ROOT.glob("bridge/*.[ch]"), *ROOT.glob("bridge/engine/*.c"), *ROOT.glob("edge/broker/*/*.c")):
            (self.root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.root / path.relative_to(ROOT))
        self._asked = folder / "asked"
        self.killed = folder / "killed"
        """The stub dies at the first command that contains the text of this file."""
        stub = folder / "python3"
        text = STUB.replace("{asked}", str(self._asked)).replace("{killed}", str(self.killed))
        stub.write_text(text.replace("{root}", str(self.root)))
        stub.chmod(0o755)
        self.environment = Environment(self.root, self.venv, stub)

    def set_up(self, *sets: PackageSet) -> list[str]:
        """Run a start; return its commands."""
        self._asked.write_text("")
        if not self.environment.ready(sets):
            self.environment.set_up(sets, agreed=False)
        elif not self.environment.compiled():
            self.environment.compile()
        return self._asked.read_text().splitlines()

    def installed(self, *sets: PackageSet) -> list[str]:
        """Run a start; return the locks that list exactly the packages of the environment."""
        words = [word for line in self.set_up(*sets) if line.startswith("uv pip sync") for word in line.split()]
        return [Path(word).name for word in words if word.endswith(".lock")]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("WAYPOST_APT", "never")
    if missing_packages(compiles=True):
        pytest.skip("no compiler, or what it needs, here")
    if not has_java():
        pytest.skip("no Java here: its lock would be one more")
    return Checkout(tmp_path)


def test_set_up_compiles_the_extension_and_a_later_start_does_not(checkout: Checkout) -> None:
    assert sum(line.endswith("hatch_build.py") for line in checkout.set_up(GATEWAY)) == 1
    assert checkout.set_up(GATEWAY) == []


def test_the_next_start_after_a_change_of_a_c_file_compiles_again(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY)
    later = time.time() + 10
    os.utime(checkout.root / SOURCE, (later, later))
    assert checkout.set_up(GATEWAY) == [f"python -P {checkout.root}/hatch_build.py"]


def test_an_extension_that_was_deleted_is_compiled_again(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY)
    (checkout.root / "bridge/_native.abi3.so").unlink()
    assert checkout.set_up(GATEWAY) == [f"python -P {checkout.root}/hatch_build.py"]


@pytest.mark.parametrize("step", ["-m venv", "-m pip", "pip sync", "--editable", "hatch_build.py"])
def test_a_set_up_that_was_killed_starts_again_from_nothing(checkout: Checkout, step: str) -> None:
    checkout.killed.write_text(step)
    for _ in range(2):
        with pytest.raises(SetUpError):
            checkout.set_up(GATEWAY)
    (checkout.venv / "half").touch()
    checkout.killed.unlink()
    asked = checkout.set_up(GATEWAY)
    assert not (checkout.venv / "half").exists()
    assert asked[0] == f"python3 -m venv {checkout.venv}"
    assert checkout.environment.ready([GATEWAY])


def test_what_an_update_left_half_done_is_made_again(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY)
    checkout.killed.write_text("pip sync")
    with pytest.raises(SetUpError):
        checkout.set_up(HUB)
    assert not checkout.environment.ready([GATEWAY])


def test_each_command_adds_its_own_packages(checkout: Checkout) -> None:
    build, gateway, hub = "requirements-build.lock", "requirements-gateway.lock", "requirements-hub.lock"
    assert checkout.installed(*sets_of(["run"])) == [build, gateway]
    assert checkout.installed(*sets_of(["store"])) == []
    assert checkout.installed(*sets_of(["hub", "run"])) == [build, gateway, hub]
    assert checkout.installed(*sets_of(["image"]))[-1] == "requirements-images.lock"
    assert checkout.installed(*sets_of(["analytics"]))[-1] == "requirements-analytics.lock"
    assert checkout.installed(*sets_of(["demo"])) == []


def test_the_packages_of_the_tests_are_those_of_every_command(checkout: Checkout) -> None:
    assert checkout.installed(*sets_of(["test"])) == ["requirements-build.lock", "requirements.lock"]
    for command in ("run", "hub", "lake", "image", "demo"):
        assert checkout.installed(*sets_of([command])) == []


def test_a_changed_lock_is_installed_by_the_commands_that_need_it(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY, HUB)
    with (checkout.root / "requirements-hub.lock").open("a") as lock:
        lock.write("# another pin\n")
    assert checkout.installed(GATEWAY) == []
    assert checkout.installed(GATEWAY, HUB) == [
        "requirements-build.lock", "requirements-gateway.lock", "requirements-hub.lock",
    ]  # fmt: skip


def test_an_environment_of_another_checkout_gets_this_one_as_its_project(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY)
    (checkout.venv / ".waypost-project").write_text("/elsewhere")
    asked = checkout.set_up(GATEWAY)
    assert any("--editable" in line for line in asked)
    assert not any("-m venv" in line for line in asked)


def test_a_lock_that_changed_leaves_the_environment_in_place(checkout: Checkout) -> None:
    checkout.set_up(GATEWAY)
    with (checkout.root / "requirements-gateway.lock").open("a") as lock:
        lock.write("# another pin\n")
    assert not any("-m venv" in line for line in checkout.set_up(GATEWAY))


BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")


class Terminal(io.StringIO):
    """Standard input that is a terminal with a prepared answer."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "agreed", "ran"), [("y\n", False, True), ("\n", False, True), ("n\n", False, False),
                                                       ("", True, True), (None, False, False)])  # fmt: skip
def test_a_user_with_sudo_is_asked_once_and_shown_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, agreed: bool, ran: bool
) -> None:
    for name in ("sudo", "apt-get"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "{tmp_path}/asked"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "stdin", io.StringIO() if answer is None else Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    steps = Steps(tmp_path / "log")
    if ran:
        install(steps, ["gcc"], java=False, agreed=agreed)
        assert (tmp_path / "asked").read_text().splitlines()[-1].endswith("install -y --no-install-recommends gcc")
    else:
        with pytest.raises(SetUpError) as refused:
            install(steps, ["gcc"], java=False, agreed=agreed)
        assert refused.value.code == 2
        assert "sudo apt-get install -y --no-install-recommends gcc" in refused.value.next_step
        assert not (tmp_path / "asked").exists()
    assert ("sudo apt-get install -y --no-install-recommends gcc" in shown.getvalue()) == bool(answer)


@pytest.mark.parametrize(("words", "expected"), [
    (["tests/unit", "-q"], ["tests/unit", "-q"]),
    (["-m", "slow"], ["-m", "slow"]),
    (["tests/unit/test_cli.py::test_x"], ["tests/unit/test_cli.py::test_x"]),
    (["-n", "3"], [*BY_FILE, "-m", f"{DEFAULT_MARKS} and not extended", "-n", "3"]),
    (["--all", "-n", "0"], [*BY_FILE, "-m", DEFAULT_MARKS, "-n", "0"]),
])  # fmt: skip
def test_what_waypost_test_passes_to_pytest(words: list[str], expected: list[str]) -> None:
    assert arguments_of(words) == expected


def test_a_set_brings_proton_when_its_lock_names_it() -> None:
    """The docs have none: after `analytics` a check of Proton's TLS would fail."""
    for each in PackageSet:
        assert each.brings_proton == ("\npython-qpid-proton==" in (ROOT / each.lock).read_text())


def test_wheels_built_by_set_up_are_not_compressed(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("import setuptools; setuptools.setup(name='a', py_modules=['a'])")
    (tmp_path / "a.py").write_text("a = 1\n" * 1_000)
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(ROOT / "launcher" / "setuptools.cfg")}
    build = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('.')"]
    subprocess.run(build, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {each.compress_type for each in archive.infolist()} == {zipfile.ZIP_STORED}


def test_two_set_ups_of_one_environment_follow_each_other(checkout: Checkout) -> None:
    with checkout.environment.locked(), (checkout.root / ".venv.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_help_and_version_need_no_set_up(tmp_path: Path, word: str) -> None:
    for folder in ("edge/appliance", "launcher"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("waypost", "edge/__init__.py", "bridge/__init__.py", "bridge/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [str(tmp_path / "waypost"), word],
        env={name: value for name, value in os.environ.items() if name != "WAYPOST_VENV"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("waypost 0." if word == "--version" else "Run a gateway until") in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_modules_are_compiled_once_whatever_the_environment_says(tmp_path: Path) -> None:
    """Images of containers set the variable; each start once took a second longer with it."""
    here = Environment(ROOT, Path(sys.prefix), Path(sys.executable))
    if not (here.ready([GATEWAY]) and here.compiled()):
        pytest.skip("these tests run in the environment of another checkout: a start would change it")
    done = start(Path(sys.prefix), PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert any(tmp_path.rglob("main.*.pyc"))
