"""Descriptions of the tables of a lake, and the commands that make them, for users of SQL.

They are written here because the columns in `spark.schemas` need PySpark, which a query does not. A test compares the
names.
"""

from __future__ import annotations

import shlex
from typing import Final

_HUB: Final = "a hub makes it when it starts"

DESCRIPTIONS: Final[dict[str, str]] = {
    "readings": "one row per value of a message: number or text, with unit and times",
    "rollup_1m": "per metric and minute: count, min, max, sum, mean, last with its unit, p50, p95",
    "rollup_1h": "the same per hour",
    "rollup_1d": "the same per day",
    "anomalies": "one row per value that is unusual for its series, with score, rule and expected value",
    "gateway_freshness": "per gateway (device is NULL) and per device: last data, lag p50, p95 and max in seconds",
    "delivery_slo": "per gateway and hour (width_s 3600) or day (86400): messages, share in the lake within 60 s",
    "completeness": "per address: accepted, missing = explained + waiting + unexplained, duplicates",
    "completeness_hourly": "the same per statement of a gateway (an hour of an address)",
    "gaps": "ranges of sequences that are missing, explained (with the reason) or not",
    "outages": "periods in which messages waited at their gateway, and how they drained",
    "throughput": "rows received and landed per gateway, lane and bucket of time",
    "device_health": "per device: battery, silence, boots, clock and radio of its last 30 days",
    "device_days": "per device and day: the sums that device_health is derived from",
    "reject": "values and messages that could not be read, with the reason",
    "set_aside": "damaged data files that were not read or were taken out, with their gateways and sequences",
    "sparkplug_births": "per Sparkplug birth and metric: name, alias, type, unit",
    "sparkplug_last_births": "the same of the last birth of each node and device",
    "landed_ranges": "ranges of sequences that landed, per address",
    "given_up_ranges": "ranges of sequences in the ledger, per address and reason",
    "open_statements": "statements of gateways that have not landed completely",
    "settled_ranges": "sequences of the statements that have landed completely",
    "gateway_backlog": "per gateway: messages that wait there, by its newest status",
    "detector_states": "per series: the state of its anomaly detector, values judged and late",
    "telemetry": "one row per message as it landed, with its body",
    "ledger": "ranges of sequences that gateways dropped, with the reason",
    "manifests": "signed statements of gateways: what they accepted per address and hour",
    "clock_offsets": "offsets of gateways' clocks that were wrong",
    "gateway_status": "reports of gateways on themselves: state, version, backlog",
    "quarantine": "deliveries that no program can read, raw, with the reason",
    "payload_schemas": "registered schemas: how messages of some addresses are read",
}
"""Tables, the most used ones first."""

_MADE_BY: Final[dict[str, str]] = {
    "telemetry": _HUB,
    "ledger": _HUB,
    "manifests": _HUB,
    "clock_offsets": _HUB,
    "gateway_status": _HUB,
    "quarantine": _HUB,
    "payload_schemas": "`waypost lake schema add PATTERN --lake {lake}` makes it",
}
"""Commands for the tables that no pass makes."""
_MADE_BY_RUN: Final = "`waypost lake run --lake {lake}` makes it"


def maker_command(table: str, lake: str) -> str:
    """Return the maker of a table of this lake, with the command."""
    return _MADE_BY.get(table, _MADE_BY_RUN).format(lake=shlex.quote(lake))
