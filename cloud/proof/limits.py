"""Limits of a proof, with unit and reason."""

from __future__ import annotations

import datetime
from typing import Final

ROWS_A_BATCH: Final = 65_536
"""Rows read at a time: some 10 MiB of names and numbers."""

HELD_MAX: Final = 1_000_000
"""Spans, ledger ranges and statements in memory, some 100 to 600 bytes each. Above this the gateways are processed in
parts, each of which reads the tables again."""

PARTS_MAX: Final = 1_024
"""Maximum number of parts; one gateway is never divided."""

EARLIER_DAYS: Final = 1
"""Days before `--since` that are read too: an hour's messages land before its statement does."""

FINDINGS_MAX: Final = 10_000
"""Findings kept; the others are counted."""

LINES_SHOWN: Final = 40
"""Lines of a table on a terminal, the worst first."""

STATUS_DELAY: Final = datetime.timedelta(seconds=10)
"""Delay after which a status is surely later than a statement: the hub gathers statuses for 5 s."""
