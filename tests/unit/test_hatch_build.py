"""The compiled inner loops: made by installing, found by the engine, and said when they are not there."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from bridge import batch_content
from bridge.engine import choice, compiled
from edge.broker.mqtt import arrivals, departures
from edge.broker.store import loops as store_loops
from tests.conftest import ROOT
from tests.support.loops import LOOPS

INCLUDED = Path("bridge", "stable_interface.h")
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
    def test_without_a_compiler_installing_goes_on_and_says_so(
        self, checkout: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CC", compiler)
        said, (warning,) = install(checkout, "standard")
        assert said == {"artifacts": []}
        assert "in Python" in warning
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

    def test_those_who_load_them_and_the_build_name_them_alike(self) -> None:
        named = [hatch_build.library_path(ROOT / source) for source in hatch_build.SOURCES]
        ours = [batch_content, compiled, arrivals, departures, store_loops]
        assert named == [module.library_path() for module in ours]

    def test_it_is_there_where_this_checkout_is_installed(self) -> None:
        origin = importlib.metadata.distribution("waypost").read_text("direct_url.json") or "{}"
        if json.loads(origin).get("url") != ROOT.as_uri():
            pytest.skip("another checkout is installed here")
        if shutil.which("cc") is None:
            pytest.skip("no compiler")
        assert choice.choose({}).name == "C"


class TestChoice:
    @needs_compiler
    def test_what_is_there_runs(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "SOURCE", checkout / LOOPS)
        hatch_build.compile_loops(checkout)
        for setting in ({}, {"WAYPOST_ENGINE": ""}, {"WAYPOST_ENGINE": "c"}):
            chosen = choice.choose(setting)
            assert (type(chosen.loops), chosen.name, chosen.why) == (compiled.CompiledLoops, "C", "")
            assert not chosen.fallen_back

    def test_python_on_request(self) -> None:
        chosen = choice.choose({"WAYPOST_ENGINE": "python"})
        assert (chosen.name, chosen.why, chosen.fallen_back) == ("Python", "WAYPOST_ENGINE=python", False)

    def test_a_setting_that_means_nothing(self) -> None:
        with pytest.raises(ValueError, match="WAYPOST_ENGINE=rust is neither c nor python"):
            choice.choose({"WAYPOST_ENGINE": "rust"})

    def test_not_compiled(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "SOURCE", checkout / LOOPS)
        chosen = choice.choose({})
        assert (chosen.name, chosen.fallen_back) == ("Python", True)
        assert "not compiled" in chosen.why

    def test_a_file_that_is_no_library(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "SOURCE", checkout / LOOPS)
        hatch_build.library_path(checkout / LOOPS).write_bytes(b"\x7fELF" + bytes(60))
        chosen = choice.choose({})
        assert (chosen.name, chosen.fallen_back) == ("Python", True)
        assert "_loops_" in chosen.why

    @needs_compiler
    def test_a_library_without_our_functions(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "SOURCE", checkout / LOOPS)
        compiled.SOURCE.write_text("int waypost_collect(void) { return 0; }\n")
        hatch_build.compile_loops(checkout)
        assert "has no waypost_" in choice.choose({}).why

    def test_without_the_source_it_is_said_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "SOURCE", tmp_path / "loops.c")
        assert "loops.c" in choice.choose({}).why

    def test_the_log_says_it_once(
        self, checkout: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(compiled, "SOURCE", checkout / LOOPS)
        monkeypatch.delenv("WAYPOST_ENGINE", raising=False)
        choice.choice.cache_clear()
        try:
            with caplog.at_level(logging.WARNING):
                assert choice.choice() is choice.choice()
            (record,) = caplog.records
            assert "run in Python" in record.getMessage()
        finally:
            choice.choice.cache_clear()
