"""Totals of a proof as Prometheus metrics, for node_exporter's textfile collector or a Pushgateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cloud.proof.proof import Proof

METRICS: Final = {
    "waypost_lake_accepted": "Messages that gateways accepted",
    "waypost_lake_landed": "Messages in the lake",
    "waypost_lake_given_up": "Messages in the loss ledger",
    "waypost_lake_waiting": "Messages that wait at their gateways",
    "waypost_lake_unexplained": "Accepted messages that are not in the lake, in the ledger or at their gateway",
    "waypost_lake_twice": "Messages that are in the lake more than once",
    "waypost_lake_unstated": "Accepted messages that no statement covers yet",
    "waypost_lake_findings": "Findings",
    "waypost_lake_proved_timestamp_seconds": "Unix time of the proof",
}
"""Gauges and their meaning."""


def exposition(proof: Proof, now_s: float) -> str:
    """Return the metrics in Prometheus' text format.

    Values are integers without an exponent: hubs of earlier versions read no others.
    """
    totals = proof.totals
    values = {
        "waypost_lake_accepted": sum(one.accepted for one in totals),
        "waypost_lake_landed": sum(one.landed for one in totals),
        "waypost_lake_given_up": sum(sum(one.given_up.values()) for one in totals),
        "waypost_lake_waiting": sum(one.waiting for one in totals),
        "waypost_lake_unexplained": sum(one.unexplained for one in totals),
        "waypost_lake_twice": sum(one.twice for one in totals),
        "waypost_lake_unstated": sum(one.unstated for one in totals),
        "waypost_lake_findings": len(proof.findings) + proof.findings_left_out,
        "waypost_lake_proved_timestamp_seconds": int(now_s),
    }
    return "".join(
        f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {values[name]}\n" for name, about in METRICS.items()
    )
