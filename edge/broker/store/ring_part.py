"""Numbers that a group reserves or releases for logs kept in memory. Messages are never written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class SequenceGrant(NamedTuple):
    """Reserved sequences of one address. They may be used once the group is on disk."""

    logs: tuple[int, ...]
    following: int
    """The next one when the group was sealed."""
    end: int


@dataclass(slots=True, eq=False)
class RingPart:
    """Changes of one group to logs kept in memory."""

    number: int = 0
    """Number of commits that reserved or released numbers, including this one."""
    ends: dict[int, int] = field(default_factory=dict)
    """End of each log in table ``log``: the end of its reserved positions."""
    followings: dict[int, int] = field(default_factory=dict)
    """Next position of each log when the group was sealed."""
    firsts: dict[int, int] = field(default_factory=dict)
    """First position from now on of each log without segments."""
    grants: dict[str, SequenceGrant] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    """Next sequence of each address that releases its reservation."""
    cut: dict[str, int] = field(default_factory=dict)
    """The same for addresses that still have messages in a ring. Their reservation ends at the next sequence."""
    refused: set[int] = field(default_factory=set)
    """Logs with waiting runs that get no numbers, because too many addresses have some."""
    left: list[int] = field(default_factory=list)
    """Logs that leave memory."""

    def __bool__(self) -> bool:
        return bool(self.ends or self.grants or self.released or self.cut or self.left)
