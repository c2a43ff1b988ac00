"""The hub as registration authority of another: the hub decides who a gateway is, the other makes its certificate.

What a request names is checked before it is handed on, and what comes back before a gateway gets it: an authority that
goes by what requests say would otherwise make a certificate of whatever somebody with a token asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX, RefusalReason
from cloud.hub.enrolment.authority import key_id
from cloud.hub.enrolment.est import EstClient, EstError
from cloud.hub.enrolment.limits import AUTHORITIES_FETCHED_S, EST_AT_ONCE_MAX
from cloud.hub.peers import SCHEME, gateway_uri
from cloud.hub.registry.enrolments import CertificateRecord, EnrolmentRefused, Nameless
from edge.broker.security.private_file import write_private
from edge.output.text import line

E = TypeVar("E", bound=x509.ExtensionType)

log = logging.getLogger(__name__)

CLIENTS: Final = "clients.pem"
"""In the folder of the hub's authority: that, and those of the other. Listeners let in whom one of them certifies."""


class Registration:
    """With one server. `fetch` or `recall` first, then `start`, later `stop`."""

    def __init__(
        self, client: EstClient, folder: Path, own: x509.Certificate, now: Callable[[], float] = time.time
    ) -> None:
        """`folder`: of the hub's authority, whose certificate `own` is. `now`: UTC seconds since 1970."""
        self.file = folder / CLIENTS
        self.trouble: str | None = None
        """Why the other authority makes no certificates, as far as is known; None: it does."""
        self._client = client
        self._own = own
        self._now = now
        self._authorities: Sequence[x509.Certificate] = ()
        self._executor = ThreadPoolExecutor(EST_AT_ONCE_MAX, thread_name_prefix="registration")
        self._watching: asyncio.Task[None] | None = None

    # --- the authorities --------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Ask which certificates the authority has, and keep them. Blocks. Raises `EstError`, OSError."""
        found = self._client.authorities()
        if found == self._authorities:
            return
        write_private(self.file, "".join(map(_pem, (self._own, *found))))
        self._authorities = found

    def recall(self) -> bool:
        """Go by what was kept the last time; False where nothing was. Raises OSError."""
        try:
            _, *kept = x509.load_pem_x509_certificates(self.file.read_bytes())
        except (FileNotFoundError, ValueError, x509.InvalidVersion):
            return False
        self._authorities = kept
        return bool(kept)

    def issuer_of(self, pem: str) -> str:
        """Who has made this certificate, PEM; empty: nobody but the hub."""
        made = x509.load_pem_x509_certificate(pem.encode("ascii"))
        found = next((each for each in self._authorities if _made_by(made, each)), None)
        return "" if found is None else _pem(found)

    def start(self) -> None:
        """Look for new certificates of the authority now and then, inside a running loop."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="authorities")

    async def stop(self) -> None:
        """Idempotent."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        self._executor.shutdown(wait=False, cancel_futures=True)

    # --- the gateways -----------------------------------------------------------------------------------------------

    async def certificate(self, request: str, tenant: str, gateway: str) -> CertificateRecord:
        """A certificate for a gateway that holds the key of this request, PEM, which was read before. Raises
        `EnrolmentRefused`."""
        asked = x509.load_pem_x509_csr(request.encode("ascii", "replace"))
        uri = gateway_uri(tenant, gateway)
        if not _names(asked, uri, gateway):
            raise Nameless(uri)
        try:
            made = await self._in_thread(partial(self._made, asked, uri))
        except (EstError, OSError) as error:
            self._failed(str(error))
            words = f"the authority behind this hub cannot make a certificate now: {error}"
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, words) from error
        self.trouble = None
        begins_at, ends_at = (
            int(at.timestamp() * 1_000_000) for at in (made.not_valid_before_utc, made.not_valid_after_utc)
        )
        key = made.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
            raise TypeError(type(key))  # it is that of the request, which is one of these
        serial = f"{made.serial_number:x}"
        return CertificateRecord(serial, tenant, gateway, key_id(key), begins_at, ends_at, None, _pem(made))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _made(self, asked: x509.CertificateSigningRequest, uri: str) -> x509.Certificate:
        """In a thread."""
        made = self._client.enrol(asked)
        if not any(_made_by(made, each) for each in self._authorities):
            self.fetch()  # it has changed its key meanwhile
        if fault := self._fault(made, uri):
            raise EstError(f"its certificate for {line(uri)} cannot be used: {fault}")
        return made

    def _fault(self, made: x509.Certificate, uri: str) -> str | None:
        """Why the hub would not let a gateway in by this certificate; None: it would."""
        if not any(_made_by(made, each) for each in self._authorities):
            return "it is from an authority that its server does not name (/cacerts)"
        names, usage = _extension(made, x509.SubjectAlternativeName), _extension(made, x509.ExtendedKeyUsage)
        uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names is not None else []
        if [each for each in uris if each.startswith(SCHEME)] != [uri]:
            return "it does not have the URI of the request; let its profile take subjectAltName from requests"
        if usage is not None and ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            return "it is not for TLS clients; add clientAuth to its profile"
        constraints = _extension(made, x509.BasicConstraints)
        if constraints is not None and constraints.ca:
            return "it is an authority's"
        if not made.not_valid_before_utc.timestamp() <= self._now() < made.not_valid_after_utc.timestamp():
            return "it is not good now; compare the clocks"
        return None

    async def _in_thread(self, work: Callable[[], x509.Certificate]) -> x509.Certificate:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(AUTHORITIES_FETCHED_S)
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self.fetch)
            except (EstError, OSError) as error:
                self._failed(str(error))
            else:
                self.trouble = None

    def _failed(self, words: str) -> None:
        if self.trouble != words:
            log.warning("the authority behind the hub makes no certificates: %s", words)
        self.trouble = words


def _names(asked: x509.CertificateSigningRequest, uri: str, gateway: str) -> bool:
    """A request says who its gateway is, and nothing beyond that."""
    common_names = [each.value for each in asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        extensions = list(asked.extensions)
    except ValueError:
        return False
    wanted = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    if [each.value for each in extensions] != [wanted]:
        return False
    return len(list(asked.subject)) == 0 or (
        len(list(asked.subject)) == 1 and common_names == [gateway[:COMMON_NAME_CHARACTERS_MAX]]
    )


def _made_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return None


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
