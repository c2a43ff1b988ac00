"""Prometheus' file of the alert rules, for Prometheus itself and for the Helm chart:

`python -m cloud.hub.alerts.prometheus | tee cloud/deploy/alerts.yaml > cloud/deploy/chart/files/alerts.yaml`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from cloud.hub.alerts.rules import RULES, AlertRule, prometheus_duration

HEAD: Final = """\
# Prometheus alert rules for gateways, a hub and its lake: `rule_files: [alerts.yaml]`. The hub evaluates the same rules
# itself, without Prometheus. Made from cloud/hub/alerts/rules.py: python -m cloud.hub.alerts.prometheus
# Prometheus scrapes gateways and hub at /metrics. The metrics `waypost_lake_*` come from a job that runs
#   waypost prove --lake DATA/lake --since 7d --metrics /var/lib/node_exporter/textfile/waypost_lake.prom
groups:
"""


def rules_file() -> str:
    """Return the text of the file."""
    return HEAD + "".join(f"{line}\n" for line in _groups())


def _groups() -> Iterator[str]:
    for name, rules in groupby(RULES, key=lambda rule: rule.group):
        yield f"  - name: {name}"
        yield "    rules:"
        for rule in rules:
            yield from _rule(rule)


def _rule(rule: AlertRule) -> Iterator[str]:
    yield f"      - alert: {rule.name}"
    yield f"        expr: {json.dumps(rule.promql)}"
    if rule.for_s:
        yield f"        for: {prometheus_duration(rule.for_s)}"
    yield f"        labels: {{severity: {rule.severity.value}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(rule.summary)}"
    yield f"          next_step: {json.dumps(rule.next_step)}"


if __name__ == "__main__":
    sys.stdout.write(rules_file())
