"""Enrolment from an empty hub and gateway to mutual TLS, and revocation: the real program, over sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509

from bridge.enrolment import RENEWAL_PATH, EnrolmentToken, RenewalRequest
from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.identity.enrolling import enrol
from edge.appliance.identity.exchange import HubEnrolmentClient, NotIssued, trusting
from edge.appliance.identity.location import REVOKED, identity_file
from edge.appliance.identity.renewal import CHECK_INTERVAL_S_MAX
from edge.appliance.identity.request import new_key, signing_request
from edge.appliance.identity.revocation_list import fetch
from tests.support.clock import Clock
from tests.support.command import items_in, run_program, run_waypost
from tests.support.enrolled import enrolling_hub, init_gateway, landed, operator_uplink, run_fleet
from tests.support.password_device import PasswordDevice
from tests.support.processes import free_port, gateway_at, wait_until

WAIT_S = 60.0
DAY_S = 86_400


def test_gateway_is_enrolled_revoked_and_enrolled_again_without_loss(tmp_path: Path) -> None:
    """A revoked gateway loses and repeats no message, although the hub is killed in between."""
    port = free_port()
    data = tmp_path / "hall"
    with enrolling_hub(tmp_path, amqps=port) as far:
        url = f"amqps://localhost:{port}"
        assert init_gateway(tmp_path, url, run_fleet(tmp_path, "token", "create"))[0] == 0
        with gateway_at(data) as near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            run_fleet(tmp_path, "revoke", "hall")
            wait_until(
                lambda: "was revoked" in (operator_uplink(near)["last_error"] or ""), timeout_s=WAIT_S, what="it is cut"
            )
            device.send(20)
            far.kill()
            far.start()
            wait_until(
                lambda: "was revoked" in (operator_uplink(near)["last_error"] or ""), timeout_s=WAIT_S, what="still"
            )
            token = run_fleet(tmp_path, "token", "create", "--gateway", "hall")
            again = run_waypost("enrol", "--data", str(data), "--token", token)
            assert again.returncode == 0, again.stderr
            wait_until(lambda: len(landed(tmp_path)) == 40, timeout_s=WAIT_S, what="40 in the lake")
            device.close()
            assert near.stop() == 0
        assert far.stop() == 0
    found = landed(tmp_path)
    assert len({epoch for _, epoch, _ in found}) == 1
    assert [sequence for _, _, sequence in found] == list(range(40))
    listed = items_in(run_fleet(tmp_path, "list", "--json"))
    assert [(each["gateway"], each["state"]) for each in listed] == [("hall", "good")]


def test_registry_older_than_the_enrolment_accepts_the_certificate(tmp_path: Path) -> None:
    """The registry is a copy from before the gateway enrolled; the hub reports this.

    The gateway connects by its certificate, is listed and can be revoked.
    """
    port, data, notice = free_port(), tmp_path / "hall", tmp_path / "hub" / "registry.older"
    registry = tmp_path / "hub" / "registry.db"
    near = gateway_at(data)
    far = enrolling_hub(tmp_path, amqps=port)
    with far:
        assert far.stop() == 0
    shutil.copy(registry, tmp_path / "registry.before")
    with far:
        assert init_gateway(tmp_path, f"amqps://localhost:{port}", run_fleet(tmp_path, "token", "create"))[0] == 0
        assert far.stop() == 0
    for each in registry.parent.glob("registry.db*"):
        each.unlink()
    shutil.copy(tmp_path / "registry.before", registry)
    with far, near:
        wait_until(notice.exists, timeout_s=WAIT_S, what="the older copy is noticed")
        assert notice.read_text() == "CERTIFICATES\n"
        listed = items_in(run_fleet(tmp_path, "list", "--json"))
        assert [(each["gateway"], each["state"]) for each in listed] == [("hall", "good")]
        run_fleet(tmp_path, "revoke", "hall")
        wait_until(lambda: "was revoked" in (operator_uplink(near)["last_error"] or ""), timeout_s=WAIT_S, what="cut")


QUOTA = """
apiVersion: waypost/v1
kind: Hub
metadata: {name: hub}
spec: {tenantQuota: {gateways: 1}}
"""


def fails(folder: Path, *words: str) -> str:
    """Run a command of the hub that fails; return its error."""
    return run_fleet(folder, *words, code=1)


def forgotten(folder: Path, name: str) -> bool:
    """Forget a gateway; return False while the hub has it connected."""
    done = run_waypost("gateway", "forget", name, "--json", "--data", str(folder / "hub"))
    assert done.returncode == 0 or "is connected" in done.stderr, done.stderr
    return done.returncode == 0 and items_in(done.stdout)[0]["gateway"] == name


def test_forgotten_gateway_frees_its_place_and_returns(tmp_path: Path) -> None:
    """A second gateway takes a forgotten one's place in the quota; the first one returns and repeats no message."""
    port = free_port()
    (tmp_path / "hub.yaml").write_text(QUOTA)
    data = tmp_path / "hall"
    near = gateway_at(data)
    other = gateway_at(tmp_path / "yard")
    with enrolling_hub(tmp_path, "--config", str(tmp_path / "hub.yaml"), amqps=port) as far:
        url = f"amqps://localhost:{port}"
        assert init_gateway(tmp_path, url, run_fleet(tmp_path, "token", "create"))[0] == 0
        with near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            assert "gateway revoke" in fails(tmp_path, "forget", "hall")
            run_fleet(tmp_path, "revoke", "hall")
            wait_until(lambda: forgotten(tmp_path, "hall"), timeout_s=WAIT_S, what="hall is forgotten")
            device.send(20)
            device.close()
            assert near.stop() == 0
        [shown] = items_in(run_fleet(tmp_path, "list", "--all", "--json"))
        assert (shown["gateway"], shown["state"]) == ("hall", "forgotten")
        assert init_gateway(tmp_path, url, run_fleet(tmp_path, "token", "create"), name="yard")[0] == 0
        with other:
            there = "gateway yard connected from"
            wait_until(lambda: there in (tmp_path / "hub.log").read_text(), timeout_s=WAIT_S, what="yard is there")
            assert other.stop() == 0
        assert [each["gateway"] for each in items_in(run_fleet(tmp_path, "list", "--json"))] == ["yard"]
        token = run_fleet(tmp_path, "token", "create", "--gateway", "hall")
        (tmp_path / "token").write_text(f"{token}\n")
        again = ("enrol", "--data", str(data), "--token-file", str(tmp_path / "token"))
        full = run_waypost(*again)
        assert (full.returncode, "gateway forget" in full.stderr) == (1, True), full.stderr
        run_fleet(tmp_path, "revoke", "yard")
        wait_until(lambda: forgotten(tmp_path, "yard"), timeout_s=WAIT_S, what="yard is forgotten")
        back = run_waypost(*again)
        assert back.returncode == 0, back.stderr
        with near:
            wait_until(lambda: len(landed(tmp_path)) == 40, timeout_s=WAIT_S, what="40 in the lake")
            assert near.stop() == 0
        assert far.stop() == 0
    found = landed(tmp_path)
    assert len({epoch for _, epoch, _ in found}) == 1
    assert [sequence for _, _, sequence in found] == list(range(40))


