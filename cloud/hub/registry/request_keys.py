"""Idempotency keys of requests over HTTP: a request sent again under its key is answered as the first one.

A key belongs to one user. It is stored before the request is done, and its answer afterwards; a hub that is stopped in
between leaves a key without an answer, and the outcome of the request is unknown. Keys of commands are in
`command_keys`.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.limits import (
    REQUEST_KEYS_FORGOTTEN_MAX,
    REQUEST_KEYS_KEPT_S,
    REQUEST_KEYS_KEPT_S_MIN,
    REQUEST_KEYS_OF_ONE_MAX,
    REQUEST_KEYS_OF_TENANT_MAX,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import request_keys

_KEPT_US: Final = int(REQUEST_KEYS_KEPT_S * 1_000_000)
_KEPT_US_MIN: Final = int(REQUEST_KEYS_KEPT_S_MIN * 1_000_000)
_ANSWERED: Final = request_keys.c.status.is_not(None)


class RequestKey(NamedTuple):
    """Key of a request."""

    user: str
    key: str
    tenant: str
    """Tenant of the user, which has a limit too."""


@hides("body")
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
    """The user or its tenant has as many keys as are kept."""

    def __init__(self, text: str, wait_s: int) -> None:
        super().__init__(text)
        self.wait_s: Final = wait_s
        """Time until there is room for one."""


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
                if (tx.execute(counting).scalar() or 0) >= most and not _make_room(tx, column == name, now_us):
                    text = f"{column.name} {name} has {most} idempotency keys of this hour, or without an answer"
                    raise TooManyKeys(text, _wait_s(tx, column == name, now_us))
            tx.execute(request_keys.insert().values(**mine._asdict(), digest=digest, at=now_us))
            return None

        return self._database.transaction(work)

    def renew(self, mine: RequestKey, now_us: int) -> None:
        """Set the time of a request that is still being done."""
        change = request_keys.update().where(*_is(mine), request_keys.c.status.is_(None)).values(at=now_us)
        self._database.transaction(lambda tx: tx.execute(change))

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
    _forget(tx, request_keys.c.at <= now_us - _KEPT_US)


def _make_room(tx: sa.Connection, whose: sa.ColumnElement[bool], now_us: int) -> bool:
    """Delete some keys that have an answer for long; return whether there were any."""
    return _forget(tx, whose & _ANSWERED & (request_keys.c.at <= now_us - _KEPT_US_MIN))


def _forget(tx: sa.Connection, which: sa.ColumnElement[bool]) -> bool:
    columns = [request_keys.c[name] for name in RequestKey._fields]
    oldest = sa.select(*columns).where(which).order_by(request_keys.c.at).limit(REQUEST_KEYS_FORGOTTEN_MAX)
    found = tx.execute(oldest).all()
    for row in found:
        tx.execute(request_keys.delete().where(*_is(RequestKey(*row))))
    return bool(found)


def _wait_s(tx: sa.Connection, whose: sa.ColumnElement[bool], now_us: int) -> int:
    """Return the time until the first of these keys gives room."""
    kept_us = sa.case((_ANSWERED, _KEPT_US_MIN), else_=_KEPT_US)
    first_us = tx.execute(sa.select(sa.func.min(request_keys.c.at + kept_us)).where(whose)).scalar() or now_us
    return max(1, math.ceil((first_us - now_us) / 1_000_000))
