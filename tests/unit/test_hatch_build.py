"""The C code: compiled by installing, found where it is used, and missed with a clear error."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from bridge import libraries as bridge_libraries
from tests.conftest import ROOT

INCLUDED = Path("bridge", "stable_interface.h")
LOOPS = Path("bridge", "engine", "loops.c")
CONTENT = Path("bridge", "batch_content.c")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")


class Application:
    """hatchling's, as far as a hook talks to it."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project that holds the loops and nothing else."""
    for path in (*hatch_build.SOURCES, INCLUDED):
        source = tmp_path / path
        source.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source)
    return tmp_path


def install(root: Path, version: str) -> tuple[dict[str, Any], list[str]]:
    application = Application()
    hook = hatch_build.LoopsHook(str(root), {}, None, None, "", "wheel", application)  # type: ignore[arg-type]
    said: dict[str, Any] = {"artifacts": []}
    hook.initialize(version, said)
    return said, application.warnings


def libraries(root: Path) -> list[str]:
    folders = {(root / source).parent for source in hatch_build.SOURCES}
    found = (path for folder in folders for path in folder.iterdir())
    return sorted(path.relative_to(root).as_posix() for path in found if path.suffix not in (".c", ".h", ""))


class TestBuild:
    @needs_compiler
    def test_a_wheel_holds_the_libraries_and_is_of_this_machine(self, checkout: Path) -> None:
        said, warnings = install(checkout, "standard")
        made = [f"/{path}" for path in libraries(checkout)]
        assert len(made) == len(hatch_build.SOURCES)
        assert sorted(said.pop("artifacts")) == sorted(made)
        assert said == {"pure_python": False, "infer_tag": True}
        assert warnings == []

    @needs_compiler
    def test_a_checkout_gets_it_once_and_again_when_the_source_changes(self, checkout: Path) -> None:
        assert install(checkout, "editable") == ({"artifacts": []}, [])
        first = libraries(checkout)
        made = [(checkout / path).stat().st_mtime_ns for path in first]
        assert [path.stat().st_mtime_ns for path in hatch_build.compile_loops(checkout)] == made
        with (checkout / LOOPS).open("a") as source:
            source.write("/* newer */\n")
        install(checkout, "editable")
        second = libraries(checkout)
        assert (len(second), len({*first, *second})) == (len(first), len(first) + 1)

    @pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "sh -c 'echo broken >&2; exit 1'"])
    def test_without_a_compiler_nothing_is_installed(
        self, checkout: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(hatch_build.CompileError):
            install(checkout, "standard")
        assert libraries(checkout) == []

    @needs_compiler
    def test_source_with_a_fault_is_an_error(self, checkout: Path) -> None:
        (checkout / LOOPS).write_text("int fault(int x) { return y; }\n")
        with pytest.raises(hatch_build.CompileError, match="undeclared"):
            hatch_build.compile_loops(checkout)

    @needs_compiler
    def test_no_compiler_warns(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Here a warning is an error; where it is installed a newer compiler's may not be."""
        monkeypatch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -Werror")
        assert all(library.exists() for library in hatch_build.compile_loops(checkout))

    def test_the_build_and_those_that_load_name_a_library_alike(self) -> None:
        for source in hatch_build.SOURCES:
            assert hatch_build.library_path(ROOT / source) == bridge_libraries.library_path(ROOT / source)


@needs_compiler
class TestLoading:
    def test_what_is_there_is_loaded(self, checkout: Path) -> None:
        hatch_build.compile_loops(checkout)
        assert callable(bridge_libraries.entry_of(checkout / CONTENT, "waypost_batch_content")())

    def test_not_compiled(self, checkout: Path) -> None:
        self.fails(checkout, "batch_content.c was not compiled")

    def test_older_than_its_source(self, checkout: Path) -> None:
        hatch_build.compile_loops(checkout)
        with (checkout / CONTENT).open("a") as source:
            source.write("/* newer */\n")
        self.fails(checkout, "batch_content.c has changed since it was compiled")

    def test_a_file_that_is_no_library(self, checkout: Path) -> None:
        hatch_build.library_path(checkout / CONTENT).write_bytes(b"\x7fELF" + bytes(60))
        self.fails(checkout, "cannot be loaded")

    def test_a_library_without_our_functions(self, checkout: Path) -> None:
        (checkout / CONTENT).write_text("int waypost_other(void) { return 0; }\n")
        hatch_build.compile_loops(checkout)
        self.fails(checkout, "has no waypost_batch_content")

    def test_without_the_source(self, checkout: Path) -> None:
        (checkout / CONTENT).unlink()
        self.fails(checkout, "batch_content.c")

    @staticmethod
    def fails(checkout: Path, why: str) -> None:
        with pytest.raises(bridge_libraries.ExtensionUnusable, match=why):
            bridge_libraries.entry_of(checkout / CONTENT, "waypost_batch_content")
