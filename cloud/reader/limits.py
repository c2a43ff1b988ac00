"""Limits of reading the lake for pages, with unit and reason."""

from __future__ import annotations

from typing import Final

READERS_MAX: Final = 2
"""Processes that read at the same time. Each takes 90 MiB and one core; the landing needs the others."""

READ_S_MAX: Final = 5.0
"""Seconds for one read: a person waits for it. The process is killed at the end."""

PROOF_S_MAX: Final = 60.0
"""Seconds for the proof of one gateway, which reads all of its messages. A person downloads it."""

READ_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of rows that one read holds, and of its answer: 2 000 points take 0.2 MiB, 100 000 devices 20 MiB."""

READS_WAITING_MAX: Final = 32
"""Reads that wait for a process: the open pages of some people. Further ones are refused."""

READER_IDLE_S: Final = 60.0
"""Seconds without a read after which a process ends and its memory is free; it starts in 0.5 s."""

READER_NICE: Final = 10
"""Priority of a process (`nice`): the landing comes first."""

CACHED_MAX: Final = 64
"""Answers that the hub keeps until their table changes: several pages ask for the same."""

CACHED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of these answers."""

POINTS_MAX: Final = 2_000
"""Points of a chart: more than a screen has columns. The table of minutes, hours or days is chosen to fit."""

ROWS_DEFAULT: Final = 50
ROWS_MAX: Final = 500
"""Rows in one page of a table."""

CSV_ROWS_MAX: Final = 50_000
"""Rows of a CSV file: a spreadsheet opens them in a second."""

SERIES_MAX: Final = 20_000
"""Distinct series that one read collects: 10 MiB of names."""

SERIES_DAYS: Final = 31
"""Days of the day table that are searched for series. A series that was silent for longer is found by its address."""

DAYS_MAX: Final = 92
"""Days of a table of completeness: a quarter."""

HOURS_DAYS_MAX: Final = 31
"""Days of hours shown for one gateway: 744 marks in a strip."""

STATEMENTS_CHECKED_MAX: Final = 20_000
"""Statements with a verified signature in one read, 0.15 ms each. The newest ones; the answer says how many were left
out."""

FINDINGS_SHOWN_MAX: Final = 500
"""Findings about statements in one answer."""

GAPS_READ_MAX: Final = 200_000
"""Rows of `gaps` that one read sorts."""

SMALL_FILE_BYTES: Final = 4 * 1024 * 1024
"""Size below which a data file is small: reading it costs more for the request than for the data."""

HISTORY_COMMITS: Final = 200
"""Commits of a table that are searched for the last maintenance: some milliseconds each in a bucket."""

SAMPLE_ROWS: Final = 20
"""Rows of the quarantine shown."""

SAMPLE_BYTES: Final = 256
"""Bytes of a delivery in quarantine shown: the head says what it was."""

BATCH_ROWS: Final = 16_384
"""Rows decoded at a time: 2 MiB of a rollup."""
