"""Requests for signatures in the registry, between hubs without the authority's key and the process that has it.

Each side opens the database itself, in a thread of its own. Times are UTC microseconds since 1970. Those of requests
are by the database's clock, since hubs and processes of the authority may have others. A request that its hub
withdraws, or that is answered twice, does no harm: a certificate is of use only to the holder of its key, and hubs
store it in a transaction of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.registry.configurations import touch
from cloud.hub.registry.database import Database
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.schema import authorities, configurations, signature_requests

PAGE_REQUEST_TAG: Final = "devices"
"""Type of a request for a page of devices, which is read apart from the others."""

_PAGE_REQUEST: Final = signature_requests.c.request.startswith(f'{{"type":"{PAGE_REQUEST_TAG}",', autoescape=True)


class WaitingRequest(NamedTuple):
    """Request without an answer."""

    id: str
    request: str
    """JSON of a `cloud.hub.enrolment.signature_request.SignatureRequest`, or of a
    `cloud.hub.enrolment.device_page_request.DevicePageRequest`."""


@hides("answer")
class SignatureAnswer(NamedTuple):
    """Answer to a request: one of both is set."""

    answer: str | None
    """Certificate, PEM, or the JSON of a signed page of devices."""
    refusal: str | None


class PublishedAuthority(NamedTuple):
    """State of the authority's process, as it publishes it."""

    seen_at: int
    """Time at which it last looked for requests, by its own clock."""
    revocations: bytes | None
    """Revocation list, DER; None before the first one."""
    number: int
    """Number of the list."""


@hides("content")
class UnsignedVersion(NamedTuple):
    """Version of a configuration without a signature."""

    tenant: str
    gateway: str
    version: int
    content: str


class Signatures:
    """Requests, their answers, and what the authority publishes. Every method is one transaction; raises
    `RegistryError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- for hubs ---------------------------------------------------------------------------------------------------

    def add(self, authority: str, requests: Sequence[WaitingRequest]) -> None:
        """Ask an authority, named by its fingerprint, for signatures."""

        def work(tx: sa.Connection) -> None:
            now_us = self._database.now_us(tx)
            rows = [{**each._asdict(), "authority": authority, "made_at": now_us} for each in requests]
            tx.execute(signature_requests.insert(), rows)
            notify(tx, NoticeTopic.SIGNATURES)

        self._database.transaction(work)

    def take_answers(self, ids: Collection[str]) -> dict[str, SignatureAnswer]:
        """Return the answers to these requests, and delete those requests."""
        mine = signature_requests.c.id.in_(ids)
        columns = (signature_requests.c.id, signature_requests.c.answer, signature_requests.c.refusal)

        def work(tx: sa.Connection) -> dict[str, SignatureAnswer]:
            rows = tx.execute(sa.select(*columns).where(mine, signature_requests.c.answered_at.is_not(None))).all()
            found = {row.id: SignatureAnswer(row.answer, row.refusal) for row in rows}
            if found:
                tx.execute(signature_requests.delete().where(signature_requests.c.id.in_(found)))
            return found

        return self._database.transaction(work)

    def withdraw(self, ids: Collection[str]) -> None:
        """Delete requests that have timed out at their hub."""
        gone = signature_requests.delete().where(signature_requests.c.id.in_(ids))
        self._database.transaction(lambda tx: tx.execute(gone))

    def published(self, authority: str) -> PublishedAuthority | None:
        """Return what an authority has published; None if it never ran."""
        columns = (authorities.c.seen_at, authorities.c.revocations, authorities.c.number)
        query = sa.select(*columns).where(authorities.c.fingerprint == authority)
        row = self._database.transaction(lambda tx: tx.execute(query).first())
        return None if row is None else PublishedAuthority(*row)

    # --- for the authority's process --------------------------------------------------------------------------------

    def waiting(self, authority: str, limit: int, characters_max: int, *, pages: bool = False) -> list[WaitingRequest]:
        """Return requests to an authority without an answer, the oldest first: those for pages of devices, or the
        others. Of a longer request than `characters_max`, one character more is returned."""
        columns = signature_requests.c
        kind = _PAGE_REQUEST if pages else sa.not_(_PAGE_REQUEST)
        mine = (columns.authority == authority, columns.answered_at.is_(None), kind)
        query = sa.select(columns.id, sa.func.substr(columns.request, 1, characters_max + 1)).where(*mine)
        query = query.order_by(signature_requests.c.made_at, signature_requests.c.id).limit(limit)
        return [WaitingRequest(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def answer(self, answers: dict[str, SignatureAnswer]) -> None:
        """Answer requests; those that were withdrawn or answered are left alone."""
        answered = signature_requests.update().where(
            signature_requests.c.id == sa.bindparam("asked"), signature_requests.c.answered_at.is_(None)
        )
        rows = [{"asked": each, **answer._asdict()} for each, answer in answers.items()]

        def work(tx: sa.Connection) -> None:
            tx.execute(answered.values(answered_at=self._database.now_us(tx)), rows)
            notify(tx, NoticeTopic.SIGNED)

        self._database.transaction(work)

    def sign_versions(self, authority: str, sign: Callable[[UnsignedVersion], str], limit: int, now_us: int) -> int:
        """Sign versions of configurations that wait for an authority, and have hubs send them; return their number."""
        columns = [configurations.c[name] for name in UnsignedVersion._fields]
        query = sa.select(*columns).where(configurations.c.signer == authority)
        query = query.order_by(configurations.c.made_at).limit(limit)

        def work(tx: sa.Connection) -> int:
            found = [UnsignedVersion(*row) for row in tx.execute(query).all()]
            for each in found:
                mine = (configurations.c[name] == getattr(each, name) for name in ("tenant", "gateway", "version"))
                tx.execute(configurations.update().where(*mine).values(signature=sign(each), signer=None))
            for tenant in sorted({each.tenant for each in found}):
                touch(tx, tenant, sorted({each.gateway for each in found if each.tenant == tenant}), now_us)
            return len(found)

        return self._database.transaction(work)

    def publish(self, authority: str, now_us: int, revocations: tuple[bytes, int] | None = None) -> None:
        """Record that the authority's process runs, with a new revocation list and its number if there is one.

        A list with a lower number than the published one is left out: another process was faster.
        """
        mine = authorities.c.fingerprint == authority

        def work(tx: sa.Connection) -> None:
            number = tx.execute(sa.select(authorities.c.number).where(mine).with_for_update()).scalar()
            if number is None:
                tx.execute(authorities.insert().values(fingerprint=authority, seen_at=now_us, number=0))
            tx.execute(authorities.update().where(mine).values(seen_at=now_us))
            if revocations is not None and revocations[1] > (number or 0):
                tx.execute(authorities.update().where(mine).values(revocations=revocations[0], number=revocations[1]))
                notify(tx, NoticeTopic.SIGNED)

        self._database.transaction(work)

    def drop_old(self, made_s: float, answered_s: float) -> None:
        """Delete requests made, or answered, this many seconds ago: their hubs have ended."""
        columns = signature_requests.c

        def work(tx: sa.Connection) -> None:
            now_us = self._database.now_us(tx)
            made, answered = (now_us - int(age_s * 1_000_000) for age_s in (made_s, answered_s))
            tx.execute(signature_requests.delete().where((columns.made_at < made) | (columns.answered_at < answered)))

        self._database.transaction(work)
