"""TLS under attack: old versions, renegotiation, compression, invalid certificates."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from edge.broker.mqtt import packets
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority, Issued
from tests.support.configured_gateway import gateway_with
from tests.support.hostile import accepts
from tests.support.problems import health
from tests.support.processes import Waypost, wait_until

WAIT_S: Final = 20.0
CERTIFIED = """
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {name: default.sensor-7}
spec:
  username: sensor-7
  authentication: {type: serviceaccount}
  authorization: [{addresses: ["plant/%u/#"], operations: [send, recv]}]
"""


class Guarded(NamedTuple):
    gateway: Waypost
    authority: Authority
    device: Issued
    server: Issued
    folder: Path

    @property
    def port(self) -> int:
        return self.gateway.port("mqtts")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ca")
    server, device = authority.issue("gw1"), authority.issue("sensor-7", usage="clientAuth")
    tls = f'{{certificate: "{server.certificate}", key: "{server.key}", clientCa: "{authority.certificate}"}}'
    resources = gateway_of(
        authentication="{name: external}",
        listeners=f', mqtts: "127.0.0.1:0", amqps: "127.0.0.1:0", https: "127.0.0.1:0", tls: {tls}',
        extra=CERTIFIED,
    )
    with gateway_with(folder, resources) as running:
        yield Guarded(running, authority, device, server, folder)


def mqtt(guarded: Guarded, context: ssl.SSLContext) -> packets.Packet | None:
    """Return the answer to a CONNECT over TLS, or None without a connection."""
    connect = packets.Connect("sensor-7", 5).encode()
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", guarded.port), WAIT_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as peer,
    ):
        peer.sendall(connect)
        data = peer.recv(65_536)
        return packets.decode(data[0], data[2:], 5) if data else None
    return None


def test_valid_client_certificate_is_accepted(guarded: Guarded) -> None:
    assert accepts(mqtt(guarded, guarded.authority.context(guarded.device)))


class TestCertificates:
    """Certificates that have expired, or are for another name or another purpose, are refused."""

    def test_missing_certificate_is_refused(self, guarded: Guarded) -> None:
        assert not accepts(mqtt(guarded, guarded.authority.context()))

    def test_expired_certificate_is_refused(self, guarded: Guarded) -> None:
        ended = guarded.authority.issue("sensor-7", file="ended", days=-1, usage="clientAuth")
        assert not accepts(mqtt(guarded, guarded.authority.context(ended)))

    def test_certificate_of_another_authority_of_the_same_name_is_refused(
        self, guarded: Guarded, tmp_path: Path
    ) -> None:
        stranger = Authority(tmp_path).issue("sensor-7", usage="clientAuth")
        assert not accepts(mqtt(guarded, guarded.authority.context(stranger)))

    def test_server_certificate_is_refused(self, guarded: Guarded) -> None:
        server = guarded.authority.issue("sensor-7", file="for-servers", usage="serverAuth")
        assert not accepts(mqtt(guarded, guarded.authority.context(server)))

    def test_self_signed_certificate_is_refused(self, guarded: Guarded, tmp_path: Path) -> None:
        own = Authority(tmp_path, "sensor-7")
        assert not accepts(mqtt(guarded, guarded.authority.context(Issued(own.certificate, str(tmp_path / "ca.key")))))

    def test_certificate_signed_by_a_device_is_refused(self, guarded: Guarded, tmp_path: Path) -> None:
        """A device certificate that signs others does not count as an authority."""
        key, request, forged = (str(tmp_path / name) for name in ("f.key", "f.csr", "f.pem"))
        made = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=sensor-7", "-keyout", key, "-out", request)
        signed = ("x509", "-req", "-in", request, "-CA", guarded.device.certificate, "-CAkey", guarded.device.key,
                  "-CAcreateserial", "-days", "2", "-out", forged)  # fmt: skip
        for arguments in (made, signed):
            subprocess.run(["openssl", *arguments], check=True, capture_output=True)
        chain = Path(forged).read_text() + Path(guarded.device.certificate).read_text()
        Path(forged).write_text(chain)
        assert not accepts(mqtt(guarded, guarded.authority.context(Issued(forged, key))))

    def test_certificate_of_unknown_user_is_refused(self, guarded: Guarded) -> None:
        other = guarded.authority.issue("nobody", usage="clientAuth")
        assert not accepts(mqtt(guarded, guarded.authority.context(other)))


class TestProtocol:
    """Requirements of RFC 8996 and RFC 9325."""

    @pytest.mark.parametrize("listener", ["mqtts", "amqps", "https"])
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
    def test_old_tls_version_is_refused(self, guarded: Guarded, listener: str, version: ssl.TLSVersion) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", guarded.gateway.port(listener)), WAIT_S) as raw,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(raw)

    @pytest.mark.parametrize("listener", ["mqtts", "amqps", "https"])
    def test_weak_cipher_is_refused(self, guarded: Guarded, listener: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES128-SHA:AES256-SHA:AES128-SHA256:NULL:aNULL:eNULL:@SECLEVEL=0")
        with (
            socket.create_connection(("127.0.0.1", guarded.gateway.port(listener)), WAIT_S) as raw,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(raw)

    @pytest.mark.parametrize("listener", ["mqtts", "amqps", "https"])
    def test_renegotiation_and_compression_are_off(self, guarded: Guarded, listener: str) -> None:
        """TLS renegotiation and compression are off.

        `R` makes openssl's client renegotiate: TLS 1.2 without OP_NO_RENEGOTIATION would comply.
        """
        address = f"127.0.0.1:{guarded.gateway.port(listener)}"
        with subprocess.Popen(
            ["openssl", "s_client", "-connect", address, "-tls1_2", "-legacy_renegotiation"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as client:  # fmt: skip
            assert client.stdin is not None
            assert client.stdout is not None
            said_first = ""
            while "Verify return code" not in said_first:
                line = client.stdout.readline()
                assert line, said_first
                said_first += line
            client.stdin.write("R\n")
            client.stdin.flush()
            try:
                after, _ = client.communicate(timeout=5)
            except subprocess.TimeoutExpired:  # it waits for ever: there was no new handshake
                client.kill()
                after, _ = client.communicate()
        assert "Compression: NONE" in said_first or "compression: NONE" in said_first.lower()
        assert "RENEGOTIATING" in after
        assert "verify return" not in after, "no second handshake"

    def test_early_data_is_refused(self, guarded: Guarded, tmp_path: Path) -> None:
        """Early data is refused, as an eavesdropper could replay it (RFC 8446 section 8)."""
        session, early = tmp_path / "session", tmp_path / "early"
        early.write_bytes(packets.Connect("sensor-7", 5).encode())
        address = f"127.0.0.1:{guarded.port}"
        known = ["-cert", guarded.device.certificate, "-key", guarded.device.key]
        first = subprocess.run(
            ["openssl", "s_client", "-connect", address, "-tls1_3", "-sess_out", str(session), *known],
            input="", capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        if not session.exists():
            assert "Max Early Data: 0" in first.stdout or "Max Early Data" not in first.stdout
            return
        again = subprocess.run(
            ["openssl", "s_client", "-connect", address, "-tls1_3", "-sess_in", str(session), "-early_data", str(early),
             *known],
            input="", capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert "Early data was accepted" not in again.stdout


def test_invalid_certificate_file_is_reported_and_current_one_stays(guarded: Guarded) -> None:
    http = guarded.gateway.port("http")
    good = Path(guarded.server.certificate).read_text()
    soon = f"certificate {guarded.server.certificate}"
    Path(guarded.server.certificate).write_text("no certificate")
    try:
        wait_until(lambda: b"stays" in guarded.gateway.log.read_bytes(), timeout_s=WAIT_S, what="it is read again")
        said_at(http, "certificate")
        assert accepts(mqtt(guarded, guarded.authority.context(guarded.device))), "the one in force stays"
    finally:
        Path(guarded.server.certificate).write_text(good)
    wait_until(lambda: not names(http) & {"certificate"}, timeout_s=WAIT_S, what="it is taken up again")
    assert soon in names(http), "it ends in two days, which is said"


def names(http: int) -> set[str]:
    return {one["name"] for one in health(http)[1]}


def said_at(http: int, name: str) -> None:
    wait_until(lambda: name in names(http), timeout_s=WAIT_S, what=f"{name} is said")
