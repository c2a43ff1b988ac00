"""Tokens and certificates of gateways in the registry.

For the hub, in a thread of its own, and for commands of the CLI next to it: each opens the database itself. Times are
UTC microseconds since 1970. A token is spent in the transaction that stores its certificate. A repeated request with
the same key gets that certificate, for example after a lost response; no other key gets one.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from bridge.enrolment import RefusalReason, same
from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.labels import LabelError
from cloud.hub.registry import labels, names
from cloud.hub.registry.events import EventType, append_events, make_event
from cloud.hub.registry.forgetting import withdraw
from cloud.hub.registry.notices import NoticeTopic, notify
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import PARAMETERS_MAX, attestations, certificates, tokens
from cloud.hub.registry.tenant_state import require_tenant
from cloud.hub.tenants import TenantRemoved, quota_message

TIES_US = 3_600_000_000
"""Margin of the query for revocations after the last one seen, an hour: other hubs have clocks of their own, and their
transactions end after they read the time. A revocation with an earlier time would never be seen."""


NO_TENANT = ""
"""Tenant of certificates that do not belong to a gateway."""


@hides("secret")
class TokenRecord(NamedTuple):
    """Enrolment token in the registry."""

    id: str
    secret: bytes
    """Digest of the secret."""
    tenant: str
    gateway: str | None
    """The only gateway it is valid for; None for any new gateway."""
    created_at: int
    expires_at: int
    revoked_at: int | None = None
    spent_at: int | None = None
    serial: str | None = None
    """Serial number of the certificate it was spent for."""
    labels: str | None = None
    """Labels for its gateway, as `labels.encode` returns them."""


class TokenFilter(NamedTuple):
    """Filter of a list of tokens; None and empty values match everything."""

    tenant: str | None = None
    state: str = ""
    """``open``, ``spent``, ``revoked`` or ``expired``."""
    id: str = ""
    after: tuple[int, str] | None = None
    """Time and id of the last token of the page before."""


class CertificateRecord(NamedTuple):
    """Certificate of a gateway."""

    serial: str
    tenant: str
    gateway: str
    key_id: bytes
    begins_at: int
    ends_at: int
    revoked_at: int | None
    pem: str

    def good(self, now_us: int) -> bool:
        return self.revoked_at is None and self.ends_at > now_us

    def fresh(self, now_us: int) -> bool:
        """Return True in the first half of its validity, when its gateway has no reason to renew it."""
        return self.good(now_us) and now_us - self.begins_at < (self.ends_at - self.begins_at) // 2


class TokenClaim(NamedTuple):
    """Request for a certificate with a token."""

    token_id: str
    secret: bytes
    """Digest of the secret."""
    gateway: str
    key_id: bytes


class CertificateHolder(NamedTuple):
    """Gateway of a certificate, and the end of its validity."""

    gateway: Key
    ends_at: int


class ShownCertificate(NamedTuple):
    """Certificate shown by a client, with the gateway it names. The serial number alone is not unique: each authority
    counts for itself."""

    serial: str
    tenant: str
    gateway: str


Sign: TypeAlias = Callable[[str, str], CertificateRecord]
"""Signs a certificate for (tenant, gateway); called again if the transaction is retried."""


class EnrolmentRefused(Exception):
    """The certificate is refused; the message says why and what to do."""

    def __init__(self, reason: RefusalReason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class NamelessRequest(EnrolmentRefused):
    """The request has to name its gateway, and does not."""

    def __init__(self, gateway_uri: str) -> None:
        words = f"another authority makes the certificates: the request must name {gateway_uri} and nothing else"
        super().__init__(RefusalReason.NAMELESS, f"{words}. Update the gateway: gateways of this version do that")
        self.gateway_uri = gateway_uri


class TenantFull(EnrolmentRefused):
    """The tenant has reached its limit of gateways."""

    def __init__(self, tenant: str, gateways_max: int) -> None:
        words = f"{quota_message(tenant, 'gateways')}: {gateways_max} names are known"
        step = "or forget an unused gateway (waypost gateway forget), or enrol with a token made for a known name"
        super().__init__(RefusalReason.TENANT_FULL, f"{words}; {step}")
        self.tenant = tenant


class RegisteredIdentity(NamedTuple):
    """Identity of a gateway in the registry."""

    certificates: Sequence[CertificateRecord]
    """Certificates, the latest first."""
    tokens: Sequence[TokenRecord]
    """Tokens that were used for these certificates."""
    attestation: tuple[int, str] | None
    """Time and document of its attestation."""
    remote: str
    """Address of its last connection; empty if unknown."""


class ForgetRefusal(enum.Enum):
    """Reason why a gateway cannot be forgotten."""

    UNKNOWN = enum.auto()
    GOOD_CERTIFICATE = enum.auto()
    CONNECTED = enum.auto()


class NotForgotten(Exception):
    """The gateway cannot be forgotten; the message says why."""

    def __init__(self, why: ForgetRefusal, words: str) -> None:
        super().__init__(words)
        self.why = why


GatewaysMax: TypeAlias = Callable[[str], int]
"""Returns the limit of gateways of a tenant."""


class Enrolments:
    """Tokens and certificates in the registry, for the thread that creates it. Every method is one transaction, durable
    on return; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Open the registry; create a missing one."""
        self._database = open_registry(url).database

    def close(self) -> None:
        self._database.close()

    # --- tokens -----------------------------------------------------------------------------------------------------

    def add(self, made: Sequence[TokenRecord]) -> None:
        """Store new tokens."""
        rows = [token._asdict() for token in made]

        def work(tx: sa.Connection) -> None:
            for tenant in {token.tenant for token in made}:
                require_tenant(tx, tenant)
            tx.execute(tokens.insert(), rows)

        self._database.transaction(work)

    def tokens(self) -> list[TokenRecord]:
        """Return all tokens, the oldest first."""
        query = sa.select(*_TOKEN).order_by(tokens.c.created_at, tokens.c.id)
        return [TokenRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def page(self, wanted: TokenFilter, limit: int, now_us: int) -> tuple[list[TokenRecord], int]:
        """Return tokens, the newest first, those of used tokens with the gateway that used it; and the number of all
        that match."""
        conditions = list(_token_conditions(wanted, now_us))
        gateway = sa.func.coalesce(certificates.c.gateway, tokens.c.gateway).label("gateway")
        columns = [gateway if column is tokens.c.gateway else column for column in _TOKEN]
        joined = tokens.outerjoin(certificates, certificates.c.serial == tokens.c.serial)
        query = sa.select(*columns).select_from(joined).where(*conditions)
        query = query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc())
        if wanted.after is not None:
            at, identifier = wanted.after
            same_time = (tokens.c.created_at == at) & (tokens.c.id < identifier)
            query = query.where((tokens.c.created_at < at) | same_time)
        counting = sa.select(sa.func.count()).select_from(tokens).where(*conditions)

        def work(tx: sa.Connection) -> tuple[list[TokenRecord], int]:
            return [TokenRecord(*row) for row in tx.execute(query.limit(limit))], tx.execute(counting).scalar() or 0

        return self._database.transaction(work)

    def token(self, token_id: str) -> TokenRecord | None:
        """Return a token; None if unknown."""
        return self._database.transaction(lambda tx: _token(tx, token_id))

    def revoke_token(self, token_id: str, now_us: int) -> TokenRecord | None:
        """Revoke a token; return its record before that, None if unknown."""

        def work(tx: sa.Connection) -> TokenRecord | None:
            before = _token(tx, token_id)
            if before is not None and before.revoked_at is None:
                tx.execute(tokens.update().where(tokens.c.id == token_id).values(revoked_at=now_us))
            return before

        return self._database.transaction(work)

    # --- certificates -----------------------------------------------------------------------------------------------

    def enrol(
        self, asked: TokenClaim, now_us: int, sign: Sign, gateways_max: GatewaysMax = lambda _tenant: sys.maxsize
    ) -> CertificateRecord:
        """Issue a certificate for a token, and spend the token. Raises `EnrolmentRefused`."""
        return self._database.transaction(lambda tx: _enrol(tx, asked, now_us, sign, gateways_max))

    def renew(
        self, shown: ShownCertificate, key_id: bytes, now_us: int, certificates_max: int, sign: Sign
    ) -> CertificateRecord:
        """Issue the next certificate of a gateway that showed this one. Raises `EnrolmentRefused`."""
        return self._database.transaction(lambda tx: _renew(tx, shown, key_id, now_us, certificates_max, sign))

    def revoke(self, tenant: str, gateway: str, now_us: int) -> int:
        """Revoke the valid certificates of a gateway; return their number."""

        return self._database.transaction(lambda tx: revoke_in(tx, tenant, gateway, now_us))

    def forget(self, tenant: str, gateway: str, now_us: int) -> int:
        """Forget a gateway until it enrols or connects again, with everything set for it by name; return the time.
        Raises `NotForgotten`."""
        return self._database.transaction(lambda tx: forget_in(tx, tenant, gateway, now_us))

    def forgotten(self, since_us: int = 0) -> dict[Key, int]:
        """Return the gateways forgotten since then that have not returned, with the time."""
        return self._database.transaction(lambda tx: names.forgotten_gateways(tx, since_us - TIES_US))

    def labels(self) -> dict[Key, dict[str, str]]:
        """Return the labels of each gateway that has some."""
        return self._database.transaction(labels.all_labels)

    def store_hub_certificate(self, serial: str, key_id: bytes, begins_at: int, ends_at: int, pem: str) -> None:
        """Store a certificate of the authority that belongs to the hub itself."""
        record = CertificateRecord(serial, NO_TENANT, "", key_id, begins_at, ends_at, None, pem)
        self._database.transaction(lambda tx: _keep_missing(tx, record))

    def revoke_hub_certificate(
        self, serial: str, key_id: bytes, begins_at: int, ends_at: int, now_us: int, pem: str
    ) -> None:
        """Revoke a certificate of the authority that belongs to the hub itself."""
        record = CertificateRecord(serial, NO_TENANT, "", key_id, begins_at, ends_at, None, pem)

        def work(tx: sa.Connection) -> None:
            _keep_missing(tx, record)
            found = _certificate(tx, serial)
            if found is not None and found.revoked_at is None:
                _set_revoked(tx, (serial,), now_us)

        self._database.transaction(work)

    def certificate(self, serial: str) -> CertificateRecord | None:
        """Return a certificate by serial number, of a gateway or of the hub; None if the authority signed none."""
        return self._database.transaction(lambda tx: _certificate(tx, serial))

    def serials(self, now_us: int, among: Collection[str] | None = None) -> dict[str, CertificateHolder]:
        """Return the gateways' certificates that have not expired, by serial number; only those `among` these if
        given."""
        columns = (certificates.c.serial, certificates.c.tenant, certificates.c.gateway, certificates.c.ends_at)
        query = sa.select(*columns).where(certificates.c.tenant != NO_TENANT, certificates.c.ends_at > now_us)
        queries = [query]
        if among is not None:
            asked = sorted(among)
            some = [asked[start : start + _SERIALS_AT_ONCE] for start in range(0, len(asked), _SERIALS_AT_ONCE)]
            queries = [query.where(certificates.c.serial.in_(each)) for each in some]
        rows = self._database.transaction(lambda tx: [row for each in queries for row in tx.execute(each)])
        return {row.serial: CertificateHolder((row.tenant, row.gateway), row.ends_at) for row in rows}

    def revoked(self, since_us: int = 0) -> list[CertificateRecord]:
        """Return the certificates revoked since then."""
        query = sa.select(*_CERTIFICATE).where(certificates.c.revoked_at >= since_us - TIES_US)
        return [CertificateRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def add_certificates(self, made: Sequence[CertificateRecord]) -> None:
        """Add certificates of the authority that this registry lacks, as an older copy. Their gateways are then listed
        and can be revoked."""
        self._database.transaction(lambda tx: _add_missing(tx, made))

    def revoke_again(self, revoked: Sequence[CertificateRecord], now_us: int) -> int:
        """Revoke those of these certificates that are valid here or missing; return their number. Other hubs of this
        registry see them as revoked now."""
        return self._database.transaction(lambda tx: _revoke_again(tx, revoked, now_us))

    def attest(self, shown: ShownCertificate, document: str, now_us: int) -> None:
        """Store the attestation of the gateway that showed this certificate; replaces the previous one. Raises
        `EnrolmentRefused`."""
        self._database.transaction(lambda tx: _attest(tx, shown, document, now_us))

    def attestation(self, tenant: str, gateway: str) -> tuple[int, str] | None:
        """Return (time, document) of a gateway's attestation; None without one."""
        mine = (attestations.c.tenant == tenant, attestations.c.gateway == gateway)
        query = sa.select(attestations.c.told_at, attestations.c.document).where(*mine)
        row = self._database.transaction(lambda tx: tx.execute(query).first())
        return None if row is None else (row[0], row[1])

    def identity(self, tenant: str, gateway: str, most: int) -> RegisteredIdentity | None:
        """Return the identity of a gateway with its latest `most` certificates; None for an unknown one."""
        mine = (certificates.c.tenant == tenant, certificates.c.gateway == gateway)
        query = sa.select(*_CERTIFICATE).where(*mine).order_by(certificates.c.begins_at.desc(), certificates.c.serial)
        told = sa.select(attestations.c.told_at, attestations.c.document).where(
            attestations.c.tenant == tenant, attestations.c.gateway == gateway
        )

        def work(tx: sa.Connection) -> RegisteredIdentity | None:
            made = [CertificateRecord(*row) for row in tx.execute(query.limit(most))]
            if not made and not names.is_known(tx, tenant, gateway):
                return None
            used = sa.select(*_TOKEN).where(tokens.c.serial.in_([each.serial for each in made]))
            row = tx.execute(told).first()
            return RegisteredIdentity(
                made,
                [TokenRecord(*each) for each in tx.execute(used)],
                None if row is None else (row[0], row[1]),
                names.remote_of(tx, tenant, gateway),
            )

        return self._database.transaction(work)

    def certificates(self) -> list[CertificateRecord]:
        """Return all certificates of gateways, by gateway and time."""
        order = (certificates.c.tenant, certificates.c.gateway, certificates.c.ends_at)
        query = sa.select(*_CERTIFICATE).where(certificates.c.tenant != NO_TENANT).order_by(*order)
        return [CertificateRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]


