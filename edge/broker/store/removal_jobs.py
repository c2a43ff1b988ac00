"""What a commit removes from logs: the jobs it gives the medium, and what came of them.

*Reclaiming* deletes what every cursor has passed, *evicting* gives up the oldest messages, *thinning* sums them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.broker.store.losses import Claim
from edge.broker.store.records import Loss


class Reclaim(NamedTuple):
    """Delete the segments of `log` that end at or below `limit`; `first` is the first position kept so far."""

    log: int
    first: int
    limit: int


class Reclaimed(NamedTuple):
    """What a `Reclaim` did: `first` is kept now, `bytes` of bodies went; not `finished` when the budget ran out."""

    log: int
    first: int
    bytes: int
    finished: bool


class Eviction(NamedTuple):
    """Delete the oldest segments of `log`, from `first` on and below `limit`, `bytes` of bodies or a little more."""

    log: int
    first: int
    limit: int
    bytes: int
    claims: Sequence[Claim]
    now_ns: int
    """UTC."""
    at_most: int | None = None
    """Bytes of bodies that may go, to the message; None: whole segments go."""


class Evicted(NamedTuple):
    """What an `Eviction` did: `first` is kept now, `bytes` of bodies went."""

    log: int
    first: int
    bytes: int
    losses: Sequence[Loss] = ()
    cut: bool = False
    """A segment was cut in two, so that one begins where none began."""


class Thinning(NamedTuple):
    """Free `bytes` of bodies of a log, going on at pass `level` and `position`; `limit` is the first position that must
    stay as it is, `read_bytes_max` the most that may be read for it."""

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
    """As in `Eviction`."""
    messages_max: int = 1 << 62
    """Messages that may be read for it, but for the last piece."""


@dataclass(slots=True)
class Thinned:
    """What a `Thinning` did, and where it is to go on; `level` is the number of passes when none is left."""

    log: int
    level: int
    position: int
    ended: bool = False
    """Everything was thinned by every interval."""
    freed: int = 0
    read: int = 0
    messages: int = 0
    """How many were read."""
    losses: list[Loss] = field(default_factory=list)
