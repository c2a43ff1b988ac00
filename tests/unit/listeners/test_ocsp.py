"""OCSP of client certificates: which responses count (RFC 6960), and when a responder is asked."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ocsp
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge.broker.configuration import ClientOcsp, OcspMode
from edge.broker.listeners.ocsp.answer import OcspError, StatusQuestion, StatusVerdict, question_about, read_answer
from edge.broker.listeners.ocsp.certificate_status import REVOKED, CertificateStatus
from edge.broker.listeners.ocsp.known_answers import KnownAnswers

NOW: Final = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
HOUR: Final = datetime.timedelta(hours=1)
DAY: Final = datetime.timedelta(days=1)


class Holder(NamedTuple):
    """Certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)


def issued(
    name: str, by: Holder | None = None, *purposes: x509.ObjectIdentifier, ends: datetime.datetime = NOW + DAY
) -> Holder:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        by.certificate.subject if by else subject, subject, key.public_key(), x509.random_serial_number()
    )
    builder = builder.not_valid_before(NOW - 30 * DAY).not_valid_after(ends)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return Holder(builder.sign(by.key if by else key, hashes.SHA256()), key)


AUTHORITY: Final = issued("authority")
DEVICE: Final = issued("pump", AUTHORITY)
OTHER_DEVICE: Final = issued("fan", AUTHORITY)
OTHER_AUTHORITY: Final = issued("authority")
RESPONDER: Final = issued("responder", AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING)
ENDED_RESPONDER: Final = issued("old", AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING, ends=NOW - HOUR)
STRANGER: Final = issued("responder", OTHER_AUTHORITY, ExtendedKeyUsageOID.OCSP_SIGNING)
SERVER: Final = issued("server", AUTHORITY, ExtendedKeyUsageOID.SERVER_AUTH)


def question() -> StatusQuestion:
    return question_about(DEVICE.der, [AUTHORITY.certificate])


