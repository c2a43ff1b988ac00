"""Who may enrol, and who has: tokens, and the certificates gateways were given.

For the hub, in a thread of its own, and for commands beside it: each opens the database for itself. Times are UTC
microseconds since 1970. A token is spent in the transaction that keeps the certificate it was spent for: whoever asks
again with the same key gets that certificate, whatever became of the answer, and nobody else gets one.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import sqlalchemy as sa

from bridge.enrolment import RefusalReason, same
from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.labels import LabelError
from cloud.hub.registry import labels, names
from cloud.hub.registry.forgetting import withdraw
from cloud.hub.registry.opening import opened
from cloud.hub.registry.schema import PARAMETERS_MAX, attestations, certificates, tokens
from cloud.hub.tenants import full

TIES_US = 10_000_000
"""How much further back than the last revocation seen the next ones are looked for: who revokes has a clock of its own,
and its transaction ends later than it took the time."""


NO_TENANT = ""
"""Of certificates that are no gateway's."""


@hides("secret")
class TokenRecord(NamedTuple):
    """A token as the registry knows it."""

    id: str
    secret: bytes
    """Digest of it."""
    tenant: str
    gateway: str | None
    """The only gateway it is for; None: for one that is not known yet."""
    created_at: int
    expires_at: int
    revoked_at: int | None = None
    spent_at: int | None = None
    serial: str | None = None
    """Of the certificate it was spent for."""
    labels: str | None = None
    """Those its gateway gets, as `labels.written` has them."""


class CertificateRecord(NamedTuple):
    """A certificate of a gateway."""

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
        """Its gateway has no reason yet to renew it."""
        return self.good(now_us) and now_us - self.begins_at < (self.ends_at - self.begins_at) // 2


class Asked(NamedTuple):
    """Who asks for a certificate with a token."""

    token_id: str
    secret: bytes
    """Digest of it."""
    gateway: str
    key_id: bytes


class Known(NamedTuple):
    """Whose a certificate is, and until when it counts."""

    gateway: Key
    ends_at: int


class Shown(NamedTuple):
    """A certificate that somebody has shown, and the gateway that it names. A serial number alone is not enough:
    each authority counts for itself."""

    serial: str
    tenant: str
    gateway: str


Sign: TypeAlias = Callable[[str, str], CertificateRecord]
"""Makes a certificate for (tenant, gateway); may be called again where a transaction is."""


