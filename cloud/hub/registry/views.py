"""Views of lists that users saved under a name, in the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import views


class SavedView(NamedTuple):
    """Filter and order of a list, saved by a user."""

    name: str
    page: str
    query: str
    """Query of the page's address."""


_VIEW = [views.c[name] for name in SavedView._fields]


class SavedViews:
    """Saved views, for the thread that opened the database. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, user: str) -> list[SavedView]:
        """Return the views of a user, by name."""
        query = sa.select(*_VIEW).where(views.c.user == user).order_by(views.c.name)
        return [SavedView(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def put(
        self, user: str, view: SavedView, most: int, check: Callable[[SavedView | None], None] = lambda _view: None
    ) -> bool:
        """Save a view, or replace the one of that name; return False when the user has `most` others. `check` gets the
        one of that name, and raises to prevent the change."""

        def work(tx: sa.Connection) -> bool:
            check(_view(tx, user, view.name))
            tx.execute(views.delete().where(views.c.user == user, views.c.name == view.name))
            counting = sa.select(sa.func.count()).select_from(views).where(views.c.user == user)
            if (tx.execute(counting).scalar() or 0) >= most:
                return False
            tx.execute(views.insert().values(user=user, **view._asdict()))
            return True

        return self._database.transaction(work)

    def delete(self, user: str, name: str, check: Callable[[SavedView], None] = lambda _view: None) -> bool:
        """Delete a view; return False if unknown. `check`: as of `put`."""
        mine = (views.c.user == user, views.c.name == name)

        def work(tx: sa.Connection) -> bool:
            if (before := _view(tx, user, name)) is not None:
                check(before)
            return bool(tx.execute(views.delete().where(*mine)).rowcount)

        return self._database.transaction(work)


def _view(tx: sa.Connection, user: str, name: str) -> SavedView | None:
    row = tx.execute(sa.select(*_VIEW).where(views.c.user == user, views.c.name == name)).first()
    return None if row is None else SavedView(*row)
