"""Bounds of requests to an object store, and of what a data file is written with."""

from __future__ import annotations

CONNECT_S = 5
"""Seconds for a connection to be made."""

REQUEST_S = 30
"""Seconds for one request: 16 MiB at 5 Mbit/s."""

RETRIES_MAX = 3
"""Times a request is sent again at once. What still fails is tried again by who asked, as a landing is."""

RETRY_S_MAX = 20
"""Seconds in which that is done: a landing's failure is told before it counts as standing."""

CREDENTIALS_BYTES_MAX = 64 * 1024
"""Size of a file of credentials."""

READ_BYTES = 256 * 1024
"""Bytes asked for at least when a part of an object is read: the end of a Parquet file is within it."""

SAID_MAX = 400
"""Characters of what a store says of a fault."""

PARQUET_COMPRESSION_LEVEL = 3
"""zstd level of the data files: 1.3 M rows/s a core, 2x smaller than snappy (measured)."""

STATISTICS_TEXT_MAX = 32
"""Characters of a text column's minimum or maximum put into the Delta log; longer ones are left out of it."""
