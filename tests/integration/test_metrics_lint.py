"""Prometheus' own check accepts the metrics of a real gateway, a real hub and a real proof."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloud.proof.metrics import METRICS, exposition
from cloud.proof.proof import Proof
from tests.support.http_client import ask
from tests.support.processes import edge, hub
from tests.support.promtool import promtool


def faults(text: bytes) -> str:
    """Return what `promtool check metrics` finds in an exposition."""
    done = subprocess.run([promtool(), "check", "metrics"], input=text, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode()


def test_gateway(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as running:
        assert faults(ask(running, "GET", "/metrics").body) == ""


def test_hub(tmp_path: Path) -> None:
    with hub(tmp_path) as running:
        assert faults(ask(running, "GET", "/metrics").body) == ""


def test_proof() -> None:
    text = exposition(Proof(), 1_000.0)
    assert {family.name for family in text_string_to_metric_families(text)} == set(METRICS)
    assert faults(text.encode()) == ""


@pytest.mark.parametrize("text", [b"# TYPE a counter\na 1\n", b"a{ 1\n"], ids=["named badly", "unreadable"])
def test_a_fault_is_found(text: bytes) -> None:
    """The check itself can fail."""
    assert faults(text)
