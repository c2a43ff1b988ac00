"""Idempotency keys of requests over HTTP: a request sent again under its key is answered as the first one.

A key belongs to one user. It is stored before the request is done, and its answer afterwards; a hub that is stopped in
between leaves a key without an answer, and the outcome of the request is unknown. Keys of commands are in
`command_keys`.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.limits import (
    REQUEST_KEYS_FORGOTTEN_MAX,
    REQUEST_KEYS_KEPT_S,
    REQUEST_KEYS_OF_ONE_MAX,
    REQUEST_KEYS_OF_TENANT_MAX,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import request_keys


class RequestKey(NamedTuple):
    """Key of a request."""

    user: str
    key: str
    tenant: str
    """Tenant of the user, which has a limit too."""


class KeptRequest(NamedTuple):
    """Request that was sent under a key before."""

    digest: str
    at: int
    """Time of the request, UTC microseconds."""
    status: int | None
    """Status of its answer; None: it has none yet."""
    body: bytes | None
    """Body of its answer; None: it is not kept."""


class TooManyKeys(Exception):
    """The user has as many keys as are kept."""


class RequestKeys:
    """Keys in the registry, for the thread that opened it. Every method is one transaction; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, mine: RequestKey, digest: str, now_us: int) -> KeptRequest | None:
        """Store a key, and return None; or return the request that was sent under it. Raises `TooManyKeys`."""

        def work(tx: sa.Connection) -> KeptRequest | None:
            _forget_old(tx, now_us)
            columns = [request_keys.c[name] for name in KeptRequest._fields]
            row = tx.execute(sa.select(*columns).where(*_is(mine))).first()
            if row is not None:
                return KeptRequest(*row)
            for column, name, most in (
                (request_keys.c.user, mine.user, REQUEST_KEYS_OF_ONE_MAX),
                (request_keys.c.tenant, mine.tenant, REQUEST_KEYS_OF_TENANT_MAX),
            ):
                counting = sa.select(sa.func.count()).select_from(request_keys).where(column == name)
                if (tx.execute(counting).scalar() or 0) >= most:
                    raise TooManyKeys(f"{column.name} {name} has used {most} idempotency keys within a day")
            tx.execute(request_keys.insert().values(**mine._asdict(), digest=digest, at=now_us))
            return None

        return self._database.transaction(work)

    def finish(self, mine: RequestKey, status: int, body: bytes | None) -> None:
        """Store the answer to a request."""
        change = request_keys.update().where(*_is(mine)).values(status=status, body=body)
        self._database.transaction(lambda tx: tx.execute(change))

    def forget(self, mine: RequestKey) -> None:
        """Delete the key of a request that has changed nothing."""
        self._database.transaction(lambda tx: tx.execute(request_keys.delete().where(*_is(mine))))


def _is(mine: RequestKey) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return request_keys.c.user == mine.user, request_keys.c.key == mine.key


def _forget_old(tx: sa.Connection, now_us: int) -> None:
    """Delete some keys that are kept no longer."""
    before = now_us - int(REQUEST_KEYS_KEPT_S * 1_000_000)
    columns = [request_keys.c[name] for name in RequestKey._fields]
    old = sa.select(*columns).where(request_keys.c.at <= before)
    for row in tx.execute(old.order_by(request_keys.c.at).limit(REQUEST_KEYS_FORGOTTEN_MAX)).all():
        tx.execute(request_keys.delete().where(*_is(RequestKey(*row))))
