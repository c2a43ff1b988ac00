"""Enrolment service: issues, renews and revokes certificates of gateways.

Runs on the event loop. The registry work runs in a thread with a connection of its own, so enrolment continues while a
landing is in progress or failing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa
from cryptography.x509.ocsp import OCSPResponseStatus

from bridge.enrolment import (
    Attestation,
    EnrolmentRequest,
    EnrolmentTokenError,
    IssuedCertificate,
    RefusalReason,
    RenewalRequest,
    digest,
    secret_of,
)
from bridge.periodic_task import PeriodicTask
from cloud.hub.enrolment import ocsp
from cloud.hub.enrolment.authority import (
    Authority,
    AuthorityIdentity,
    PublicKey,
    RequestError,
    RevokedCertificate,
    SignedCertificate,
    key_id,
    read_request,
)
from cloud.hub.enrolment.delegated_key import DelegatedKey
from cloud.hub.enrolment.limits import (
    ADMITTED_UNCHECKED_MAX,
    CERTIFICATES_A_GATEWAY_MAX,
    KNOWN_DROPPED_S,
    LIST_RESIGNED_S,
    REQUESTS_MAX,
    REVOCATIONS_CHECK_INTERVAL_S,
    UNKNOWN_SEARCHED_MAX,
)
from cloud.hub.enrolment.registration import Registration
from cloud.hub.enrolment.remote_authority import NotSigned, RemoteAuthority
from cloud.hub.enrolment.revocation_record import RevocationRecord
from cloud.hub.groups import Key
from cloud.hub.older_copy import OlderCopySign
from cloud.hub.peers import CertifiedGateway, HubPeer, InvalidPeer, gateway_fault, read_certificate
from cloud.hub.registry.enrolments import (
    CertificateHolder,
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    ShownCertificate,
    Sign,
    TenantFull,
    TokenClaim,
)
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryClosed, RegistryThread
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError
from edge.output.document import json
from edge.output.text import line

log = logging.getLogger(__name__)

T = TypeVar("T")


class Enrolment:
    """Enrolment service of one hub. `open`, later `close`."""

    def __init__(
        self,
        authority: Authority | RemoteAuthority,
        registry: sa.URL,
        *,
        life_s: float,
        revoked: Callable[[], None],
        now: Callable[[], float] = time.time,
        tenants: Tenants | None = None,
        forgotten: Callable[[Key, int], None] = lambda _key, _at_us: None,
        registration: Registration | None = None,
        record: RevocationRecord | None = None,
        older: Callable[[OlderCopySign], None] = lambda _sign: None,
        hint: ChangeHint | None = None,
        ocsp_key: DelegatedKey | None = None,
    ) -> None:
        """`life_s`: validity of a gateway's certificate. `now`: UTC seconds since 1970. `tenants` has the quotas.
        `hint` is given when another hub or process revokes certificates, or forgets a gateway.

        `authority`: the hub's, or that of another process, which its owner opens and closes; then `ocsp_key` signs
        OCSP responses.

        `registration`: connection to another authority that signs the gateways' certificates; None if `authority` signs
        them. `record` keeps revocations outside the registry.

        `revoked` is called when certificates were revoked, on the loop's thread. `forgotten` is called on the loop's
        thread with each forgotten gateway and the time; for some more than once. `older` is called, in any thread, with
        signs that the registry is an older copy.
        """
        self._remote = authority if isinstance(authority, RemoteAuthority) else None
        self._signer = None if isinstance(authority, RemoteAuthority) else authority
        self.authority: AuthorityIdentity = authority.known if isinstance(authority, RemoteAuthority) else authority
        """Certificate of the hub's authority."""
        self._ocsp_key = ocsp_key
        self._ocsp_lock = asyncio.Lock()
        """Held while the key of OCSP is looked up: it is for one thread at a time."""
        self.refused = 0
        """Number of connections refused or closed because of their certificate."""
        self._registration = registration
        self._life_s = life_s
        self._revoked_listener = revoked
        self._forgotten = forgotten
        self._forgotten_until = 0
        self._now = now
        self._tenants = tenants or Tenants()
        self._thread = RegistryThread("enrolment", lambda: Enrolments(registry))
        self._waiting = 0
        self._record = record
        self._older = older
        self._admitted: dict[str, CertifiedGateway] = {}
        """Certificates of our authority that admitted gateways since the last poll."""
        self._revoked: dict[str, CertificateRecord] = {}
        self._known: dict[str, CertificateHolder] = {}
        """Certificates in the registry by serial number, if another authority signs them. That authority also signs for
        other parties, which may put any name into their requests."""
        self._dropped_at = now()
        """Time when expired ones were last removed."""
        self._unknown: set[str] = set()
        """Certificates shown that are not known; another hub may have issued them just now."""
        self._list: tuple[float, int, bytes] | None = None
        """Time, number of entries, and the revocation list."""
        self._following = PeriodicTask(
            "revocations", self._poll, REVOCATIONS_CHECK_INTERVAL_S,
            log=log, failed="new revocations cannot be read; the known ones stay in effect",
            expected=(RegistryError, EnrolmentRefused), wait=(hint or ChangeHint()).wait,
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why revocations cannot be read; None if they can."""
        return self._following.trouble

    @property
    def remote(self) -> RemoteAuthority | None:
        """Process with the authority's key; None if the key is here."""
        return self._remote

    @property
    def registration_trouble(self) -> str | None:
        """Reason why another authority issues no certificates; None without a fault or without such an authority."""
        return self._registration.trouble if self._registration is not None else None

    @property
    def authority_trouble(self) -> str | None:
        """Reason why the process with the authority's key signs nothing; None without a fault or such a process."""
        return self._remote.trouble if self._remote is not None else None

    async def open(self) -> None:
        """Open the registry and read the revocations. Raises `RegistryError`."""
        await self._thread.open()
        if self._registration is not None:
            self._known |= await self._in_thread(lambda registry: registry.serials(self._now_us()))
        await self._revoke_again()
        await self._poll()
        self._following.start()
        if self._registration is not None:
            self._registration.start()

    async def close(self) -> None:
        """Stop polling and close the registry. Idempotent."""
        await self._following.stop()
        if self._registration is not None:
            await self._registration.stop()
        await self._thread.close()

    # --- CertificatePolicy ------------------------------------------------------------------------------------------

    def refusal(self, peer: HubPeer, serial: int) -> str | None:
        """Implements `cloud.hub.acceptor.CertificatePolicy`."""
        shown = f"{serial:x}"
        if shown in self._revoked:
            self.refused += 1
            return f"the certificate of gateway {peer.name} was revoked: enrol it again with a token made for its name"
        if self._registration is None or self._is_known(shown, peer):
            return None
        self.refused += 1
        if len(self._unknown) < UNKNOWN_SEARCHED_MAX:
            self._unknown.add(shown)
        words = f"this hub did not request this certificate of gateway {peer.name}"
        return f"{words}: if another hub of this registry did, retry in some seconds; else enrol with a token"

    def admitted(self, shown: CertifiedGateway) -> None:
        """Implements `cloud.hub.acceptor.CertificatePolicy`."""
        if self._registration is None and len(self._admitted) < ADMITTED_UNCHECKED_MAX:
            self._admitted[f"{shown.serial:x}"] = shown

    def _is_known(self, serial: str, peer: HubPeer) -> bool:
        known = self._known.get(serial)
        return known is not None and known.gateway == (peer.tenant, peer.name)

    # --- certificates -----------------------------------------------------------------------------------------------

    async def enrol(self, request: EnrolmentRequest) -> IssuedCertificate:
        """Issue a certificate for a token. Raises `EnrolmentRefused`, `RegistryError`."""
        key = _key_of(request.request)
        if fault := gateway_fault(request.gateway):
            raise EnrolmentRefused(RefusalReason.MALFORMED, fault)
        if not request.token_id.isprintable():  # PostgreSQL takes no NUL in a text
            raise EnrolmentRefused(RefusalReason.MALFORMED, "the id of the token has invalid characters")
        try:
            secret = digest(secret_of(request))
        except EnrolmentTokenError as error:
            raise EnrolmentRefused(RefusalReason.MALFORMED, str(error)) from error
        asked = TokenClaim(request.token_id[:32], secret, request.gateway, key_id(key))

        def keep(sign: Sign) -> Awaitable[CertificateRecord]:
            return self._request(lambda registry: registry.enrol(asked, self._now_us(), sign, self._gateways_max))

        try:
            made = await self._make(key, request.request, keep)
        except TenantFull as refused:
            self._tenants.count_refusal(refused.tenant, "gateways")
            raise
        log.info(
            "issued a certificate to gateway %s of tenant %s with token %s", made.gateway, made.tenant, asked.token_id
        )
        return self._issued(made)

    async def renew(self, request: RenewalRequest, shown: Mapping[str, Any] | None) -> IssuedCertificate:
        """Issue the next certificate to a gateway that showed this one. Raises `EnrolmentRefused`, `RegistryError`."""
        key = _key_of(request.request)
        before, most = (
            await self._shown(shown, "a gateway renews with its current certificate"),
            CERTIFICATES_A_GATEWAY_MAX,
        )

        def keep(sign: Sign) -> Awaitable[CertificateRecord]:
            return self._request(lambda registry: registry.renew(before, key_id(key), self._now_us(), most, sign))

        made = await self._make(key, request.request, keep)
        log.info("renewed the certificate of gateway %s of tenant %s", made.gateway, made.tenant)
        return self._issued(made)

    async def attest(self, attestation: Attestation, shown: Mapping[str, Any] | None) -> None:
        """Store the attestation of the gateway that showed this certificate. Raises `EnrolmentRefused`,
        `RegistryError`."""
        who = await self._shown(shown, "a gateway sends its attestation with its current certificate")
        await self._request(lambda registry: registry.attest(who, json(attestation), self._now_us()))
        root = line(attestation.root[:16] or "unknown")
        log.info("gateway %s of tenant %s was set up: root %s", who.gateway, who.tenant, root)

    def revocations(self) -> bytes | None:
        """Return the revocation list, DER; None while the process with the authority's key has published none."""
        if self._signer is None:
            return self._remote.revocations if self._remote is not None else None
        now, count = self._now(), len(self._revoked)
        if self._list is None or self._list[1] != count or not 0 <= now - self._list[0] < LIST_RESIGNED_S:
            entries = [RevokedCertificate(each.serial, (each.revoked_at or 0) / 1e6) for each in self._revoked.values()]
            self._list = now, count, self._signer.revocations(entries, int(now * 1_000), now)
        return self._list[2]

    async def store_own_certificate(self, shown: SignedCertificate) -> None:
        """Store the certificate that the hub shows now. Raises `RegistryError`."""
        begins_at, ends_at = (int(at * 1_000_000) for at in (shown.begins_at, shown.ends_at))
        keep = (shown.serial, shown.key_id, begins_at, ends_at, shown.pem)
        await self._in_thread(lambda registry: registry.store_hub_certificate(*keep))

    async def status_of(self, request: bytes) -> bytes:
        """Answer an OCSP request about a certificate of the authority (RFC 6960); both DER."""
        question = ocsp.parse_request(request)
        if question is None:
            return ocsp.error_response(OCSPResponseStatus.MALFORMED_REQUEST)
        if not ocsp.is_about(question, self.authority):
            return ocsp.error_response(OCSPResponseStatus.UNAUTHORIZED)  # RFC 5019 section 2.2.3
        try:
            with self._count_request():
                responder = await self._responder()
            return await self._request(partial(self._status, question, responder))
        except (EnrolmentRefused, RegistryError, NotSigned, OSError):
            return ocsp.error_response(OCSPResponseStatus.TRY_LATER)

    # --- tokens -----------------------------------------------------------------------------------------------------

    async def ask(self, work: Callable[[Enrolments], T]) -> T:
        """Run a request of an operator on the registry's thread. Raises `EnrolmentRefused`, `RegistryError`."""
        return await self._request(work)

    def now_us(self) -> int:
        """Return UTC microseconds since 1970."""
        return self._now_us()

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _shown(self, certificate: Mapping[str, Any] | None, why: str) -> ShownCertificate:
        """Return the gateway that a certificate, as given by `ssl`, names.

        A certificate of our authority that the registry has lost is added first. Raises `EnrolmentRefused`, with `why`
        one is needed, and `RegistryError`.
        """
        if not certificate:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"the client certificate is missing: {why}")
        try:
            found = read_certificate(certificate)
        except InvalidPeer as fault:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"{fault}: {why}") from None
        serial = f"{found.serial:x}"
        if self._registration is None:
            with self._count_request():
                await self._add_unknown({serial: found})
        return ShownCertificate(serial, found.peer.tenant, found.peer.name)

    async def _responder(self) -> ocsp.OcspSigner:
        """Return the signer of OCSP responses. Raises `NotSigned`, `RegistryError`, OSError."""
        if self._signer is not None:
            return self._signer
        if self._ocsp_key is None:
            raise NotSigned("this hub has no key for OCSP")
        async with self._ocsp_lock:
            return ocsp.DelegatedResponder(await asyncio.to_thread(self._ocsp_key.keep))

    def _status(self, question: ocsp.OcspQuery, responder: ocsp.OcspSigner, registry: Enrolments) -> bytes:
        """Answer an OCSP request, on the registry's thread."""
        record = registry.certificate(f"{question.serial:x}")
        at = None if record is None or record.revoked_at is None else record.revoked_at / 1e6
        standing = ocsp.RevocationStatus(at) if record is not None else None
        return ocsp.make_response(responder, question, standing, self._now())

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)

    def _gateways_max(self, tenant: str) -> int:
        """Return the quota of gateways, on the registry's thread."""
        return self._tenants.of(tenant).gateways

    async def _make(
        self, key: PublicKey, request: str, keep: Callable[[Sign], Awaitable[CertificateRecord]]
    ) -> CertificateRecord:
        """Make and store a certificate.

        Our key signs within the transaction that stores it. Another authority, or the process with the key of ours, is
        asked between two transactions, so that the registry is not blocked. If the second transaction fails, the
        certificate is useless to all but the holder of the key, who repeats the request.
        """
        elsewhere = self._registration or self._remote
        if elsewhere is None:
            return await keep(partial(self._sign, key))
        try:
            return await keep(_sign_elsewhere)
        except _SignatureNeeded as wanted:
            tenant, gateway = wanted.tenant, wanted.gateway
        with self._count_request():
            made = await elsewhere.certificate(request, tenant, gateway)
        kept = await keep(lambda *who: made if who == (tenant, gateway) else _sign_elsewhere(*who))
        if self._registration is not None:
            self._known[kept.serial] = CertificateHolder((kept.tenant, kept.gateway), kept.ends_at)
        return kept

    def _sign(self, key: PublicKey, tenant: str, gateway: str) -> CertificateRecord:
        """Sign and record a certificate, on the registry's thread."""
        if self._signer is None:
            raise _SignatureNeeded(tenant, gateway)
        made = self._signer.gateway_certificate(key, tenant, gateway, self._now(), self._life_s)
        begins_at, ends_at = (int(at * 1_000_000) for at in (made.begins_at, made.ends_at))
        return CertificateRecord(made.serial, tenant, gateway, made.key_id, begins_at, ends_at, None, made.pem)

    def _issued(self, made: CertificateRecord) -> IssuedCertificate:
        issuer = self._registration.issuer_of(made.pem) if self._registration is not None else ""
        return IssuedCertificate(made.tenant, made.gateway, made.pem, self.authority.pem, self._now(), issuer)

    async def _request(self, work: Callable[[Enrolments], T]) -> T:
        """Run a request of a gateway on the registry's thread, within the limit of requests."""
        with self._count_request():
            return await self._in_thread(work)

    @contextlib.contextmanager
    def _count_request(self) -> Iterator[None]:
        """Count a request in progress. Raises `EnrolmentRefused` for too many."""
        if self._waiting >= REQUESTS_MAX:
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, "the hub is overloaded; try again in some seconds")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _in_thread(self, work: Callable[[Enrolments], T]) -> T:
        """Run `work` on the registry's thread. Raises `EnrolmentRefused` before `open` and after `close`."""
        try:
            return await self._thread.run(work)
        except RegistryClosed as error:
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, str(error)) from error

    async def _poll(self) -> None:
        """Apply revocations and forgotten gateways since the last poll, made here or elsewhere."""
        since = max((each.revoked_at or 0 for each in self._revoked.values()), default=0)
        until = self._forgotten_until
        found, names = await self._in_thread(lambda registry: (registry.revoked(since), registry.forgotten(until)))
        new = [each for each in found if each.serial not in self._revoked]
        self._revoked.update({each.serial: each for each in new})
        if new:  # first, before anything can fail: a revocation must not wait
            self._revoked_listener()
            await self._keep_revoked()
        self._forgotten_until = min(max(names.values(), default=until), self._now_us())
        for key, at_us in names.items():
            self._forgotten(key, at_us)
        if self._unknown:
            unknown, self._unknown = self._unknown, set()
            self._known |= await self._in_thread(lambda registry: registry.serials(self._now_us(), unknown))
        self._drop_expired()
        if self._admitted:
            await self._add_unknown(dict(self._admitted))

    async def _add_unknown(self, admitted: Mapping[str, CertifiedGateway]) -> None:
        """Add certificates of our authority that the registry does not have. Raises `RegistryError`."""
        known = await self._in_thread(lambda registry: registry.serials(self._now_us(), admitted))
        missing = [_seen_record(serial, each) for serial, each in admitted.items() if serial not in known]
        missing = [each for each in missing if each.ends_at > self._now_us()]
        if missing:
            await self._in_thread(lambda registry: registry.add_certificates(missing))
            for each in missing:
                words = "has a certificate that was missing in the registry; it was added"
                log.warning("gateway %s of tenant %s %s", each.gateway, each.tenant, words)
            self._older(OlderCopySign.CERTIFICATES)
        for serial in admitted:
            self._admitted.pop(serial, None)

    async def _revoke_again(self) -> None:
        """Repeat revocations that the registry has lost. Raises `RegistryError`."""
        record = self._record
        if record is None:
            return
        try:
            revoked = await self._in_thread(lambda _: record.read(self._now_us()))
        except (OSError, ValueError) as error:
            log.warning("the hub's record of revocations cannot be read: %s", error)
            return
        if revoked and (
            count := await self._in_thread(lambda registry: registry.revoke_again(revoked, self._now_us()))
        ):
            log.warning("the registry had lost the revocation of %d certificates; revoked them again", count)
            self._older(OlderCopySign.REVOCATIONS)

    async def _keep_revoked(self) -> None:
        """Record revocations outside the registry, where a restored registry does not lose them."""
        record, revoked = self._record, list(self._revoked.values())
        if record is None:
            return
        try:
            await self._in_thread(lambda _: record.write(revoked, self._now_us()))
        except OSError as error:
            log.warning("the hub's record of revocations cannot be written: %s", error)

    def _drop_expired(self) -> None:
        """Remove expired certificates from memory: no handshake accepts them, and a fleet renews every few weeks."""
        now = self._now()
        if not 0 <= now - self._dropped_at < KNOWN_DROPPED_S:
            self._dropped_at, now_us = now, self._now_us()
            self._known = {serial: known for serial, known in self._known.items() if known.ends_at > now_us}


class _SignatureNeeded(Exception):
    """Raised in a transaction at the point where another authority has to sign."""

    def __init__(self, tenant: str, gateway: str) -> None:
        super().__init__(tenant, gateway)
        self.tenant, self.gateway = tenant, gateway


def _sign_elsewhere(tenant: str, gateway: str) -> CertificateRecord:
    """Implement `Sign` by raising `_SignatureNeeded`."""
    raise _SignatureNeeded(tenant, gateway)


def _seen_record(serial: str, shown: CertifiedGateway) -> CertificateRecord:
    """Return the record of a certificate that was only seen in a handshake: key and PEM are missing."""
    begins_at, ends_at = int(shown.begins_at * 1_000_000), int(shown.ends_at * 1_000_000)
    return CertificateRecord(serial, shown.peer.tenant, shown.peer.name, b"", begins_at, ends_at, None, "")


def _key_of(request: str) -> PublicKey:
    try:
        return read_request(request)
    except RequestError as error:
        raise EnrolmentRefused(RefusalReason.MALFORMED, str(error)) from error