class EnrolmentRefused(Exception):
    """No certificate; the message tells a person why and what to do."""

    def __init__(self, reason: RefusalReason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class Nameless(EnrolmentRefused):
    """A request does not say who its gateway is, and has to."""

    def __init__(self, gateway_uri: str) -> None:
        words = f"another authority makes the certificates: the request has to name {gateway_uri}, and nothing else"
        super().__init__(RefusalReason.NAMELESS, f"{words}. Gateways of this version do; update those that do not")
        self.gateway_uri = gateway_uri


class TenantFull(EnrolmentRefused):
    """The tenant of a token has as many gateways as it may."""

    def __init__(self, tenant: str, gateways_max: int) -> None:
        words = f"{full(tenant, 'gateways')}: {gateways_max} names are known"
        step = "or give back the name of one that is gone (waypost fleet forget), or enrol with a token made for it"
        super().__init__(RefusalReason.TENANT_FULL, f"{words}; {step}")
        self.tenant = tenant


class StillThere(enum.Enum):
    """Why a gateway is not forgotten."""

    UNKNOWN = enum.auto()
    GOOD_CERTIFICATE = enum.auto()
    CONNECTED = enum.auto()


class NotForgotten(Exception):
    """A gateway is not forgotten; the message tells a person why."""

    def __init__(self, why: StillThere, words: str) -> None:
        super().__init__(words)
        self.why = why


GatewaysMax: TypeAlias = Callable[[str], int]
"""How many gateways a tenant may have."""


class Enrolments:
    """For the thread that makes it. Every method is one transaction, durable on return; raises `RegistryError`."""

    def __init__(self, url: sa.URL) -> None:
        """Opens the registry, and makes it where there is none."""
        self._database = opened(url).database

    def close(self) -> None:
        self._database.close()

    # --- tokens -----------------------------------------------------------------------------------------------------

    def add(self, made: Sequence[TokenRecord]) -> None:
        """Keep new tokens."""
        rows = [token._asdict() for token in made]
        self._database.transaction(lambda tx: tx.execute(tokens.insert(), rows))

    def tokens(self) -> list[TokenRecord]:
        """Every token, in the order they were made."""
        query = sa.select(*_TOKEN).order_by(tokens.c.created_at, tokens.c.id)
        return [TokenRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def revoke_token(self, token_id: str, now_us: int) -> TokenRecord | None:
        """From now on nobody enrols with it; returns what it was before, None when there is none."""

        def work(tx: sa.Connection) -> TokenRecord | None:
            before = _token(tx, token_id)
            if before is not None and before.revoked_at is None:
                tx.execute(tokens.update().where(tokens.c.id == token_id).values(revoked_at=now_us))
            return before

        return self._database.transaction(work)

    # --- certificates -----------------------------------------------------------------------------------------------

    def enrol(
        self, asked: Asked, now_us: int, sign: Sign, gateways_max: GatewaysMax = lambda _tenant: sys.maxsize
    ) -> CertificateRecord:
        """A certificate for a token, which is spent. Raises `EnrolmentRefused`."""
        return self._database.transaction(lambda tx: _enrol(tx, asked, now_us, sign, gateways_max))

    def renew(self, shown: Shown, key_id: bytes, now_us: int, certificates_max: int, sign: Sign) -> CertificateRecord:
        """A certificate for who has shown this one. Raises `EnrolmentRefused`."""
        return self._database.transaction(lambda tx: _renew(tx, shown, key_id, now_us, certificates_max, sign))

    def revoke(self, tenant: str, gateway: str, now_us: int) -> int:
        """No certificate of this gateway counts any more; returns how many did."""
        return self._database.transaction(lambda tx: _revoke(tx, tenant, gateway, now_us))

    def forget(self, tenant: str, gateway: str, now_us: int) -> int:
        """Give a gateway's name back, until it enrols or connects again, and withdraw what was said for it by name;
        returns when it was forgotten. Raises `NotForgotten`."""
        return self._database.transaction(lambda tx: _forget(tx, tenant, gateway, now_us))

    def forgotten(self, since_us: int = 0) -> dict[Key, int]:
        """When each gateway was forgotten, of those that were from then on and have not come back."""
        return self._database.transaction(lambda tx: names.forgotten(tx, since_us - TIES_US))

    def labels(self) -> dict[Key, dict[str, str]]:
        """Of each gateway that has some."""
        return self._database.transaction(labels.everybody)

    def keep_other(self, serial: str, key_id: bytes, begins_at: int, ends_at: int, pem: str) -> None:
        """There is a certificate of the authority that is no gateway's: the hub's own."""
        record = CertificateRecord(serial, NO_TENANT, "", key_id, begins_at, ends_at, None, pem)
        self._database.transaction(lambda tx: _keep_missing(tx, record))

    def revoke_other(self, serial: str, key_id: bytes, begins_at: int, ends_at: int, now_us: int, pem: str) -> None:
        """A certificate of the authority that is no gateway's, the hub's own, counts no more."""
        record = CertificateRecord(serial, NO_TENANT, "", key_id, begins_at, ends_at, None, pem)

        def work(tx: sa.Connection) -> None:
            _keep_missing(tx, record)
            found = _certificate(tx, serial)
            if found is not None and found.revoked_at is None:
                _set_revoked(tx, (serial,), now_us)

        self._database.transaction(work)

    def certificate(self, serial: str) -> CertificateRecord | None:
        """The one of this serial number, a gateway's or the hub's own; None: the authority has made none."""
        return self._database.transaction(lambda tx: _certificate(tx, serial))

    def serials(self, now_us: int, among: Collection[str] | None = None) -> dict[str, Known]:
        """The certificates of gateways that have not ended, by serial number: all, or those `among` these."""
        columns = (certificates.c.serial, certificates.c.tenant, certificates.c.gateway, certificates.c.ends_at)
        query = sa.select(*columns).where(certificates.c.tenant != NO_TENANT, certificates.c.ends_at > now_us)
        queries = [query]
        if among is not None:
            asked = sorted(among)
            some = [asked[start : start + _SERIALS_AT_ONCE] for start in range(0, len(asked), _SERIALS_AT_ONCE)]
            queries = [query.where(certificates.c.serial.in_(each)) for each in some]
        rows = self._database.transaction(lambda tx: [row for each in queries for row in tx.execute(each)])
        return {row.serial: Known((row.tenant, row.gateway), row.ends_at) for row in rows}

    def revoked(self, since_us: int = 0) -> list[CertificateRecord]:
        """Those revoked, from then on."""
        query = sa.select(*_CERTIFICATE).where(certificates.c.revoked_at >= since_us - TIES_US)
        return [CertificateRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]

    def take_up(self, made: Sequence[CertificateRecord]) -> None:
        """Keep certificates of the authority that this registry does not have: it is an older copy. Their gateways are
        listed, and can be revoked."""
        self._database.transaction(lambda tx: _take_up(tx, made))

    def revoke_again(self, revoked: Sequence[CertificateRecord], now_us: int) -> int:
        """Revoke those of these certificates that count here, or are missing; return how many. Other hubs of this
        registry notice them as revoked now."""
        return self._database.transaction(lambda tx: _revoke_again(tx, revoked, now_us))

    def attest(self, shown: Shown, document: str, now_us: int) -> None:
        """Keep what the gateway says that has shown this certificate, in the place of what it said before. Raises
        `EnrolmentRefused`."""
        self._database.transaction(lambda tx: _attest(tx, shown, document, now_us))

    def attestation(self, tenant: str, gateway: str) -> tuple[int, str] | None:
        """(when it was told, the document) of a gateway; None: it has told nothing."""
        mine = (attestations.c.tenant == tenant, attestations.c.gateway == gateway)
        query = sa.select(attestations.c.told_at, attestations.c.document).where(*mine)
        row = self._database.transaction(lambda tx: tx.execute(query).first())
        return None if row is None else (row[0], row[1])

    def certificates(self) -> list[CertificateRecord]:
        """Every certificate of a gateway, by gateway and time."""
        order = (certificates.c.tenant, certificates.c.gateway, certificates.c.ends_at)
        query = sa.select(*_CERTIFICATE).where(certificates.c.tenant != NO_TENANT).order_by(*order)
        return [CertificateRecord(*row) for row in self._database.transaction(lambda tx: tx.execute(query).all())]


_SERIALS_AT_ONCE = PARAMETERS_MAX - 10
"""Serial numbers in one statement, in addition to the query's own parameters."""
_TOKEN = [tokens.c[name] for name in TokenRecord._fields]
_CERTIFICATE = [certificates.c[name] for name in CertificateRecord._fields]


def _token(tx: sa.Connection, token_id: str) -> TokenRecord | None:
    row = tx.execute(sa.select(*_TOKEN).where(tokens.c.id == token_id)).first()
    return None if row is None else TokenRecord(*row)


def _certificate(tx: sa.Connection, serial: str | None) -> CertificateRecord | None:
    row = tx.execute(sa.select(*_CERTIFICATE).where(certificates.c.serial == serial)).first()
    return None if row is None else CertificateRecord(*row)


def _keep_missing(tx: sa.Connection, record: CertificateRecord) -> None:
    if _certificate(tx, record.serial) is None:
        tx.execute(certificates.insert().values(**record._asdict()))


def _take_up(tx: sa.Connection, made: Sequence[CertificateRecord]) -> None:
    for each in made:
        _keep_missing(tx, each)


def _revoke_again(tx: sa.Connection, revoked: Sequence[CertificateRecord], now_us: int) -> int:
    _take_up(tx, revoked)
    good = [each.serial for each in revoked if (found := _certificate(tx, each.serial)) and found.revoked_at is None]
    _set_revoked(tx, good, now_us)
    return len(good)


def _of_gateway(tx: sa.Connection, tenant: str, gateway: str) -> list[CertificateRecord]:
    mine = (certificates.c.tenant == tenant, certificates.c.gateway == gateway)
    return [CertificateRecord(*row) for row in tx.execute(sa.select(*_CERTIFICATE).where(*mine))]


def _enrol(tx: sa.Connection, asked: Asked, now_us: int, sign: Sign, gateways_max: GatewaysMax) -> CertificateRecord:
    token = _token(tx, asked.token_id)
    if token is None or not same(token.secret, asked.secret):
        raise EnrolmentRefused(RefusalReason.UNKNOWN, "this hub knows no such token; ask for a new one")
    if token.gateway is not None and token.gateway != asked.gateway:
        words = f"the token is for gateway {token.gateway}, and this one calls itself {asked.gateway}"
        raise EnrolmentRefused(RefusalReason.OTHER_GATEWAY, f"{words}; use that name, or ask for a token of its own")
    if token.spent_at is not None:
        return _again(tx, token, asked, now_us)
    if token.revoked_at is not None:
        raise EnrolmentRefused(RefusalReason.REVOKED, "the token was revoked; ask for a new one")
    if token.expires_at <= now_us:
        raise EnrolmentRefused(RefusalReason.EXPIRED, "the token has expired; ask for a new one")
    known = names.is_known(tx, token.tenant, asked.gateway)
    if token.gateway is None and known:
        words = f"there is a gateway {asked.gateway} already: choose another name, or, where this is to take its place"
        raise EnrolmentRefused(
            RefusalReason.NAME_TAKEN, f"{words}, ask for a token made with --gateway {asked.gateway}"
        )
    if not known and names.count(tx, token.tenant) >= (most := gateways_max(token.tenant)):
        raise TenantFull(token.tenant, most)
    if not known:
        withdraw(tx, (token.tenant, asked.gateway), now_us)
    _revoke(tx, token.tenant, asked.gateway, now_us)  # it is replaced: one name, one key
    names.remember(tx, token.tenant, asked.gateway)
    _label(tx, token, asked.gateway)
    made = sign(token.tenant, asked.gateway)
    tx.execute(certificates.insert().values(**made._asdict()))
    tx.execute(tokens.update().where(tokens.c.id == token.id).values(spent_at=now_us, serial=made.serial))
    return made


def _label(tx: sa.Connection, token: TokenRecord, gateway: str) -> None:
    """Raises `EnrolmentRefused` where a gateway that is replaced would have too many; the token stays good."""
    try:
        labels.put(tx, token.tenant, gateway, labels.read(token.labels))
    except LabelError as error:
        words = f"{error}, and with those of its token {gateway} would have more: take some away (waypost fleet label)"
        raise EnrolmentRefused(RefusalReason.UNAVAILABLE, words) from None


def _again(tx: sa.Connection, token: TokenRecord, asked: Asked, now_us: int) -> CertificateRecord:
    """The token was spent: for this very key, whose answer was lost, or for another."""
    given = _certificate(tx, token.serial)
    if given is None or not same(given.key_id, asked.key_id) or given.gateway != asked.gateway:
        raise EnrolmentRefused(RefusalReason.SPENT, "the token has been used by another gateway; ask for a new one")
    if not given.good(now_us):
        words = "the certificate this token was for has ended or was revoked; ask for a new token"
        raise EnrolmentRefused(RefusalReason.SPENT, words)
    return given


def _require_good(tx: sa.Connection, shown: Shown, now_us: int) -> None:
    """Raises `EnrolmentRefused` unless the certificate was made for this gateway, and counts."""
    found = _certificate(tx, shown.serial)
    if found is None or (found.tenant, found.gateway) != (shown.tenant, shown.gateway) or not found.good(now_us):
        words = "the certificate shown has ended, was revoked, or is none of this hub; enrol anew with a token"
        raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, words)


def _renew(
    tx: sa.Connection, shown: Shown, key_id: bytes, now_us: int, certificates_max: int, sign: Sign
) -> CertificateRecord:
    _require_good(tx, shown, now_us)
    good = [each for each in _of_gateway(tx, shown.tenant, shown.gateway) if each.good(now_us)]
    for each in good:
        if same(each.key_id, key_id) and each.fresh(now_us):
            return each  # the answer was lost
    if len(good) >= certificates_max:
        words = f"gateway {shown.gateway} has {len(good)} certificates that are good; wait until some have ended"
        raise EnrolmentRefused(RefusalReason.TOO_MANY, words)
    made = sign(shown.tenant, shown.gateway)
    tx.execute(certificates.insert().values(**made._asdict()))
    return made


def _attest(tx: sa.Connection, shown: Shown, document: str, now_us: int) -> None:
    _require_good(tx, shown, now_us)
    key = {"tenant": shown.tenant, "gateway": shown.gateway}
    tx.execute(attestations.delete().where(*(attestations.c[name] == value for name, value in key.items())))
    tx.execute(attestations.insert().values(**key, told_at=now_us, document=document))


def _revoke(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    good = [each.serial for each in _of_gateway(tx, tenant, gateway) if each.good(now_us)]
    _set_revoked(tx, good, now_us)
    return len(good)


def _forget(tx: sa.Connection, tenant: str, gateway: str, now_us: int) -> int:
    who = f"gateway {gateway} of tenant {tenant}"
    if not names.is_known(tx, tenant, gateway):
        raise NotForgotten(StillThere.UNKNOWN, f"there is no {who}")
    if any(each.good(now_us) for each in _of_gateway(tx, tenant, gateway)):
        raise NotForgotten(StillThere.GOOD_CERTIFICATE, f"{who} has a certificate that is good")
    if names.is_connected(tx, tenant, gateway):
        raise NotForgotten(StillThere.CONNECTED, f"{who} is connected")
    withdraw(tx, (tenant, gateway), now_us)
    return names.forget(tx, tenant, gateway, now_us)


def _set_revoked(tx: sa.Connection, serials: Iterable[str], now_us: int) -> None:
    for serial in serials:
        tx.execute(certificates.update().where(certificates.c.serial == serial).values(revoked_at=now_us))
