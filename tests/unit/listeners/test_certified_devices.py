"""Devices with certificates of an authority that their tenant trusts: what the handshake and the gate admit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.device_pages import DeviceEntry, DevicePage, DeviceSubject, digest_of
from cloud.hub.devices.anchors import anchors_in
from cloud.hub.devices.tenants import read_tenant
from edge.broker.configuration import AuthenticationMode, DeviceTls
from edge.broker.listeners.secure import Handshakes
from edge.broker.listeners.tls import Certificates
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.certified_devices import CertifiedDevices
from edge.broker.security.credentials import CredentialSnapshot, new_user
from edge.broker.security.hub_device_file import FILE
from edge.broker.security.hub_devices import HubDevices
from edge.broker.security.proof import VerifiedIdentity
from tests.support.device_certificates import DeviceAuthority, DeviceCertificate, named, shake_hands

OWN = "acme"


class CertifiedSite:
    """Gateway with a listener, and a hub that sends devices and authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = DeviceAuthority.make("gateways")
        self.authority = DeviceAuthority.make()
        pem = self.server.issue("gw1").write(folder, "server")
        self.trusted = self.server.write(folder, "servers")
        self.files = DeviceTls(certificate=str(pem), key=str(pem))
        self.devices = HubDevices(folder, ())
        self.gate = Authenticator(
            AuthenticationMode.STANDARD, worker=lambda work, done: done(work()), clock=lambda: 0.0
        )
        self.gate.look_up_devices(self.devices)
        self.certified = CertifiedDevices(self.devices, lambda: self.gate.users)
        self.certificates = Certificates(self.files)
        self.certificates.admit_devices(self.certified)

    def send(self, *entries: DeviceEntry, tenant: str = OWN, **more: Any) -> None:
        """Apply a page of the hub."""
        cursor = self.devices.cursor
        page = DevicePage(
            tenant=OWN,
            gateway="gw1",
            base=digest_of(cursor),
            cursor=f"{cursor}+",
            devices_of=tenant,
            entries=entries,
            **more,
        )
        fitted = self.devices.fit(page)
        names = self.devices.take(fitted, self.devices.store(fitted))
        self.gate.update_devices(names.identities, names.users)
        self.certified.follow()

    def trust(self, *authorities: dict[str, Any], tenant: str = OWN) -> None:
        """Send the authorities of a tenant, as its document has them."""
        document = read_tenant(json.dumps({"trusted-ca": authorities}).encode()).text
        self.send(tenant=tenant, anchors=tuple(anchors_in(document)))

    def connect(self, shown: DeviceCertificate, *above: DeviceCertificate) -> str | None:
        """Return the device or user that a client is; None if it is none. Raises ssl.SSLError."""
        file = shown.write(self.folder, "client", *above)
        server = shake_hands(self.certificates.context, file, self.trusted)
        proven = server.getpeercert(binary_form=True)
        assert proven == shown.der
        found = self.certificates.recognize(proven)
        return found.identity if found.by_hub else "of clientCa"


def certified(name: str, auth_id: str, **more: Any) -> DeviceEntry:
    return DeviceEntry(device=name, subjects=(DeviceSubject(auth_id=auth_id, **more),))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[CertifiedSite]:
    made = CertifiedSite(tmp_path)
    yield made
    made.devices.close()


PUMP = certified("pump", "CN=pump7,O=ACME")


class TestHandshake:
    """Authorities of the hub and of the configuration."""

    def test_no_certificate_is_requested_before_the_hub_sends_an_authority(self, site: CertifiedSite) -> None:
        assert site.certificates.context.verify_mode.name == "CERT_NONE"
        site.trust(site.authority.document())
        assert site.certificates.context.verify_mode.name == "CERT_OPTIONAL"
        shake_hands(site.certificates.context, None, site.trusted)
        site.trust()
        assert site.certificates.context.verify_mode.name == "CERT_NONE"

    @pytest.mark.parametrize("by_key", [False, True], ids=["certificate", "public key"])
    def test_a_registered_subject_is_its_device(self, site: CertifiedSite, by_key: bool) -> None:
        authority = DeviceAuthority.make("other text", printable=True)
        site.trust(authority.key_document() if by_key else authority.document())
        site.send(PUMP)
        assert site.connect(authority.issue("pump7")) == "pump"
        assert site.connect(authority.issue("stranger")) is None
        with pytest.raises(ssl.SSLError):
            site.connect(site.authority.issue("pump7"))
        with pytest.raises(ssl.SSLError):
            site.connect(authority.issue("pump7", days=-1))

    def test_a_template_makes_the_identifier(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document(**{"auth-id-template": "{{subject-cn}}/{{subject-o}}"}))
        site.send(certified("pump", "pump7/ACME"))
        assert site.connect(site.authority.issue("pump7")) == "pump"

    def test_a_device_of_another_tenant_has_its_name_with_the_tenant(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document(), tenant="DEFAULT_TENANT")
        site.send(PUMP, tenant="DEFAULT_TENANT")
        assert site.connect(site.authority.issue("pump7")) == "pump@DEFAULT_TENANT"

    def test_an_authority_below_a_trusted_one_proves_nothing(self, site: CertifiedSite) -> None:
        """It could name any user of the gateway in a certificate."""
        site.trust(site.authority.document())
        site.send(PUMP)
        below = site.authority.subordinate(named("below"))
        with pytest.raises(ssl.SSLError, match="path length"):
            site.connect(below.issue("pump7"), below)
        alike = site.authority.subordinate(site.authority.certificate.subject)
        for issuer in (None, named("DEVICES")):
            with contextlib.suppress(ssl.SSLError):  # as the version of OpenSSL has it
                assert site.connect(alike.issue("pump7", issuer=issuer), alike) is None

    def test_an_issuer_in_other_letters_is_no_user_of_the_gateway(self, site: CertifiedSite) -> None:
        """OpenSSL compares names without regard to case and spaces."""
        site.trust(site.authority.document())
        shown = site.authority.issue("admin", issuer=named(" Devices ", "acme"))
        assert site.connect(shown) is None

    def test_a_removed_authority_ends_trust(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document())
        site.send(PUMP)
        closed = []

        class Reviewer:
            def close_untrusted(self) -> None:
                closed.append(site.certified.recognize(shown.der).identity)

        shown = site.authority.issue("pump7")
        assert site.connect(shown) == "pump"
        site.certificates.reviewers.append(Reviewer())  # type: ignore[arg-type]
        site.trust()
        assert closed == [None]
        shake_hands(site.certificates.context, None, site.trusted)

    def test_certificates_of_the_configuration_are_users_as_before(self, site: CertifiedSite) -> None:
        local = DeviceAuthority.make("local")
        files = DeviceTls(
            certificate=site.files.certificate,
            key=site.files.key,
            client_ca=str(local.write(site.folder, "local")),
        )
        site.certificates = Certificates(files)
        site.certificates.admit_devices(site.certified)
        below = local.subordinate(named("below"))
        site.trust(site.authority.document())
        site.send(PUMP)
        assert site.connect(local.issue("pump7")) == "of clientCa"
        assert site.connect(below.issue("pump7"), below) == "of clientCa"
        assert site.connect(site.authority.issue("pump7")) == "pump"
        site.trust(site.authority.document(), local.document())
        assert site.connect(local.issue("pump7")) == "pump", "the tenant trusts it too"
        assert site.connect(local.issue("other")) == "of clientCa"
        assert site.connect(below.issue("pump7"), below) == "of clientCa"


