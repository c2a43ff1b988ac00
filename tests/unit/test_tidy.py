"""The rules of the project as tests: linters, types, import layers, and rules that no linter has."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from tests.demo.cli import FOLDER
from tests.support.checkout import ROOT, files, modules, texts
from tests.support.ownership import Program, import_circles, is_refused

PACKAGES = ("bridge", "edge", "cloud", "spark", "images", "simulator")
"""Import packages, exactly those in the wheel."""
LOCKS = tuple(
    f"requirements{part}.lock" for part in ("", "-gateway", "-hub", "-analytics", "-images", "-build", "-jre", "-docs")
)
TOP_LEVEL = {
    *PACKAGES, "docs", "firmware_examples", "launcher", "tests",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "Makefile", "pyproject.toml",
    "hatch_build.py", "waypost",
    *LOCKS,
    ".ci", ".editorconfig", ".gitattributes", ".github", ".gitignore", ".importlinter", ".pre-commit-config.yaml",
}  # fmt: skip
CLASS_LINES_MAX = 480
FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS: dict[str, str] = {}
"""``path:function`` above the limit, and the reason."""
RUNTIME_ONLY = {
    "cryptography": "signatures of bearer tokens, through PyJWT",
    "delta-spark": "its jars are loaded by the JVM, its Python API is optional",
    "obstore": "lakes on object stores, through `cloud.place`",
    "numpy": "asked for by pyspark.sql",
    "pandas": "asked for by pyspark.sql",
    "pytz": "times with a zone, as DuckDB hands them over",
    "uvicorn": "its standard loop",
}
"""Distributions that are declared without an import, and their user."""
OPTIONAL_ATTRIBUTES = {
    "bridge/tls_refusal.py:reason": "of an error",
    "bridge/transport/websocket.py:event_hint": "of an error of wsproto",
    "edge/broker/http/messages.py:status": "of an error",
    "edge/broker/security/issuer_requests.py:reason": "of an error",
    "edge/broker/store/faults.py:sqlite_errorcode": "of an error",
    "edge/broker/store/faults.py:sqlite_errorname": "of an error",
}
"""``path:name`` of attributes that foreign objects may lack; objects of the project follow their interface."""


FROM_TESTS = re.compile(r"^ *(?:from (tests[\w.]*) import (\([^)]*\)|[^\n]*)|import (tests\.[\w.]+))", re.MULTILINE)
"""Imports of test code: the module and the names, or the module."""
IMPORTING_TEST_MODULES: frozenset[str] = frozenset(
    {
        "tests/contract/registry/test_forgotten.py",
        "tests/contract/registry/test_older_copy.py",
        "tests/integration/test_console_page.py",
        "tests/property/amqp/test_loops_agree.py",
        "tests/property/bridge/test_batch_content.py",
        "tests/property/broker/test_anycast.py",
        "tests/property/broker/test_queue.py",
        "tests/property/broker/test_topics.py",
        "tests/property/fuzz/corpus.py",
        "tests/property/fuzz/test_lanes.py",
        "tests/property/fuzz/test_parsers.py",
        "tests/property/fuzz/test_streams.py",
        "tests/property/http/test_any_bytes.py",
        "tests/property/mqtt/test_arrivals.py",
        "tests/spark/decoding/test_protobuf.py",
        "tests/spark/decoding/test_sparkplug.py",
        "tests/spark/sparkplug_node.py",
        "tests/spark/test_clocks.py",
        "tests/spark/test_completeness.py",
        "tests/spark/test_health.py",
        "tests/spark/test_last_births.py",
        "tests/spark/test_outages.py",
        "tests/spark/test_replay.py",
        "tests/unit/amqp/test_addressing.py",
        "tests/unit/amqp/test_loops.py",
        "tests/unit/amqp/test_subscriptions.py",
        "tests/unit/bridge/connectors/test_mqtt_versions.py",
        "tests/unit/bridge/test_dialed.py",
        "tests/unit/bridge/test_downlink.py",
        "tests/unit/bridge/test_pace.py",
        "tests/unit/bridge/test_slices.py",
        "tests/unit/bridge/test_tls.py",
        "tests/unit/bridge/test_uplink_lanes.py",
        "tests/unit/broker/test_absent_subscriptions.py",
        "tests/unit/broker/test_answers.py",
        "tests/unit/broker/test_attempts.py",
        "tests/unit/broker/test_commands.py",
        "tests/unit/broker/test_data_budget.py",
        "tests/unit/broker/test_feeds.py",
        "tests/unit/broker/test_forwarding.py",
        "tests/unit/broker/test_held_for_consumer.py",
        "tests/unit/broker/test_lanes.py",
        "tests/unit/broker/test_memory.py",
        "tests/unit/broker/test_queue.py",
        "tests/unit/broker/test_space.py",
        "tests/unit/broker/test_sweep.py",
        "tests/unit/broker/test_unrouted.py",
        "tests/unit/broker/test_unused_subscriptions.py",
        "tests/unit/cloud/test_command_service.py",
        "tests/unit/configuration/test_completion.py",
        "tests/unit/configuration/test_connectors.py",
        "tests/unit/configuration/test_loops.py",
        "tests/unit/console/test_alerts.py",
        "tests/unit/hono/test_exactly_once.py",
        "tests/unit/http/test_audit.py",
        "tests/unit/listeners/test_given_back.py",
        "tests/unit/listeners/web/test_connection.py",
        "tests/unit/listeners/web/test_lazy_server.py",
        "tests/unit/mqtt/test_absent_consumers.py",
        "tests/unit/mqtt/test_absent_sessions.py",
        "tests/unit/mqtt/test_cut_off.py",
        "tests/unit/mqtt/test_enhanced.py",
        "tests/unit/mqtt/test_outcomes.py",
        "tests/unit/mqtt/test_retained_delivery.py",
        "tests/unit/mqtt/test_subscribing_again.py",
        "tests/unit/mqtt/test_subscribing_to_many.py",
        "tests/unit/test_next_steps.py",
    }
)
"""Files that still import from a module of tests. The list may only become shorter."""

ASSIGNED_FROM_OUTSIDE: dict[str, str] = {}
"""``path:target`` of attributes that a library wants assigned to objects of other modules, and the reason."""


def command(*arguments: str, seconds: int = 300) -> None:
    """Run a tool of this environment on the checkout; fail with its output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module of the product, by path."""
    return {path: ast.parse(text) for path, text in modules(*PACKAGES)}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirement_name(requirement: str) -> str:
    """Return the normalised name: ``Delta_Spark==4`` → ``delta-spark``."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[._]", "-", found[0].lower())


