"""Sessions of browsers in the registry: they outlive a restart, and every hub on the registry accepts them.

For a thread of the hub (`edge.broker.http.session_keeper`). Times are UTC microseconds since 1970. Of a token only the
SHA-256 is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import sqlalchemy as sa

from cloud.hub.limits import HUB_CLOCKS_S, HUB_SESSIONS_MAX
from cloud.hub.peers import tenant_of_user
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import PARAMETERS_MAX, sessions
from cloud.lake.faults import RegistryError
from edge.broker.http.limits import SESSION_IDLE_S, SESSION_LIFE_S, SESSION_RENEWAL_S, SESSION_STAY_S
from edge.broker.http.session_archive import ArchiveFailed, KeptSession
from edge.broker.http.sessions import choose_displaced
from edge.broker.model.authorization import AccessRule
from edge.broker.security.proof import TokenOrigin

T = TypeVar("T")

_US: Final = 1_000_000
_KEPT: Final = [sessions.c[name] for name in (
    "key", "user", "way", "secret", "rules", "expires_at", "stays", "opened_at", "used_at", "sealed",
    "token_subject", "token_session", "token_issued_at",
)]  # fmt: skip


_RENEWED: Final = ("rules", "expires_at", "sealed", "token_subject", "token_session", "token_issued_at")
"""Columns that the issuer's renewal of a session changes."""


class RegistrySessions:
    """Sessions in the registry (`SessionArchive`), for the thread that opens it."""

    def __init__(self, url: sa.URL, utc_s: Callable[[], float], *, most: int = HUB_SESSIONS_MAX) -> None:
        """`utc_s` returns UTC seconds; `most`: sessions at once. Raises `ArchiveFailed`."""
        self._utc_s = utc_s
        self._most = most
        try:
            self._database = open_registry(url).database
        except RegistryError as error:
            raise ArchiveFailed(str(error)) from error
        self._reading = Database(url, reading=True)
        """Looks up what anybody shows, without the lock that landings need."""

    def all(self) -> list[KeptSession]:
        return [_kept(row) for row in self._read(lambda tx: tx.execute(sa.select(*_KEPT)).all())]

    def find(self, key: bytes) -> KeptSession | None:
        query = sa.select(*_KEPT).where(sessions.c.key == key.hex())
        row = self._read(lambda tx: tx.execute(query).first())
        return None if row is None else _kept(row)

    def add(self, kept: KeptSession) -> list[bytes]:
        def work(tx: sa.Connection) -> list[bytes]:
            self._delete_over(tx)
            _delete(tx, [kept.key.hex()])  # it may be there: the answer of an earlier attempt was lost
            query = sa.select(sessions.c.key, sessions.c.user, sessions.c.used_at)
            there = tx.execute(query.where(sa.not_(_is_over(self._now_s(tx))))).all()
            displaced = [
                each.key
                for each in choose_displaced(
                    there, kept.user, lambda each: float(each.used_at), most=self._most, group_of=tenant_of_user
                )
            ]
            _delete(tx, displaced)
            tx.execute(sessions.insert().values(**_row(kept)))
            return [bytes.fromhex(each) for each in displaced]

        return self._run(work)

    def touch(self, used: Mapping[bytes, float]) -> None:
        later: sa.BindParameter[int] = sa.bindparam("later")
        statement = (
            sessions.update()
            .where(sessions.c.key == sa.bindparam("of"), sessions.c.used_at < later)
            .values(used_at=later)
        )
        rows = [{"of": key.hex(), "later": int(at_s * _US)} for key, at_s in used.items()]

        def work(tx: sa.Connection) -> None:
            if rows:
                tx.execute(statement, rows)
            self._delete_over(tx)

        self._run(work)

    def claim(self, key: bytes, expires_at_s: float, now_s: float) -> bool:
        free = sessions.c.renewing_until.is_(None) | (sessions.c.renewing_until < int(now_s * _US))
        mine = (sessions.c.key == key.hex(), sessions.c.expires_at == int(expires_at_s * _US), free)
        statement = sessions.update().where(*mine).values(renewing_until=int((now_s + SESSION_RENEWAL_S) * _US))
        return self._run(lambda tx: bool(tx.execute(statement).rowcount))

    def renewed(self, kept: KeptSession) -> None:
        fresh = {name: value for name, value in _row(kept).items() if name in _RENEWED}
        statement = sessions.update().where(sessions.c.key == kept.key.hex()).values(renewing_until=None, **fresh)
        self._run(lambda tx: tx.execute(statement))

    def remove(self, keys: Iterable[bytes]) -> None:
        named = [key.hex() for key in keys]
        self._run(lambda tx: _delete(tx, named))

    def remove_user(self, user: str) -> list[bytes]:
        mine = sessions.c.user == user

        def work(tx: sa.Connection) -> list[bytes]:
            found = tx.execute(sa.select(sessions.c.key).where(mine)).scalars().all()
            tx.execute(sessions.delete().where(mine))
            return [bytes.fromhex(each) for each in found]

        return self._run(work)

    def close(self) -> None:
        self._reading.close()
        self._database.close()

    def _delete_over(self, tx: sa.Connection) -> None:
        """Delete what is over by the clock of the database and by that of this hub, also if the hub that used it is
        `HUB_CLOCKS_S` behind: a hub with a wrong clock ends no session of others."""
        tx.execute(sessions.delete().where(_is_over(self._now_s(tx) - HUB_CLOCKS_S)))

    def _now_s(self, tx: sa.Connection) -> float:
        """Return UTC seconds by the slower of the clocks of the database and of this hub."""
        return min(self._utc_s(), self._database.dialect.utc_s(tx))

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            return self._reading.transaction(work)
        except RegistryError as error:
            raise ArchiveFailed(str(error)) from error

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            return self._database.transaction(work)
        except RegistryError as error:
            raise ArchiveFailed(str(error)) from error


