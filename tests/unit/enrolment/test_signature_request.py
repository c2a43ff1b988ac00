"""Decisions of the authority about requests of hubs that lack its key."""

from __future__ import annotations

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from bridge.desired import Desired, SignedDesired, to_sign, written
from cloud.hub.enrolment.authority import OwnAuthority, new_key
from cloud.hub.enrolment.limits import (
    OCSP_SIGNER_DAYS,
    RECEIPT_SIGNER_DAYS,
    REQUESTED_NAMES_MAX,
    SIGNATURE_REQUEST_CHARACTERS_MAX,
)
from cloud.hub.enrolment.signature_request import (
    GatewaySignature,
    ServerSignature,
    SignatureRefused,
    SignatureRequest,
    SignerPurpose,
    SignerSignature,
    SigningRules,
    answer_request,
    public_pem,
    sign_version,
)
from cloud.hub.peers import gateway_uri
from cloud.hub.registry.signatures import UnsignedVersion
from edge.appliance.identity.request import new_key as gateway_key
from edge.appliance.identity.request import signing_request

NOW = 1_800_000_000.0
DAY = 86_400.0
RULES = SigningRules({"hub.example", "192.0.2.7"}, 60.0)
OWN = OwnAuthority.make("hub", NOW)
KEY = public_pem(new_key().public_key())
CSR = signing_request(gateway_key())
ED25519 = (
    ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


def signed(request: SignatureRequest) -> x509.Certificate:
    made = answer_request(msgspec.json.encode(request).decode(), OWN, RULES, NOW)
    found = x509.load_pem_x509_certificate(made.pem.encode())
    found.verify_directly_issued_by(OWN.certificate)
    return found


def usage(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def names(certificate: x509.Certificate) -> list[str]:
    return [
        str(each.value) for each in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    ]


def test_validity_of_a_gateway_is_that_of_the_authority() -> None:
    made = signed(GatewaySignature(CSR, "acme", "hall"))
    assert gateway_uri("acme", "hall") in names(made)
    assert made.not_valid_after_utc.timestamp() == NOW + 60


@pytest.mark.parametrize(
    ("purpose", "days", "wanted"),
    [
        (SignerPurpose.OCSP, OCSP_SIGNER_DAYS, ExtendedKeyUsageOID.OCSP_SIGNING),
        (SignerPurpose.RECEIPTS, RECEIPT_SIGNER_DAYS, x509.ObjectIdentifier("1.3.6.1.5.5.7.3.36")),
    ],
)
def test_key_of_a_hub_is_for_one_purpose(purpose: SignerPurpose, days: float, wanted: x509.ObjectIdentifier) -> None:
    made = signed(SignerSignature(KEY, purpose))
    assert usage(made) == [wanted]
    assert made.not_valid_after_utc.timestamp() == NOW + days * DAY


@pytest.mark.parametrize("name", ["hub.example", "192.0.2.7", "localhost", "127.0.0.1", "::1", "fleet-7d9f-x2x"])
def test_hub_gets_its_names(name: str) -> None:
    made = signed(ServerSignature(KEY, [name]))
    assert names(made) == [name]
    assert usage(made) == [ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize("name", ["bank.example", "hall.local", "192.0.2.8", "", "*", "a" * 64, "hub.example.", "ä"])
def test_hub_gets_no_other_name(name: str) -> None:
    with pytest.raises(SignatureRefused, match="name"):
        signed(ServerSignature(KEY, ["hub.example", name]))


@pytest.mark.parametrize(
    "request_",
    [
        GatewaySignature("nothing", "acme", "hall"),
        GatewaySignature(CSR, "Acme", "hall"),
        GatewaySignature(CSR, "acme", "two\nlines"),
        ServerSignature("nothing", ["hub.example"]),
        ServerSignature(ED25519, ["hub.example"]),
        ServerSignature(KEY, []),
        ServerSignature(KEY, ["localhost"] * (REQUESTED_NAMES_MAX + 1)),
        SignerSignature("nothing", SignerPurpose.OCSP),
        SignerSignature("x" * SIGNATURE_REQUEST_CHARACTERS_MAX, SignerPurpose.OCSP),
    ],
    ids=lambda each: f"{type(each).__name__} {str(each)[:60]}",
)
def test_request_is_refused(request_: SignatureRequest) -> None:
    with pytest.raises(SignatureRefused):
        signed(request_)


@pytest.mark.parametrize("text", ["", "{}", '{"type": "authority"}', "[" * 5_000, '{"type":"gateway","request":1}'])
def test_unknown_request_is_refused(text: str) -> None:
    with pytest.raises(SignatureRefused):
        answer_request(text, OWN, RULES, NOW)


def version(content: str, gateway: str = "hall", number: int = 1) -> UnsignedVersion:
    return UnsignedVersion("acme", gateway, number, content)


CONTENT = written(Desired(tenant="acme", gateway="hall", version=1, made_at=0, resources=[]))


def test_configuration_is_signed_for_its_gateway() -> None:
    text = sign_version(version(CONTENT), OWN)
    key = OWN.certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    key.verify(SignedDesired(CONTENT, text).signature_bytes, to_sign(CONTENT), ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize("wrong", [version("{}"), version(CONTENT, "yard"), version(CONTENT, number=2)])
def test_configuration_of_another_gateway_is_not_signed(wrong: UnsignedVersion) -> None:
    with pytest.raises(SignatureRefused):
        sign_version(wrong, OWN)
