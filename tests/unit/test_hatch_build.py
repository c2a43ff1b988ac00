"""The C extension: installing compiles it, and a missing one gives a clear error."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from bridge import native
from tests.conftest import ROOT

CONTENT = Path("bridge", "batch_content.c")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a project with the C files, the loader of the extension, and nothing else."""
    for name in (*hatch_build.SOURCES, "bridge/native.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    (tmp_path / "bridge/__init__.py").touch()
    return tmp_path


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile an extension of the present sources, with compiler warnings as errors."""
    root = tmp_path_factory.mktemp("compiled")
    for name in hatch_build.SOURCES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -Werror")
        return hatch_build.compile_extension(root)


def install(root: Path, version: str) -> dict[str, Any]:
    """Return the data that the hook passes to hatchling."""
    hook = hatch_build.ExtensionHook(str(root), {}, None, None, "", "wheel", None)  # type: ignore[arg-type]
    told: dict[str, Any] = {"artifacts": []}
    hook.initialize(version, told)
    return told


def loaded(root: Path) -> str:
    """Return how a fresh process loads the extension of a checkout: "loaded", or the last two lines of its error."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import bridge.native; print('loaded')"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-2:])


@needs_compiler
class TestBuild:
    def test_wheel_contains_the_extension_for_later_pythons(self, checkout: Path, compiled: Path) -> None:
        shutil.copy(compiled, checkout / hatch_build.EXTENSION)
        told = install(checkout, "standard")
        tag = told.pop("tag")
        assert told == {"artifacts": ["/bridge/_native.abi3.so"], "pure_python": False}
        assert tag.startswith("cp311-abi3-linux_")

    def test_checkout_builds_it_once_and_after_a_change(self, checkout: Path) -> None:
        assert install(checkout, "editable") == {"artifacts": []}
        extension = checkout / hatch_build.EXTENSION
        first = extension.stat().st_mtime_ns
        hatch_build.compile_extension(checkout)
        assert extension.stat().st_mtime_ns == first
        with (checkout / CONTENT).open("a") as source:
            source.write("/* newer */\n")
        hatch_build.compile_extension(checkout)
        assert extension.stat().st_mtime_ns != first
        assert loaded(checkout) == "loaded"
        assert sorted(path.name for path in extension.parent.glob("_native*")) == [extension.name]

    @pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "sh -c 'echo broken >&2; exit 1'"])
    def test_missing_compiler_installs_nothing(
        self, checkout: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(hatch_build.CompileError):
            install(checkout, "standard")
        assert not list(checkout.glob("bridge/_native*"))

    def test_invalid_source_is_an_error(self, checkout: Path) -> None:
        (checkout / CONTENT).write_text("int fault(int x) { return y; }\n")
        with pytest.raises(hatch_build.CompileError, match="undeclared"):
            hatch_build.compile_extension(checkout)

    def test_missing_source_is_an_error(self, checkout: Path) -> None:
        (checkout / CONTENT).unlink()
        with pytest.raises(hatch_build.CompileError, match=CONTENT.name):
            hatch_build.compile_extension(checkout)

    def test_every_c_file_is_compiled(self) -> None:
        found = (path for package in ("bridge", "edge") for path in (ROOT / package).rglob("*.[ch]"))
        assert sorted(path.relative_to(ROOT).as_posix() for path in found) == sorted(hatch_build.SOURCES)

    def test_build_and_load_compute_the_same_digest(self) -> None:
        assert native.functions.SOURCES.split() == list(hatch_build.SOURCES)
        assert native.digest_of(ROOT, hatch_build.SOURCES) == hatch_build.digest_of(ROOT)

    def test_only_the_initializer_is_exported(self, compiled: Path) -> None:
        """The compiler has already checked that it uses only the limited API of Python."""
        names = subprocess.run(["nm", "-D", "--defined-only", compiled], capture_output=True, text=True, check=True)
        assert [line.split()[-1] for line in names.stdout.splitlines()] == ["PyInit__native"]


@needs_compiler
class TestLoading:
    def test_current_extension_is_loaded(self, checkout: Path, compiled: Path) -> None:
        shutil.copy(compiled, checkout / hatch_build.EXTENSION)
        assert loaded(checkout) == "loaded"

    def test_extension_without_sources_is_loaded(self, checkout: Path, compiled: Path) -> None:
        """A frozen gateway has no sources."""
        shutil.copy(compiled, checkout / hatch_build.EXTENSION)
        for name in hatch_build.SOURCES:
            (checkout / name).unlink()
        assert loaded(checkout) == "loaded"

    def test_missing_extension_raises(self, checkout: Path) -> None:
        assert "ExtensionUnusable: the C extension bridge._native is missing" in loaded(checkout)
        assert "compile it (python hatch_build.py in the checkout)" in loaded(checkout)

    def test_outdated_extension_raises(self, checkout: Path, compiled: Path) -> None:
        shutil.copy(compiled, checkout / hatch_build.EXTENSION)
        with (checkout / CONTENT).open("a") as source:
            source.write("/* newer */\n")
        assert "ExtensionUnusable: the C extension bridge._native is older than its C source" in loaded(checkout)
        assert "compile it (python hatch_build.py in the checkout)" in loaded(checkout)

    def test_invalid_library_raises(self, checkout: Path) -> None:
        (checkout / hatch_build.EXTENSION).write_bytes(b"\x7fELF" + bytes(60))
        assert "ExtensionUnusable: the C extension bridge._native is missing or cannot be loaded" in loaded(checkout)

    def test_this_checkout_has_its_extension(self) -> None:
        origin = importlib.metadata.distribution("waypost").read_text("direct_url.json") or "{}"
        if json.loads(origin).get("url") != ROOT.as_uri():
            pytest.skip("another checkout is installed here")
        assert native.digest_of(ROOT, hatch_build.SOURCES) == native.functions.DIGEST
