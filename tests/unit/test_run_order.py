"""Files of a run alternate so that no worker ends long before the others, and one worker has the Spark session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.conftest import ROOT
from tests.support.scheduling import SESSION, SessionScheduling, names_session, run_order

TESTS = ROOT / "tests"


def in_order(*names: str) -> list[str]:
    order = run_order(TESTS, [TESTS / name for name in names])
    return sorted(names, key=lambda name: order[TESTS / name])


def test_session_is_first_and_short_files_are_last() -> None:
    found = in_order("unit/test_cli.py", "fault/test_media.py", "system/test_demo.py", "spark/test_jobs.py")
    assert (found[0], found[-1]) == ("spark/test_jobs.py", "unit/test_cli.py")


def test_busy_and_waiting_files_alternate() -> None:
    busy = [f"simulation/test_{number}.py" for number in range(2)]
    waiting = [f"integration/test_{number}.py" for number in range(4)]
    found = in_order(*busy, *waiting)
    assert [found.index(name) for name in busy] == [0, 3]


@pytest.mark.parametrize(("file", "expected"), [
    ("tests/spark/test_jobs.py", True),
    ("tests/spark/test_transforms.py", True),
    ("tests/spark/test_setup.py", False),
    ("tests/unit/test_cli.py", False),
    ("tests/spark/of_another_commit.py", False),
])  # fmt: skip
def test_session_is_found_by_its_fixtures(file: str, expected: bool) -> None:
    assert names_session(ROOT / file) is expected


def test_files_with_a_session_are_one_unit(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    scheduling = SessionScheduling(pytestconfig, ROOT)
    tests: Sequence[str] = ("tests/spark/test_jobs.py::test_a", "tests/spark/test_replay.py::TestB::test_c")
    assert {scheduling._split_scope(each) for each in tests} == {SESSION}
    assert scheduling._split_scope("tests/unit/test_cli.py::test_d[x::y]") == "tests/unit/test_cli.py"
