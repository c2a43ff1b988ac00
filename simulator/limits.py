"""Limits of simulations."""

from __future__ import annotations

from typing import Final

DEVICES_MAX: Final = 20_000
"""Devices of one file: each takes some 30 KiB, and a process has one socket for each."""

CREDENTIALS_BYTES_MAX: Final = 16 << 20
"""Bytes of a CSV with credentials: 20 000 devices with the longest names and passwords have 11 MB."""

CHUNK_BYTES: Final = 32 << 10
"""Bytes of an image that a device requests at once over MQTT: the most that a gateway sends."""

RANGE_BYTES: Final = 256 << 10
"""Bytes of an image that a device requests at once over HTTP."""

LATENCY_STEP: Final = 1.05
"""Ratio of two limits of the buckets in which times are counted: a percentile is at most 5 % too high."""