class TestGate:
    """Rights, and changes of devices and users."""

    def test_times_of_the_credentials_and_disabling_count(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document())
        shown = site.authority.issue("pump7").der

        def recognized() -> str | None:
            return site.certified.recognize(shown).identity

        site.send(PUMP)
        assert recognized() == "pump"
        site.send(certified("pump", "CN=pump7,O=ACME", not_after=1_000_000_000.0))
        assert recognized() is None
        site.send(certified("pump", "CN=pump7,O=ACME", not_before=1_000_000_000.0))
        assert recognized() == "pump"
        site.send(DeviceEntry(device="pump", enabled=False, subjects=PUMP.subjects))
        assert recognized() is None
        site.send(certified("fan", "CN=pump7,O=ACME"), DeviceEntry(device="pump"))
        assert recognized() == "fan", "the subject is that of another device now"
        site.send(enabled=False)
        assert recognized() is None
        site.send(enabled=True, removed=("fan",))
        assert recognized() is None

    def test_a_certificate_never_proves_a_user_of_the_gateway(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document())
        site.send(PUMP)
        proven = site.certified.recognize(site.authority.issue("pump7").der).identity
        assert proven is not None
        assert site.gate.grant(VerifiedIdentity(proven), "c", lambda _why: None) is not None
        site.gate.update(CredentialSnapshot({"pump": new_user("pump")}))
        assert site.gate.grant(VerifiedIdentity(proven), "c", lambda _why: None) is None
        assert site.certified.recognize(site.authority.issue("pump7").der).identity is None

    def test_everything_is_read_again_after_a_restart(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document())
        site.send(PUMP)
        shown = site.authority.issue("pump7").der
        again = HubDevices(site.folder, ())
        assert CertifiedDevices(again, set).recognize(shown).identity == "pump"
        assert not again.wants_all
        again.close()

    def test_a_page_that_an_older_program_has_stored_is_requested_again(self, site: CertifiedSite) -> None:
        site.trust(site.authority.document())
        site.devices.close()
        with contextlib.closing(sqlite3.connect(site.folder / FILE)) as connection, connection:
            connection.execute("UPDATE meta SET value = 'later' WHERE name = 'cursor'")
        again = HubDevices(site.folder, ())
        assert again.wants_all
        again.close()


class ConnectedTransport:
    """Connection after its handshake, as `Handshakes` uses it."""

    def __init__(self, secured: ssl.SSLObject) -> None:
        self._secured = secured
        self.closed = False

    def get_extra_info(self, name: str) -> ssl.SSLObject | None:
        return self._secured if name == "ssl_object" else None

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def test_a_connection_ends_when_its_certificate_proves_another_device(site: CertifiedSite) -> None:
    """Only those of the named identities are looked at."""
    site.trust(site.authority.document())
    site.send(PUMP, certified("fan", "CN=fan,O=ACME"))
    admitted: list[str | None] = []

    def admit(identity: str | None) -> asyncio.Protocol:
        admitted.append(identity)
        return asyncio.Protocol()

    def connect(handshakes: Handshakes, name: str) -> ConnectedTransport:
        file = site.authority.issue(name).write(site.folder, "client")
        made = ConnectedTransport(shake_hands(site.certificates.context, file, site.trusted))
        handshakes.secured(made)  # type: ignore[arg-type]
        return made

    async def main() -> None:
        handshakes = Handshakes("mqtts", site.certificates, admit, handshake_s=9.0)
        pump, fan = connect(handshakes, "pump7"), connect(handshakes, "fan")
        assert admitted == ["pump", "fan"]
        site.certified.review({"pump", "fan"})
        assert (pump.closed, fan.closed) == (False, False)
        site.send(DeviceEntry(device="pump"), certified("lamp", "CN=pump7,O=ACME"))
        site.certified.review({"fan"})
        assert (pump.closed, fan.closed) == (False, False)
        site.certified.review({"pump"})
        assert (pump.closed, fan.closed) == (True, False)

    asyncio.run(main())
