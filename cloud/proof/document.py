"""JSON document of a proof, for the command line and the hub."""

from __future__ import annotations

import datetime
from typing import Any

from cloud.proof.judgement import HourLine
from cloud.proof.proof import Proof, Total


def proof_document(proof: Proof) -> dict[str, Any]:
    """Return a proof as ``waypost prove --json`` prints it."""
    return {
        "complete": proof.complete,
        "statements": proof.statements,
        "bytes_read": proof.bytes_read,
        "streams": [_total(total) for total in proof.totals],
        "hours": [_hour(line) for line in proof.hours],
        "findings": [{**finding._asdict(), "kind": finding.kind.value} for finding in proof.findings],
        "findings_left_out": proof.findings_left_out,
        "keys": [
            {"tenant": tenant, "gateway": gateway, "epoch": epoch, "public_key": key}
            for (tenant, gateway, epoch), key in sorted(proof.keys.items())
        ],
        "notes": proof.notes,
    }


def hour_text(hour_ns: int) -> str:
    """Return the start of an hour, UTC nanoseconds, as text."""
    return datetime.datetime.fromtimestamp(hour_ns // 1_000_000_000, datetime.UTC).strftime("%Y-%m-%dT%HZ")


def _total(total: Total) -> dict[str, Any]:
    return {
        **total.stream._asdict(),
        "hours": total.hours,
        "accepted": total.accepted,
        "landed": total.landed,
        "given_up": total.given_up,
        "waiting": total.waiting,
        "unexplained": total.unexplained,
        "twice": total.twice,
        "unstated": total.unstated,
    }


def _hour(line: HourLine) -> dict[str, Any]:
    fields = line._asdict()
    stream = fields.pop("stream")
    return {**stream._asdict(), **fields, "hour": None if line.hour is None else hour_text(line.hour)}
