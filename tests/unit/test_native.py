"""The hot modules: compiled by set-up, and run only while their sources are what they were."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from bridge import native
from tests.conftest import ROOT

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")

SHOWN = """
import importlib, sys
from bridge import native
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    kind = "source" if type(module.__spec__.loader).__name__ == "SourceFileLoader" else "native"
    print(name, kind, getattr(module, "EDITED", ""))
print(native.found().why)
"""
"""What a fresh process imports, and how."""

AS_USERS_RUN = (
    "tests/conformance", "tests/property/mqtt/test_arrivals.py", "tests/property/mqtt/test_sessions.py",
    "tests/property/fuzz/test_streams.py",
)  # fmt: skip
"""Tests without anything of their own inside the modules: corpora, machines of Hypothesis, streams."""

NAMES = hatch_build.native_modules(ROOT)


def run(*arguments: str, root: Path = ROOT, seconds: float = 60, **environment: str) -> str:
    """Output of Python in a process of its own, on the modules of the checkout at `root`."""
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=root,
        env={**_without(os.environ), "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _without(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in (native.SETTING, "PYTHONPATH")}


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The checkout, where its hot modules are compiled as they are now."""
    here = native.look(native.RECORD, ROOT, "")
    if not here.modules:
        pytest.skip(f"{here.why}: python hatch_build.py native")
    return ROOT


class TestRecord:
    """What is recorded decides what runs."""

    @pytest.fixture
    def record(self, tmp_path: Path) -> Path:
        """Of a library that was made of one source."""
        (tmp_path / "one.py").write_text("ONE = 1\n")
        (tmp_path / "library.so").touch()
        self.write(tmp_path)
        return tmp_path / "record.json"

    @staticmethod
    def write(folder: Path, **other: Any) -> None:
        digest = sha256((folder / "one.py").read_bytes()).hexdigest()
        said = {
            "library": "library.so", "python": EXTENSION_SUFFIXES[0], "mypyc": "2", "modules": ["one"],
            "sources": {"one.py": digest},
        }  # fmt: skip
        (folder / "record.json").write_text(json.dumps({**said, **other}))

    @pytest.mark.parametrize("setting", ["", "native"])
    def test_what_is_whole_runs(self, record: Path, setting: str) -> None:
        here = native.look(record, record.parent, setting)
        assert (here.modules, here.path, here.why) == ({"one"}, record.parent / "library.so", "")
        assert not here.fallen_back

    def test_python_on_request(self, record: Path) -> None:
        here = native.look(record, record.parent, "python")
        assert (here.modules, here.why, here.fallen_back) == (frozenset(), "WAYPOST_MODULES=python", False)

    def test_an_edited_source_is_what_runs(self, record: Path) -> None:
        with (record.parent / "one.py").open("a") as source:
            source.write("# one more\n")
        here = native.look(record, record.parent, "")
        assert (here.modules, here.why) == (frozenset(), "one.py has changed since they were compiled")
        assert here.fallen_back

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("library.so", "library.so is missing"),
            ("one.py", "one.py is missing"),
        ],
    )
    def test_what_is_missing_is_said(self, record: Path, name: str, why: str) -> None:
        (record.parent / name).unlink()
        here = native.look(record, record.parent, "")
        assert (here.modules, here.why, here.fallen_back) == (frozenset(), why, True)

    def test_nobody_compiled_them(self, tmp_path: Path) -> None:
        here = native.look(tmp_path / "record.json", tmp_path, "")
        assert (here.modules, here.why, here.fallen_back) == (frozenset(), "not compiled", False)

    def test_they_could_not_be_compiled(self, record: Path) -> None:
        self.write(record.parent, why="cc: not found")
        here = native.look(record, record.parent, "")
        assert (here.why, here.fallen_back) == ("they could not be compiled: cc: not found", True)

    def test_another_python(self, record: Path) -> None:
        self.write(record.parent, python=".cpython-39-arm-linux-gnueabihf.so")
        assert "another Python" in native.look(record, record.parent, "").why

    @pytest.mark.parametrize(
        "text", ["", "[]", "{}", "\xff", '{"sources": 1}', '{"python": null, "sources": {"a": 1}}']
    )
    def test_half_a_record(self, record: Path, text: str) -> None:
        record.write_text(text, "latin-1")
        here = native.look(record, record.parent, "")
        assert (here.modules, here.fallen_back) == (frozenset(), True)


def test_set_up_has_compiled_them() -> None:
    """Else nothing that follows, and no program that a test starts, says anything of what users run."""
    origin = importlib.metadata.distribution("waypost").read_text("direct_url.json") or "{}"
    if json.loads(origin).get("url") != ROOT.as_uri():
        pytest.skip("another checkout is installed here")
    why = native.look(native.RECORD, ROOT, "").why
    if why.endswith("has changed since they were compiled"):
        pytest.skip(f"{why}: python hatch_build.py native")
    assert why == ""


