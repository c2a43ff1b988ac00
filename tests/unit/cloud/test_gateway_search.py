"""`waypost gateway list` with a search, on the data directory of a hub."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from cloud.hub.data import WRITER
from cloud.hub.enrolment.files import load_own_authority
from cloud.hub.groups import Presence
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.problems import ProblemSource, ReportedProblem, StoredProblems
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import certificates
from edge.appliance.main import run

HUB = "0" * 32
DAY_US = 86_400_000_000
GATEWAYS = {"a": ("1.4.0", 0), "b": ("1.5.0", 0), "c": ("1.4.0", 3)}
"""Version, and days since the gateway was seen; 0: it is connected."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made, now_us = tmp_path / "hub", time.time_ns() // 1_000
    made.mkdir(mode=0o700)
    (made / WRITER).write_text(HUB)
    load_own_authority(made, time.time(), "hub")
    registry = sqlite_url(made / "registry.db")
    full = ReportedProblem("store", "error", "the card is full", "", now_us)
    with (
        contextlib.closing(Registry(registry, HUB)) as opened,
        contextlib.closing(StoredProblems(registry, HUB)) as stored,
    ):
        for name, (version, days) in GATEWAYS.items():
            key = ("acme", name)
            opened.directory.presence({key: Presence("-", True, now_us, 1)})
            opened.directory.seen({key: now_us}, {key: json.dumps({"status": {"version": version}})})
            if name != "b":
                stored.report({ProblemSource(*key): [full]}, now_us)
            if days:
                opened.directory.presence({key: Presence("-", False, now_us - days * DAY_US)})
    each = {"tenant": "acme", "key_id": b"", "begins_at": 1, "ends_at": now_us + DAY_US, "pem": ""}
    with contextlib.closing(open_registry(registry).database) as database:
        rows = [{**each, "serial": name, "gateway": name} for name in (*GATEWAYS, "new")]
        database.transaction(lambda tx: tx.execute(certificates.insert(), rows))
    return made


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["a", "b", "c", "new"]),
        (("--version", "1.4.0"), ["a", "c"]),
        (("--older-than", "1.5.0", "--connected"), ["a"]),
        (("--away",), ["c", "new"]),
        (("--problem", "store"), ["a", "c"]),
        (("--severity", "warning"), []),
        (("--seen-before", "2d"), ["c"]),
        (("--seen-before", "2d", "--seen-after", "2020-01-01T00:00"), ["c"]),
        (("--seen-after", "4d"), ["a", "b", "c"]),
        (("--seen-after", "2999-01-01"), ["a", "b"]),
    ],
)
def test_search(data: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], names: list[str]) -> None:
    assert run(["gateway", "list", "--data", str(data), "--json", *words]) == 0
    assert [each["gateway"] for each in json.loads(capsys.readouterr().out)["items"]] == names


@pytest.mark.parametrize("words", [("--seen-before", "soon"), ("--older-than", "new"), ("--severity", "fatal")])
def test_wrong_values_are_refused(data: Path, words: tuple[str, ...]) -> None:
    assert run(["gateway", "list", "--data", str(data), *words]) == 2
