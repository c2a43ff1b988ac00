"""Common set-up of all tests: one Hypothesis profile, and a clean environment."""

from __future__ import annotations

import gc
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests import DEFAULT_MARKS
from tests.support.examples import examples
from tests.support.postgres import Postgres, binaries
from tests.support.scheduling import SessionScheduling, run_order

ROOT = Path(__file__).parent.parent
"""The checkout."""

# No deadline: wall time of one example depends more on other load of a shared machine than on the code. A failing
# example prints the line that replays it. Every run uses the same examples, so that a failing run points to a change;
# WAYPOST_SEED=random chooses others.
settings.register_profile(
    "waypost",
    deadline=None,
    derandomize=os.environ.get("WAYPOST_SEED") != "random",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("waypost")

os.environ.pop("WAYPOST_PROGRAM", None)  # otherwise help and hints under test name the launcher that started the tests


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove the user's settings from the environment of commands under test. Each test has contexts of its own."""
    for name in ("WAYPOST_DATA", "WAYPOST_APT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / f"config{next(_NUMBERS)}"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Yield a running PostgreSQL, for tests that create their own databases and leave it running."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with Postgres() as server:
        yield server


DURATION = (
    "all tests take under 30 minutes on two idle cores; collecting takes 10 s, "
    "the first time half a minute of processor time, as tests are compiled then"
)
"""Shown before collection, which takes minutes without output on a busy machine."""


QUICK_INTEGRATION = {"test_gateway_clients.py", "test_node_clients.py", "test_http.py", "test_link.py", "test_hub.py"}
"""Files of `tests/integration` that `./waypost test` runs: clients and servers of other people on the path to a hub."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; mark what `./waypost test` leaves out to take at most 8 minutes on two cores."""
    order = run_order(ROOT / "tests", {item.path for item in items})
    items.sort(key=lambda item: order[item.path])
    for item in items:
        if not item.path.is_relative_to(ROOT / "tests"):
            continue
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        if folder in {"fault", "spark"} or (folder == "integration" and item.path.name not in QUICK_INTEGRATION):
            item.add_marker("extended")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection.

    Thousands of tests and their modules stay to the end: each full collection would take 0.3 s to walk them. A first
    property test comes before, because Hypothesis then asks the collector who refers to its random generator, and on
    Python 3.14 the collector does not answer for excluded objects.
    """
    given(none())(lambda _: None)()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> Iterator[None]:
    """Exclude from garbage collection what the tests of a module leave behind.

    Late in a run these are millions of objects, and a test that collects would take 2 s to walk them.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> SessionScheduling | None:
    """Return the scheduler of `--dist loadfile`; None for xdist's own one of another mode."""
    return SessionScheduling(config, ROOT) if config.getvalue("dist") == "loadfile" else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report how long a run of all tests takes."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return [DURATION] if everything and config.option.markexpr == DEFAULT_MARKS else []


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the skipped tests and their reasons last: most reasons name a package to install."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(reporter, TerminalReporter):
        return
    reasons: Counter[str] = Counter()
    for report in reporter.getreports("skipped"):
        told = report.longrepr
        reasons[(told[2] if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")] += 1
    if reasons:
        said = "; ".join(f"{count} because {reason}" for reason, count in reasons.most_common())
        reporter.write_line(f"skipped {reasons.total()}: {said}", yellow=True)
