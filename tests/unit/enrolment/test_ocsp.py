"""Status of certificates of a hub's authority, queried and verified by `openssl ocsp` (RFC 6960)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from starlette.applications import Starlette

from cloud.hub.enrolment.authority import OwnAuthority, SignedCertificate, new_key
from cloud.hub.enrolment.http import OCSP_PATH, routes
from cloud.hub.enrolment.limits import OCSP_BACKDATED_S, OCSP_NONCE_BYTES_MAX, OCSP_REQUEST_BYTES_MAX, OCSP_VALID_S
from cloud.hub.enrolment.ocsp import MEDIA_TYPE
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.location import sqlite_url

DEADLINE_S = 60.0
PUBLIC = "http://hub.example/enrolment/ocsp"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


class Hub:
    """An authority, a certificate of it, and the hub that answers for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = OwnAuthority.make("Waypost hub", time.time())
        self.authority.name_hub((), PUBLIC)
        self.issuer = self._written("ca.pem", self.authority.pem)
        self.made = self.authority.gateway_certificate(new_key().public_key(), "acme", "hall", time.time(), 3_600.0)
        self.own = self._written("hall.pem", self.made.pem)
        self.registry = sqlite_url(folder / "registry.db")
        self.enrolment = Enrolment(self.authority, self.registry, life_s=60.0, revoked=lambda: None)
        app = Starlette(routes=routes(self.enrolment, time.time))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub")

    def _written(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the work while the hub answers."""

        async def main() -> None:
            await self.enrolment.open()
            try:
                async with self.client:
                    await asyncio.wait_for(work(), DEADLINE_S)
            finally:
                await self.enrolment.close()

        asyncio.run(main())

    def revoke(self) -> None:
        with contextlib.closing(Enrolments(self.registry)) as registry:
            record = self.made.serial, self.made.key_id, 0, int(2e15), int(time.time() * 1e6), self.made.pem
            registry.revoke_hub_certificate(*record)

    def question(self, *arguments: str | Path, issuer: Path | None = None) -> bytes:
        """Return a request of `openssl`."""
        file = self.folder / "question.der"
        told = ("-issuer", issuer or self.issuer, *arguments, "-reqout", file)
        subprocess.run(["openssl", "ocsp", *map(str, told)], check=True, capture_output=True, timeout=DEADLINE_S)
        return file.read_bytes()

    async def posted(self, question: bytes) -> httpx.Response:
        return await self.client.post(OCSP_PATH, content=question)

    async def said(self, *arguments: str | Path) -> str:
        """Return the output of `openssl` for the answer to its request."""
        answer = await self.posted(self.question(*arguments))
        assert (answer.status_code, answer.headers["content-type"]) == (200, MEDIA_TYPE)
        file = self.folder / "answer.der"
        file.write_bytes(answer.content)
        judged = ("-issuer", self.issuer, "-CAfile", self.issuer, "-no_nonce", *arguments, "-respin", file)
        done = subprocess.run(
            ["openssl", "ocsp", *map(str, judged)], check=False, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert (done.returncode, "Response verify OK" in done.stderr) == (0, True), done.stderr
        return done.stdout


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


def test_good_revoked_and_unknown_certificates_are_answered(hub: Hub) -> None:
    async def work() -> None:
        asked = ("-cert", hub.own)
        assert f"{hub.own}: unknown" in await hub.said(*asked)
        made = SignedCertificate(*hub.made)
        await hub.enrolment.store_own_certificate(made)
        await hub.enrolment.store_own_certificate(made)  # at each start
        assert f"{hub.own}: good" in await hub.said(*asked)
        assert f"{hub.own}: good" in await hub.said("-sha256", *asked)
        hub.revoke()
        assert f"{hub.own}: revoked" in await hub.said(*asked)
        assert "0x1234: unknown" in await hub.said("-serial", "0x1234")

    hub.run(work)


def test_invalid_requests_are_answered_as_malformed(hub: Hub) -> None:
    other = hub.folder / "other.pem"
    other.write_text(OwnAuthority.make("Waypost hub", time.time()).pem)  # of the same name

    async def work() -> None:
        for question, why in (
            (b"", ocsp.OCSPResponseStatus.MALFORMED_REQUEST),
            (b"nonsense", ocsp.OCSPResponseStatus.MALFORMED_REQUEST),
            (hub.question("-serial", "0x1", "-serial", "0x2"), ocsp.OCSPResponseStatus.MALFORMED_REQUEST),
            (hub.question("-serial", "0x1", issuer=other), ocsp.OCSPResponseStatus.UNAUTHORIZED),
        ):
            answer = await hub.posted(question)
            assert ocsp.load_der_ocsp_response(answer.content).response_status is why
        assert (await hub.posted(b"x" * (OCSP_REQUEST_BYTES_MAX + 1))).status_code == 413
        assert (await hub.client.get(f"{OCSP_PATH}/{'x' * (2 * OCSP_REQUEST_BYTES_MAX + 1)}")).status_code == 414

    hub.run(work)


def test_get_request_is_answered_with_a_lifetime(hub: Hub) -> None:
    """GET requests work, and answers state their validity (RFC 6960 appendix A.1, RFC 5019 section 6)."""

    async def work() -> None:
        question = base64.b64encode(hub.question("-no_nonce", "-cert", hub.own)).decode()
        for path in (question, urllib.parse.quote(question, safe="")):
            before = time.time()
            answer = await hub.client.get(f"{OCSP_PATH}/{path}")
            assert answer.headers["cache-control"] == f"public, max-age={int(OCSP_VALID_S / 2)}"
            found = ocsp.load_der_ocsp_response(answer.content)
            assert found.certificate_status is ocsp.OCSPCertStatus.UNKNOWN
            assert found.next_update_utc is not None
            assert abs(found.this_update_utc.timestamp() - (before - OCSP_BACKDATED_S)) < DEADLINE_S
            assert abs(found.next_update_utc.timestamp() - (before + OCSP_VALID_S)) < DEADLINE_S
        answer = await hub.client.get(f"{OCSP_PATH}/no%20question")
        malformed = ocsp.OCSPResponseStatus.MALFORMED_REQUEST
        assert ocsp.load_der_ocsp_response(answer.content).response_status is malformed

    hub.run(work)


@pytest.mark.parametrize(
    ("size", "repeated"), [(16, True), (OCSP_NONCE_BYTES_MAX, True), (OCSP_NONCE_BYTES_MAX + 1, False)]
)
def test_nonce_is_repeated(hub: Hub, size: int, repeated: bool) -> None:
    certificate = x509.load_pem_x509_certificate(hub.made.pem.encode())
    builder = ocsp.OCSPRequestBuilder().add_certificate(certificate, hub.authority.certificate, hashes.SHA1())
    question = builder.add_extension(x509.OCSPNonce(b"n" * size), critical=False).build()

    async def work() -> None:
        answer = await hub.posted(question.public_bytes(Encoding.DER))
        extensions = ocsp.load_der_ocsp_response(answer.content).extensions
        assert [each.value for each in extensions] == ([x509.OCSPNonce(b"n" * size)] if repeated else [])

    hub.run(work)


def test_certificate_contains_the_url(hub: Hub) -> None:
    found = x509.load_pem_x509_certificate(hub.made.pem.encode()).extensions
    access = found.get_extension_for_class(x509.AuthorityInformationAccess).value
    assert [each.access_location.value for each in access] == [PUBLIC]
