"""Certificates of a company's authorities: a superior of the hub's own, and one that it uses over EST (RFC 7030)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from bridge.resources.endpoint import ListenEndpoint
from cloud.hub.enrolment.est import EstServer, EstUrl
from edge.appliance.identity.enrolling import renew
from edge.appliance.identity.exchange import HubEnrolmentClient
from edge.appliance.identity.files import GatewayIdentity
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.request import gateway_uri_in
from edge.broker.configuration import TlsFiles
from tests.support.certificates import Authority
from tests.support.command import run_waypost
from tests.support.enrolled import enrolling_hub, init_gateway, landed, operator_uplink, run_fleet
from tests.support.est import EstStub
from tests.support.password_device import PasswordDevice
from tests.support.processes import free_port, gateway_at, wait_until

WAIT_S = 60.0
CONFIGURATION = """
apiVersion: waypost/v1
kind: Hub
metadata: {{name: hub}}
spec: {{{spec}}}
"""


def written(folder: Path, spec: str) -> str:
    file = folder / "hub.yaml"
    file.write_text(CONFIGURATION.format(spec=spec))
    return f"--config={file}"


def asking(server: EstServer) -> str:
    """Return the `est` section of a configuration."""
    tls = server.tls
    return f"est: {{url: {server.url}, caCert: {tls.ca}, clientCert: {tls.certificate}, clientKey: {tls.key}}}"


def token(folder: Path, config: str) -> str:
    return run_fleet(folder, "token", "create", config)


def sends(folder: Path, url: str, config: str, count: int = 20) -> None:
    """Enrol a gateway and check that messages of its device reach the lake."""
    data = folder / "hall"
    done = init_gateway(folder, url, token(folder, config))
    assert done[0] == 0, done[1]
    with gateway_at(data) as near:
        device = PasswordDevice(data, near.port("mqtt"))
        device.send(count)
        wait_until(lambda: len(landed(folder)) == count, timeout_s=WAIT_S, what=f"{count} in the lake")
        device.close()
        assert operator_uplink(near)["last_error"] is None
        assert near.stop() == 0


def test_authority_subordinate_to_a_root_is_trusted(tmp_path: Path) -> None:
    """Gateways trust the authority that the token names, and not the company's root above it."""
    root = Authority(tmp_path / "company")
    own = root.subordinate(tmp_path / "fleet", "fleet authority")
    port = free_port()
    config = written(tmp_path, f"authority: {{certificate: {own.certificate}, key: {own.key}}}")
    with enrolling_hub(tmp_path, config, amqps=port) as far:
        sends(tmp_path, f"amqps://localhost:{port}", config)
        shown = x509.load_pem_x509_certificate(identity_file(tmp_path / "hall").read_bytes())
        assert shown.issuer.rfc4514_string() == "CN=fleet authority"
        assert far.stop() == 0


def goes_through(folder: Path, server: EstServer, issuer: str) -> None:
    """Enrol, renew and revoke a gateway with certificates of another authority."""
    port, data = free_port(), folder / "hall"
    config = written(folder, asking(server))
    checked = run_waypost("hub", "check", config)
    assert checked.returncode == 0, checked.stderr
    assert "est: https://localhost:" in checked.stdout
    with enrolling_hub(folder, config, amqps=port) as far:
        sends(folder, f"amqps://localhost:{port}", config)
        first = GatewayIdentity(data).certificate()
        assert (first.issuer.rfc4514_string(), gateway_uri_in(first)) == (issuer, "waypost://default/hall")
        renew(data, HubEnrolmentClient(ListenEndpoint("localhost", port)))
        assert (second := GatewayIdentity(data).certificate()).serial_number != first.serial_number
        assert second.issuer == first.issuer
        run_fleet(folder, "revoke", "hall", config)
        with gateway_at(data) as near:
            wait_until(
                lambda: "was revoked" in (operator_uplink(near)["last_error"] or ""), timeout_s=WAIT_S, what="shut out"
            )
            assert near.stop() == 0
        assert far.stop() == 0


def test_certificates_come_from_an_est_server(tmp_path: Path) -> None:
    with EstStub(tmp_path / "company") as est:
        goes_through(tmp_path, est.server(), "CN=company authority")


@contextmanager
def globalsign(folder: Path, program: str) -> Iterator[EstServer]:
    """Run GlobalSign's server with its demonstration authority."""
    authority = Authority(folder, "company authority")
    shown, mine = authority.issue("localhost", usage="serverAuth"), authority.issue("hub", usage="clientAuth")
    port = free_port()
    settings = {
        "mock_ca": {"certificates": authority.certificate, "private_key": authority.key},
        "tls": {
            "listen_address": f"localhost:{port}",
            "certificates": shown.certificate,
            "private_key": shown.key,
            "client_cas": [authority.certificate],
        },
        "allowed_hosts": [f"localhost:{port}", "localhost"],
        "healthcheck_password": "tests",
        "rate_limit": 150,
        "timeout": 30,
    }
    (folder / "est.json").write_text(json.dumps(settings))
    with (folder / "est.log").open("w") as log:
        running = subprocess.Popen([program, "-config", str(folder / "est.json")], stdout=log, stderr=log)
    try:
        server = EstServer(
            EstUrl.parse(f"https://localhost:{port}/.well-known/est"),
            TlsFiles(ca=authority.certificate, certificate=mine.certificate, key=mine.key),
        )
        yield server
    finally:
        running.terminate()
        running.wait(30)


def test_certificates_come_from_globalsigns_est_server(tmp_path: Path) -> None:
    """Needs `go install github.com/globalsign/est/cmd/estserver@v1.0.6`."""
    if (program := shutil.which("estserver")) is None:
        pytest.skip("estserver is not installed")
    with globalsign(tmp_path / "company", program) as server:
        goes_through(tmp_path, server, "CN=company authority")