_SERIALS_AT_ONCE = PARAMETERS_MAX - 10
"""Serial numbers in one statement, in addition to the query's own parameters."""
_TOKEN = [tokens.c[name] for name in TokenRecord._fields]
_CERTIFICATE = [certificates.c[name] for name in CertificateRecord._fields]


def _token_conditions(wanted: TokenFilter, now_us: int) -> Iterable[Any]:
    if wanted.tenant is not None:
        yield tokens.c.tenant == wanted.tenant
    if wanted.id:
        yield tokens.c.id == wanted.id
    spent, revoked = tokens.c.spent_at.is_not(None), tokens.c.revoked_at.is_not(None)
    expired = tokens.c.expires_at <= now_us
    states = {
        "open": (~spent, ~revoked, ~expired),
        "spent": (spent,),
        "revoked": (~spent, revoked),
        "expired": (~spent, ~revoked, expired),
    }
    yield from states.get(wanted.state, ())


def _token(tx: sa.Connection, token_id: str) -> TokenRecord | None:
    row = tx.execute(sa.select(*_TOKEN).where(tokens.c.id == token_id)).first()
    return None if row is None else TokenRecord(*row)


def _certificate(tx: sa.Connection, serial: str | None) -> CertificateRecord | None:
    row = tx.execute(sa.select(*_CERTIFICATE).where(certificates.c.serial == serial)).first()
    return None if row is None else CertificateRecord(*row)


