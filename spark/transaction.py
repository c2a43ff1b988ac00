"""Delta's transaction markers: which transaction a commit is, and whether a table takes it as it is now.

Whoever writes asks within the commit itself, so that nobody comes between the answer and the commit: what is committed
between the two is in conflict with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark.conflict import Overtaken

ROWS: Final = "waypost.rows"
"""What a commit says of itself: how many of its rows are new or others than before, where not all are."""


def rows_changed(info: Mapping[str, Any]) -> int | None:
    """What a commit says so: of rows folded into a table, from this process or by Spark. None of any other commit."""
    changed = info.get(ROWS, (info.get("tags") or {}).get(ROWS))
    return int(changed) if changed is not None else None


class There(NamedTuple):
    """A table as it is: its id, its version, and the last version of an application that it has taken."""

    id: str
    version: int
    applied: int | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A table takes each (`application`, `version`) once, in rising order of version.

    `begin`  the version of the application that it goes on from: rows up to one that lies between would be there twice.
    `table`  id of the table it is for, which another pass may have made anew.
    `over`   version of the table that its rows were made of, where they take the place of what is there.
    """

    application: str
    version: int
    begin: int | None = None
    table: str | None = None
    over: int | None = None

    def is_due(self, name: str, there: There) -> bool:
        """Whether table `name` is to take it as it is; False where it has. Raises `Overtaken` where another pass has
        changed what it goes on from."""
        if self.table not in (None, there.id) or self.over not in (None, there.version):
            raise Overtaken(name)
        if there.applied is None:
            return True
        if self.begin is not None and self.begin < there.applied < self.version:
            raise Overtaken(name)
        return there.applied < self.version
