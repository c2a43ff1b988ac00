"""The gateway's own certificate: made once, kept, renewed with the same key, or the identity from the hub."""

from __future__ import annotations

import datetime
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from edge.appliance.identity.own_certificate import DAYS, DUE_DAYS, OwnCertificate, fingerprint_of
from tests.support.certificates import Authority

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_it_is_a_server_of_this_machine_and_signs_nothing(tmp_path: Path) -> None:
    own = OwnCertificate(tmp_path, "hall")
    assert own.due(NOW_S)
    own.keep(NOW_S)
    made = certificate(own.file)
    made.verify_directly_issued_by(made)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"hall", "hall.local", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "::1"} <= {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    assert (made.not_valid_after_utc - made.not_valid_before_utc).days == DAYS
    assert own.file.stat().st_mode & 0o077 == 0
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(own.file)
    client = ssl.create_default_context(cafile=str(own.file))
    assert client.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("name", ["", "no host", "ä", "x" * 300, "a.b-c"])
def test_any_name(tmp_path: Path, name: str) -> None:
    own = OwnCertificate(tmp_path, name)
    own.keep(NOW_S)
    assert certificate(own.file).subject.rfc4514_string()


def test_it_is_kept_and_renewed_before_its_end_with_the_same_key(tmp_path: Path) -> None:
    OwnCertificate(tmp_path, "hall").keep(NOW_S)
    first = certificate(OwnCertificate(tmp_path, "hall").file)
    for at_s, renewed in ((NOW_S + (DUE_DAYS - 1) * DAY_S, False), (NOW_S + (DUE_DAYS + 1) * DAY_S, True)):
        own = OwnCertificate(tmp_path, "hall")
        assert own.due(at_s) is renewed
        own.keep(at_s)
        assert not own.due(at_s)
        now = certificate(own.file)
        assert (now.serial_number != first.serial_number) is renewed
        assert now.public_key() == first.public_key()
        left = now.not_valid_after_utc - datetime.datetime.fromtimestamp(at_s, datetime.UTC)
        assert left > datetime.timedelta(days=DAYS - DUE_DAYS - 3)


def test_a_clock_in_the_past_keeps_it(tmp_path: Path) -> None:
    own = OwnCertificate(tmp_path, "hall")
    own.keep(NOW_S)
    assert not OwnCertificate(tmp_path, "hall").due(0.0)


@pytest.mark.parametrize("content", [b"", b"Renewed from soon\n", b"\xff\x00"])
def test_a_file_that_was_cut_off_is_made_anew(tmp_path: Path, content: bytes) -> None:
    own = OwnCertificate(tmp_path, "hall")
    own.file.parent.mkdir()
    own.file.write_bytes(content)
    own.keep(NOW_S)
    assert len(fingerprint_of(own.file)) == 95


@pytest.mark.parametrize(("usage", "serves"), [("serverAuth,clientAuth", True), ("clientAuth", False), (None, False)])
def test_the_identity_is_used_if_it_is_of_a_server(tmp_path: Path, usage: str | None, serves: bool) -> None:
    issued = Authority(tmp_path / "authority").issue("hall", usage=usage)
    identity = tmp_path / "data" / "identity" / "identity.pem"
    identity.parent.mkdir(parents=True)
    identity.write_bytes(Path(issued.key).read_bytes() + Path(issued.certificate).read_bytes())
    own = OwnCertificate(tmp_path / "data", "hall")
    assert (own.file == identity) is serves
    assert own.due(NOW_S) is not serves
    identity.write_bytes(b"cut off")
    assert OwnCertificate(tmp_path / "data", "hall").file != identity


def test_looking_does_not_load_cryptography(tmp_path: Path) -> None:
    OwnCertificate(tmp_path, "hall").keep(NOW_S)
    script = (
        "import sys; from pathlib import Path\n"
        "from edge.appliance.identity.own_certificate import OwnCertificate, fingerprint_of\n"
        f"own = OwnCertificate(Path({str(tmp_path)!r}), 'hall'); own.keep({NOW_S}); fingerprint_of(own.file)\n"
        "print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