def _keep_missing(tx: sa.Connection, record: CertificateRecord) -> None:
    if _certificate(tx, record.serial) is None:
        tx.execute(certificates.insert().values(**record._asdict()))


def _add_missing(tx: sa.Connection, made: Sequence[CertificateRecord]) -> None:
    for each in made:
        _keep_missing(tx, each)


def _revoke_again(tx: sa.Connection, revoked: Sequence[CertificateRecord], now_us: int) -> int:
    _add_missing(tx, revoked)
    good = [each.serial for each in revoked if (found := _certificate(tx, each.serial)) and found.revoked_at is None]
    _set_revoked(tx, good, now_us)
    return len(good)


def _of_gateway(tx: sa.Connection, tenant: str, gateway: str) -> list[CertificateRecord]:
    mine = (certificates.c.tenant == tenant, certificates.c.gateway == gateway)
    return [CertificateRecord(*row) for row in tx.execute(sa.select(*_CERTIFICATE).where(*mine))]


def _enrol(
    tx: sa.Connection, asked: TokenClaim, now_us: int, sign: Sign, gateways_max: GatewaysMax
) -> CertificateRecord:
    token = _token(tx, asked.token_id)
    if token is None or not same(token.secret, asked.secret):
        raise EnrolmentRefused(RefusalReason.UNKNOWN, "the token is unknown to this hub; ask for a new one")
    if token.gateway is not None and token.gateway != asked.gateway:
        words = f"the token is for gateway {token.gateway}, and this gateway is named {asked.gateway}"
        raise EnrolmentRefused(RefusalReason.OTHER_GATEWAY, f"{words}; use that name, or ask for another token")
    if token.spent_at is not None:
        return _repeat(tx, token, asked, now_us)
    if token.revoked_at is not None:
        raise EnrolmentRefused(RefusalReason.REVOKED, "the token was revoked; ask for a new one")
    if token.expires_at <= now_us:
        raise EnrolmentRefused(RefusalReason.EXPIRED, "the token has expired; ask for a new one")
    try:
        require_tenant(tx, token.tenant)
    except TenantRemoved as error:
        raise EnrolmentRefused(RefusalReason.REVOKED, str(error)) from None
    known = names.is_known(tx, token.tenant, asked.gateway)
    if token.gateway is None and known:
        words = f"gateway {asked.gateway} exists already: choose another name, or, to replace it"
        raise EnrolmentRefused(
            RefusalReason.NAME_TAKEN, f"{words}, ask for a token made with --gateway {asked.gateway}"
        )
    if not known and names.count_known(tx, token.tenant) >= (most := gateways_max(token.tenant)):
        raise TenantFull(token.tenant, most)
    if not known:
        withdraw(tx, (token.tenant, asked.gateway), now_us)
    _revoke(tx, token.tenant, asked.gateway, now_us)  # the new certificate replaces the old ones
    names.remember(tx, token.tenant, asked.gateway)
    _label(tx, token, asked.gateway)
    made = sign(token.tenant, asked.gateway)
    tx.execute(certificates.insert().values(**made._asdict()))
    tx.execute(tokens.update().where(tokens.c.id == token.id).values(spent_at=now_us, serial=made.serial))
    about: dict[str, Any] = {"serial": made.serial, "token": token.id, "replaces": known}
    append_events(tx, [make_event(now_us, EventType.GATEWAY_ENROLLED, token.tenant, asked.gateway, **about)])
    return made


