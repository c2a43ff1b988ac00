"""Names of all metrics that the product exposes: for alert rules, dashboards and autoscalers, which name them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from cloud.hub import metrics as hub_metrics
from cloud.proof.metrics import METRICS
from docs.generate.metrics import COLLECTORS, metrics
from edge.appliance.console.metrics import exposition
from tests.support.console_status import FULL, SOON, STATUS

BRIDGE: Final[dict[str, object]] = {
    "room_bytes": 1_000,
    "autonomy_hours": 3.5,
    "connectors": [
        {
            "name": "hub",
            "state": "connected",
            "backlog_messages": 7,
            "backlog_bytes": 700,
            "backlog_oldest_at": 1.0,
            "accepted": 40,
            "manifest_waiting": 2,
        }
    ],
}
"""Status of a bridge with one connector."""


def exposed_metrics() -> set[str]:
    """Return the names of the metrics of a gateway, a hub and a proof, also of those that a status may lack."""
    status = {**STATUS, "bridge": BRIDGE, "problems": [FULL, SOON], "ledger": {"expired": 3}}
    text = exposition(lambda: status).decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    hub = Path(hub_metrics.__file__).read_text()
    written = {each.name for path in COLLECTORS.values() for each in metrics(path)}
    return names | written | set(METRICS) | set(re.findall(r'"(waypost_hub_\w+)"', hub))
