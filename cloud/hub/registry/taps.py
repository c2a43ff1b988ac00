"""Taps of the lake: how far the commits of a table have been passed on to a topic, and which hub passes them on.

For a thread of its own. A hub claims a tap, then passes commits on. Every change requires the number that was read
before, so two hubs never advance a tap from the same place (``cloud/decisions/0014-acts-happen-once.md``). Times are
UTC microseconds since 1970, by the clock of the hub that wrote them; a clock decides only when another hub may claim.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import taps


class TapName(NamedTuple):
    """Table of a lake, and the topic that its commits are passed on to."""

    lake: str
    """Identity of the lake."""
    table_name: str
    topic: str


class TapRecord(NamedTuple):
    """State of a tap. `number` rises with each change."""

    number: int
    holder: str | None
    """Writer id of the hub that passes commits on; None if no hub does."""
    seen_at: int
    """Time at which the holder wrote last."""
    version: int
    """Last version of the table that was passed on."""
    digest: str
    """SHA-256 of the log entry of that version; empty if unknown."""
    newest: int
    """Newest version of the table that a holder has seen."""
    waiting_since: int | None
    """Time of the first version that was not passed on; None without one."""
    records: int
    """Messages passed on since the tap began."""
    trouble: str
    """Why nothing is passed on; empty if nothing hinders it."""


_RECORD = [taps.c[name] for name in TapRecord._fields]


class RegistryTaps:
    """Taps in the registry, for the thread that creates it. Every method is one transaction, durable on return; raises
    `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database: Database = open_registry(url).database

    def close(self) -> None:
        self._database.close()

    def read(self, name: TapName) -> TapRecord | None:
        """Return the state of a tap; None before any hub claimed it."""
        return self._database.transaction(lambda tx: _read(tx, name))

    def claim(self, name: TapName, hub: str, begin: TapRecord, silent_us: int) -> TapRecord | None:
        """Claim a tap for a hub, and return its state; None if another hub holds it, and wrote within `silent_us`.

        `begin`: state of a tap that is new; its `seen_at` is the time now.
        """
        now_us = begin.seen_at

        def work(tx: sa.Connection) -> TapRecord | None:
            found = _read(tx, name)
            if found is None:
                made = begin._replace(number=1, holder=hub)
                tx.execute(taps.insert().values(**name._asdict(), **made._asdict()))
                return made
            if found.holder not in (None, hub) and found.seen_at > now_us - silent_us:
                return None
            return _write(tx, name, found, found._replace(holder=hub, seen_at=now_us))

        return self._database.transaction(work)

    def advance(self, name: TapName, before: TapRecord, after: TapRecord) -> TapRecord | None:
        """Replace the state `before`, and return the new state; None if the tap has changed since."""
        return self._database.transaction(lambda tx: _write(tx, name, before, after))


def _read(tx: sa.Connection, name: TapName) -> TapRecord | None:
    row = tx.execute(sa.select(*_RECORD).where(*_row_of(name))).one_or_none()
    return None if row is None else TapRecord(*row)


def _write(tx: sa.Connection, name: TapName, before: TapRecord, after: TapRecord) -> TapRecord | None:
    new = after._replace(number=before.number + 1)
    same = (*_row_of(name), taps.c.number == before.number)
    changed = tx.execute(taps.update().where(*same).values(**new._asdict())).rowcount
    return new if changed else None


def _row_of(name: TapName) -> list[sa.ColumnElement[bool]]:
    return [taps.c[column] == value for column, value in name._asdict().items()]
