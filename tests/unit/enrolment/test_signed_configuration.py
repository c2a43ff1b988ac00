"""A gateway accepts a configuration of its own authority, and only for itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from bridge.desired import Desired, DesiredError, SignedDesired, signed_text, to_sign, written
from bridge.limits import DESIRED_BYTES_MAX
from cloud.hub.desired.service import make_signer
from cloud.hub.enrolment.authority import OwnAuthority
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.request import new_key
from edge.appliance.identity.signature import verify

NOW = 1_800_000_000.0


def desired(gateway: str = "hall 7/b", tenant: str = "acme", **more: object) -> Desired:
    made = Desired(tenant=tenant, gateway=gateway, version=3, made_at=0, resources=[])
    return msgspec.structs.replace(made, **more)


def signed(authority: OwnAuthority, document: Desired) -> SignedDesired:
    content = written(document)
    return SignedDesired(content, make_signer(authority)(content))


@pytest.fixture(scope="module")
def authority() -> OwnAuthority:
    return OwnAuthority.make("hub", NOW)


@pytest.fixture
def data(tmp_path: Path, authority: OwnAuthority) -> Path:
    """Return the data directory of a gateway that has enrolled."""
    enrol(tmp_path, authority)
    return tmp_path


def enrol(data: Path, authority: OwnAuthority) -> None:
    key = new_key()
    issued = authority.gateway_certificate(key.public_key(), "acme", "hall 7/b", NOW, 60.0)
    (data / "identity").mkdir()
    GatewayIdentity(data).replace(key, issued.pem, authority.pem)


def test_own_configuration_is_accepted_at_any_clock_time(data: Path, authority: OwnAuthority) -> None:
    """The certificate was valid for a minute, years from the test's clock."""
    found = verify(signed(authority, desired()), data)
    assert found.desired == desired()
    assert found.authority == authority.fingerprint.hex()


def test_configuration_signed_with_rsa_is_accepted(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    made = OwnAuthority.make("ours", NOW).certificate
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    times = builder.not_valid_before(made.not_valid_before_utc).not_valid_after(made.not_valid_after_utc)
    theirs = OwnAuthority(times.serial_number(1).sign(key, hashes.SHA256()), key)
    enrol(tmp_path, theirs)
    assert verify(signed(theirs, desired()), tmp_path).desired == desired()


@pytest.mark.parametrize("document", [desired("other"), desired(tenant="umbrella")])
def test_configuration_of_another_gateway_is_refused(data: Path, authority: OwnAuthority, document: Desired) -> None:
    with pytest.raises(DesiredError, match="for another gateway"):
        verify(signed(authority, document), data)


def test_changed_or_foreign_signature_is_refused(data: Path, authority: OwnAuthority) -> None:
    good = signed(authority, desired())
    changed = SignedDesired(good.content.replace('"version":3', '"version":4'), good.signature)
    other = signed(OwnAuthority.make("hub", NOW), desired())
    for wrong in (
        changed,
        other,
        SignedDesired(good.content, signed_text(b"")),
        SignedDesired(good.content, signed_text(b"0" * 70)),
    ):
        with pytest.raises(DesiredError, match="authority"):
            verify(wrong, data)
    with pytest.raises(DesiredError, match="Base64"):
        verify(SignedDesired(good.content, "%"), data)


def test_signature_over_the_content_alone_is_refused(data: Path, authority: OwnAuthority) -> None:
    """A document needs its own kind of signature, so that no other signed text counts as one."""
    content = written(desired())
    with pytest.raises(DesiredError, match="authority"):
        verify(SignedDesired(content, signed_text(authority.sign(content.encode()))), data)
    der = authority.certificate.public_bytes(serialization.Encoding.DER)
    assert to_sign(content)[:1] != der[:1]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (desired(format=2), "update this gateway"),
        (desired(version=0), "must be above 0"),
        (desired(confirm_s=0.0), "must be above 0"),
    ],
)
def test_unsupported_configuration_is_refused(
    data: Path, authority: OwnAuthority, document: Desired, words: str
) -> None:
    with pytest.raises(DesiredError, match=words):
        verify(signed(authority, document), data)


def test_too_large_configuration_is_refused_at_both_ends(data: Path, authority: OwnAuthority) -> None:
    large = desired(resources=[{"kind": "x" * DESIRED_BYTES_MAX}])
    with pytest.raises(DesiredError, match="accepts up to"):
        written(large)
    content = msgspec.json.encode(large).decode()
    with pytest.raises(DesiredError, match="more than"):
        verify(SignedDesired(content, make_signer(authority)(content)), data)


def test_gateway_without_enrolment_accepts_none(tmp_path: Path, authority: OwnAuthority) -> None:
    with pytest.raises(DesiredError, match="identity"):
        verify(signed(authority, desired()), tmp_path)
