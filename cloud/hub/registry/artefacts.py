"""Artefacts and trusted keys of tenants in the registry. For the thread that opened the database.

An artefact is waiting until its image is complete, then stored. Removal marks the row first; the image is deleted, and
the row last, so that a hub that was stopped in between continues at its next start. Times are UTC microseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from cloud.hub.limits import (
    TENANT_ARTEFACT_KEYS_MAX,
    TENANT_ARTEFACT_NAMES_MAX,
    TENANT_ARTEFACTS_MAX,
    TENANT_IMAGE_BYTES_MAX,
)
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_updates import forget_updates
from cloud.hub.registry.schema import artefact_keys, artefact_names, artefacts, campaigns
from cloud.hub.registry.tenant_state import require_tenant


class ArtefactExists(Exception):
    """Another artefact has this name and version, or is just being removed. The message says which."""


class ArtefactsFull(Exception):
    """A limit of the tenant is reached; the message says which."""


class ArtefactInUse(Exception):
    """A campaign offers the artefact. The message says which."""


class UnknownArtefact(LookupError):
    """There is no such artefact, or no such key."""


class ArtefactRow(NamedTuple):
    """Artefact of a tenant."""

    tenant: str
    name: str
    version: str
    kind: str
    sequence: int
    sha256: str
    size: int
    image: str
    """Random name of its image's folder; another one after each wrong image."""
    envelope: bytes
    key_id: str
    added_at: int
    added_by: str
    stored_at: int | None = None
    """Time at which its image was complete and verified; None: it is waiting for it."""
    removing: bool = False


class ArtefactKeyRow(NamedTuple):
    """Trusted key of a tenant."""

    tenant: str
    id: str
    pem: str
    label: str
    added_at: int
    added_by: str


_ROW: Final = [artefacts.c[name] for name in ArtefactRow._fields]
_KEY: Final = [artefact_keys.c[name] for name in ArtefactKeyRow._fields]


class ArtefactPlace(NamedTuple):
    """Place in the list of artefacts. Two versions of a name that are being uploaded may have one sequence."""

    tenant: str
    name: str
    sequence: int
    version: str

    @classmethod
    def of(cls, row: ArtefactRow) -> ArtefactPlace:
        """Return the place of an artefact."""
        return cls(row.tenant, row.name, row.sequence, row.version)


FIRST_PLACE: Final = ArtefactPlace("", "", 0, "")
"""Place before all artefacts."""


