"""Jobs of a commit that remove messages from logs, and their results.

*Reclaiming* deletes messages that every cursor has passed, *evicting* drops the oldest messages, and *thinning*
summarises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.broker.store.losses import Claim
from edge.broker.store.records import Loss


class Reclaim(NamedTuple):
    """Job to delete the segments of `log` that end at or below `limit`. `first`: first position so far."""

    log: int
    first: int
    limit: int


class Reclaimed(NamedTuple):
    """Result of a `Reclaim`: the new `first` position, and the deleted `bytes` of bodies. `finished` is False when the
    budget of the commit ran out."""

    log: int
    first: int
    bytes: int
    finished: bool


class Eviction(NamedTuple):
    """Job to delete the oldest segments of `log` between `first` and `limit`, with at least `bytes` of bodies."""

    log: int
    first: int
    limit: int
    bytes: int
    claims: Sequence[Claim]
    now_ns: int
    """UTC."""
    at_most: int | None = None
    """Maximum bytes of bodies to delete, if necessary by splitting a segment; None: delete whole segments."""


class Evicted(NamedTuple):
    """Result of an `Eviction`: the new `first` position, and the deleted `bytes` of bodies."""

    log: int
    first: int
    bytes: int
    losses: Sequence[Loss] = ()
    cut: bool = False
    """True when a segment was split, so that a segment starts at a new position."""


class Thinning(NamedTuple):
    """Job to free `bytes` of bodies of a log by thinning, continuing at pass `level` and `position`.

    `limit` is the first position that must stay unchanged, and `read_bytes_max` bounds the bytes read.
    """

    log: int
    level: int
    position: int
    first: int
    limit: int
    bytes: int
    read_bytes_max: int
    claims: Sequence[Claim]
    now_ns: int
    at_most: int | None = None
    """See `Eviction`."""
    messages_max: int = 1 << 62
    """Maximum number of messages to read; the last piece may exceed it."""


@dataclass(slots=True)
class Thinned:
    """Result of a `Thinning`, and the `level` and `position` for the next one. After the last pass, `level` is
    the number of passes."""

    log: int
    level: int
    position: int
    ended: bool = False
    """True when all passes have thinned everything."""
    freed: int = 0
    read: int = 0
    messages: int = 0
    """Number of messages read."""
    losses: list[Loss] = field(default_factory=list)
