"""What is in a batch: its ranges, runs and bodies, read from its two sections as they are after the codec.

`bridge.batch` says how they are laid out. A fleet's batches have some ten readings each, so what is done once a batch
and a range counts: it is done in C (`batch_content.c`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bridge.columns import BatchError
from bridge.hidden import hides
from bridge.native import functions as native


class BatchRange(msgspec.Struct, frozen=True, gc=False):
    """A dense piece of the sequence of one address.

    ``base`` is the first sequence this forwarder owes for that address (what came before the forwarder was made is
    nobody's gap), so the next one a hub expects is ``max(mark + 1, base)``. ``base <= first``.
    """

    address: str
    base: int
    first: int
    count: int


@hides("properties", "bodies")
class BatchContent(NamedTuple):
    """What a batch says; a run has one entry in each of `devices`, `received_at`, `flags` and `properties`."""

    ranges: list[BatchRange]
    run_lengths: Sequence[int]
    """Messages of each run."""
    devices: list[str]
    received_at: list[int]
    """UTC nanoseconds."""
    flags: bytes
    properties: list[bytes]
    bodies: list[bytes]
    """One entry a message, in the order of the ranges."""
    longest: int
    """Bytes of the longest address, device and properties together: no message has more of them."""


def read(table: bytes, columns: bytes, ranges: int, messages: int) -> BatchContent:
    """The content of a batch of so many ranges and messages. Raises `BatchError` where its sections do not say that."""
    try:
        return BatchContent(*native.read_batch(table, columns, ranges, messages, BatchRange))
    except ValueError as error:
        raise BatchError(str(error)) from None