def _delete(tx: sa.Connection, keys: list[str]) -> None:
    for start in range(0, len(keys), PARAMETERS_MAX):
        tx.execute(sessions.delete().where(sessions.c.key.in_(keys[start : start + PARAMETERS_MAX])))


def _is_over(now_s: float) -> sa.ColumnElement[bool]:
    """Return the condition for sessions that are over at a time, as `KeptSession.is_over`; never null."""

    def before(seconds: float) -> int:
        return int((now_s - seconds) * _US)

    columns = sessions.c
    ends_at = sa.func.coalesce(columns.expires_at, before(-1))
    return sa.or_(
        columns.opened_at <= before(SESSION_LIFE_S),
        columns.used_at <= before(SESSION_STAY_S),
        columns.stays.is_(False) & (columns.used_at <= before(SESSION_IDLE_S)),
        columns.sealed.is_(None) & (ends_at <= before(0)),
    )


def _row(kept: KeptSession) -> dict[str, Any]:
    origin = kept.origin
    return {
        "key": kept.key.hex(),
        "user": kept.user,
        "way": kept.by,
        "secret": kept.secret,
        "rules": msgspec.json.encode(kept.rules).decode(),
        "expires_at": None if kept.expires_at_s is None else int(kept.expires_at_s * _US),
        "stays": kept.stays,
        "opened_at": int(kept.opened_at_s * _US),
        "used_at": int(kept.used_at_s * _US),
        "sealed": kept.sealed or None,
        "token_subject": None if origin is None else origin.subject,
        "token_session": None if origin is None else origin.session,
        "token_issued_at": None if origin is None else int(origin.issued_at_s * _US),
    }


def _kept(row: Any) -> KeptSession:
    return KeptSession(
        key=bytes.fromhex(row.key),
        user=row.user,
        by=row.way,
        secret=row.secret,
        rules=msgspec.json.decode(row.rules, type=tuple[AccessRule, ...]),
        expires_at_s=None if row.expires_at is None else row.expires_at / _US,
        stays=row.stays,
        opened_at_s=row.opened_at / _US,
        used_at_s=row.used_at / _US,
        sealed=row.sealed or b"",
        origin=None if row.token_issued_at is None else _origin(row),
    )


def _origin(row: Any) -> TokenOrigin:
    return TokenOrigin("", row.token_subject or "", row.token_session or "", row.token_issued_at / _US)