def _label(tx: sa.Connection, token: TokenRecord, gateway: str) -> None:
    """Set the token's labels on its gateway. Raises `EnrolmentRefused` for too many labels on a replaced gateway; the
    token stays valid."""
    try:
        labels.put(tx, token.tenant, gateway, labels.decode(token.labels))
    except LabelError as error:
        words = f"{error} on {gateway}, with those of the token: remove some (waypost gateway label)"
        raise EnrolmentRefused(RefusalReason.UNAVAILABLE, words) from None


def _repeat(tx: sa.Connection, token: TokenRecord, asked: TokenClaim, now_us: int) -> CertificateRecord:
    """Return the certificate that the token was spent for, if the request repeats that one. Raises
    `EnrolmentRefused`."""
    given = _certificate(tx, token.serial)
    if given is None or not same(given.key_id, asked.key_id) or given.gateway != asked.gateway:
        raise EnrolmentRefused(RefusalReason.SPENT, "the token has been used by another gateway; ask for a new one")
    if not given.good(now_us):
        words = "the certificate of this token has expired or was revoked; ask for a new token"
        raise EnrolmentRefused(RefusalReason.SPENT, words)
    return given


def _require_good(tx: sa.Connection, shown: ShownCertificate, now_us: int) -> None:
    """Check that the certificate was issued for this gateway and is valid. Raises `EnrolmentRefused`."""
    found = _certificate(tx, shown.serial)
    if found is None or (found.tenant, found.gateway) != (shown.tenant, shown.gateway) or not found.good(now_us):
        words = "the certificate has expired, was revoked, or is not of this hub; enrol again with a token"
        raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, words)


