"""Statements of all routers of a network: the state that they agree on."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping

from edge.broker.limits import NETWORK_ANNOUNCED_MAX, NETWORK_ROUTERS_MAX
from edge.broker.network.statements import NUMBER_MAX, Statement


class Applied(enum.Enum):
    """Effect of a statement."""

    NEWER = "newer than what was known"
    KNOWN = "not newer than what is known"
    GAP = "changes before it are missing"
    TOO_MANY = "too many routers or addresses"


class RouterRecord:
    """Latest statement of one router."""

    __slots__ = ("announced", "instance", "neighbours", "router", "version")

    def __init__(self, router: str, instance: int, version: int = 0) -> None:
        self.router = router
        self.instance = instance
        self.version = version
        self.neighbours: dict[str, int] = {}
        self.announced: dict[str, None] = {}
        """Direct addresses with consumers there: a letter for the type, then the name or filter."""

    @property
    def stamp(self) -> tuple[int, int]:
        """Key that grows with each statement."""
        return self.instance, self.version

    def complete(self) -> Statement:
        """Return the whole record as a statement."""
        return Statement(self.router, self.instance, self.version, 0, dict(self.neighbours), list(self.announced))

    def change(self, neighbours: Mapping[str, int], added: Collection[str], removed: Collection[str]) -> Statement:
        """Make the next version of the record, and return the statement of its changes."""
        before = self.version
        self.version += 1
        self.neighbours = dict(neighbours)
        for name in removed:
            self.announced.pop(name, None)
        self.announced.update(dict.fromkeys(added))
        return Statement(self.router, self.instance, self.version, before, self.neighbours, list(added), list(removed))

    def outdo(self, instance: int, version: int) -> None:
        """Become newer than all statements of this instance: a former process of the same name has made them. After the
        last instance, which is forged, become newer than this version."""
        if instance < NUMBER_MAX:
            self.instance, self.version = instance + 1, self.version + 1
        else:
            self.instance, self.version = instance, version + 1


class LinkStateDatabase:
    """Records by router."""

    def __init__(self) -> None:
        self._records: dict[str, RouterRecord] = {}

    def __iter__(self) -> Iterator[RouterRecord]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, router: str) -> RouterRecord | None:
        """Return the record of a router, or None."""
        return self._records.get(router)

    def add(self, record: RouterRecord) -> None:
        """Add the own record."""
        self._records[record.router] = record

    def forget(self, router: str) -> None:
        """Forget a router that is gone."""
        del self._records[router]

    def apply(self, statement: Statement) -> Applied:
        """Apply a statement if it is newer."""
        record = self._records.get(statement.router)
        if record is not None and (statement.instance, statement.version) <= record.stamp:
            return Applied.KNOWN
        if statement.base:
            same = record is not None and record.instance == statement.instance
            if record is None or not same or record.version != statement.base:
                return Applied.GAP
            removed = set(statement.removed)
            kept = {name: None for name in record.announced if name not in removed}
            kept.update(dict.fromkeys(statement.added))
        else:
            kept = dict.fromkeys(statement.added)
        if len(kept) > NETWORK_ANNOUNCED_MAX or (record is None and len(self._records) >= NETWORK_ROUTERS_MAX):
            return Applied.TOO_MANY
        if record is None:
            record = self._records[statement.router] = RouterRecord(statement.router, statement.instance)
        record.instance, record.version = statement.instance, statement.version
        record.neighbours, record.announced = dict(statement.neighbours), kept
        return Applied.NEWER
