"""Authority in another process (`waypost hub authority`), which has the key: hubs ask it through the registry.

Runs on the event loop, with a connection to the registry in a thread of its own. Requests are answered within a second.
While the authority is away, gateways continue with the certificates that they have, and requests fail with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bridge.device_pages import DevicePageError, SignedDevicePage, digest_of, read_page, read_signed, to_sign
from bridge.enrolment import RefusalReason
from bridge.periodic_task import PeriodicTask
from cloud.hub.enrolment.authority import KnownAuthority, PublicKey, key_id, read_request
from cloud.hub.enrolment.device_page_request import NO_PAGE, DevicePageRequest
from cloud.hub.enrolment.limits import (
    AUTHORITY_ABSENT_S,
    AUTHORITY_PUBLISHED_S,
    PAGE_TIMEOUT_S,
    SIGNATURE_CHECK_S,
    SIGNATURE_FIRST_CHECK_S,
    SIGNATURE_TIMEOUT_S,
    SIGNATURES_WAITED_MAX,
)
from cloud.hub.enrolment.request_queue import RequestQueue
from cloud.hub.enrolment.signature_request import (
    UNKNOWN_REQUEST,
    GatewaySignature,
    ServerSignature,
    SignatureRequest,
    SignerPurpose,
    SignerSignature,
    public_pem,
)
from cloud.hub.registry.enrolments import CertificateRecord, EnrolmentRefused
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.signatures import PublishedAuthority, SignatureAnswer, Signatures, WaitingRequest
from cloud.hub.registry_thread import RegistryClosed, RegistryThread, database_of
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")


class NotSigned(Exception):
    """The authority's process has not signed; the message says why."""


class TooManyWaiting(NotSigned):
    """This hub waits for as many signatures as it may."""


class SignatureDenied(NotSigned):
    """The authority's process has refused this request; it may sign others."""


