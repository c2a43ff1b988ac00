"""The demo as a new user runs it: the whole path with an outage and a crash, and numbers that add up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.processes import processes_of

pytestmark = [pytest.mark.timeout(420), pytest.mark.spark, pytest.mark.extended]
DEMO_S_MAX = 300


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `./waypost demo`; end it in order in any case, so that it ends its children."""
    command = [sys.executable, "-m", "tests.demo", *arguments]
    demo = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield demo
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)
            try:
                demo.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                demo.kill()
                demo.communicate()


def test_everything_acknowledged_is_in_the_lake_once_and_the_report_stands_on_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running("--once", "--seconds", "20", "--out", str(folder)) as demo:
        output, _ = demo.communicate(timeout=DEMO_S_MAX)
    assert demo.returncode == 0, output

    facts = json.loads((folder / "facts.json").read_text())
    assert facts["verdict"] == "ok"
    assert facts["facts"]
    assert all(fact["ok"] for fact in facts["facts"])
    found = {fact["name"]: fact["value"] for fact in facts["facts"]}
    assert found["Acknowledged readings found in the lake"] > 500
    assert [event["label"] for event in facts["events"]] == [
        "gw1: uplink cut",
        "gw2: killed with SIGKILL",
        "devices stopped",
    ]

    report = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import""", report)
    assert "gw1" in report
    assert report.count('class="chart"') > 10

    journals = list((folder / "journals").glob("*.jsonl"))
    assert len(journals) >= 8
    assert "Everything acknowledged is in the lake, once." in output
    assert not processes_of(folder)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with running("--once", "--out", str(folder)) as demo:
        assert demo.stdout is not None
        lines = []
        for line in demo.stdout:
            lines.append(line)
            if "devices publish to" in line:
                break
        assert len(processes_of(folder)) > 10, "".join(lines)
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert not processes_of(folder)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with running("--once", "--out", str(tmp_path)) as demo:
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "is not empty" in output
