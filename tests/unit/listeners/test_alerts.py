"""Refused TLS clients get the reason as an alert: real handshakes on both event loops, in both versions of TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.tls_refusal import refusal
from cloud.hub.enrolment.authority import RevokedCertificate
from cloud.hub.enrolment.files import read_authority
from edge.broker.configuration import TlsListener
from edge.broker.listeners.tcp import TcpListener
from edge.broker.listeners.tls import Certificates
from tests.support.certificates import Authority, Issued

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
WAIT_S = 30.0


class Pki:
    """Certificates of gateways that are refused, each for another reason."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "own")
        other = Authority(folder / "other", "somebody else")
        self.hub = self.authority.issue("hub")
        revoked = self.authority.issue("revoked")
        self.shown: dict[str, Issued | None] = {
            "unknown ca": other.issue("unknown"),
            "certificate expired": self.authority.issue("expired", days=-1),
            "certificate revoked": revoked,
            "certificate required": None,
        }
        serial = f"{x509.load_pem_x509_certificate(Path(revoked.certificate).read_bytes()).serial_number:x}"
        own = read_authority(Path(self.authority.certificate), Path(self.authority.key))
        listed = x509.load_der_x509_crl(own.revocations([RevokedCertificate(serial, 0.0)], 1, time.time()))
        self.revocations = folder / "revoked.pem"
        self.revocations.write_bytes(listed.public_bytes(Encoding.PEM))


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(
            b"AMQP\0\1\0\0"
        )  # unread bytes at the server must not cost the client its alert

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def refused(pki: Pki, shown: Issued | None, version: ssl.TLSVersion) -> str | None:
    """Return the alert for a client with this certificate."""
    files = TlsListener(
        certificate=pki.hub.certificate, key=pki.hub.key, client_ca=pki.authority.certificate, client_required=True
    )
    certificates = Certificates(files)
    certificates.context.maximum_version = version
    certificates.context.load_verify_locations(pki.revocations)
    certificates.context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    listener = TcpListener("test", lambda _gone, _identity: None)
    address = await listener.start("127.0.0.1", 0, certificates, handshake_s=WAIT_S)
    try:
        async with asyncio.timeout(WAIT_S):
            _, client = await asyncio.get_running_loop().create_connection(
                Client, *address, ssl=pki.authority.context(shown), server_hostname="localhost"
            )
            return refusal(await client.lost)
    except ssl.SSLError as error:
        return refusal(error)
    finally:
        await listener.stop()


Run = Callable[[Coroutine[None, None, str | None]], str | None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("why", ["unknown ca", "certificate expired", "certificate revoked"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_faults_of_our_certificate_are_reported(pki: Pki, run: Run, why: str, version: ssl.TLSVersion) -> None:
    words = run(refused(pki, pki.shown[why], version)) or ""
    assert words.startswith(f"the peer refuses TLS with us ({why}): ")
    assert "waypost enrol" in words


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_required_client_certificate_is_reported(pki: Pki, run: Run) -> None:
    words = run(refused(pki, None, ssl.TLSVersion.TLSv1_3)) or ""
    assert words.startswith("the peer refuses TLS with us (certificate required): it requires a client certificate")


def test_other_errors_are_not_alerts() -> None:
    assert refusal(None) is None
    assert refusal(OSError(111, "refused")) is None
    error = ssl.SSLError(1, "x")
    error.reason = "TLSV1_ALERT_SOMETHING_NEW"
    assert refusal(error) == "the peer refuses TLS with us (something new): see its log"
    error.reason = "WRONG_VERSION_NUMBER"
    assert refusal(error) is None
