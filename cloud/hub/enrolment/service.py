"""Who gets a certificate of the hub's authority, and whose does not count any more.

On the event loop; the registry's part of it is in a thread of its own, with a connection of its own: enrolment goes on
while a landing is under way, or cannot be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

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
from cloud.hub.enrolment import ocsp
from cloud.hub.enrolment.authority import Authority, PublicKey, RequestError, Revoked, Signed, key_id, read_request
from cloud.hub.enrolment.limits import (
    ADMITTED_UNCHECKED_MAX,
    CERTIFICATES_A_GATEWAY_MAX,
    KNOWN_SORTED_OUT_S,
    REQUESTS_MAX,
    REVOCATIONS_LOOKED_AT_S,
    UNKNOWN_LOOKED_FOR_MAX,
)
from cloud.hub.enrolment.registration import Registration
from cloud.hub.enrolment.revocation_record import RevocationRecord
from cloud.hub.groups import Key
from cloud.hub.older_copy import OlderCopySign
from cloud.hub.peers import Certified, NotAPeer, Peer, certified, gateway_fault
from cloud.hub.registry.enrolments import (
    Asked,
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    Known,
    Shown,
    Sign,
    TenantFull,
)
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError
from edge.output.document import json
from edge.output.text import line

log = logging.getLogger(__name__)

T = TypeVar("T")

LIST_MADE_ANEW_S: Final = 3_600.0
"""The list of revoked certificates is signed again after this, though nothing has changed."""


class Enrolment:
    """For one hub: `open`, `watch`, later `close`."""

    def __init__(
        self,
        authority: Authority,
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
    ) -> None:
        """`life_s`: of a gateway's certificate. `revoked` is called when certificates have been revoked, on the
        loop's thread. `now`: UTC seconds since 1970. `tenants`: their quotas. `forgotten` is called on the
        loop's thread with each gateway that was forgotten, and when; more than once for some. `registration`:
        with another authority, which makes the gateways' certificates; None: `authority` does. `record` keeps
        revocations outside the registry. `older` is called, in any thread, with what shows that the registry is an
        older copy."""
        self.authority = authority
        self.trouble: str | None = None
        """Why revocations cannot be looked for; None: they can."""
        self.refused = 0
        """Times a certificate that was revoked was not let in, or had to leave."""
        self._registration = registration
        self._url = registry
        self._life_s = life_s
        self._told = revoked
        self._forgotten = forgotten
        self._forgotten_until = 0
        self._now = now
        self._tenants = tenants or Tenants()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="enrolment")
        self._waiting = 0
        self._record = record
        self._older = older
        self._admitted: dict[str, Certified] = {}
        """Certificates of our authority by which gateways were let in, and which the next look looks for."""
        self._registry: Enrolments | None = None
        self._revoked: dict[str, CertificateRecord] = {}
        self._known: dict[str, Known] = {}
        """Certificates the registry has, by serial number, where another authority makes them: it makes some for
        others as well, and may name in them what they ask for."""
        self._sorted_out_at = now()
        """When those that had ended were forgotten the last time."""
        self._unknown: set[str] = set()
        """Those shown that are not among them; another hub may have had them made just now."""
        self._list: tuple[float, int, bytes] | None = None
        """When it was made, of how many, and the list."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def registration_trouble(self) -> str | None:
        """Why another authority makes no certificates; None: it does, or there is none."""
        return self._registration.trouble if self._registration is not None else None

    async def open(self) -> None:
        """Open the registry and read what was revoked. Raises `RegistryError`."""
        loop = asyncio.get_running_loop()
        self._registry = await loop.run_in_executor(self._executor, Enrolments, self._url)
        if self._registration is not None:
            self._known |= await self._in_thread(lambda registry: registry.serials(self._now_us()))
        await self._revoke_again()
        await self._look()
        self._watching = loop.create_task(self._watch(), name="revocations")
        if self._registration is not None:
            self._registration.start()

    async def close(self) -> None:
        """Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        if self._registration is not None:
            await self._registration.stop()
        registry, self._registry = self._registry, None
        if registry is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, registry.close)
        self._executor.shutdown()

    # --- who is let in ----------------------------------------------------------------------------------------------

    def refusal(self, peer: Peer, serial: int) -> str | None:
        """Implements `cloud.hub.acceptor.Authority`."""
        shown = f"{serial:x}"
        if shown in self._revoked:
            self.refused += 1
            return f"the certificate of gateway {peer.name} was revoked: enrol it anew with a token made for its name"
        if self._registration is None or self._is_known(shown, peer):
            return None
        self.refused += 1
        if len(self._unknown) < UNKNOWN_LOOKED_FOR_MAX:
            self._unknown.add(shown)
        words = f"this hub has asked for no such certificate for gateway {peer.name}"
        return f"{words}: come again in some seconds, if another hub of this registry has; else enrol with a token"

    def admitted(self, shown: Certified) -> None:
        """Implements `cloud.hub.acceptor.Authority`."""
        if self._registration is None and len(self._admitted) < ADMITTED_UNCHECKED_MAX:
            self._admitted[f"{shown.serial:x}"] = shown

    def _is_known(self, serial: str, peer: Peer) -> bool:
        known = self._known.get(serial)
        return known is not None and known.gateway == (peer.tenant, peer.name)

    # --- certificates -----------------------------------------------------------------------------------------------

    async def enrol(self, request: EnrolmentRequest) -> IssuedCertificate:
        """The certificate a token is good for. Raises `EnrolmentRefused`, `RegistryError`."""
        key = _key_of(request.request)
        if fault := gateway_fault(request.gateway):
            raise EnrolmentRefused(RefusalReason.MALFORMED, fault)
        if not request.token_id.isprintable():  # PostgreSQL takes no NUL in a text
            raise EnrolmentRefused(RefusalReason.MALFORMED, "the token's name has characters that are in none")
        try:
            secret = digest(secret_of(request))
        except EnrolmentTokenError as error:
            raise EnrolmentRefused(RefusalReason.MALFORMED, str(error)) from error
        asked = Asked(request.token_id[:32], secret, request.gateway, key_id(key))

        def keep(sign: Sign) -> Awaitable[CertificateRecord]:
            return self._asked(lambda registry: registry.enrol(asked, self._now_us(), sign, self._gateways_max))

        try:
            made = await self._made(key, request.request, keep)
        except TenantFull as refused:
            self._tenants.at_its_bound(refused.tenant, "gateways")
            raise
        log.info("gateway %s of tenant %s has a certificate: token %s", made.gateway, made.tenant, asked.token_id)
        return self._issued(made)

    async def renew(self, request: RenewalRequest, shown: Mapping[str, Any] | None) -> IssuedCertificate:
        """The next certificate of who has shown this one. Raises `EnrolmentRefused`, `RegistryError`."""
        key = _key_of(request.request)
        before, most = await self._shown(shown, "a gateway renews by the one it has"), CERTIFICATES_A_GATEWAY_MAX

        def keep(sign: Sign) -> Awaitable[CertificateRecord]:
            return self._asked(lambda registry: registry.renew(before, key_id(key), self._now_us(), most, sign))

        made = await self._made(key, request.request, keep)
        log.info("gateway %s of tenant %s has renewed its certificate", made.gateway, made.tenant)
        return self._issued(made)

    async def attest(self, said: Attestation, shown: Mapping[str, Any] | None) -> None:
        """Keep what who has shown this certificate says of itself. Raises `EnrolmentRefused`, `RegistryError`."""
        who = await self._shown(shown, "a gateway reports what it is by the one it has")
        await self._asked(lambda registry: registry.attest(who, json(said), self._now_us()))
        root = line(said.root[:16] or "unknown")
        log.info("gateway %s of tenant %s was set up: root %s", who.gateway, who.tenant, root)

    def revocations(self) -> bytes:
        """The list of revoked certificates, DER."""
        now, count = self._now(), len(self._revoked)
        if self._list is None or self._list[1] != count or not 0 <= now - self._list[0] < LIST_MADE_ANEW_S:
            entries = [Revoked(each.serial, (each.revoked_at or 0) / 1e6) for each in self._revoked.values()]
            self._list = now, count, self.authority.revocations(entries, int(now * 1_000), now)
        return self._list[2]

    async def keep_own(self, shown: Signed) -> None:
        """The hub shows this certificate now. Raises `RegistryError`."""
        begins_at, ends_at = (int(at * 1_000_000) for at in (shown.begins_at, shown.ends_at))
        keep = (shown.serial, shown.key_id, begins_at, ends_at, shown.pem)
        await self._in_thread(lambda registry: registry.keep_other(*keep))

    async def status_of(self, request: bytes) -> bytes:
        """The answer to a question about a certificate of the authority (RFC 6960); both DER."""
        question = ocsp.read(request)
        if question is None:
            return ocsp.unanswered(OCSPResponseStatus.MALFORMED_REQUEST)
        if not ocsp.is_about(question, self.authority):
            return ocsp.unanswered(OCSPResponseStatus.UNAUTHORIZED)  # RFC 5019 section 2.2.3
        try:
            return await self._asked(partial(self._status, question))
        except (EnrolmentRefused, RegistryError):
            return ocsp.unanswered(OCSPResponseStatus.TRY_LATER)

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _shown(self, certificate: Mapping[str, Any] | None, why: str) -> Shown:
        """Return the gateway that a certificate, as `ssl` gives it, names. One of our authority that the registry has
        lost is taken up first. Raises `EnrolmentRefused`, with `why` one is needed, and `RegistryError`."""
        if not certificate:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"no certificate was shown: {why}")
        try:
            found = certified(certificate)
        except NotAPeer as fault:
            raise EnrolmentRefused(RefusalReason.NO_CERTIFICATE, f"{fault}: {why}") from None
        serial = f"{found.serial:x}"
        if self._registration is None:
            with self._one_more():
                await self._take_up_unknown({serial: found})
        return Shown(serial, found.peer.tenant, found.peer.name)

    def _status(self, question: ocsp.Question, registry: Enrolments) -> bytes:
        """In the registry's thread."""
        record = registry.certificate(f"{question.serial:x}")
        at = None if record is None or record.revoked_at is None else record.revoked_at / 1e6
        standing = ocsp.Standing(at) if record is not None else None
        return ocsp.answer(self.authority, question, standing, self._now())

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000)

    def _gateways_max(self, tenant: str) -> int:
        """In the registry's thread."""
        return self._tenants.of(tenant).gateways

    async def _made(
        self, key: PublicKey, request: str, keep: Callable[[Sign], Awaitable[CertificateRecord]]
    ) -> CertificateRecord:
        """A certificate that is kept, for who may have one. Ours is made in the transaction that keeps it. Another
        authority is asked between two transactions, so that nobody waits for it who wants the registry; what it has
        made for nothing, as the second one does not come about, nobody has but who holds the key and asks again."""
        if self._registration is None:
            return await keep(partial(self._sign, key))
        try:
            return await keep(_somebody_elses)
        except _Wanted as wanted:
            tenant, gateway = wanted.tenant, wanted.gateway
        with self._one_more():
            made = await self._registration.certificate(request, tenant, gateway)
        kept = await keep(lambda *who: made if who == (tenant, gateway) else _somebody_elses(*who))
        self._known[kept.serial] = Known((kept.tenant, kept.gateway), kept.ends_at)
        return kept

    def _sign(self, key: PublicKey, tenant: str, gateway: str) -> CertificateRecord:
        """In the registry's thread."""
        made = self.authority.gateway_certificate(key, tenant, gateway, self._now(), self._life_s)
        begins_at, ends_at = (int(at * 1_000_000) for at in (made.begins_at, made.ends_at))
        return CertificateRecord(made.serial, tenant, gateway, made.key_id, begins_at, ends_at, None, made.pem)

    def _issued(self, made: CertificateRecord) -> IssuedCertificate:
        issuer = self._registration.issuer_of(made.pem) if self._registration is not None else ""
        return IssuedCertificate(made.tenant, made.gateway, made.pem, self.authority.pem, self._now(), issuer)

    async def _asked(self, work: Callable[[Enrolments], T]) -> T:
        """Ask the registry for a gateway, and for not too many of them at once."""
        with self._one_more():
            return await self._in_thread(work)

    @contextlib.contextmanager
    def _one_more(self) -> Iterator[None]:
        """A request is under way. Raises `EnrolmentRefused`."""
        if self._waiting >= REQUESTS_MAX:
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, "the hub has too much to do; ask again in some seconds")
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def _in_thread(self, work: Callable[[Enrolments], T]) -> T:
        """The registry belongs to its thread."""
        registry = self._registry
        if registry is None:
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, "the hub starts or stops; ask again in some seconds")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, registry)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REVOCATIONS_LOOKED_AT_S)
            try:
                await self._look()
            except RegistryError as error:
                if self.trouble is None:
                    log.warning("revoked certificates cannot be looked for; those known count: %s", error)
                self.trouble = str(error)
            except Exception as error:  # a fault of ours must not end the watch in silence
                log.exception("revoked certificates cannot be looked for; those known count")
                self.trouble = f"a fault of the program: {type(error).__name__}"
            else:
                self.trouble = None

    async def _look(self) -> None:
        """Take up what was revoked and who was forgotten since the last look, here or elsewhere."""
        since = max((each.revoked_at or 0 for each in self._revoked.values()), default=0)
        until = self._forgotten_until
        found, names = await self._in_thread(lambda registry: (registry.revoked(since), registry.forgotten(until)))
        new = [each for each in found if each.serial not in self._revoked]
        self._revoked.update({each.serial: each for each in new})
        if new:  # before all that may fail: a revocation waits for nothing else
            self._told()
            await self._keep_revoked()
        self._forgotten_until = min(max(names.values(), default=until), self._now_us())
        for key, at_us in names.items():
            self._forgotten(key, at_us)
        if self._unknown:
            unknown, self._unknown = self._unknown, set()
            self._known |= await self._in_thread(lambda registry: registry.serials(self._now_us(), unknown))
        self._sort_out()
        if self._admitted:
            await self._take_up_unknown(dict(self._admitted))

    async def _take_up_unknown(self, admitted: Mapping[str, Certified]) -> None:
        """Keep the certificates of our authority that the registry does not have. Raises `RegistryError`."""
        known = await self._in_thread(lambda registry: registry.serials(self._now_us(), admitted))
        missing = [_seen(serial, each) for serial, each in admitted.items() if serial not in known]
        missing = [each for each in missing if each.ends_at > self._now_us()]
        if missing:
            await self._in_thread(lambda registry: registry.take_up(missing))
            for each in missing:
                words = "has a certificate that the registry did not know; it is listed from now on"
                log.warning("gateway %s of tenant %s %s", each.gateway, each.tenant, words)
            self._older(OlderCopySign.CERTIFICATES)
        for serial in admitted:
            self._admitted.pop(serial, None)

    async def _revoke_again(self) -> None:
        """Revoke what this hub knows as revoked and the registry does not. Raises `RegistryError`."""
        if self._record is None:
            return
        try:
            revoked = await asyncio.get_running_loop().run_in_executor(
                self._executor, self._record.read, self._now_us()
            )
        except (OSError, ValueError) as error:
            log.warning("revocations that the registry may have lost cannot be read: %s", error)
            return
        if revoked and (
            count := await self._in_thread(lambda registry: registry.revoke_again(revoked, self._now_us()))
        ):
            log.warning("the registry had lost the revocation of %d certificates: they are revoked again", count)
            self._older(OlderCopySign.REVOCATIONS)

    async def _keep_revoked(self) -> None:
        """Keep what is revoked where a registry from a backup does not lose it."""
        if self._record is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, self._record.write, list(self._revoked.values()), self._now_us()
            )
        except OSError as error:
            log.warning("revocations cannot be written next to the authority: %s", error)

    def _sort_out(self) -> None:
        """Forget certificates that have ended: no handshake takes them, and a fleet has new ones every some weeks."""
        now = self._now()
        if not 0 <= now - self._sorted_out_at < KNOWN_SORTED_OUT_S:
            self._sorted_out_at, now_us = now, self._now_us()
            self._known = {serial: known for serial, known in self._known.items() if known.ends_at > now_us}


class _Wanted(Exception):
    """A transaction has come to where a certificate is made, which another authority does."""

    def __init__(self, tenant: str, gateway: str) -> None:
        super().__init__(tenant, gateway)
        self.tenant, self.gateway = tenant, gateway


def _somebody_elses(tenant: str, gateway: str) -> CertificateRecord:
    """Implements `Sign`."""
    raise _Wanted(tenant, gateway)


def _seen(serial: str, shown: Certified) -> CertificateRecord:
    """Return the record of a certificate that was only seen in a handshake: it lacks the key and the text."""
    begins_at, ends_at = int(shown.begins_at * 1_000_000), int(shown.ends_at * 1_000_000)
    return CertificateRecord(serial, shown.peer.tenant, shown.peer.name, b"", begins_at, ends_at, None, "")


def _key_of(request: str) -> PublicKey:
    try:
        return read_request(request)
    except RequestError as error:
        raise EnrolmentRefused(RefusalReason.MALFORMED, str(error)) from error