class TestImport:
    """Fresh processes import them."""

    def test_every_listed_module_is_the_compiled_one(self, compiled: Path) -> None:
        """mypyc's modules import each other without Python's help, so the order counts."""
        for names in (NAMES, sorted(NAMES, reverse=True)):
            *lines, why = run("-c", SHOWN, *names, root=compiled).split("\n")[:-1]
            assert [line.split() for line in lines] == [[name, "native"] for name in names]
            assert why == ""

    def test_python_on_request(self, compiled: Path) -> None:
        shown = run("-c", SHOWN, *NAMES, root=compiled, WAYPOST_MODULES="python")
        assert shown.count(" source ") == len(NAMES)

    def test_an_edit_counts_at_once(self, compiled: Path, tmp_path: Path) -> None:
        _copy(compiled, tmp_path)
        with (tmp_path / f"{NAMES[0].replace('.', '/')}.py").open("a") as edited:
            edited.write("\nEDITED = 'edited'\n")
        first, why = run("-c", SHOWN, NAMES[0], root=tmp_path).splitlines()
        assert first.split() == [NAMES[0], "source", "edited"]
        assert "has changed" in why

    def test_a_file_that_is_no_library(self, compiled: Path, tmp_path: Path) -> None:
        _copy(compiled, tmp_path)
        (library,) = tmp_path.glob("bridge/_native_*.so")
        library.write_bytes(b"\x7fELF" + bytes(60))
        first, why = run("-c", SHOWN, NAMES[0], root=tmp_path).splitlines()
        assert first.split() == [NAMES[0], "source"]
        assert "cannot be loaded" in why

    @pytest.mark.timeout(600)
    def test_they_pass_what_the_sources_pass(self, compiled: Path, tmp_path: Path) -> None:
        arguments = ("-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path}", *AS_USERS_RUN)
        said = run(*arguments, root=compiled, seconds=500, WAYPOST_MODULES="native")
        assert "hot modules: native in this process" in said


def test_what_may_be_compiled_can_be_found() -> None:
    """Their packages import the finder before them."""
    for name in NAMES:
        assert name.startswith(("bridge.engine.", "bridge.transport.", "edge.broker.")), name
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), name


def _derived_outside(path: Path) -> list[str]:
    """Classes of a module whose base comes from a listed one."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in NAMES]
    listed = {name.asname or name.name for node in imports for name in node.names}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [each.name for each in classes if listed & {ast.unparse(base).partition("[")[0] for base in each.bases}]


def test_what_is_derived_from_a_compiled_class_is_compiled() -> None:
    """A Python class cannot have a native base: to make one is a TypeError, but only where modules are compiled."""
    sources = [path for folder in ("bridge", "edge", "cloud") for path in (ROOT / folder).rglob("*.py")]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources}
    assert {
        name: found for path, name in names.items() if name not in NAMES and (found := _derived_outside(path))
    } == {}


def _copy(checkout: Path, root: Path) -> None:
    for folder in ("bridge", "edge", "cloud", "tests"):
        shutil.copytree(checkout / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(checkout / name, root)


BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import hatch_build
print(hatch_build.compile_native(Path(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled by two at once: one of them waits, and finds it done."""
    root = tmp_path_factory.mktemp("project")
    (root / "bridge").mkdir()
    (root / "bridge/__init__.py").touch()
    (root / "bridge/limits.py").write_text("MOST: int = 3\n")
    (root / "bridge/near.py").write_text("from typing import Final\nNEAR: Final = 2\n")
    (root / "bridge/sample.py").write_text(
        "from bridge.limits import MOST\nfrom bridge.near import NEAR\n\n"
        "def most() -> int:\n    return int(MOST) * NEAR\n"
    )
    (root / "pyproject.toml").write_text('[tool.waypost]\nnative = ["bridge.sample"]\n')
    shutil.copy(ROOT / "bridge/native.py", root / "bridge")
    program = [sys.executable, "-P", "-c", BUILD, str(ROOT), str(root)]
    both = [subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        said = [process.communicate(timeout=110)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    return root


@needs_compiler
class TestBuild:
    """A project of one module."""

    def test_it_runs_and_its_limits_are_looked_up(self, made: Path) -> None:
        shown = run("-c", "import bridge.native, bridge.sample as s; print(s.__spec__.loader, s.most())", root=made)
        assert "NativeLoader" in shown
        assert shown.endswith(" 6\n")
        said = json.loads((made / "bridge/_native.json").read_text())
        assert sorted(said["sources"]) == ["bridge/near.py", "bridge/sample.py"]

    def test_nothing_is_left_beside_it_and_it_is_made_once(self, made: Path) -> None:
        record, library = hatch_build.compile_native(made)
        assert sorted(made.glob("bridge/_native*")) == sorted([record, library])
        assert hatch_build.compile_native(made) == [record, library]

    def test_without_a_compiler_what_is_there_stays(
        self, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(made, tmp_path, dirs_exist_ok=True)
        with (tmp_path / "bridge/sample.py").open("a") as source:
            source.write("OTHER = 1\n")
        before = sorted(tmp_path.glob("bridge/_native*"))
        monkeypatch.setenv("CC", "no-such-compiler")
        with pytest.raises(hatch_build.CompileError, match="no-such-compiler"):
            hatch_build.compile_native(tmp_path)
        assert sorted(tmp_path.glob("bridge/_native*")) == before
        why = native.look(tmp_path / "bridge/_native.json", tmp_path, "").why
        assert "could not be compiled" in why
        assert "no-such-compiler" in why

    def test_memory_bounds_compilers_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 3)
        monkeypatch.setattr(hatch_build, "COMPILER_BYTES", 1)
        assert hatch_build._compilers_at_once() == 3
        monkeypatch.setattr(hatch_build, "COMPILER_BYTES", 1 << 60)
        assert hatch_build._compilers_at_once() == 1

    def test_what_mypyc_refuses_is_said(self, made: Path, tmp_path: Path) -> None:
        shutil.copytree(made, tmp_path, dirs_exist_ok=True)
        (tmp_path / "bridge/sample.py").write_text("def most() -> int:\n    return 'none'\n")
        with pytest.raises(hatch_build.CompileError, match="Incompatible return value"):
            hatch_build.compile_native(tmp_path)