class Classes:
    """The classes of modules, by full name; bases are resolved through imports and re-exports."""

    def __init__(self, sources: Iterable[tuple[str, ast.Module]]) -> None:
        """Read (path, syntax tree) of each module."""
        self._bodies: dict[str, tuple[int, list[str]]] = {}
        self._imported: dict[str, str] = {}
        for path, tree in sources:
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        self._imported[f"{module}.{alias.asname or alias.name}"] = f"{node.module}.{alias.name}"
                elif isinstance(node, ast.ClassDef):
                    bases = [f"{module}.{ast.unparse(base).partition('[')[0]}" for base in node.bases]
                    self._bodies[f"{module}.{node.name}"] = (node.end_lineno or 0) - node.lineno + 1, bases

    def lines(self) -> dict[str, int]:
        """Return the lines of each class together with its bases."""
        return {name: self._lines(name) for name in self._bodies}

    def _lines(self, name: str) -> int:
        while name not in self._bodies and name in self._imported:
            name = self._imported[name]
        own, bases = self._bodies.get(name, (0, []))
        return own + sum(map(self._lines, bases))


def test_base_class_is_found_by_its_module() -> None:
    sources = {
        "a/__init__.py": "from a.b import C",
        "a/b.py": "class C:\n    pass",
        "m.py": "from a import C\n\nclass D(C):\n    pass\n\nclass E(D, x.F[int]):\n    pass",
        "n.py": "class C(Other):\n    pass",
    }
    parsed = [(path, ast.parse(text)) for path, text in sources.items()]
    assert Classes(parsed).lines() == {"a.b.C": 2, "m.D": 4, "m.E": 6, "n.C": 2}


class TestLinters:
    """Checks by external tools."""

    def test_ruff_check_passes(self) -> None:
        command("-m", "ruff", "check", "--no-fix", "--quiet", ".")

    def test_ruff_format_passes(self) -> None:
        command("-m", "ruff", "format", "--check", "--quiet", ".")

    @pytest.mark.timeout(600)
    def test_mypy_passes(self) -> None:
        command("-m", "mypy", "--no-error-summary", seconds=600)

    def test_import_layers_are_respected(self) -> None:
        command("-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache")