def _renew(
    tx: sa.Connection, shown: ShownCertificate, key_id: bytes, now_us: int, certificates_max: int, sign: Sign
) -> CertificateRecord:
    _require_good(tx, shown, now_us)
    good = [each for each in _of_gateway(tx, shown.tenant, shown.gateway) if each.good(now_us)]
    for each in good:
        if same(each.key_id, key_id) and each.fresh(now_us):
            return each  # the response was lost
    if len(good) >= certificates_max:
        words = f"gateway {shown.gateway} has {len(good)} valid certificates; wait until some have expired"
        raise EnrolmentRefused(RefusalReason.TOO_MANY, words)
    made = sign(shown.tenant, shown.gateway)
    tx.execute(certificates.insert().values(**made._asdict()))
    return made


def _attest(tx: sa.Connection, shown: ShownCertificate, document: str, now_us: int) -> None:
    _require_good(tx, shown, now_us)
    key = {"tenant": shown.tenant, "gateway": shown.gateway}
    tx.execute(attestations.delete().where(*(attestations.c[name] == value for name, value in key.items())))
    tx.execute(attestations.insert().values(**key, told_at=now_us, document=document))


def _revoke(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    good = [each.serial for each in _of_gateway(tx, tenant, gateway) if each.good(now_us)]
    _set_revoked(tx, good, now_us)
    return len(good)


def revoke_in(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    """Revoke the valid certificates of a gateway within a transaction; return their number."""
    if count := _revoke(tx, tenant, gateway, now_us):
        append_events(tx, [make_event(now_us, EventType.GATEWAY_REVOKED, tenant, gateway, certificates=count)])
    return count


def forget_in(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    """Forget a gateway within a transaction, see `Enrolments.forget`. Raises `NotForgotten`."""
    who = f"gateway {gateway} of tenant {tenant}"
    if not names.is_known(tx, tenant, gateway):
        raise NotForgotten(ForgetRefusal.UNKNOWN, f"unknown {who}")
    if any(each.good(now_us) for each in _of_gateway(tx, tenant, gateway)):
        raise NotForgotten(ForgetRefusal.GOOD_CERTIFICATE, f"{who} has a valid certificate")
    if names.is_connected(tx, tenant, gateway):
        raise NotForgotten(ForgetRefusal.CONNECTED, f"{who} is connected")
    withdraw(tx, (tenant, gateway), now_us)
    notify(tx, NoticeTopic.REVOCATIONS)
    at_us = names.forget(tx, tenant, gateway, now_us)
    append_events(tx, [make_event(now_us, EventType.GATEWAY_FORGOTTEN, tenant, gateway)])
    return at_us


def _set_revoked(tx: sa.Connection, serials: Iterable[str], now_us: int) -> None:
    for serial in serials:
        tx.execute(certificates.update().where(certificates.c.serial == serial).values(revoked_at=now_us))
    notify(tx, NoticeTopic.REVOCATIONS)
