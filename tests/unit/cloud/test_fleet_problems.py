"""`waypost gateway problems` and `with-problem` on the data directory of a hub."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.data import WRITER
from cloud.hub.groups import Presence
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from cloud.hub.registry.registry import Registry
from edge.appliance.main import run

HUB = "0" * 32
SINCE_US = 1_796_000_000_000_000


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = tmp_path / "hub"
    made.mkdir(mode=0o700)
    (made / WRITER).write_text(HUB)
    registry = sqlite_url(made / "registry.db")
    gateways = [("acme", f"g{number:02}") for number in range(11)]
    with contextlib.closing(Registry(registry, HUB)) as opened:
        opened.directory.presence({key: Presence("there", True, 1, 1) for key in gateways})
    full = ReportedProblem("store", "error", "the card is full", "", SINCE_US)
    reports = {ProblemSource(*key): [full] for key in gateways}
    with contextlib.closing(StoredProblems(registry, HUB)) as stored:
        stored.report({**reports, ProblemSource("", "", HUB): [full._replace(code="landing")]}, SINCE_US)
    return made


def items(capsys: pytest.CaptureFixture[str], data: Path, *words: str) -> list[Any]:
    assert run(["gateway", *words, "--data", str(data), "-o", "json"]) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["items"]
    return found


def test_problems_by_name(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    landing, store = items(capsys, data, "problems")
    assert (landing["name"], landing["places"]) == ("landing", HUB)
    assert (store["count"], store["places"].split(", ")[-2:]) == (11, ["g09", "…"])
    assert [(each["gateways"], each["away"], each["hubs"]) for each in (landing, store)] == [(0, 0, 1), (11, 0, 0)]
    assert [each["name"] for each in items(capsys, data, "problems", "--tenant", "acme")] == ["store"]
    assert items(capsys, data, "problems", "--severity", "notice") == []


def test_places_of_a_problem(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = items(capsys, data, "with-problem", "store")
    assert [each["gateway"] for each in found] == [f"g{number:02}" for number in range(11)]
    assert (found[0]["connected"], found[0]["last_seen"]) == (True, "1970-01-01T00:00:00Z")
    assert items(capsys, data, "with-problem", "unknown") == []
