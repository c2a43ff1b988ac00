"""Content of a batch: ranges, runs and bodies, read from its two decompressed sections.

`bridge.batch` documents their layout. Batches of a fleet have about ten readings each, so the cost per batch and per
range counts; it is C for that reason (`batch_content.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bridge.columns import BatchError
from bridge.hidden import hides
from bridge.native import functions as native


class AddressRange(msgspec.Struct, frozen=True, gc=False):
    """A dense piece of the sequence of one address.

    ``base`` is the first sequence that this forwarder sends for that address: earlier ones, from before the forwarder
    existed, are not a gap. So the next sequence a hub expects is ``max(mark + 1, base)``. ``base <= first``.
    """

    address: str
    base: int
    first: int
    count: int


@hides("properties", "bodies")
class BatchContent(NamedTuple):
    """Content of a batch; each run has one entry in `devices`, `received_at`, `flags` and `properties`."""

    ranges: list[AddressRange]
    run_lengths: Sequence[int]
    """Number of messages of each run."""
    devices: list[str]
    received_at: list[int]
    """UTC nanoseconds."""
    flags: bytes
    properties: list[bytes]
    bodies: list[bytes]
    """One entry per message, in the order of the ranges."""
    longest: int
    """Bytes of the longest address, device and properties together: an upper bound for each message."""


def read(table: bytes, columns: bytes, ranges: int, messages: int) -> BatchContent:
    """Read the content of a batch. Raises `BatchError` unless its sections have this many ranges and messages."""
    try:
        return BatchContent(*native.read_batch(table, columns, ranges, messages, AddressRange))
    except ValueError as error:
        raise BatchError(str(error)) from None
