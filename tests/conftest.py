"""What every test starts from: one Hypothesis profile, and nothing of the environment of who runs them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from tests import DEFAULT_MARKS
from tests.support.postgres import Postgres, binaries

ROOT = Path(__file__).parent.parent
"""The checkout."""

# No deadline: wall time of one example says more about the neighbours of a shared machine than about the code.
# A failing example prints the line that replays it. Every run makes the same examples, so that a run that fails says
# something of what was changed; WAYPOST_SEED=random makes others.
settings.register_profile(
    "waypost",
    deadline=None,
    derandomize=os.environ.get("WAYPOST_SEED") != "random",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100,
)
settings.load_profile("waypost")

os.environ.pop("WAYPOST_PROGRAM", None)  # else help and hints under test name the launcher that started the tests


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the person at the keyboard reaches a command under test."""
    for name in ("WAYPOST_DATA", "WAYPOST_APT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL, for tests that make databases of their own in it and leave it running."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with Postgres() as server:
        yield server


DURATION = (
    "all tests take under 30 minutes on two idle cores; collecting takes 10 s, "
    "the first time half a minute of processor time, as tests are compiled then"
)
"""Shown before collecting, which takes minutes without output on a busy machine."""


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say how long a run of all tests takes."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return [DURATION] if everything and config.option.markexpr == DEFAULT_MARKS else []


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run says what was skipped and why: most reasons name what to install."""
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
