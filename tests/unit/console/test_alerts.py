"""Alert rules: one source for hub and Prometheus; each of their metrics is exposed, and each rule has a next step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cloud.hub.alerts.prometheus import rules_file
from cloud.hub.alerts.rules import OF_GATEWAYS, RULES, AlertRule, Comparison, Measure, prometheus_duration
from edge.appliance.console.metrics import exposition
from tests.support.console_status import STATUS
from tests.support.exposed_metrics import BRIDGE, exposed_metrics

DEPLOY = Path(__file__).parents[3] / "cloud" / "deploy"
FILE = DEPLOY / "alerts.yaml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]


def test_connector_figures_are_metrics() -> None:
    text = exposition(lambda: {**STATUS, "bridge": BRIDGE}).decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("connector") == "hub"
    }
    assert found.pop("waypost_bridge_backlog_age_seconds") > 1e9
    assert found == {
        "waypost_bridge_connected": 1,
        "waypost_bridge_backlog_messages": 7,
        "waypost_bridge_backlog_bytes": 700,
        "waypost_bridge_accepted_total": 40,
        "waypost_bridge_manifest_waiting": 2,
    }


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_rule_uses_existing_metrics_and_has_a_next_step(rule: dict[str, Any]) -> None:
    asked = set(re.findall(r"\bwaypost_\w+\b", rule["expr"].replace("waypost_(hub_)?problem", "waypost_problem")))
    assert asked
    assert asked <= exposed_metrics(), asked - exposed_metrics()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "next_step"}
    assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "0s"))


def test_file_is_made_from_the_rules() -> None:
    """Write both again after a change: see `cloud.hub.alerts.prometheus`."""
    assert FILE.read_text() == rules_file()
    assert (DEPLOY / "chart" / "files" / "alerts.yaml").read_text() == rules_file()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_means_the_same_in_hub_and_prometheus(rule: AlertRule) -> None:
    [written] = [each for each in rules() if each["alert"] == rule.name]
    bounds = re.findall(r"(>|<|==) (\d+)", written["expr"].replace("== 1 and", "").replace("]) == 0", "])"))
    assert (rule.comparison.value, f"{rule.threshold:g}") in bounds
    assert written.get("for", "0s") == prometheus_duration(rule.for_s)
    assert written["labels"]["severity"] == rule.severity.value
    assert written["annotations"]["next_step"] == rule.next_step
    assert re.findall(r"\[(\w+)\]", written["expr"]) == [prometheus_duration(rule.window_s)] * bool(rule.window_s)
    step = {Comparison.ABOVE: 1, Comparison.BELOW: -1, Comparison.EQUAL: 0}[rule.comparison]
    assert rule.holds(rule.threshold + step)
    assert not rule.holds(rule.threshold + (step == 0))


def test_every_measure_has_its_rule() -> None:
    assert {rule.measure for rule in RULES} == set(Measure)
    assert len(RULES) == len(Measure)
    gateway = {rule.measure for rule in RULES if rule.group != "waypost-hub" and rule.group != "waypost-lake"}
    assert gateway == OF_GATEWAYS


def test_names_are_unique() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
