"""Limits of requests to an object store, and of data files."""

from __future__ import annotations

CONNECT_S = 5
"""Seconds to connect."""

REQUEST_S = 30
"""Seconds for one request: 16 MiB at 5 Mbit/s."""

RETRIES_MAX = 3
"""Immediate retries of a request. The caller retries later, as a landing does."""

RETRY_S_MAX = 20
"""Seconds for all retries: a landing must fail before it counts as stalled."""

CREDENTIALS_BYTES_MAX = 64 * 1024
"""Maximum bytes of a credentials file."""

READ_BYTES = 256 * 1024
"""Minimum bytes of a partial read: the footer of a Parquet file fits."""

ERROR_TEXT_MAX = 400
"""Characters of an error text of a store."""

PARQUET_COMPRESSION_LEVEL = 3
"""zstd level of the data files: 1.3 M rows/s a core, 2x smaller than snappy (measured)."""

STATISTICS_TEXT_MAX = 32
"""Characters of a text column's minimum or maximum in the Delta log; longer ones are left out."""
