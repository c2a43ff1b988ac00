"""Bounds of a proof, with unit and reason."""

from __future__ import annotations

import datetime
from typing import Final

ROWS_A_BATCH: Final = 65_536
"""Rows read at once: some 10 MiB of names and numbers."""

HELD_MAX: Final = 1_000_000
"""Spans of sequences, ledger ranges and statements held at once, some 100 to 600 bytes each. With more the gateways are
looked at in parts, each of which reads the tables again."""

PARTS_MAX: Final = 1_024
"""Parts the gateways are cut into at most; one gateway is never cut."""

EARLIER_DAYS: Final = 1
"""Days of ingestion before `--since` that are read as well: an hour's messages land before its statement does."""

FINDINGS_MAX: Final = 10_000
"""Findings kept; the others are counted."""

LINES_SHOWN: Final = 40
"""Lines of a table on a terminal; the worst come first."""

STATUS_UNDER_WAY: Final = datetime.timedelta(seconds=10)
"""A status that lands so much later than a statement was made after it: the hub gathers statuses for 5 s."""
