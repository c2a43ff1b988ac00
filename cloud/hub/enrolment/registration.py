"""Hub as registration authority: it checks the identity of a gateway, another authority signs its certificate.

Names in a request are checked before it is passed on, and the certificate before a gateway gets it. Otherwise an
authority that copies names from requests would certify anything for the holder of any token.
"""

from __future__ import annotations

import asyncio
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

from bridge.durable_file import replace_file
from bridge.enrolment import COMMON_NAME_CHARACTERS_MAX, RefusalReason
from bridge.periodic_task import end_task
from cloud.hub.enrolment.authority import key_id
from cloud.hub.enrolment.est import EstClient, EstError
from cloud.hub.enrolment.limits import AUTHORITIES_FETCHED_S, EST_AT_ONCE_MAX
from cloud.hub.peers import SCHEME, gateway_uri
from cloud.hub.registry.enrolments import CertificateRecord, EnrolmentRefused, NamelessRequest
from edge.output.text import line

E = TypeVar("E", bound=x509.ExtensionType)

log = logging.getLogger(__name__)

CLIENTS: Final = "clients.pem"
"""File in the folder of the hub's authority, with the certificates of both authorities: the trusted ones of the
listeners."""


class Registration:
    """Connection to another authority. `fetch` or `load_stored` first, then `start`, later `stop`."""

    def __init__(
        self, client: EstClient, folder: Path, own: x509.Certificate, now: Callable[[], float] = time.time
    ) -> None:
        """`folder`: folder of the hub's authority; `own`: its certificate. `now`: UTC seconds since 1970."""
        self.file = folder / CLIENTS
        self.trouble: str | None = None
        """Reason why the other authority issues no certificates; None without a known fault."""
        self._client = client
        self._own = own
        self._now = now
        self._authorities: Sequence[x509.Certificate] = ()
        self._executor = ThreadPoolExecutor(EST_AT_ONCE_MAX, thread_name_prefix="registration")
        self._watching: asyncio.Task[None] | None = None

    # --- the authorities --------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Fetch and store the certificates of the authority. Blocks. Raises `EstError`, OSError."""
        found = self._client.authorities()
        if found == self._authorities:
            return
        replace_file(self.file, "".join(map(_pem, (self._own, *found))).encode())
        self._authorities = found

    def load_stored(self) -> bool:
        """Load the certificates stored last time; return False without any. Raises OSError."""
        try:
            _, *kept = x509.load_pem_x509_certificates(self.file.read_bytes())
        except (FileNotFoundError, ValueError, x509.InvalidVersion):
            return False
        self._authorities = kept
        return bool(kept)

    def issuer_of(self, pem: str) -> str:
        """Return the issuer of a certificate as PEM; empty for the hub's own authority."""
        made = x509.load_pem_x509_certificate(pem.encode("ascii"))
        found = next((each for each in self._authorities if _made_by(made, each)), None)
        return "" if found is None else _pem(found)

    def start(self) -> None:
        """Fetch new certificates of the authority at intervals, inside a running loop."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="authorities")

    async def stop(self) -> None:
        """Stop fetching. Idempotent."""
        watching, self._watching = self._watching, None
        await end_task(watching)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # --- the gateways -----------------------------------------------------------------------------------------------

    async def certificate(self, request: str, tenant: str, gateway: str) -> CertificateRecord:
        """Get a certificate for a gateway with the key of a request (PEM, checked before). Raises
        `EnrolmentRefused`."""
        asked = x509.load_pem_x509_csr(request.encode("ascii", "replace"))
        uri = gateway_uri(tenant, gateway)
        if not _names(asked, uri, gateway):
            raise NamelessRequest(uri)
        try:
            made = await self._in_thread(partial(self._request, asked, uri))
        except (EstError, OSError) as error:
            self._failed(str(error))
            words = f"the authority behind this hub cannot issue a certificate now: {error}"
            raise EnrolmentRefused(RefusalReason.UNAVAILABLE, words) from error
        self.trouble = None
        begins_at, ends_at = (
            int(at.timestamp() * 1_000_000) for at in (made.not_valid_before_utc, made.not_valid_after_utc)
        )
        key = made.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
            raise TypeError(type(key))  # it is the key of the request, which is one of these
        serial = f"{made.serial_number:x}"
        return CertificateRecord(serial, tenant, gateway, key_id(key), begins_at, ends_at, None, _pem(made))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _request(self, asked: x509.CertificateSigningRequest, uri: str) -> x509.Certificate:
        """Request and check a certificate, in a thread."""
        made = self._client.enrol(asked)
        if not any(_made_by(made, each) for each in self._authorities):
            self.fetch()  # it may have changed its key
        if fault := self._fault(made, uri):
            raise EstError(f"its certificate for {line(uri)} cannot be used: {fault}")
        return made

    def _fault(self, made: x509.Certificate, uri: str) -> str | None:
        """Return why the hub would not admit a gateway with this certificate; None if it would."""
        if not any(_made_by(made, each) for each in self._authorities):
            return "its authority is not in the list of its server (/cacerts)"
        names, usage = _extension(made, x509.SubjectAlternativeName), _extension(made, x509.ExtendedKeyUsage)
        uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names is not None else []
        if [each for each in uris if each.startswith(SCHEME)] != [uri]:
            return "it lacks the URI of the request; configure its profile to copy subjectAltName from requests"
        if usage is not None and ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
            return "it is not valid for TLS clients; add clientAuth to its profile"
        constraints = _extension(made, x509.BasicConstraints)
        if constraints is not None and constraints.ca:
            return "it is a certificate of an authority"
        if not made.not_valid_before_utc.timestamp() <= self._now() < made.not_valid_after_utc.timestamp():
            return "it is not valid now; compare the clocks"
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
            log.warning("the authority behind the hub issues no certificates: %s", words)
        self.trouble = words


def _names(asked: x509.CertificateSigningRequest, uri: str, gateway: str) -> bool:
    """Return whether a request names its gateway, and nothing else."""
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