class TestCode:
    """Sizes and words."""

    def test_classes_are_short(self) -> None:
        """A base class of the product counts with the class itself: a split by inheritance makes an object no
        shorter."""
        long = {name: lines for name, lines in Classes(trees().items()).lines().items() if lines > CLASS_LINES_MAX}
        assert not long, "compose them of parts"

    def test_functions_are_short(self) -> None:
        long = []
        for path, tree in trees().items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or 0) - node.lineno + 1
                    if lines > FUNCTION_LINES_MAX and f"{path}:{node.name}" not in LONG_FUNCTIONS:
                        long.append(f"{path}:{node.name} has {lines} lines")
        assert not long

    def test_modules_have_docstrings(self) -> None:
        silent = [path for path, tree in trees().items() if tree.body and ast.get_docstring(tree) is None]
        assert not silent

    def test_optional_behaviour_has_a_default(self) -> None:
        found = set()
        for path, tree in trees().items():
            if path.startswith(("bridge/", "edge/broker/", "cloud/hub/")):
                for node in ast.walk(tree):
                    match node:
                        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
                            found.add(f"{path}:{name}")
        assert found == set(OPTIONAL_ATTRIBUTES), "give the interface a member with a default"

    def test_objects_get_their_parts_by_constructor(self) -> None:
        """A module gives parts to an object of another package by constructor or method, and hooks always so."""
        program = Program(trees())
        refused = {f"{each.path}:{each.target}" for each in program.assignments() if is_refused(program, each)}
        assert refused == set(ASSIGNED_FROM_OUTSIDE), "give it by constructor or by a method"

    def test_modules_import_each_other_in_one_direction(self) -> None:
        """Imports for types count too: a module must not name the class above it."""
        assert not import_circles(trees())

    def test_modules_of_tests_are_not_imported(self) -> None:
        """Helpers of several test modules stand in `tests/support`, or in a module of their folder without tests."""
        importing = {
            path
            for path, text in modules("tests")
            if any(
                name.startswith("test_")
                for found in FROM_TESTS.finditer(text)
                for name in re.findall(r"\w+", " ".join(filter(None, found.groups())))
            )
        }
        assert importing <= IMPORTING_TEST_MODULES, "move the helper to a module without tests"

    def test_no_marks_of_unfinished_work(self) -> None:
        marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)")
        found = [path for path, text in texts(without=Path(__file__)) if marks.search(text)]
        assert not found

    def test_no_paths_of_one_machine(self) -> None:
        places = re.compile(r"(?<![\w./$}-])/(home|Users|work|root)/\w")
        found = [f"{path}: {hit[0]}" for path, text in texts(without=Path(__file__)) for hit in places.finditer(text)]
        assert not found

    def test_decisions_have_numbers_of_their_own(self) -> None:
        """A record is cited by its number."""
        found = [path for path in files() if path.parent.name == "decisions" and path.name.startswith("0")]
        for folder in {path.parent for path in found}:
            records = sorted(path for path in found if path.parent == folder)
            numbers = [path.name[:4] for path in records]
            assert len(numbers) == len(set(numbers)), [path.name for path in records]
            assert [path.read_text().removeprefix("# ")[:4] for path in records] == numbers


class TestShell:
    """Scripts stop at the first failure."""

    def test_scripts_are_strict(self) -> None:
        wrong = []
        for path, text in texts(without=Path(__file__)):
            if re.match(r"#!/bin/(ba)?sh|#!/usr/bin/env (ba)?sh", text):
                if not re.search(r"^set -eu(o pipefail)?$", text, re.MULTILINE):
                    wrong.append(f"{path}: no set -eu")
                if not os.access(ROOT / path, os.X_OK):
                    wrong.append(f"{path}: not executable")
        assert not wrong

    def test_launcher_is_posix(self) -> None:
        assert (ROOT / "waypost").read_text().startswith("#!/bin/sh\n")
        subprocess.run(["/bin/sh", "-n", str(ROOT / "waypost")], check=True)


