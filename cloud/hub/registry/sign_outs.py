"""Logouts of people at the issuer, which count at every hub on the registry.

For a thread of its own. Of two transactions the one with the higher number may commit first, and each may delete rows,
so the mark by which a hub sees changes has their count and sum too.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import sign_outs
from edge.broker.security.limits import SIGN_OUTS_KEPT_S, SIGN_OUTS_MAX
from edge.broker.security.sign_outs import EndedSignIn

T = TypeVar("T")

_US: Final = 1_000_000


class SignOutMark(NamedTuple):
    """State of the table: it differs after every change."""

    rows: int
    highest: int
    numbers: int
    """Sum of the numbers."""


class RegistrySignOuts:
    """Logouts of one issuer, for the thread that opens it. Every method raises `RegistryError`."""

    def __init__(self, url: sa.URL, issuer: str, *, most: int = SIGN_OUTS_MAX) -> None:
        self._issuer = issuer
        self._most = most
        self._database = open_registry(url).database
        self._reading = Database(url, reading=True)
        """Looks for changes, and delays no landing."""

    def add(self, ended: EndedSignIn) -> None:
        """Keep a logout. The oldest make room, and those that are too old to be kept end."""

        def work(tx: sa.Connection) -> None:
            now_s = self._database.dialect.utc_s(tx)
            row = {"issuer": self._issuer, "subject": ended.subject, "session": ended.session}
            same = sa.and_(*(sign_outs.c[name] == value for name, value in row.items()))
            at = int(ended.at_s * _US)
            if tx.execute(sa.select(sign_outs.c.number).where(same, sign_outs.c.at >= at).limit(1)).first() is not None:
                return  # the issuer has sent it again
            tx.execute(sign_outs.delete().where(same))
            tx.execute(sign_outs.insert().values(**row, at=at))
            highest = tx.execute(sa.select(sa.func.max(sign_outs.c.number))).scalar_one()
            over = sa.or_(
                sign_outs.c.at < int((now_s - SIGN_OUTS_KEPT_S) * _US), sign_outs.c.number <= highest - self._most
            )
            tx.execute(sign_outs.delete().where(over))
            notify(tx, NoticeTopic.SIGN_OUTS)

        self._database.transaction(work)

    def mark(self) -> SignOutMark:
        """Return the state of the table."""
        number = sign_outs.c.number
        figures = (sa.func.count(number), sa.func.max(number), sa.func.sum(number))
        found = self._reading.transaction(lambda tx: tx.execute(sa.select(*figures)).one())
        return SignOutMark(*(int(each or 0) for each in found))

    def read(self) -> list[EndedSignIn]:
        """Return the logouts of the issuer, the oldest first."""
        query = sa.select(sign_outs).where(sign_outs.c.issuer == self._issuer).order_by(sign_outs.c.number)
        rows = self._reading.transaction(lambda tx: tx.execute(query).all())
        return [EndedSignIn(row.subject, row.session, row.at / _US) for row in rows]

    def close(self) -> None:
        """Close the connections. Raises nothing."""
        self._reading.close()
        self._database.close()
