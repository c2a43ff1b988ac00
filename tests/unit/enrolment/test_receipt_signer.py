"""Statements are signed by a key of their own, and verified long after with the certificate of the authority."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from bridge.landing_receipt import (
    LandingReceipt,
    LandingStatement,
    ReceiptError,
    ReceiptOutcome,
    SignedLanding,
    base64url,
    read_receipt,
    statement_of,
    with_certificate,
)
from bridge.limits import RECEIPT_DOCUMENT_BYTES_MAX
from cloud.hub.enrolment.authority import OwnAuthority, new_key
from cloud.hub.enrolment.delegated_key import CertifiedKey
from cloud.hub.enrolment.limits import RECEIPT_SIGNER_DAYS
from cloud.hub.receipts.signer import FILE, ReceiptSigner, certify_receipts
from edge.appliance.receipts.verification import verify
from tests.support.command import run_waypost
from tests.unit.enrolment.hub import DAY, NOW

STATEMENT = LandingStatement(
    tenant="acme",
    gateway="hall",
    epoch="e",
    address="plant/7",
    first=3,
    last=9,
    outcome=ReceiptOutcome.LANDED,
    table="telemetry",
    version=12,
    stated_at=int(NOW * 1e6),
)


class Signing:
    """An authority and its signer, with a clock."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.folder = folder
        self.authority = OwnAuthority.make("hub", NOW)
        self.signer = self.again()

    def again(self) -> ReceiptSigner:
        certify = partial(certify_receipts, lambda _now: self.authority)
        return ReceiptSigner(self.folder, lambda: self.authority, certify, lambda: self.now)

    def receipt(self, sequence: int = 5, statement: LandingStatement = STATEMENT) -> LandingReceipt:
        answer = self.signer.sign([statement])
        signed = with_certificate(answer.statements[0], answer.certificate)
        return receipt_of(signed, sequence, statement)

    def check(self, receipt: LandingReceipt) -> LandingStatement:
        return verify(read_receipt(msgspec.json.encode(receipt)), self.authority.certificate)


def receipt_of(signed: SignedLanding, sequence: int = 5, about: LandingStatement = STATEMENT) -> LandingReceipt:
    return LandingReceipt(
        outcome=about.outcome,
        gateway=about.gateway,
        epoch=about.epoch,
        address=about.address,
        sequence=sequence,
        statement=signed,
    )


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    return Signing(tmp_path)


def test_receipt_is_verified(signing: Signing) -> None:
    assert signing.check(signing.receipt()) == STATEMENT


def test_receipt_is_small(signing: Signing) -> None:
    assert len(msgspec.json.encode(signing.receipt())) < 1_800


def test_key_is_kept_and_renewed(signing: Signing) -> None:
    first = signing.receipt()
    assert (signing.folder / FILE).stat().st_mode & 0o777 == 0o600
    signing.signer = signing.again()
    signing.now += RECEIPT_SIGNER_DAYS * DAY / 2
    assert signing.receipt().statement.header == first.statement.header
    signing.now += RECEIPT_SIGNER_DAYS * DAY / 2
    later = msgspec.structs.replace(STATEMENT, stated_at=int(signing.now * 1e6))
    second = signing.receipt(statement=later)
    assert second.statement.header != first.statement.header
    assert signing.check(first) == STATEMENT, "it stays valid"
    assert signing.check(second) == later


@pytest.mark.parametrize("damage", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_damaged_key_is_replaced(signing: Signing, damage: bytes) -> None:
    signing.receipt()
    (signing.folder / FILE).write_bytes(damage)
    signing.signer = signing.again()
    assert signing.check(signing.receipt()) == STATEMENT


def test_key_of_a_former_authority_is_replaced(signing: Signing) -> None:
    before = signing.receipt()
    signing.authority = OwnAuthority.make("another", NOW)
    signing.signer = signing.again()
    assert signing.check(signing.receipt()) == STATEMENT
    with pytest.raises(ReceiptError, match="authority"):
        signing.check(before)


def _changed(receipt: LandingReceipt, **parts: object) -> LandingReceipt:
    return msgspec.structs.replace(receipt, statement=msgspec.structs.replace(receipt.statement, **parts))


def _with_payload(receipt: LandingReceipt, **fields: object) -> LandingReceipt:
    payload = msgspec.structs.replace(statement_of(receipt.statement), **fields)
    return _changed(receipt, payload=base64url(msgspec.json.encode(payload)))


FORGERIES: dict[str, tuple[Callable[[LandingReceipt], LandingReceipt], str]] = {
    "another message": (lambda good: msgspec.structs.replace(good, sequence=10), "other messages"),
    "another gateway": (lambda good: msgspec.structs.replace(good, gateway="yard"), "other messages"),
    "another outcome": (lambda good: msgspec.structs.replace(good, outcome=ReceiptOutcome.DROPPED), "other messages"),
    "another range": (lambda good: _with_payload(good, last=99), "signature is not valid"),
    "another format": (lambda good: _with_payload(good, format=2), "has format 2"),
    "another time": (lambda good: _with_payload(good, stated_at=1), "signature is not valid"),
    "time after the last year": (lambda good: _with_payload(good, stated_at=2**62), "cannot be read"),
    "time before 1970": (lambda good: _with_payload(good, stated_at=-(2**62)), "cannot be read"),
    "no signature": (lambda good: _changed(good, signature=""), "another form"),
    "another signature": (lambda good: _changed(good, signature=base64url(bytes(64))), "signature is not valid"),
    "no certificate": (lambda good: _changed(good, header={}), "no certificate"),
    "broken certificate": (lambda good: _changed(good, header={"x5c": ["AAAA"]}), "cannot be read"),
    "no algorithm": (lambda good: _changed(good, protected=base64url(b'{"alg":"none"}')), "not a statement of type"),
    "broken header": (lambda good: _changed(good, protected="!"), "not valid Base64url"),
    "broken statement": (lambda good: _changed(good, payload=base64url(b"[]")), "cannot be read"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_receipt_is_refused(signing: Signing, name: str) -> None:
    forge, why = FORGERIES[name]
    with pytest.raises(ReceiptError, match=why):
        signing.check(forge(signing.receipt()))


def test_certificate_has_to_be_valid_at_the_time_of_the_statement(signing: Signing) -> None:
    for at in (0, 253_402_300_799_000_000):
        with pytest.raises(ReceiptError, match="at the time"):
            signing.check(signing.receipt(statement=msgspec.structs.replace(STATEMENT, stated_at=at)))


def test_certificate_of_a_gateway_signs_no_receipts(signing: Signing) -> None:
    """Each gateway has a certificate of the same authority."""
    key = new_key()
    given = signing.authority.gateway_certificate(key.public_key(), "acme", "hall", NOW, DAY)
    certificate = x509.load_pem_x509_certificate(given.pem.encode())
    signing.signer._key._current = CertifiedKey(key, certificate)
    with pytest.raises(ReceiptError, match="not for receipts"):
        signing.check(signing.receipt())


def test_long_document_is_not_read() -> None:
    with pytest.raises(ReceiptError, match="more than"):
        read_receipt(bytes(RECEIPT_DOCUMENT_BYTES_MAX + 1))
    with pytest.raises(ReceiptError, match="not a receipt"):
        read_receipt(b"{}")


def test_command_needs_an_authority(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    file.write_bytes(b"{}")
    assert run_waypost("receipt", "verify", str(file)).returncode == 2
    assert run_waypost("receipt", "verify", str(file), "--authority", str(file)).returncode == 2
