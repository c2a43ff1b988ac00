"""States of a commit in the registry, and the tables of the lake with numbered commits."""

from __future__ import annotations

PREPARED, CONFIRMED, FORGOTTEN = "prepared", "confirmed", "forgotten"
"""States. A forgotten commit keeps its row for a while: its number is fenced in the lake and must not be used again."""
TELEMETRY, LEDGER = "telemetry", "ledger"
NUMBERED = (TELEMETRY, LEDGER)
"""Tables of the lake with numbered commits."""