def test_mistakes_of_an_operator_spend_no_token(tmp_path: Path) -> None:
    """Each mistake gives one clear line and the exit code; nothing is created by halves."""
    with enrolling_hub(tmp_path, "--amqp=0.0.0.0:0") as far:
        url = f"amqps://localhost:{far.port('amqps')}"
        token = run_fleet(tmp_path, "token", "create")
        code, said = init_gateway(tmp_path, f"amqps://localhost:{free_port()}", token)
        assert (code, "does not answer" in said) == (3, True), said
        https = f"amqps://localhost:{far.port('https')}"
        code, said = init_gateway(tmp_path, https, token)
        assert (code, "does not speak AMQP" in said) == (1, True), said
        for wrong in ((url.replace("amqps", "amqp"), token), (url, "wpt1.x"), (url, token[:-3])):
            assert init_gateway(tmp_path, *wrong)[0] == 2
        other = EnrolmentToken.parse(token)._replace(authority=b"x" * 32).text
        code, said = init_gateway(tmp_path, url, other)
        assert (code, "not the hub of this token" in said) == (1, True), said
        code, said = init_gateway(tmp_path, url.replace("localhost", "127.0.0.2"), token)
        assert (code, "IP address mismatch" in said) == (1, True), said
        assert not (tmp_path / "hall").exists()
        assert init_gateway(tmp_path, url, token)[0] == 0, "none of that has spent it"
        code, said = init_gateway(tmp_path, url, token, name="second")
        assert (code, "used by another gateway" in said) == (1, True), said
        code, said = init_gateway(tmp_path / "elsewhere", url, run_fleet(tmp_path, "token", "create"))
        assert (code, "--gateway hall" in said) == (1, True), said
        revoked = run_fleet(tmp_path, "token", "create")
        run_fleet(tmp_path, "token", "revoke", EnrolmentToken.parse(revoked).id)
        code, said = init_gateway(tmp_path, url, revoked, name="third")
        assert (code, "was revoked" in said) == (1, True), said
        assert not (tmp_path / "second").exists()
        assert token.split(".")[2] not in (tmp_path / "hub.log").read_text()