class RegisteredArtefacts:
    """Artefacts in the registry. Every method is one transaction, durable on return; raises `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- artefacts --------------------------------------------------------------------------------------------------

    def add(self, new: ArtefactRow) -> ArtefactRow:
        """Add an artefact that waits for its image, and return it; or the one that is there with the same manifest.

        Raises `ArtefactExists`, `ArtefactsFull`, and `ArtefactRefused` for a downgrade.
        """

        def work(tx: sa.Connection) -> ArtefactRow:
            require_tenant(tx, new.tenant)
            found = _find(tx, new.tenant, new.name, new.version)
            if found is not None:
                if found.envelope == new.envelope and not found.removing:
                    return found
                words = "is being removed; try again in some seconds" if found.removing else "exists, with other fields"
                raise ArtefactExists(f"{new.name} {new.version} {words}")
            _check_sequence(tx, new)
            _check_room(tx, new)
            _check_names(tx, new)
            tx.execute(artefacts.insert().values(**new._asdict()))
            return new

        return self._database.transaction(work)

    def get(self, tenant: str, name: str, version: str) -> ArtefactRow:
        """Return an artefact. Raises `UnknownArtefact`."""
        found = self._database.transaction(lambda tx: _find(tx, tenant, name, version))
        if found is None or found.removing:
            raise UnknownArtefact(f"{name} {version}")
        return found

    def page(self, tenant: str | None, name: str, after: ArtefactPlace, limit: int) -> list[ArtefactRow]:
        """Return artefacts by tenant, name, sequence and version, behind `after`. `tenant`: None for all; `name`: empty
        for all."""
        order = [artefacts.c[each] for each in ArtefactPlace._fields]
        query = sa.select(*_ROW).where(artefacts.c.removing.is_(False), sa.tuple_(*order) > sa.tuple_(*after))
        if tenant is not None:
            query = query.where(artefacts.c.tenant == tenant)
        if name:
            query = query.where(artefacts.c.name == name)
        query = query.order_by(*order).limit(limit)
        return self._database.transaction(lambda tx: [ArtefactRow(*row) for row in tx.execute(query)])

    def store(self, row: ArtefactRow, now_us: int) -> ArtefactRow:
        """Record that the image of an artefact is complete. Raises `UnknownArtefact` when it was removed meanwhile."""

        def work(tx: sa.Connection) -> ArtefactRow:
            found = _find(tx, row.tenant, row.name, row.version)
            if found is None or found.removing or found.image != row.image:
                raise UnknownArtefact(f"{row.name} {row.version}")
            if found.stored_at is not None:
                return found
            _check_sequence(tx, row)
            tx.execute(artefacts.update().where(*_at(row)).values(stored_at=now_us))
            mine = (artefact_names.c.tenant == row.tenant, artefact_names.c.name == row.name)
            newest = {"sequence": row.sequence, "sha256": row.sha256}
            if not tx.execute(artefact_names.update().where(*mine).values(**newest)).rowcount:
                tx.execute(artefact_names.insert().values(tenant=row.tenant, name=row.name, **newest))
            return found._replace(stored_at=now_us)

        return self._database.transaction(work)

    def begin_removal(self, tenant: str, name: str, version: str) -> ArtefactRow:
        """Mark an artefact as removed, and return it. Raises `UnknownArtefact`, `ArtefactInUse`."""

        def work(tx: sa.Connection) -> ArtefactRow:
            found = _find(tx, tenant, name, version)
            if found is None:
                raise UnknownArtefact(f"{name} {version}")
            mine = (campaigns.c.tenant == tenant, campaigns.c.name == name, campaigns.c.version == version)
            offering = sa.select(campaigns.c.id).where(*mine, campaigns.c.closed.is_(False)).limit(1)
            if (campaign := tx.execute(offering).scalar()) is not None:
                raise ArtefactInUse(f"campaign {campaign} offers {name} {version}")
            tx.execute(artefacts.update().where(*_at(found)).values(removing=True))
            return found._replace(removing=True)

        return self._database.transaction(work)

    def removals(self) -> list[ArtefactRow]:
        """Return the artefacts that are marked as removed."""
        query = sa.select(*_ROW).where(artefacts.c.removing.is_(True))
        return self._database.transaction(lambda tx: [ArtefactRow(*row) for row in tx.execute(query)])

    def replace_image(self, row: ArtefactRow, image: str) -> bool:
        """Give an artefact that waits a new folder for its image. Return False if another request has done so, or the
        artefact was stored or removed in the meantime."""
        mine = (*_at(row), artefacts.c.stored_at.is_(None), artefacts.c.removing.is_(False))
        change = artefacts.update().where(*mine).values(image=image)
        return self._database.transaction(lambda tx: bool(tx.execute(change).rowcount))

    def forget_reports(self, row: ArtefactRow) -> int:
        """Delete some reports of devices about an artefact; return their number."""
        return self._database.transaction(lambda tx: forget_updates(tx, row.tenant, row.name, row.version))

    def end_removal(self, row: ArtefactRow) -> None:
        """Delete the row of an artefact that is marked as removed."""
        mine = artefacts.delete().where(*_at(row), artefacts.c.removing.is_(True))
        self._database.transaction(lambda tx: tx.execute(mine))

    # --- keys -------------------------------------------------------------------------------------------------------

    def keys(self, tenant: str) -> list[ArtefactKeyRow]:
        """Return the trusted keys of a tenant, the oldest first."""
        query = sa.select(*_KEY).where(artefact_keys.c.tenant == tenant)
        query = query.order_by(artefact_keys.c.added_at, artefact_keys.c.id)
        return self._database.transaction(lambda tx: [ArtefactKeyRow(*row) for row in tx.execute(query)])

    def add_key(self, new: ArtefactKeyRow) -> ArtefactKeyRow:
        """Trust a key; return the row that is there if it is trusted already. Raises `ArtefactsFull`."""
        mine = artefact_keys.c.tenant == new.tenant

        def work(tx: sa.Connection) -> ArtefactKeyRow:
            require_tenant(tx, new.tenant)
            found = tx.execute(sa.select(*_KEY).where(mine, artefact_keys.c.id == new.id)).one_or_none()
            if found is not None:
                return ArtefactKeyRow(*found)
            count = tx.execute(sa.select(sa.func.count()).select_from(artefact_keys).where(mine)).scalar_one()
            if count >= TENANT_ARTEFACT_KEYS_MAX:
                raise ArtefactsFull(f"tenant {new.tenant} has {count} trusted keys, which is the maximum")
            tx.execute(artefact_keys.insert().values(**new._asdict()))
            return new

        return self._database.transaction(work)

    def remove_key(self, tenant: str, key_id: str) -> None:
        """Trust a key no longer. Raises `UnknownArtefact`."""
        mine = artefact_keys.delete().where(artefact_keys.c.tenant == tenant, artefact_keys.c.id == key_id)

        def work(tx: sa.Connection) -> None:
            if not tx.execute(mine).rowcount:
                raise UnknownArtefact(f"key {key_id}")

        self._database.transaction(work)


def _find(tx: sa.Connection, tenant: str, name: str, version: str) -> ArtefactRow | None:
    mine = (artefacts.c.tenant == tenant, artefacts.c.name == name, artefacts.c.version == version)
    found = tx.execute(sa.select(*_ROW).where(*mine)).one_or_none()
    return None if found is None else ArtefactRow(*found)


def _at(row: ArtefactRow) -> list[sa.ColumnElement[bool]]:
    return [artefacts.c[name] == getattr(row, name) for name in ("tenant", "name", "version", "image")]


def _check_sequence(tx: sa.Connection, new: ArtefactRow) -> None:
    """Check that no artefact of this name with this or a higher sequence was ever stored, except the same image, which
    may have been removed by mistake. Raises `ArtefactRefused`."""
    mine = (artefact_names.c.tenant == new.tenant, artefact_names.c.name == new.name)
    known = tx.execute(sa.select(artefact_names.c.sequence, artefact_names.c.sha256).where(*mine)).one_or_none()
    if known is None or new.sequence > known.sequence:
        return
    if (new.sequence, new.sha256) != (known.sequence, known.sha256):
        words = f"{new.name} {new.version} has sequence {new.sequence}, and sequence {known.sequence} was stored before"
        raise ArtefactRefused(ArtefactFault.DOWNGRADED, words)


def _check_room(tx: sa.Connection, new: ArtefactRow) -> None:
    """Check the limits of a tenant. What waits for its image counts, too. Raises `ArtefactsFull`."""
    sums = (sa.func.count(), sa.func.coalesce(sa.func.sum(artefacts.c.size), 0))
    count, size = tx.execute(sa.select(*sums).where(artefacts.c.tenant == new.tenant)).one()
    if count >= TENANT_ARTEFACTS_MAX:
        raise ArtefactsFull(f"tenant {new.tenant} has {count} artefacts, which is the maximum")
    if int(size) + new.size > TENANT_IMAGE_BYTES_MAX:
        words = f"the images of tenant {new.tenant} would have {int(size) + new.size} bytes"
        raise ArtefactsFull(f"{words}, and at most {TENANT_IMAGE_BYTES_MAX} are allowed")


def _check_names(tx: sa.Connection, new: ArtefactRow) -> None:
    """Check the number of names of a tenant, also of those that wait for their first image. Raises `ArtefactsFull`."""
    names = sa.union(
        *(sa.select(each.c.name).where(each.c.tenant == new.tenant) for each in (artefact_names, artefacts))
    )
    known = names.subquery()
    if tx.execute(sa.select(known.c.name).where(known.c.name == new.name)).first() is not None:
        return
    count = tx.execute(sa.select(sa.func.count()).select_from(known)).scalar_one()
    if count >= TENANT_ARTEFACT_NAMES_MAX:
        words = f"tenant {new.tenant} has used {count} names of artefacts, which is the maximum: use one of them"
        raise ArtefactsFull(words)
