"""Every bound of a query, with its unit and reason."""

from __future__ import annotations

from typing import Final

SQL_BYTES_MAX: Final = 256 * 1024
"""Bytes of a query: thousands of lines. Longer ones are a file given by mistake."""

MEMORY_SHARE: Final = 0.5
"""Share of the machine's memory that DuckDB may take. The other half is for the data files being read, which DuckDB
does not count, and for the hub, if it runs on the same machine."""

THREADS_MAX: Final = 8
"""Threads of DuckDB. Each table is read by one thread, so more of them wait."""

SCAN_ROWS: Final = 32_768
"""Rows read from a data file at a time: 150 MB of the largest rows (bodies of 4.5 KB), 10 MB of usual ones."""

SCAN_READAHEAD: Final = 4
"""Batches of `SCAN_ROWS` that are decoded ahead of DuckDB."""

FETCH_ROWS: Final = 2_048
"""Rows taken from DuckDB and written at a time: DuckDB's own vector size."""

ROWS_SHOWN: Final = 100
"""Rows of a table for people: more scroll out of sight. `--json` and `--csv` write all rows."""

ROWS_COUNTED_MAX: Final = 1_000_000
"""Rows beyond `ROWS_SHOWN` that are counted for the note below the table. Counting more would take seconds."""

CELL_CHARACTERS_MAX: Final = 200
"""Characters of one value in a table for people: two lines of a wide terminal."""

COLUMN_WIDTH_MIN: Final = 14
"""Terminal columns for a wide value, at least: less is not readable. A table that does not fit under this rule is shown
as a list of names and values for each row."""

WIDTH: Final = 80
"""Columns where neither `COLUMNS` nor a terminal says how many there are."""
