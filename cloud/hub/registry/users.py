"""Users of the hubs of a registry, with their rights and the hashes of their secrets.

For a thread of its own, and for commands of the CLI next to it. Every change raises the number of the users' revision,
so a hub sees with one row whether it has to read them. A registry in a hub's own data directory has none: that hub
keeps its users in a file (`edge.broker.security.credentials`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec
import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import user_revisions, users
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.tenants import TenantRemoved
from cloud.lake.faults import RegistryError
from edge.broker.security.credentials import (
    CredentialsError,
    CredentialSnapshot,
    CredentialsUnavailable,
    CredentialUser,
    UserChanged,
)
from edge.broker.security.limits import USERS_MAX

T = TypeVar("T")

_ONLY: Final = 1
"""Id of the only row of `user_revisions`."""
_DECOY_BYTES: Final = 32


class RegistryUsers:
    """Users in the registry, for the thread that creates it: a `CredentialStore`. Every method is one transaction, and
    raises `CredentialsError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one. Raises `RegistryError`."""
        self._database = open_registry(url).database
        self._reading = Database(url, reading=True)
        """Looks for changes each second, and delays no landing."""
        self._loaded: dict[str, str] = {}
        """Documents of users as they were read last."""

    def close(self) -> None:
        self._reading.close()
        self._database.close()

    def load(self) -> CredentialSnapshot:
        return self.read()[0]

    def read(self) -> tuple[CredentialSnapshot, int]:
        """Return all users, and the number of their revision."""

        def work(tx: sa.Connection) -> tuple[CredentialSnapshot, int]:
            number, decoy = _revision(tx)
            rows = tx.execute(sa.select(users.c.name, users.c.document).order_by(users.c.name))
            documents.update({row.name: row.document for row in rows})
            found = {name: msgspec.json.decode(text, type=CredentialUser) for name, text in documents.items()}
            return CredentialSnapshot(found, decoy), number

        documents: dict[str, str] = {}
        found = self._run(work)
        self._loaded = documents
        return found

    def revision(self) -> int:
        """Return the number of the users' revision."""
        try:
            return self._reading.transaction(lambda tx: tx.execute(sa.select(user_revisions.c.number)).scalar()) or 0
        except RegistryError as error:
            raise CredentialsUnavailable(str(error)) from error

    def put(self, made: Iterable[CredentialUser], *, new: bool = False) -> None:
        """Add users with `new`, else replace those that were read last. A user that was changed or removed since then
        stays as it is, and none is replaced."""
        documents = {user.name: msgspec.json.encode(user).decode() for user in made}

        def work(tx: sa.Connection) -> None:
            for tenant in {name.rpartition("@")[2] for name in documents} if new else ():
                require_tenant(tx, tenant)
            for name, document in documents.items():
                there = tx.execute(sa.select(users.c.document).where(users.c.name == name)).scalar()
                if new and there is not None:
                    raise UserChanged(f"user {name} exists already")
                if not new and (there is None or there != self._loaded.get(name)):
                    raise UserChanged(f"user {name} was changed at the same time; look at it, and try again")
                tx.execute(users.delete().where(users.c.name == name))
                tx.execute(users.insert().values(name=name, document=document))
            if (tx.execute(sa.select(sa.func.count()).select_from(users)).scalar() or 0) > USERS_MAX:
                raise CredentialsError(f"there can be at most {USERS_MAX} users")
            raise_revision(tx)

        self._run(work)

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove users; return the names that existed. A user that was changed since it was read last stays, and none
        is removed: whoever removes it may lack its new rights."""
        wanted = list(names)

        def work(tx: sa.Connection) -> list[str]:
            gone = []
            for name in wanted:
                there = tx.execute(sa.select(users.c.document).where(users.c.name == name)).scalar()
                if there is not None and there != self._loaded.get(name, there):
                    raise UserChanged(f"user {name} was changed at the same time; look at it, and try again")
                if tx.execute(users.delete().where(users.c.name == name)).rowcount:
                    gone.append(name)
            if gone:
                raise_revision(tx)
            return gone

        return self._run(work)

    def add_first(self, made: Iterable[CredentialUser]) -> list[str]:
        """Add these users if the registry has never had any; return their names. Later a missing user may have been
        removed, and must not come back."""
        documents = {user.name: msgspec.json.encode(user).decode() for user in made}

        def work(tx: sa.Connection) -> list[str]:
            if _revision(tx)[0] or not documents:
                return []
            tx.execute(users.insert(), [{"name": name, "document": text} for name, text in documents.items()])
            raise_revision(tx)
            return sorted(documents)

        return self._run(work)

    def _run(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            return self._database.transaction(work)
        except TenantRemoved:
            raise
        except RegistryError as error:
            raise CredentialsUnavailable(str(error)) from error
        except msgspec.MsgspecError as error:
            raise CredentialsError(f"a user in the registry cannot be read: {error}") from error


def _revision(tx: sa.Connection) -> tuple[int, bytes]:
    """Return number of the revision and key of unknown users, which all hubs share; make them at first."""
    row = tx.execute(sa.select(user_revisions.c.number, user_revisions.c.decoy)).first()
    if row is not None:
        return row.number, row.decoy
    decoy = secrets.token_bytes(_DECOY_BYTES)
    tx.execute(user_revisions.insert().values(id=_ONLY, number=0, decoy=decoy))
    return 0, decoy


def raise_revision(tx: sa.Connection) -> None:
    """Raise the revision of the users, so that hubs read them again."""
    number, _ = _revision(tx)
    tx.execute(user_revisions.update().values(number=number + 1))
    notify(tx, NoticeTopic.USERS)