def response(
    signer: Holder = AUTHORITY,
    *,
    about: Holder = DEVICE,
    status: ocsp.OCSPCertStatus = ocsp.OCSPCertStatus.GOOD,
    updated: datetime.datetime = NOW - HOUR,
    until: datetime.datetime | None = NOW + HOUR,
) -> bytes:
    revoked = status is ocsp.OCSPCertStatus.REVOKED
    builder = ocsp.OCSPResponseBuilder().add_response(
        about.certificate, AUTHORITY.certificate, hashes.SHA1(), status, updated, until,
        NOW - DAY if revoked else None, x509.ReasonFlags.key_compromise if revoked else None,
    )  # fmt: skip
    builder = builder.responder_id(ocsp.OCSPResponderEncoding.HASH, signer.certificate)
    if signer is not AUTHORITY:
        builder = builder.certificates([signer.certificate])
    return builder.sign(signer.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


class TestResponse:
    """RFC 6960 section 4.2.2."""

    @pytest.mark.parametrize("signer", [AUTHORITY, RESPONDER])
    def test_answer_of_the_issuer_or_of_its_responder_counts(self, signer: Holder) -> None:
        answer = read_answer(response(signer), question(), NOW.timestamp())
        assert answer.verdict is StatusVerdict.GOOD
        assert answer.until == (NOW + HOUR).timestamp()

    def test_revoked(self) -> None:
        answer = read_answer(response(status=ocsp.OCSPCertStatus.REVOKED), question(), NOW.timestamp())
        assert answer.verdict is StatusVerdict.REVOKED

    @pytest.mark.parametrize(
        "wrong",
        [
            {"signer": STRANGER},
            {"signer": SERVER},
            {"signer": ENDED_RESPONDER},
            {"about": OTHER_DEVICE},
            {"status": ocsp.OCSPCertStatus.UNKNOWN},
            {"updated": NOW + HOUR, "until": NOW + 2 * HOUR},
            {"updated": NOW - DAY, "until": NOW - HOUR},
        ],
        ids=["other authority", "no purpose", "ended responder", "other device", "unknown", "future", "ended"],
    )
    def test_other_responses_are_no_answer(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(OcspError):
            read_answer(response(**wrong), question(), NOW.timestamp())

    def test_every_truncation_and_each_flipped_byte_of_the_signature_is_no_answer(self) -> None:
        whole = response()
        asked = question()
        for end in range(len(whole)):
            with pytest.raises(OcspError):
                read_answer(whole[:end], asked, NOW.timestamp())
        torn = bytearray(whole)
        torn[-3] ^= 1
        with pytest.raises(OcspError):
            read_answer(bytes(torn), asked, NOW.timestamp())

    def test_certificate_of_an_unknown_issuer_is_not_asked_about(self) -> None:
        with pytest.raises(OcspError, match="clientCa"):
            question_about(DEVICE.der, [OTHER_AUTHORITY.certificate])


def status(
    folder: Path,
    ask: Callable[[str, bytes], bytes],
    on_revoked: Callable[[], None] = lambda: None,
    later: datetime.timedelta = datetime.timedelta(),
    **settings: Any,
) -> CertificateStatus:
    file = folder / "ca.pem"
    file.write_bytes(AUTHORITY.certificate.public_bytes(serialization.Encoding.PEM))
    wanted = ClientOcsp(responder="http://responder.example/", **settings)
    return CertificateStatus(wanted, str(file), folder, (NOW + later).timestamp, on_revoked, ask)


async def decided(asked: CertificateStatus, clients: int = 1) -> list[str | None]:
    """Return the decisions about connections of one certificate that come at the same time."""
    loop = asyncio.get_running_loop()
    waiting = [loop.create_future() for _ in range(clients)]
    for each in waiting:
        asked.decide(DEVICE.der, each.set_result)
    return list(await asyncio.gather(*waiting))


class TestStatus:
    def test_connections_that_come_together_share_one_request(self, tmp_path: Path) -> None:
        asked: list[str] = []

        def ask(url: str, _: bytes) -> bytes:
            asked.append(url)
            return response()

        async def check() -> None:
            made = status(tmp_path, ask)
            assert await decided(made, 20) == [None] * 20
            assert await decided(made) == [None]
            made.close()

        asyncio.run(check())
        assert asked == ["http://responder.example/"]

    def test_revocation_is_told_and_kept_over_a_restart(self, tmp_path: Path) -> None:
        told: list[bool] = []

        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(
                tmp_path, lambda _u, _r: response(status=ocsp.OCSPCertStatus.REVOKED), lambda: told.append(True)
            )
            assert await decided(made) == [REVOKED]
            made.close()
            later = status(tmp_path, away, later=DAY, mode=OcspMode.SOFT)
            assert await decided(later) == [REVOKED]
            later.close()

        asyncio.run(check())
        assert told == [True]

    @pytest.mark.parametrize(("mode", "accepted"), [(OcspMode.SOFT, True), (OcspMode.HARD, False)])
    def test_without_an_answer_the_mode_decides(self, tmp_path: Path, mode: OcspMode, accepted: bool) -> None:
        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(tmp_path, away, mode=mode)
            [why] = await decided(made)
            assert (why is None) == accepted
            assert made.trouble == "away"
            made.close()

        asyncio.run(check())

    @pytest.mark.parametrize(("grace_s", "accepted"), [(7_200.0, True), (60.0, False)], ids=["within", "after"])
    def test_positive_answer_counts_for_the_grace(self, tmp_path: Path, grace_s: float, accepted: bool) -> None:
        def away(_url: str, _request: bytes) -> bytes:
            raise OcspError("away")

        async def check() -> None:
            made = status(tmp_path, lambda _u, _r: response())
            assert await decided(made) == [None]
            made.close()
            later = status(tmp_path, away, later=2 * HOUR, mode=OcspMode.HARD, interval=3_600.0, grace_s=grace_s)
            [why] = await decided(later)
            assert (why is None) == accepted
            later.close()

        asyncio.run(check())


def test_damaged_file_is_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "ocsp.json"
    file.write_bytes(b'{"a": [1')
    assert KnownAnswers(file).find("a") is None
