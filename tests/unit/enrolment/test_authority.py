"""The authority of a hub: the requests it signs and refuses, and the storage of its key."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from cloud.hub.enrolment.authority import OwnAuthority, RequestError, RevokedCertificate, read_request
from cloud.hub.enrolment.files import (
    OWN,
    AuthorityFileError,
    GivenAuthority,
    ServerCertificate,
    load_authority,
    load_own_authority,
    read_authority,
)
from edge.appliance.identity.request import key_pem, new_key, server_names, signing_request

NOW = 1_800_000_000.0
DAY = 86_400.0


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    return made.public_bytes(Encoding.PEM).decode()


class TestRequests:
    def test_supported_keys_are_signed(self) -> None:
        assert read_request(signing_request(new_key()))
        assert read_request(request(ec.generate_private_key(ec.SECP384R1())))
        assert read_request(request(rsa.generate_private_key(65537, 2048)))

    @pytest.mark.parametrize("kind", ["curve", "short", "edwards"])
    def test_keys_of_other_kinds_are_refused(self, kind: str) -> None:
        made = {
            "curve": lambda: ec.generate_private_key(ec.SECP224R1()),
            "short": lambda: rsa.generate_private_key(65537, 1024),
            "edwards": ed25519.Ed25519PrivateKey.generate,
        }[kind]()
        with pytest.raises(RequestError):
            read_request(request(made))

    def test_unknown_version_is_refused(self) -> None:
        der = x509.load_pem_x509_csr(signing_request(new_key()).encode()).public_bytes(Encoding.DER)
        other = ssl.DER_cert_to_PEM_cert(der.replace(b"\x02\x01\x00", b"\x02\x01\x02", 1))
        with pytest.raises(RequestError, match="cannot be read"):
            read_request(other.replace("CERTIFICATE", "CERTIFICATE REQUEST"))

    def test_request_without_proof_of_its_key_is_refused(self) -> None:
        """A request with the public key of another one is refused; any reader of a certificate could send it."""
        keys = [new_key(), new_key()]
        mine, theirs = (each.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) for each in keys)
        der = x509.load_pem_x509_csr(signing_request(keys[0]).encode()).public_bytes(Encoding.DER)
        forged = ssl.DER_cert_to_PEM_cert(der.replace(mine, theirs)).replace("CERTIFICATE", "CERTIFICATE REQUEST")
        with pytest.raises(RequestError, match="own key"):
            read_request(forged)

    @pytest.mark.parametrize("text", ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", "\udcff"])
    def test_invalid_requests_are_refused(self, text: str) -> None:
        with pytest.raises(RequestError):
            read_request(text)


class TestCertificates:
    def test_certificate_of_a_gateway_has_its_fields(self) -> None:
        authority = OwnAuthority.make("a hub", NOW)
        made = authority.gateway_certificate(new_key().public_key(), "acme", "hall " + "x" * 200, NOW, 90 * DAY)
        own = x509.load_pem_x509_certificate(made.pem.encode())
        own.verify_directly_issued_by(authority.certificate)
        usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH], "this name is not one of a host"
        assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert made.ends_at == NOW + 90 * DAY
        assert made.begins_at == NOW - 3600
        assert int(made.serial, 16) == own.serial_number

    @pytest.mark.parametrize(("gateway", "name"), [
        ("hall", "hall.local"), ("hub", None), ("hub.example", None), ("Hall", None), ("hall.local", None),
        ("-x", None),
    ])  # fmt: skip
    def test_gateway_is_a_server_under_its_own_local_name_and_never_the_hub(
        self, gateway: str, name: str | None
    ) -> None:
        """Gateways recognise the hub by its names, and devices a gateway by NAME.local."""
        authority = OwnAuthority.make("a hub", NOW)
        authority.name_hub({"hub.local", "hub.example"})
        made = authority.gateway_certificate(new_key().public_key(), "acme", gateway, NOW, DAY)
        own = x509.load_pem_x509_certificate(made.pem.encode())
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ([name] if name else [])
        assert len(names.get_values_for_type(x509.UniformResourceIdentifier)) == 1
        assert server_names(own) == ([name] if name else [])
        usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) == (name is not None)
        assert ExtendedKeyUsageOID.CLIENT_AUTH in usage

    def test_short_lived_certificate_is_valid_at_its_start(self) -> None:
        made = OwnAuthority.make("a hub", NOW).gateway_certificate(new_key().public_key(), "acme", "hall", NOW, 60.0)
        assert made.begins_at == NOW - 6

    def test_list_of_revoked_certificates_is_signed(self) -> None:
        authority = OwnAuthority.make("a hub", NOW)
        listed = x509.load_der_x509_crl(authority.revocations([RevokedCertificate("beef", NOW - 5)], 7, NOW))
        assert listed.is_signature_valid(authority.certificate.public_key())  # type: ignore[arg-type]
        assert [each.serial_number for each in listed] == [0xBEEF]
        assert listed.next_update_utc is not None
        assert listed.next_update_utc.timestamp() == NOW + 7 * DAY


class TestFiles:
    def test_authority_is_created_once(self, tmp_path: Path) -> None:
        first = load_own_authority(tmp_path, NOW, "hub")
        assert load_own_authority(tmp_path, NOW + DAY, "another").fingerprint == first.fingerprint
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "authority").iterdir()} == {0o600}
        assert (tmp_path / "authority").stat().st_mode & 0o777 == 0o700

    def test_command_and_hub_create_it_simultaneously(self, tmp_path: Path) -> None:
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.append(load_own_authority(tmp_path, NOW, "hub").fingerprint))
            for _ in range(8)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        assert len(found) == 8
        assert len(set(found)) == 1

    def test_damaged_authority_is_not_replaced(self, tmp_path: Path) -> None:
        load_own_authority(tmp_path, NOW, "hub")
        file = tmp_path / "authority" / OWN
        file.write_text(file.read_text()[:300])
        with pytest.raises(AuthorityFileError, match="restore a copy"):
            load_own_authority(tmp_path, NOW, "hub")

    def test_given_authority_is_used(self, tmp_path: Path) -> None:
        theirs = OwnAuthority.make("theirs", NOW)
        certificate, key = tmp_path / "ca.pem", tmp_path / "ca.key"
        certificate.write_text(theirs.pem)
        key.write_text(theirs.key_pem)
        assert load_authority(tmp_path, GivenAuthority(certificate, key), NOW).fingerprint == theirs.fingerprint
        key.write_text(key_pem(new_key()))
        with pytest.raises(AuthorityFileError, match="not the key"):
            read_authority(certificate, key)
        own = new_key()
        certificate.write_text(theirs.gateway_certificate(own.public_key(), "acme", "hall", NOW, DAY).pem)
        key.write_text(key_pem(own))
        with pytest.raises(AuthorityFileError, match="not an authority"):
            read_authority(certificate, key)

    def test_certificate_of_the_hub_is_renewed(self, tmp_path: Path) -> None:
        authority = load_own_authority(tmp_path, NOW, "hub")
        kept = ServerCertificate(tmp_path, authority, ["hub.example", "127.0.0.1", "::1"])
        assert kept.keep(NOW)
        assert not kept.keep(NOW + 59 * DAY)
        again = ServerCertificate(tmp_path, authority, ["127.0.0.1", "Hub.example", "::1"])
        assert not again.keep(NOW + 59 * DAY), "a restart makes none"
        assert kept.keep(NOW + 61 * DAY)
        assert again.keep(NOW + 200 * DAY)
        assert ServerCertificate(tmp_path, authority, ["hub.example"]).keep(NOW + 200 * DAY), "another name"
        other = ServerCertificate(tmp_path, OwnAuthority.make("hub", NOW), ["hub.example"])
        assert other.keep(NOW + 200 * DAY), "another authority"
        listener = kept.listener
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(listener.certificate, listener.key)
