"""Targets for documents between gateway and hub: enrolment, and manifests up to the proof."""

from __future__ import annotations

import contextlib
import ssl
import warnings
from typing import Final

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.clock_offset import ClockDocument, ClockSpan, OffsetState, StampedRange
from bridge.enrolment import (
    Attestation,
    EnrolmentRefusal,
    EnrolmentRequest,
    EnrolmentToken,
    EnrolmentTokenError,
    IssuedCertificate,
    RenewalRequest,
    secret_of,
)
from bridge.manifest import GENESIS, ManifestStatement
from cloud.hub.documents import DocumentError, clock_offset_rows, manifest_rows
from cloud.hub.enrolment.authority import OwnAuthority, RequestError, new_key, read_request
from cloud.hub.groups import GatewaySession
from cloud.hub.peers import InvalidPeer, read_certificate
from cloud.lake.rows import record_rows
from cloud.proof.statements import StatementKeys, chain_faults, closing_faults, read_statement, statement_fault
from edge.appliance.identity.request import signing_request
from edge.health.certificates import CertificateError, certificates_in
from tests.property.fuzz.parser import Parser

SESSION: Final = GatewaySession("default", "gw", "-")
AT_US: Final = 1_763_845_200_000_000


def take_token_text(data: bytes) -> None:
    """Parse the text of an enrolment token; a valid token survives a round trip."""
    token = EnrolmentToken.parse(data.decode("utf-8", "replace"))
    assert EnrolmentToken.parse(token.text) == token
    assert token.secret.hex() not in repr(token)


def take_enrolment(data: bytes) -> None:
    """Process a request at the hub, and the answer at the gateway."""
    for kind in (EnrolmentRequest, RenewalRequest, Attestation, IssuedCertificate, EnrolmentRefusal):
        try:
            document = msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(document, EnrolmentRequest):
            with contextlib.suppress(EnrolmentTokenError):
                secret_of(document)
        if isinstance(document, EnrolmentRequest | RenewalRequest):
            with contextlib.suppress(RequestError):
                read_request(document.request)


def take_certificate(data: bytes) -> None:
    """Parse a certificate in the form of `ssl`, and its bytes."""
    serial, _, der = data.partition(b"\n")
    shown = {
        "serialNumber": serial.decode("latin-1"),
        "subjectAltName": (("URI", der[:200].decode("utf-8", "replace")),),
    }
    with contextlib.suppress(InvalidPeer):
        read_certificate(shown)
    with warnings.catch_warnings(action="ignore"):  # of certificates that a later version of the library will refuse
        certificates_in(ssl.DER_cert_to_PEM_cert(der).encode())


def take_manifest(data: bytes) -> None:
    """Parse a manifest at the hub; an accepted manifest can be landed, and read again for the proof."""
    document = msgspec.json.decode(data, type=dict[str, object])
    rows = record_rows("manifests", manifest_rows(SESSION, document), AT_US)
    keys, believed = StatementKeys(), list[ManifestStatement]()
    for row in rows.to_pylist():
        signed = read_statement(row)
        if isinstance(signed, str):
            continue
        keys.learn(signed)
        if statement_fault(signed, keys) is None:
            believed.append(signed.statement)
        list(chain_faults(signed.stream, [signed.statement], whole=True))
        list(closing_faults("default", "gw", [signed.statement], whole=True))
    list(closing_faults("default", "gw", believed, whole=False))


def take_clock(data: bytes) -> None:
    """Parse a clock offset; an accepted offset can be landed."""
    record_rows(
        "clock_offsets", clock_offset_rows(SESSION, msgspec.json.decode(data, type=dict[str, object]), AT_US), AT_US
    )


def _clock() -> bytes:
    ranges = [StampedRange("e", "plant/1", 0, 9, None, 5_000), StampedRange("e", "plant/2", 3, 3)]
    told = ClockSpan("boot", 1, 0, OffsetState.MEASURED, 7_000, 7_000, messages=ranges)
    return msgspec.json.encode(
        ClockDocument(1, [told, ClockSpan("boot", 2, 0, OffsetState.NEVER, reason="why", whole=True)])
    )


def _statement() -> bytes:
    said = ManifestStatement("e" * 32, "plant/7", 0, 5_000, 0, 4, 5, {"expired": 1}, "good", "s" * 32, 1, 1, GENESIS)
    document = {
        "public_key": "ed25519:AAAA",
        "statements": [{**msgspec.structs.asdict(said.sealed("gw")), "signature": "AAAA"}],
    }
    return msgspec.json.encode(document)


def _enrolment() -> list[bytes]:
    request = signing_request(new_key())
    return [
        msgspec.json.encode(EnrolmentRequest("0a1b2c3d4e5f", "A" * 27, "hall", request)),
        msgspec.json.encode(RenewalRequest(request)),
        msgspec.json.encode(IssuedCertificate("default", "hall", "pem", "pem", 1.5)),
        msgspec.json.encode(EnrolmentRefusal("no", "token-spent", 1.5)),
    ]


DOCUMENTS: Final = {
    "token-text": Parser(
        take_token_text, (EnrolmentTokenError,), [EnrolmentToken("0a1b2c3d4e5f", bytes(20), bytes(32)).text.encode()]
    ),
    "enrolment": Parser(take_enrolment, (), _enrolment()),
    "certificate": Parser(
        take_certificate,
        (CertificateError,),
        [
            b"0A1B\nwaypost://default/hall",
            b"1\n" + OwnAuthority.make("hub", 0.0).certificate.public_bytes(Encoding.DER),
        ],
    ),
    "clock": Parser(take_clock, (msgspec.DecodeError, UnicodeDecodeError, DocumentError), [_clock()]),
    "manifest": Parser(take_manifest, (msgspec.DecodeError, UnicodeDecodeError, DocumentError), [_statement()]),
}
