"""Logins of a gateway at a network with users: wpa_supplicant with our file, and hostapd's login server.

The login (IEEE 802.1X) runs over a virtual cable, as this machine has no radio: only the lines about the radio differ.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge.appliance.first_boot import rendering
from edge.card.resource import read
from edge.card.text import document, text_of
from tests.support.processes import wait_until

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    *(
        pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")
        for name in ("hostapd", "wpa_supplicant", "ip")
    ),
]

HOSTAPD: Final = """\
interface={interface}
driver=wired
ieee8021x=1
use_pae_group_addr=1
eap_server=1
eap_user_file={folder}/users
ca_cert={folder}/authority.pem
server_cert={folder}/server.pem
private_key={folder}/server.key
"""
PASSWORD: Final = 'a\'b "c" #1'
USERS: Final = f"""\
"by-password" PEAP
"by-certificate" TLS
"by-password" MSCHAPV2 {PASSWORD.encode().hex()} [2]
"""
SUCCESS: Final = "CTRL-EVENT-EAP-SUCCESS"
FAILURE: Final = "CTRL-EVENT-EAP-FAILURE"
LOGIN_S: Final = 60.0
RADIO: Final = ("ssid=", "scan_ssid=", "ieee80211w=", "key_mgmt=")
NOW: Final = datetime.datetime.now(datetime.UTC)
DAY: Final = datetime.timedelta(days=1)


class LoginAuthority:
    """Authority that signs certificates in PEM."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "plant authority")])
        made = self._builder(self._name, self._key, NOW).add_extension(x509.BasicConstraints(True, None), True)
        self.pem = encoded(made.sign(self._key, hashes.SHA256()))

    def sign(self, name: str, *, since: datetime.datetime = NOW) -> tuple[str, str]:
        """Return a certificate for a DNS name, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        made = self._builder(subject, key, since).add_extension(names, False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return encoded(made), private.decode()

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since: datetime.datetime
    ) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            self._name, subject, key.public_key(), x509.random_serial_number(), since - DAY, since + 10 * DAY
        )


def encoded(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


class LoginServer:
    """Login server at one end of a cable; `log_in` tries the other end."""

    def __init__(self, folder: Path, authority: LoginAuthority) -> None:
        self.folder, self.authority = folder, authority
        number = os.getpid() % 100_000
        self._here, self._there = f"wp{number}a", f"wp{number}b"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, *, since: datetime.datetime = NOW) -> None:
        """`since`: begin of its certificate."""
        certificate, key = self.authority.sign("radius.plant.example", since=since)
        texts = {"authority.pem": self.authority.pem, "server.pem": certificate, "server.key": key, "users": USERS}
        texts["hostapd.conf"] = HOSTAPD.format(interface=self._here, folder=self.folder)
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        subprocess.run(["ip", "link", "add", self._here, "type", "veth", "peer", "name", self._there], check=True)
        for each in (self._here, self._there):
            subprocess.run(["ip", "link", "set", each, "up"], check=True)
        log = self.folder / "hostapd.log"
        with log.open("wb") as out:
            self._server = subprocess.Popen(["hostapd", str(self.folder / "hostapd.conf")], stdout=out, stderr=out)
        wait_until(lambda: "AP-ENABLED" in log.read_text(), timeout_s=LOGIN_S, what="a login server")

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait(60)
        subprocess.run(["ip", "link", "delete", self._here], check=False)

    def log_in(self, **login: str) -> bool:
        """Return whether a gateway with these settings is let in."""
        wifi = {"ssid": "plant", "country": "DE", "login": {"authority": self.authority.pem, **login}}
        card = read(text_of(document("a", {"wifi": wifi})).encode(), "x")
        assert card is not None
        for path, file in rendering.files(card).items():
            (self.folder / Path(path).name).write_text(file.text)
        configuration = self.folder / Path(rendering.WIFI).name
        lines = configuration.read_text().replace("/run/waypost-settings", str(self.folder)).splitlines()
        kept = [each for each in lines if not each.strip().startswith(RADIO)]
        place = kept.index("network={") + 1
        configuration.write_text("\n".join(["ap_scan=0", *kept[:place], "\tkey_mgmt=IEEE8021X", *kept[place:], ""]))
        log = self.folder / "wpa_supplicant.log"
        words = ["wpa_supplicant", "-D", "wired", "-i", self._there, "-c", str(configuration)]
        with log.open("wb") as out:
            gateway = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            wait_until(
                lambda: SUCCESS in log.read_text() or FAILURE in log.read_text(), timeout_s=LOGIN_S, what="an answer"
            )
        finally:
            gateway.terminate()
            gateway.wait(60)
        return SUCCESS in log.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoginServer]:
    made = LoginServer(tmp_path, LoginAuthority())
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_users_log_in_by_password_and_by_certificate(server: LoginServer) -> None:
    assert server.log_in(user="by-password", password=PASSWORD)
    assert not server.log_in(user="by-password", password="another")
    certificate, key = server.authority.sign("gateway7")
    assert server.log_in(user="by-certificate", certificate=certificate, key=key)
    assert server.log_in(user="by-certificate", certificate=certificate, key=key, password=PASSWORD)
    assert server.log_in(user="by-password", certificate=certificate, key=key, password=PASSWORD)
    other, other_key = LoginAuthority().sign("gateway7")
    assert not server.log_in(user="by-certificate", certificate=other, key=other_key)


def test_password_is_told_only_to_the_own_login_server(server: LoginServer) -> None:
    assert server.log_in(user="by-password", password=PASSWORD, server="radius.plant.example")
    assert server.log_in(user="by-password", password=PASSWORD, server="plant.example")
    assert not server.log_in(user="by-password", password=PASSWORD, server="other.example")
    assert not server.log_in(user="by-password", password=PASSWORD, authority=LoginAuthority().pem)


def test_clock_that_is_behind_is_no_obstacle(tmp_path: Path) -> None:
    server = LoginServer(tmp_path, LoginAuthority())
    try:
        server.start(since=NOW + 5 * DAY)
        assert server.log_in(user="by-password", password=PASSWORD)
    finally:
        server.stop()
