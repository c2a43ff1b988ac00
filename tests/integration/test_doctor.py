"""`waypost doctor` on real gateways: healthy ones, and ones broken on purpose, each with its next step."""

from __future__ import annotations

import datetime
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.certificates import Authority
from tests.support.command import items_in, output_of, run_waypost
from tests.support.processes import Waypost, edge, free_port, gateway_at
from tests.support.stores import change

Found = dict[str, list[dict[str, Any]]]


def doctor(data: Path, *options: str) -> tuple[int, Found]:
    """Run the doctor; return its exit code and its results by name."""
    done = run_waypost("doctor", "--data", str(data), "--json", "--timeout=20", *options)
    assert done.stderr == ""
    found: Found = {}
    for result in items_in(done.stdout):
        found.setdefault(result["name"], []).append(result)
        assert result["next_step"] or result["level"] == "ok"
    return done.returncode, found


def failures(found: Found) -> set[str]:
    return {name for name, results in found.items() if any(result["level"] == "fail" for result in results)}


def apply(folder: Path, data: Path, *, mqtts: int, certificate: str, key: str, peer: int, ca: str | None) -> None:
    tls = f"tls: {{caCert: {ca}}}" if ca is not None else ""
    (folder / "gateway.yaml").write_text(f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: north}}
spec:
  listeners: {{mqtts: "127.0.0.1:{mqtts}", tls: {{certificate: {certificate}, key: {key}}}}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec:
  connectors:
  - name: upstream
    endpointHosts: [{{host: 127.0.0.1, port: {peer}}}]
    {tls}
""")
    output_of("apply", "--data", str(data), "-f", str(folder / "gateway.yaml"))


def expired(folder: Path) -> tuple[str, str]:
    """Issue a certificate that ended yesterday; return its files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "late")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - 9 * day).not_valid_after(now - day)
    (folder / "late.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "late.key").write_bytes(key.private_bytes(*form))
    (folder / "late.key").chmod(0o600)
    return str(folder / "late.pem"), str(folder / "late.key")


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Waypost]:
    with edge(tmp_path, "peer") as running:
        yield running


def test_running_gateway_has_no_failures(tmp_path: Path, peer: Waypost) -> None:
    authority = Authority(tmp_path / "pki")
    issued = authority.issue("localhost")
    Path(issued.key).chmod(0o600)
    data, port = tmp_path / "gw", free_port()
    apply(tmp_path, data, mqtts=port, certificate=issued.certificate, key=issued.key, peer=peer.port("amqp"), ca=None)
    with gateway_at(data) as gateway:
        code, found = doctor(data, "--bundle", str(tmp_path / "bundle.tar.gz"))
        assert failures(found) == set()
        assert code == 0
        assert "held by the gateway" in found["port mqtts"][0]["seen"]
        assert "opens AMQP" in found["uplink upstream"][0]["seen"]
        assert found["certificate of listeners"][0]["level"] == "warn", "it ends tomorrow"
        assert gateway.stop() == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert "waypost-doctor/doctor.json" in archive.getnames()


def test_each_fault_is_found(tmp_path: Path) -> None:
    certificate, key = expired(tmp_path)
    data = tmp_path / "gw"
    assert "store ready" in output_of("init", "--data", str(data))
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        apply(tmp_path, data, mqtts=port, certificate=certificate, key=key, peer=free_port(), ca=None)
        change(data / "store.sqlite", "DELETE FROM meta WHERE key = 'epoch'")
        (data / "store.sqlite").chmod(0o644)
        (tmp_path / "late.key").chmod(0o644)
        code, found = doctor(data)
    assert code == 1
    assert failures(found) == {"port mqtts", "certificate of listeners", "uplink upstream", "store", "secrets"}
    assert "is taken by" in found["port mqtts"][0]["seen"]
    assert "expired on" in found["certificate of listeners"][0]["seen"]
    assert "cannot be reached" in found["uplink upstream"][0]["seen"]
    assert len([result for result in found["secrets"] if result["level"] == "fail"]) == 2


def test_uplink_with_a_certificate_of_an_unknown_authority_fails(tmp_path: Path, peer: Waypost) -> None:
    authority = Authority(tmp_path / "pki")
    issued = authority.issue("localhost")
    Path(issued.key).chmod(0o600)
    data, port = tmp_path / "gw", free_port()
    stranger = Authority(tmp_path / "other", "stranger")
    other = tmp_path / "tls"
    apply(tmp_path, other, mqtts=port, certificate=issued.certificate, key=issued.key, peer=1, ca=None)
    with gateway_at(other):
        apply(
            tmp_path, data, mqtts=free_port(), certificate=issued.certificate, key=issued.key, peer=port,
            ca=stranger.certificate,
        )  # fmt: skip
        _, found = doctor(data)
    assert "TLS failed" in found["uplink upstream"][0]["seen"]


def test_table_fits_eighty_columns(tmp_path: Path) -> None:
    done = run_waypost("doctor", "--data", str(tmp_path / "new"))
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "not found" in " ".join(done.stdout.split())  # long paths are wrapped
    assert " warnings, " in done.stdout.splitlines()[-1]
