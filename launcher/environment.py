"""Python environment of a checkout, with its packages, our extension, and what Spark needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launcher import debian
from launcher.package_sets import ABOUT, BUILD_LOCK, JRE_LOCK, PackageSet, stamp_of
from launcher.steps import SetUpError, Steps, say

EXTENSION = Path("bridge", "_native.abi3.so")
HAS_TLS = "import cproton, sys; sys.exit(not cproton.pn_ssl_present())"


class Environment:
    """Environment in the folder `venv`, of the checkout at `root`.

    A set's stamp says that it is there as a whole. Stamps are removed before packages change and written when all is on
    disk. An environment without a stamp was not finished, for instance because of a power cut. It is made again from
    nothing, which takes seconds with uv's cache.
    """

    def __init__(self, root: Path, venv: Path, interpreter: Path) -> None:
        """`interpreter` is the Python of the system that the environment is made with."""
        self._root = root
        self._venv = venv
        self._interpreter = interpreter
        self._project = venv / ".waypost-project"
        self.python = venv / "bin" / "python"

    def ready(self, sets: Sequence[PackageSet]) -> bool:
        """Return whether these sets are installed, of the locks as they are now, with this checkout as the project."""
        installed = self._has(PackageSet.DEVELOPMENT) or all(self._has(each) for each in sets)
        return installed and self._read(self._project) == str(self._root)

    def compiled(self) -> bool:
        """Return whether the extension is at least as new as its sources. `bridge.native` compares their digest."""
        try:
            made = (self._root / EXTENSION).stat().st_mtime
        except FileNotFoundError:
            return False
        sources = [self._root / "hatch_build.py"]
        for folder in ("bridge", "edge/broker"):
            sources += (self._root / folder).rglob("*.[ch]")
        return all(path.stat().st_mtime <= made for path in sources)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the environment against other set-ups. Raises SetUpError where this user may not write it."""
        lock = self._venv.with_name(f"{self._venv.name}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("w")
        except OSError as error:
            next_step = f"start once as the owner of {self._root}; or WAYPOST_VENV=DIR puts the environment elsewhere"
            raise SetUpError(f"the environment has to be set up, but {lock}: {error.strerror}", next_step, 2) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waypost: another set-up of this environment is running; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def set_up(self, sets: Sequence[PackageSet], agreed: bool) -> None:
        """Install sets, next to those that are there already. Raises SetUpError.

        Parameters: `agreed`: Debian packages may be installed with sudo without a question.
        """
        began = time.monotonic()
        self._clear()
        whole = [each for each in PackageSet if self._has(each)]
        steps = Steps(self._venv / "setup.log")
        for each in sets:
            say(f"Setting up {ABOUT[each]}, in {self._venv}")
        java = any(each.runs_spark for each in sets) and not debian.has_java()
        debian.install(steps, debian.missing_packages(any(each.compiles for each in sets)), java, agreed)
        wanted = list(dict.fromkeys([*whole, *sets]))
        for stamp in self._venv.glob(".waypost-set-*"):
            stamp.unlink()
        os.sync()
        self._install(steps, wanted)
        os.sync()
        for each in wanted:
            self._stamp(each).write_text(stamp_of(self._root, each))
        self._project.write_text(str(self._root))
        say(f"Ready after {time.monotonic() - began:.0f} s.")

    def compile(self) -> None:
        """Compile the extension. Raises SetUpError."""
        log = self._venv / "compile.log"
        Steps(log).run("C extension", [str(self.python), "-P", str(self._root / "hatch_build.py")])
        (self._root / EXTENSION).touch()  # it may have been there, of these sources

    def _install(self, steps: Steps, wanted: Sequence[PackageSet]) -> None:
        """Bring the environment to exactly these sets."""
        if not self.python.exists():
            steps.run("Python environment", [str(self._interpreter), "-m", "venv", str(self._venv)])
        # Source distributions are built without isolation, with tools from a lock: nothing runs here without a hash.
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        steps.run("Build tools", [*pip, "--require-hashes", "-r", str(self._root / BUILD_LOCK)])
        locks = [BUILD_LOCK, *(each.lock for each in wanted)]
        if any(each.runs_spark for each in wanted) and not debian.has_java():
            locks.append(JRE_LOCK)
        uv = [str(self._venv / "bin" / "uv"), "pip"]
        options = ["--python", str(self.python), "--no-build-isolation"]
        settings = {**os.environ, **self._uv_settings()}
        files = [str(self._root / name) for name in locks]
        steps.run("Python packages", [*uv, "sync", *options, "--require-hashes", *files], settings)
        project = [*uv, "install", *options, "--no-deps", "--offline", "--editable", str(self._root)]
        steps.run("Waypost itself", project, settings)
        if any(each.compiles for each in wanted):
            self.compile()
        has_proton = any(each.brings_proton for each in wanted)
        if has_proton and subprocess.run([str(self.python), "-c", HAS_TLS], check=False).returncode != 0:
            again = f"{uv[0]} cache clean python-qpid-proton; rm -r '{self._venv}'"
            raise SetUpError("Proton was built without TLS", f"install libssl-dev and pkg-config, then: {again}")
        if any(each.runs_spark for each in wanted):
            spark = [str(self.python), "-P", "-m", "spark.setup"]
            steps.run("Spark: Delta connector", [*spark, "install"])
            steps.run("Spark: class archive", [*spark, "archive"])

    def _uv_settings(self) -> dict[str, str]:
        """Return settings of uv and of setuptools: pip's package index and the system's certificates, among others."""
        settings = {
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_SYSTEM_CERTS": "1",
            "UV_COMPILE_BYTECODE": "1",
            "UV_NO_PROGRESS": "1",
            "DIST_EXTRA_CONFIG": str(self._root / "launcher" / "setuptools.cfg"),
        }
        for option, name in (
            ("index-url", "UV_DEFAULT_INDEX"),
            ("extra-index-url", "UV_INDEX"),
            ("find-links", "UV_FIND_LINKS"),
        ):
            for place in (":env:", "global", "install"):
                asked = [str(self.python), "-m", "pip", "config", "get", f"{place}.{option}"]
                found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
                if found:
                    settings[name] = " ".join(found)
                    break
        return {name: value for name, value in settings.items() if name not in os.environ}

    def _clear(self) -> None:
        """Remove the remains of an unfinished set-up. Raises SetUpError for a folder with other files in it."""
        ours = any(self._venv.glob(".waypost*"))
        if self._venv.exists() and not ours and any(self._venv.iterdir()):
            raise SetUpError(
                f"{self._venv} is not empty, and not an environment of Waypost",
                "WAYPOST_VENV must name a folder of its own",
                2,
            )
        if not (any(self._venv.glob(".waypost-set-*")) and self._runs()):
            shutil.rmtree(self._venv, ignore_errors=True)
        self._venv.mkdir(parents=True, exist_ok=True)
        (self._venv / ".waypost").touch()

    def _runs(self) -> bool:
        """Return whether the environment's Python starts. An upgrade may have removed the one that it links to."""
        try:
            return subprocess.run([str(self.python), "-c", "import pip"], check=False).returncode == 0
        except OSError:
            return False

    def _stamp(self, package_set: PackageSet) -> Path:
        return self._venv / f".waypost-set-{package_set.value}"

    def _has(self, package_set: PackageSet) -> bool:
        return self._read(self._stamp(package_set)) == stamp_of(self._root, package_set)

    @staticmethod
    def _read(stamp: Path) -> str:
        try:
            return stamp.read_text()
        except OSError:
            return ""
