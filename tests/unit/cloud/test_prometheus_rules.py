"""Alert rules in Prometheus: each fires on series as gateways, hubs and proofs expose them, and not before.

Prometheus' own `promtool test rules` evaluates them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from cloud.hub.alerts.rules import BY_NAME, RULES
from docs.generate.metrics import COLLECTORS, metrics
from tests.support.exposed_metrics import exposed_metrics
from tests.support.promtool import promtool

RULE_FILE: Final = Path(__file__).parents[3] / "cloud" / "deploy" / "alerts.yaml"
GATEWAY: Final = {"instance": "hall:8080", "job": "gateways"}
UPLINK: Final = {**GATEWAY, "connector": "hub"}
HUB: Final = {"instance": "10.244.1.7:8443", "job": "fleet-console"}
OTHER_HUB: Final = {**HUB, "instance": "10.244.2.4:8443"}
FLEET: Final = {"job": HUB["job"]}
"""Labels of what all hubs of a registry have in common."""
ALIKE: Final = "use max, not sum"
"""Part of the help of a metric that is the same at each hub of a registry."""
DASHBOARDS: Final = RULE_FILE.parent / "chart" / "files" / "dashboards"
PROOF: Final = {"job": "waypost-prove"}
UP: Final = ("waypost_uptime_seconds", GATEWAY, "0+60x2000")
"""The gateway has run since the first minute."""

Labels = dict[str, str]
Series = tuple[str, Labels, str]
"""Metric, labels and values in the notation of promtool, one a minute; `_` is a scrape without the series."""


class Case(NamedTuple):
    """Series that Prometheus has scraped, and the time at which an alert fires."""

    alert: str
    series: tuple[Series, ...]
    quiet: tuple[str, ...]
    """Times at which the alert does not fire."""
    firing: str
    """Time at which it fires; empty: never."""
    labels: Labels
    summary: str
    every: str = "1m"
    """Time between two scrapes."""


def gauge(name: str, labels: Labels, values: str) -> tuple[Series, ...]:
    return ((name, labels, values),)


def of_both_hubs(name: str, state: str, values: str) -> tuple[Series, ...]:
    """Return a gauge of the registry, as two hubs of it expose it."""
    return tuple((name, {**hub, "state": state}, values) for hub in (HUB, OTHER_HUB))


CASES: Final = (
    Case(
        "WaypostGatewayProblem", gauge("waypost_problems", {**GATEWAY, "severity": "error"}, "0 0 0 1x20 0x20"),
        ("2m", "4m", "40m"), "5m", {**GATEWAY, "severity": "critical"}, "hall:8080: the gateway reports an error",
    ),
    Case(
        "WaypostGatewayProblem", gauge("waypost_problems", {**GATEWAY, "severity": "warning"}, "1x20"),
        ("20m",), "", {}, "",
    ),
    Case(
        "WaypostUplinkAway", gauge("waypost_bridge_connected", UPLINK, "1x9 0x40 1x5"), ("39m", "51m"), "40m",
        {**UPLINK, "severity": "warning"}, "hall:8080: connector hub has been disconnected for half an hour",
    ),
    Case(
        "WaypostBacklogOld", gauge("waypost_bridge_backlog_age_seconds", UPLINK, "0+60x75 0x5"),
        ("60m", "70m", "77m"), "71m",
        {**UPLINK, "severity": "warning"}, "hall:8080: the oldest message for hub is 1h 11m 0s old",
    ),
    Case(
        "WaypostBacklogDoesNotMove",
        (
            ("waypost_bridge_connected", UPLINK, "1x60"),
            ("waypost_bridge_backlog_messages", UPLINK, "7x60"),
            ("waypost_bridge_accepted_total", UPLINK, "0+5x10 50x25 55+5x20"),
        ),
        ("10m", "29m", "40m"), "32m", {**UPLINK, "severity": "critical"},
        "hall:8080: the far side of hub is connected and accepts nothing",
    ),
    Case(
        "WaypostRoomEnds",
        (
            ("waypost_bridge_autonomy_hours", GATEWAY, "40x5 12x20"),
            ("waypost_bridge_backlog_messages", UPLINK, "0x10 7x20"),
        ),
        ("10m", "20m"), "21m", {**GATEWAY, "severity": "critical"},
        "hall:8080: storage for messages is full in 12 hours",
    ),
    Case(  # the second loss with a reason
        "WaypostMessagesGivenUp", (UP, ("waypost_ledger_entries_total", {**GATEWAY, "reason": "expired"}, "3x40 4x40")),
        ("40m", "57m"), "45m", {**GATEWAY, "reason": "expired", "severity": "warning"},
        "hall:8080: messages were discarded (expired)",
    ),
    Case(  # the first loss with a reason: the series begins with it
        "WaypostMessagesGivenUp", (UP, ("waypost_ledger_entries_total", {**GATEWAY, "reason": "full"}, "_x40 1x40")),
        ("39m", "57m"), "45m", {**GATEWAY, "reason": "full", "severity": "warning"},
        "hall:8080: messages were discarded (full)",
    ),
    Case(  # a gateway that was switched off drops at its start what has expired
        "WaypostMessagesGivenUp",
        (
            ("waypost_uptime_seconds", GATEWAY, "_x59 20+60x40"),
            ("waypost_ledger_entries_total", {**GATEWAY, "reason": "expired"}, "_x59 9x40"),
        ),
        ("58m", "76m"), "65m", {**GATEWAY, "reason": "expired", "severity": "warning"},
        "hall:8080: messages were discarded (expired)",
    ),
    Case(  # Prometheus was away: what was counted before is not new
        "WaypostMessagesGivenUp",
        (
            ("waypost_uptime_seconds", GATEWAY, "_x59 3600+60x40"),
            ("waypost_ledger_entries_total", {**GATEWAY, "reason": "expired"}, "_x59 9x40"),
        ),
        ("61m", "65m", "80m"), "", {}, "",
    ),
    Case(
        "WaypostManifestsWait",
        (("waypost_bridge_manifest_waiting", UPLINK, "0x5 2x80"), ("waypost_bridge_connected", UPLINK, "1x85")),
        ("5m", "65m"), "67m", {**UPLINK, "severity": "warning"},
        "hall:8080: the far side of hub does not accept the manifest",
    ),
    Case(
        "WaypostCertificateEnds",
        gauge(
            "waypost_problem_since_timestamp_seconds",
            {**GATEWAY, "problem": "certificate-expiring", "severity": "warning", "what": "the certificate ends soon"},
            "_x10 1700000000x20",
        ),
        ("9m", "14m"), "15m",
        {**GATEWAY, "problem": "certificate-expiring", "severity": "critical", "what": "the certificate ends soon"},
        "hall:8080: certificate-expiring: the certificate ends soon",
    ),
    Case(
        "WaypostHubProblem", gauge("waypost_hub_problems", {**HUB, "severity": "error"}, "0x5 1x5"), ("5m", "7m"), "8m",
        {**HUB, "severity": "critical"}, "10.244.1.7:8443: the hub reports an error",
    ),
    Case(
        "WaypostLandingFails", gauge("waypost_hub_landing_failing", HUB, "0x5 1x5"), ("5m", "7m"), "8m",
        {**HUB, "severity": "critical"},
        "10.244.1.7:8443: the hub cannot land batches and acknowledges none; gateways keep their messages",
    ),
    Case(
        "WaypostCommandsNotDelivered",
        tuple(
            ("waypost_hub_commands_over_total", {**hub, "state": state}, values)
            for hub in (HUB, OTHER_HUB)  # each counts what it has completed
            for state, values in (("delivered", "0+100x100"), ("expired", "0x20 9x80"), ("rejected", "0x20 4x80"))
        ),
        ("12m", "45m"), "25m", {**FLEET, "state": "expired", "severity": "warning"},
        "fleet-console: 18.64 commands to devices were expired within a quarter of an hour",
        "35s",  # no scrape at the ends of the window, which Prometheus 2 and 3 count differently
    ),
    Case(
        "WaypostRolloutHalted", of_both_hubs("waypost_hub_rollouts", "halted", "0x5 1x5 0x5"),
        ("5m", "12m"), "7m",
        {**FLEET, "state": "halted", "severity": "warning"}, "fleet-console: a roll-out of a configuration is halted",
    ),
    Case(
        "WaypostCampaignHalted", of_both_hubs("waypost_hub_campaigns", "halted", "0x5 1x5 0x5"),
        ("5m", "12m"), "7m",
        {**FLEET, "state": "halted", "severity": "warning"}, "fleet-console: a campaign of device updates is halted",
    ),
    Case(
        "WaypostConfigurationNotTaken", of_both_hubs("waypost_hub_configurations", "refused", "0x5 2x9"),
        ("5m", "7m"), "8m", {**FLEET, "state": "refused", "severity": "warning"},
        "fleet-console: 2 gateways have not applied their configuration (refused)",
    ),
    Case(
        "WaypostLossUnexplained", gauge("waypost_lake_unexplained", PROOF, "0x5 3x5"), ("5m",), "6m",
        {**PROOF, "severity": "critical"},
        "3 accepted messages are neither in the lake nor in the ledger nor at their gateways",
    ),
    Case(
        "WaypostLakeTwice", gauge("waypost_lake_twice", PROOF, "0x5 3x5"), ("5m",), "6m",
        {**PROOF, "severity": "critical"},
        "3 messages are in the lake more than once",
    ),
    Case(
        "WaypostLakeFindings", gauge("waypost_lake_findings", PROOF, "0x5 3x5"), ("5m",), "6m",
        {**PROOF, "severity": "critical"}, "3 findings: the lake differs from the manifests of its gateways",
    ),
    Case(
        "WaypostProofOverdue", gauge("waypost_lake_proved_timestamp_seconds", PROOF, "0x3000"), ("2880m",), "2881m",
        {**PROOF, "severity": "warning"}, "the last proof of the lake was 2d 0h 1m 0s ago",
    ),
)  # fmt: skip


def written(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def as_test(case: Case) -> dict[str, Any]:
    """Return a case in the notation of promtool."""
    step = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], BY_NAME[case.alert].next_step)
    expected = {"exp_labels": case.labels, "exp_annotations": {"summary": case.summary, "next_step": step}}
    times = [{"eval_time": each, "alertname": case.alert, "exp_alerts": []} for each in case.quiet]
    if case.firing:
        times.append({"eval_time": case.firing, "alertname": case.alert, "exp_alerts": [expected]})
    return {
        "interval": case.every,
        "input_series": [
            {"series": f"{name}{written(labels)}", "values": values} for name, labels, values in case.series
        ],
        "alert_rule_test": times,
    }


def test_every_rule_is_seen_to_fire_and_not_to_fire() -> None:
    assert {case.alert for case in CASES if case.firing} == {rule.name for rule in RULES}
    assert all(case.quiet for case in CASES)
    assert {name for case in CASES for name, _, _ in case.series} <= exposed_metrics()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_alert_fires_in_time(case: Case, tmp_path: Path) -> None:
    tool, file = promtool(), tmp_path / "alerts.test.yaml"
    document = {"rule_files": [str(RULE_FILE)], "evaluation_interval": "1m", "tests": [as_test(case)]}
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run([tool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_have_no_fault_that_promtool_knows() -> None:
    command = [promtool(), "check", "rules", "--lint=all", "--lint-fatal", str(RULE_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> Iterator[str]:
    """Yield the expressions of the alert rules, of the dashboards and of their variables."""
    yield from (rule.promql for rule in RULES)
    for path in DASHBOARDS.glob("*.json"):
        yield from re.findall(r'"(?:expr|definition)": "((?:[^"\\\\]|\\\\.)*)"', path.read_text())


def test_what_is_alike_at_each_hub_is_neither_added_up_nor_shown_for_each() -> None:
    alike = [each.name for each in metrics(COLLECTORS["Hub"]) if ALIKE in each.about]
    assert "waypost_hub_rollouts" in alike
    used = [(each, name) for each in expressions() for name in alike if re.search(rf"\b{name}\b", each)]
    assert used
    for expression, name in used:
        assert re.search(rf"\bmax(?: by \([a-z, ]+\))? \(?\(?{name}\b|\bmax\({name}\b", expression), expression