class TestPackaging:
    """One project, its packages by name, its dependencies pinned with hashes and without addresses."""

    def test_top_level_has_only_known_entries(self) -> None:
        assert {path.relative_to(ROOT).parts[0] for path in files()} <= TOP_LEVEL

    def test_no_compiled_files_are_tracked(self) -> None:
        assert not [path for path in files() if path.suffix in {".so", ".o", ".a", ".pyc"}]

    def test_every_package_is_named(self) -> None:
        assert project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == list(PACKAGES)
        assert project()["tool"]["mypy"]["packages"] == ["launcher", *PACKAGES, "tests.demo", "docs.generate"]
        for path, _ in modules(*PACKAGES):
            assert (ROOT / path).parent.joinpath("__init__.py").exists(), f"{path} is in no package"

    def test_license_is_complete(self) -> None:
        text = (ROOT / "LICENSE").read_text()
        assert "Apache License" in text
        assert "Version 2.0, January 2004" in text
        assert "END OF TERMS AND CONDITIONS" in text
        assert project()["project"]["license"] == "Apache-2.0"

    def test_version_is_stated_once(self) -> None:
        assert project()["tool"]["hatch"]["version"]["path"] == "bridge/version.py"
        assert "version" not in project()["project"]

    @pytest.mark.parametrize("name", LOCKS)
    def test_locks_pin_with_hashes_and_name_no_address(self, name: str) -> None:
        text = (ROOT / name).read_text()
        assert not re.search(r"://|^-|--(index-url|extra-index-url|find-links|trusted-host)| @ ", text, re.MULTILINE)
        for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
            assert re.match(r"[a-z0-9._-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry

    def test_locks_agree_with_each_other_and_with_the_project(self) -> None:
        pins: dict[str, str] = {}
        for name in LOCKS:
            for package, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE):
                assert pins.setdefault(requirement_name(package), version) == version, f"{package} in {name}"
        extras = project()["project"]["optional-dependencies"]
        wanted = [*project()["project"]["dependencies"], *(item for items in extras.values() for item in items)]
        assert {requirement_name(item) for item in wanted} <= set(pins)

    def test_no_registry_is_named_anywhere(self) -> None:
        hosts = re.compile(r"https?://[\w.-]*(pypi|pythonhosted|maven|npmjs|crates\.io|debian\.org/debian|golang\.org)")
        found = [f"{path}: {hit[0]}" for path, text in texts(without=Path(__file__)) for hit in hosts.finditer(text)]
        assert not found

    def test_extras_agree_on_ranges(self) -> None:
        ranges: dict[str, str] = {}
        for extra, items in project()["project"]["optional-dependencies"].items():
            for item in items:
                assert extra == "build" or ranges.setdefault(requirement_name(item), item) == item, (extra, item)

    @pytest.mark.parametrize(("extra", "folders"), [
        ("edge", ("bridge", "edge")), ("cloud", ("bridge", "edge", "cloud")), ("spark", ("spark",)),
    ])  # fmt: skip
    def test_extras_name_what_is_imported(self, extra: str, folders: tuple[str, ...]) -> None:
        metadata = project()["project"]
        declared = {requirement_name(item) for item in metadata["optional-dependencies"][extra]}
        base = {requirement_name(item) for item in metadata["dependencies"]}
        used = needed = third_party_imports(folders)
        if extra == "edge":  # a gateway that forwards to Kafka has the extra of that name
            needed = third_party_imports(folders, but=("bridge/connectors/kafka",))
        if extra == "cloud":  # a hub dials no peer, and one that passes messages on to Kafka has the extra of that name
            but = ("bridge/connectors", "cloud/hub/tap")
            needed = third_party_imports(("bridge", "edge/broker", "cloud"), but=but)
        assert needed - base <= declared, "imported and not declared"
        assert declared - used - set(RUNTIME_ONLY) == set(), "declared and not imported"


def third_party_imports(folders: tuple[str, ...], but: tuple[str, ...] = ()) -> set[str]:
    """Return the distributions that the modules below `folders` import, except modules below `but`."""
    found: set[str] = set()
    for path, needed in imports_of_modules().items():
        if not path.startswith(tuple(f"{folder}/" for folder in folders)):
            continue
        if path.startswith(tuple(f"{folder}/" for folder in but)):
            continue
        found |= needed
    return found


@functools.cache
def imports_of_modules() -> dict[str, set[str]]:
    """Return the imported distributions of each module, by path."""
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for path, tree in trees().items():
        needed = found.setdefault(path, set())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            tops = {name.split(".")[0] for name in names} - set(PACKAGES) - set(sys.stdlib_module_names)
            needed |= {requirement_name(distributions[top][0]) for top in tops}
    return found


@pytest.mark.parametrize("left", [
    time.strftime(f"{FOLDER}/report.html", time.gmtime(0)), "build/waypost-bench-x1/y", "data/hall/store.sqlite",
    "requirements.lock.new", "hs_err_pid7.log", ".venv/x", ".venv.lock",
    ".hypothesis/x", ".pytest_cache/x",
])  # fmt: skip
def test_git_ignores_files_that_commands_leave(left: str) -> None:
    """Files of the demo, the benchmarks, the README's examples, set-up, tests and a JVM, kept or left by a kill."""
    try:
        ignored = subprocess.run(["git", "check-ignore", "-q", left], cwd=ROOT, check=False).returncode
    except OSError:
        pytest.skip("there is no git")
    if ignored == 128:
        pytest.skip("this is no checkout")
    assert ignored == 0
