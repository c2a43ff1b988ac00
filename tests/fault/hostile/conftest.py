"""Effects of attacks on other clients and on memory, as a table at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fault.hostile.figures import Figures
from tests.support.processes import Waypost, edge

PROPERTY = "figures of an attack"


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[Figures], None]:
    """Return a function that adds figures to the table."""
    return lambda seen: record_property(PROPERTY, (seen.attack, tuple(seen.felt), *seen[2:]))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Run a development gateway for all tests of a module, also with MQTT over WebSocket."""
    with edge(tmp_path_factory.mktemp("gateway"), "gw", "--mqtt-ws", "127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Run a gateway that is not attacked."""
    with edge(tmp_path_factory.mktemp("control"), "control") as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    found = [Figures(*value) for report in reports for name, value in report.user_properties if name == PROPERTY]
    if found:
        heads = ("idle p99 ms", "control", "attacked", "before MiB", "most MiB", "returned s")
        terminalreporter.section("attacks")
        terminalreporter.write_line(f"{'attack':40}" + "".join(f"{head:>14}" for head in heads))
        for name, felt, *others in found:
            figures = (*(each * 1_000 for each in felt), *others)
            terminalreporter.write_line(f"{name:40}" + "".join(f"{figure:14.1f}" for figure in figures))