def test_a_hundred_gateways_enrol_at_once(tmp_path: Path) -> None:
    """A hundred gateways enrol at the same time, each with its token."""
    with enrolling_hub(tmp_path) as far:
        tokens = [
            EnrolmentToken.parse(text) for text in run_fleet(tmp_path, "token", "create", "--count", "100").split()
        ]
        exchange = HubEnrolmentClient(ListenEndpoint("localhost", far.port("amqps")), WAIT_S)

        def come(number: int) -> str:
            data = tmp_path / f"gw{number}"
            data.mkdir()
            enrolled = enrol(data, exchange, tokens[number], f"gw{number}")
            return enrolled.issued.gateway

        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(come, range(100))) == [f"gw{number}" for number in range(100)]
    listed = items_in(run_fleet(tmp_path, "list", "--json"))
    assert sorted(each["gateway"] for each in listed) == sorted(f"gw{number}" for number in range(100))
    states = {each["state"] for each in items_in(run_fleet(tmp_path, "token", "list", "--json"))}
    assert states == {"spent"}


def at(clock: Clock, *words: str) -> str:
    """Run a command with this clock; return its output."""
    done = run_program(*words, environment=clock.environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def serial(data: Path) -> int:
    return x509.load_pem_x509_certificate(identity_file(data).read_bytes()).serial_number


def test_certificate_is_renewed_during_traffic_and_replaced_after_expiry(tmp_path: Path) -> None:
    """Clocks advance, first the gateway's. The link survives the renewal, and the store survives a new enrolment."""
    data, port = tmp_path / "hall", free_port()
    with Clock(tmp_path, synchronized=True) as clock, enrolling_hub(tmp_path, amqps=port) as far:
        url = f"amqps://localhost:{port}"
        assert init_gateway(tmp_path, url, run_fleet(tmp_path, "token", "create"))[0] == 0
        first = serial(data)
        near = gateway_at(data)
        near.environment = clock.environment
        with near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(10)
            wait_until(lambda: len(landed(tmp_path)) == 10, timeout_s=WAIT_S, what="10 in the lake")
            assert serial(data) == first
            clock.set(70 * DAY_S, synchronized=True)
            wait_until(lambda: serial(data) != first, timeout_s=CHECK_INTERVAL_S_MAX + WAIT_S, what="it is renewed")
            device.send(10)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            assert (tmp_path / "hub.log").read_text().count("gateway hall connected") == 1, "the link stood"
            assert far.stop() == 0
            clock.set(200 * DAY_S, synchronized=True)
            far.environment = clock.environment
            far.start()
            device.send(10)
            wait_until(
                lambda: "has expired" in (tmp_path / "hub.log").read_text(), timeout_s=WAIT_S, what="it has ended"
            )
            assert operator_uplink(near)["state"] == "connecting"
            token = at(clock, "token", "create", "--gateway", "hall", "--data", str(tmp_path / "hub"))
            at(clock, "enrol", "--data", str(data), "--token", token)
            wait_until(lambda: len(landed(tmp_path)) == 30, timeout_s=WAIT_S, what="30 in the lake")
            device.close()
    found = landed(tmp_path)
    assert len({epoch for _, epoch, _ in found}) == 1
    assert [sequence for _, _, sequence in found] == list(range(30))


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """Start a hub for the tests of this file that need one; yield (folder, amqps port, https port)."""
    folder = tmp_path_factory.mktemp("enrolled")
    with enrolling_hub(folder) as far:
        code, said = init_gateway(
            folder, f"amqps://localhost:{far.port('amqps')}", run_fleet(folder, "token", "create")
        )
        assert code == 0, said
        yield folder, far.port("amqps"), far.port("https")  # type: ignore[misc]


def authority_of(folder: Path) -> str:
    return (folder / "hub" / "authority" / "ca.pem").read_text()


class TestRenewal:
    def test_renewal_works_over_either_port(self, enrolled: tuple[Path, int, int]) -> None:
        folder, *ports = enrolled
        file = identity_file(folder / "hall")
        context = trusting(authority_of(folder))
        context.load_cert_chain(file, file)
        for port in ports:
            request = RenewalRequest(signing_request(new_key()))
            issued = HubEnrolmentClient(ListenEndpoint("localhost", port)).ask(RENEWAL_PATH, request, context)
            assert (issued.tenant, issued.gateway) == ("default", "hall")

    def test_renewal_without_a_certificate_is_refused(self, enrolled: tuple[Path, int, int]) -> None:
        folder, port, _ = enrolled
        request = RenewalRequest(signing_request(new_key()))
        with pytest.raises(NotIssued) as refused:
            HubEnrolmentClient(ListenEndpoint("localhost", port)).ask(
                RENEWAL_PATH, request, trusting(authority_of(folder))
            )
        assert refused.value.reason == "no-certificate"


class TestDoors:
    def test_certificate_of_a_gateway_is_no_login(self, enrolled: tuple[Path, int, int]) -> None:
        folder, *ports = enrolled
        file = identity_file(folder / "hall")
        context = trusting(authority_of(folder))
        context.load_cert_chain(file, file)
        context.set_alpn_protocols(["http/1.1"])
        for port in ports:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"https://localhost:{port}/api/v1/status", context=context, timeout=WAIT_S)
            with refused.value:
                assert refused.value.code == 401

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token_id": 1}', b"\xff", b"x" * 100_000])
    def test_malformed_requests_are_refused(self, enrolled: tuple[Path, int, int], body: bytes) -> None:
        folder, _, port = enrolled
        connection = http.client.HTTPSConnection(
            "localhost", port, context=trusting(authority_of(folder)), timeout=WAIT_S
        )
        connection.request("POST", "/enrolment/certificate", body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert json.loads(answer.read())["reason"] == "malformed"
        connection.close()


def shown_at(port: int) -> str:
    """Return the hub's current certificate as PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=WAIT_S)


class Impostor:
    """Attacker with the key of a hub's certificate, on the hub's port; runs in a thread."""

    def __init__(self, port: int, stolen: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(stolen, stolen)
        self.handshakes = 0
        self.heard: list[bytes] = []
        """Bytes received after a handshake."""
        self._context = context
        self._listening = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.settimeout(5.0)
            self.handshakes += 1
            with contextlib.suppress(OSError), self._context.wrap_socket(connection, server_side=True) as secure:
                self.heard.append(secure.recv(4096))

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def test_stolen_key_of_the_hub_is_refused_after_revocation(tmp_path: Path) -> None:
    """The hub replaces its certificate while links are open; gateways with the new list reject the stolen one."""
    port = free_port()
    data, stolen, log = tmp_path / "hall", tmp_path / "stolen.pem", tmp_path / "hall.log"
    with enrolling_hub(tmp_path, amqps=port) as running:
        assert init_gateway(tmp_path, f"amqps://localhost:{port}", run_fleet(tmp_path, "token", "create"))[0] == 0
        assert identity_file(data).with_name(REVOKED).exists(), "it is fetched while a gateway enrols"
        with gateway_at(data) as gateway:
            wait_until(lambda: operator_uplink(gateway)["state"] == "connected", timeout_s=WAIT_S, what="the link")
            stolen.write_bytes((tmp_path / "hub" / "authority" / "server.pem").read_bytes())
            before = shown_at(port)
            assert "revoked; the hub creates another certificate" in run_fleet(tmp_path, "hub", "revoke-certificate")
            wait_until(lambda: shown_at(port) != before, timeout_s=WAIT_S, what="another certificate")
            assert operator_uplink(gateway)["state"] == "connected"
            assert log.read_text().count("connected to waypost-hub") == 1, "a link that stands goes on"
        listed = items_in(run_fleet(tmp_path, "list", "--json"))
        assert [each["gateway"] for each in listed] == ["hall"], "the hub is no gateway"
        fetch(data, HubEnrolmentClient(ListenEndpoint("localhost", port)))
        assert running.stop() == 0
    with Impostor(port, stolen) as impostor, gateway_at(data) as gateway:
        reason = "certificate verify failed: certificate revoked; nothing is sent to this peer"
        wait_until(
            lambda: reason in (operator_uplink(gateway)["last_error"] or ""), timeout_s=WAIT_S, what="the reason"
        )
    assert impostor.handshakes
    assert not any(impostor.heard)