class RemoteAuthority:
    """Authority in another process. `open`, later `close`."""

    def __init__(
        self,
        known: KnownAuthority,
        registry: sa.URL,
        *,
        hint: ChangeHint | None = None,
        timeout_s: float = SIGNATURE_TIMEOUT_S,
    ) -> None:
        """`known`: its certificate. `hint` is given when it has answered, or published."""
        self.known = known
        self.revocations: bytes | None = None
        """Revocation list that the authority signed last, DER; None before the first one is read."""
        self._hint = hint or ChangeHint()
        self._timeout_s = timeout_s
        self._name = known.fingerprint.hex()
        self._thread = RegistryThread("signatures", database_of(registry))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests = RequestQueue(self._store)
        self._check_s = SIGNATURE_CHECK_S
        """Seconds until the next look for answers that no notice announces."""
        self._waited: dict[str, asyncio.Future[SignatureAnswer]] = {}
        self._unwanted: set[str] = set()
        """Requests that timed out, until they are withdrawn."""
        self._published: PublishedAuthority | None = None
        self._changed_at = 0.0
        """Time at which the authority was last seen to run, on the loop's clock: its own clock may differ."""
        self._following = PeriodicTask(
            "signatures", self._poll, AUTHORITY_PUBLISHED_S,
            log=log, failed="answers of the authority cannot be read", expected=(RegistryError, NotSigned),
            wait=self._rest,
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why nothing is signed; None without a known fault."""
        if self._following.trouble is not None:
            return self._following.trouble
        if self._loop is None or self._loop.time() - self._changed_at < AUTHORITY_ABSENT_S:
            return None
        if self._published is None:
            return f"no process with the key of authority {self._name[:16]} has used this registry"
        return f"the authority's process has given no sign of life for {AUTHORITY_ABSENT_S:.0f} s"

    async def open(self) -> None:
        """Open the registry and follow the authority. Raises `RegistryError`."""
        loop = self._loop = asyncio.get_running_loop()
        await self._thread.open()
        self._changed_at = loop.time()
        await self._poll()
        self._following.start()

    async def close(self) -> None:
        """End what waits, and close the registry. Idempotent."""
        await self._following.stop()
        for future in self._waited.values():
            if not future.done():
                future.set_exception(NotSigned("the hub stops"))
        await self._requests.close()
        await self._thread.close()

    # --- certificates -----------------------------------------------------------------------------------------------

    async def certificate(self, request: str, tenant: str, gateway: str) -> CertificateRecord:
        """Have a gateway's certificate signed, as `cloud.hub.enrolment.registration.Registration` does. Raises
        `EnrolmentRefused`."""
        try:
            pem = await self.sign(GatewaySignature(request, tenant, gateway))
            made = self._checked(pem, read_request(request))
        except (NotSigned, RegistryError) as error:
            words = f"the hub's authority signs no certificate now: {error}; the present certificate stays valid"
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, words) from error
        ends = (made.not_valid_before_utc, made.not_valid_after_utc)
        begins_at, ends_at = (int(at.timestamp() * 1_000_000) for at in ends)
        serial, owner = f"{made.serial_number:x}", key_id(_public_key(made))
        return CertificateRecord(serial, tenant, gateway, owner, begins_at, ends_at, None, pem)

    async def server_certificate(self, key: PublicKey, names: Sequence[str]) -> str:
        """Have the certificate of this hub's listeners signed, PEM. Raises `NotSigned`, `RegistryError`."""
        pem = await self.sign(ServerSignature(public_pem(key), list(names)))
        self._checked(pem, key)
        return pem

    def certifier(self, purpose: SignerPurpose) -> Callable[[PublicKey, float], x509.Certificate]:
        """Return a function for other threads than the loop's, which has the certificate of a key signed.

        It blocks, and raises `NotSigned`, `RegistryError`.
        """

        def certify(key: PublicKey, _now: float) -> x509.Certificate:
            if self._loop is None:
                raise NotSigned("the hub is starting")
            asked = self.sign(SignerSignature(public_pem(key), purpose))
            return self._checked(asyncio.run_coroutine_threadsafe(asked, self._loop).result(), key)

        return certify

    async def device_page(self, request: DevicePageRequest) -> SignedDevicePage | None:
        """Have the next page of devices of a gateway made and signed; None if the gateway has all its devices.

        Raises `NotSigned`, `RegistryError`.
        """
        try:
            answer = await self.sign(request, PAGE_TIMEOUT_S)
        except SignatureDenied as denied:
            if str(denied).startswith(UNKNOWN_REQUEST):
                words = "the process `waypost hub authority` is older than this hub: update it"
                raise NotSigned(words) from denied
            raise
        return self._checked_page(answer, request) if answer != NO_PAGE else None

    async def sign(self, request: SignatureRequest | DevicePageRequest, timeout_s: float | None = None) -> str:
        """Ask the authority, and return its answer. Raises `NotSigned`, `RegistryError`."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        if len(self._waited) >= SIGNATURES_WAITED_MAX:
            raise TooManyWaiting("too many requests wait for it; try again in some seconds")
        asked = WaitingRequest(secrets.token_hex(16), msgspec.json.encode(request).decode())
        future = self._waited[asked.id] = asyncio.get_running_loop().create_future()
        try:
            await self._requests.add(asked)
            self._check_s = SIGNATURE_FIRST_CHECK_S
            self._hint.give()
            async with asyncio.timeout(timeout_s):
                answer: SignatureAnswer = await future
        except TimeoutError:
            why = self.trouble or f"it has not answered within {timeout_s:.0f} s"
            raise NotSigned(f"{why}; look at the process `waypost hub authority`") from None
        finally:
            del self._waited[asked.id]
            if not future.done() or future.cancelled():  # a time-out, or the client has gone
                self._unwanted.add(asked.id)
        if answer.answer is None:
            raise SignatureDenied(answer.refusal or "it refused")
        return answer.answer

    # --- inside -----------------------------------------------------------------------------------------------------

    def _checked(self, pem: str, key: PublicKey) -> x509.Certificate:
        """Return a certificate of the authority for this key. Raises `NotSigned`."""
        try:
            made = x509.load_pem_x509_certificate(pem.encode("ascii", "replace"))
            made.verify_directly_issued_by(self.known.certificate)
            if key_id(_public_key(made)) == key_id(key):
                return made
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            pass
        raise NotSigned("it has answered without a certificate for the requested key")

    def _checked_page(self, answer: str, request: DevicePageRequest) -> SignedDevicePage:
        """Return a page of the authority for this request. Raises `SignatureDenied`."""
        try:
            signed = read_signed(answer.encode())
            page = read_page(signed.content)
            asked = (request.tenant, request.gateway, digest_of(request.held))
            if (page.tenant, page.gateway, page.base) == asked and self.known.has_signed(
                to_sign(signed.content), signed.signature_bytes
            ):
                return signed
        except DevicePageError:
            pass
        raise SignatureDenied("it has answered without a page for this gateway")

    async def _store(self, requests: Sequence[WaitingRequest]) -> None:
        await self._in_thread(lambda registry: registry.add(self._name, requests))

    async def _rest(self, _seconds: float) -> None:
        await self._hint.wait(self._check_s if self._waited else AUTHORITY_PUBLISHED_S)

    async def _poll(self) -> None:
        """Take answers, withdraw requests that timed out, and read what the authority has published."""
        waited, unwanted, name = list(self._waited), list(self._unwanted), self._name

        def work(registry: Signatures) -> tuple[dict[str, SignatureAnswer], PublishedAuthority | None]:
            answers = registry.take_answers(waited) if waited else {}
            if unwanted:
                registry.withdraw(unwanted)
            return answers, registry.published(name)

        answers, published = await self._in_thread(work)
        self._unwanted.difference_update(unwanted)
        self._check_s = SIGNATURE_FIRST_CHECK_S if answers else min(2.0 * self._check_s, SIGNATURE_CHECK_S)
        for each, answer in answers.items():
            future = self._waited.get(each)
            if future is not None and not future.done():
                future.set_result(answer)
        if published is not None and published != self._published:
            self._published, self._changed_at = published, asyncio.get_running_loop().time()
            self.revocations = published.revocations

    async def _in_thread(self, work: Callable[[Signatures], T]) -> T:
        try:
            return await self._thread.run(lambda database: work(Signatures(database)))
        except RegistryClosed as error:
            raise NotSigned(str(error)) from error


def _public_key(certificate: x509.Certificate) -> PublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise TypeError(type(key))
    return key
