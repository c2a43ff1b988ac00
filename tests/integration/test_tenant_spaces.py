"""Several address spaces at a gateway, with independent clients: Paho and Proton."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException, Message, ProtonException, SSLDomain
from proton.utils import BlockingConnection

from tests.support.certificates import Authority
from tests.support.command import document_of, output_of
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until

WAIT_S = 20.0
REFUSED = 0x86
FULL = 0x97
QUOTA_BYTES = 1_000_000


def user(space: str, name: str, password: str) -> str:
    belongs = f"addressSpace: {space}, " if space else ""
    secret = base64.b64encode(password.encode()).decode()
    return f"""
kind: MessagingUser
apiVersion: waypost/v1
metadata: {{name: {space or "own"}.{name}}}
spec: {{{belongs}username: {name}, authentication: {{type: password, password: {secret}}},
  authorization: [{{operations: [send, recv]}}]}}
"""


def tenant(name: str, hosts: Sequence[str]) -> str:
    return f"""
kind: TenantSpace
apiVersion: waypost/v1
metadata: {{name: {name}}}
spec: {{hosts: [{", ".join(hosts)}], quota: {{bytes: {QUOTA_BYTES}}}}}
---
kind: Address
apiVersion: waypost/v1
metadata: {{name: {name}.jobs}}
spec: {{addressSpace: {name}, address: jobs, type: queue}}
---
{user(name, "alice", f"{name}-secret")}
"""


def gateway(pki: Path) -> str:
    return f"""
kind: Gateway
apiVersion: waypost/v1
metadata: {{name: gw1}}
spec:
  listeners:
    mqtt: 127.0.0.1:0
    mqtts: 127.0.0.1:0
    amqp: 127.0.0.1:0
    amqps: 127.0.0.1:0
    http: 127.0.0.1:0
    tls: {{certificate: {pki}/gw.pem, key: {pki}/gw.key, clientCa: {pki}/ca.pem}}
---
kind: AddressSpace
apiVersion: waypost/v1
metadata: {{name: default}}
spec: {{authenticationService: {{name: standard}}, quota: {{bytes: {QUOTA_BYTES}}}}}
---
kind: Address
apiVersion: waypost/v1
metadata: {{name: jobs}}
spec: {{address: jobs, type: queue}}
---
{user("", "alice", "own-secret")}
"""


ACME, UMBRELLA = tenant("acme", ["acme", "acme.example.org"]), tenant("umbrella", ["umbrella"])


class Site:
    """A gateway with two further spaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "gw"
        self.authority = Authority(folder / "pki")
        self.authority.issue("gw")
        self.apply(gateway(self.authority.folder), ACME, UMBRELLA)
        self.waypost = Waypost(folder / "gw.log", "run", "--data", str(self.data))

    def apply(self, *documents: str) -> None:
        file = self.folder / "resources.yaml"
        file.write_text("---\n".join(documents))
        output_of("apply", "--data", str(self.data), "-f", str(file))

    def delete(self, space: str) -> None:
        for kind, name in (("MessagingUser", f"{space}.alice"), ("Address", f"{space}.jobs"), ("TenantSpace", space)):
            output_of("delete", kind, name, "--data", str(self.data))

    def status(self) -> Any:
        return document_of("status", "--data", str(self.data))

    def stored(self, space: str) -> int:
        status = self.status()
        found: int = status["store"]["messages"] if space == "own" else status["spaces"][space]["stored_messages"]
        return found

    def take(self, space: str, count: int = 1) -> list[Any]:
        """Consume messages of the queue of a space, and wait until its store has none."""
        connection = connect(self, "alice" if space == "own" else f"alice@{space}", f"{space}-secret")
        receiver = connection.create_receiver("jobs", credit=count)
        bodies = []
        for _ in range(count):
            message = receiver.receive(WAIT_S)
            body = message.body
            bodies.append(bytes(body) if isinstance(body, memoryview | bytes) else body)
            receiver.accept()
        connection.close()
        wait_until(lambda: self.stored(space) == 0, timeout_s=WAIT_S, what=f"{space} is empty")
        return bodies

    def problems(self) -> list[str]:
        return [each["name"] for each in self.status()["problems"]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    (folder := tmp_path_factory.mktemp("spaces") / "pki").mkdir()
    made = Site(folder.parent)
    with made.waypost:
        yield made


class SpaceClient(PahoClient):
    """MQTT client of a user, over TLS with this server name."""

    def __init__(
        self,
        site: Site,
        username: str,
        password: str,
        *,
        client_id: str = "device",
        server_name: str = "",
        certificate: str = "",
        version: int = 5,
    ) -> None:
        super().__init__(paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version))  # type: ignore[arg-type]
        if username:
            self.client.username_pw_set(username, password)
        if server_name or certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate:
                issued = site.authority.issue(certificate)
                context.load_cert_chain(issued.certificate, issued.key)
            if server_name:
                wrap = context.wrap_socket
                context.wrap_socket = lambda sock, **more: wrap(sock, **{**more, "server_hostname": server_name})  # type: ignore[method-assign]
            self.client.tls_set_context(context)
            self.client.tls_insecure_set(True)
            self.connect(site.waypost.port("mqtts"))
        else:
            self.connect(site.waypost.port("mqtt"))


def own(site: Site, **more: Any) -> SpaceClient:
    return SpaceClient(site, "alice", "own-secret", **more)


def by_user_name(site: Site, **more: Any) -> SpaceClient:
    return SpaceClient(site, "alice@acme", "acme-secret", **more)


def by_server_name(site: Site, **more: Any) -> SpaceClient:
    return SpaceClient(site, "alice", "acme-secret", server_name="acme.example.org", **more)


def in_umbrella(site: Site, **more: Any) -> SpaceClient:
    return SpaceClient(site, "alice@Umbrella", "umbrella-secret", **more)


@pytest.mark.parametrize("join", [by_user_name, by_server_name])
def test_same_client_id_topic_and_retained_message_in_each_space(site: Site, join: Callable[..., SpaceClient]) -> None:
    with own(site) as first, join(site) as second, in_umbrella(site) as third:
        assert [each.code for each in (first, second, third)] == [0, 0, 0]
        clients = {b"own": first, b"acme": second, b"umbrella": third}
        for name, client in clients.items():
            client.publish("state", name, retain=True)
        for name, client in clients.items():
            client.subscribe("#")
            assert client.take().payload == name
            client.publish("plant/temp", name)
            assert client.take().payload == name
        assert first.ended.empty()  # the session of another space is another one
        assert all(client.received.empty() for client in clients.values())


@pytest.mark.parametrize(
    ("username", "password", "server_name"),
    [
        ("alice", "acme-secret", ""),  # a user of acme in the own space
        ("alice@acme", "own-secret", ""),
        ("alice@acme", "umbrella-secret", ""),
        ("alice@nowhere", "own-secret", ""),  # no such space
        ("alice@acme", "wrong", ""),
        ("mallory@acme", "acme-secret", ""),
        ("alice", "own-secret", "acme"),
        ("alice@umbrella", "umbrella-secret", "acme"),  # the server name counts
        ("alice@acme@umbrella", "acme-secret", ""),
        ("@acme", "acme-secret", ""),
    ],
)
def test_no_name_leads_into_another_space(site: Site, username: str, password: str, server_name: str) -> None:
    with SpaceClient(site, username, password, server_name=server_name, client_id="intruder") as client:
        assert client.code == REFUSED  # the same for an unknown space, an unknown user and a wrong password


def test_certificate_is_of_the_own_space_only(site: Site) -> None:
    with SpaceClient(site, "", "", certificate="alice", client_id="certified") as client:
        assert client.code == 0
    with SpaceClient(site, "", "", certificate="alice", server_name="acme", client_id="certified") as client:
        assert client.code == REFUSED


def test_certificate_does_not_lead_from_another_host_into_the_own_space(site: Site) -> None:
    issued, domain = site.authority.issue("alice"), SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_peer_authentication(SSLDomain.ANONYMOUS_PEER)
    domain.set_credentials(str(issued.certificate), str(issued.key), None)
    url = f"amqps://127.0.0.1:{site.waypost.port('amqps')}"
    more = {"ssl_domain": domain, "allowed_mechs": "EXTERNAL"}
    BlockingConnection(url, WAIT_S, virtual_host="gateway", **more).close()
    with pytest.raises(ProtonException):
        BlockingConnection(url, WAIT_S, virtual_host="acme", **more)


def connect(site: Site, username: str, password: str, **more: Any) -> BlockingConnection:
    url = f"127.0.0.1:{site.waypost.port('amqp')}"
    return BlockingConnection(
        url, WAIT_S, user=username, password=password, allowed_mechs="PLAIN", allow_insecure_mechs=True, **more
    )


def test_queues_of_the_same_name(site: Site) -> None:
    users = {"own": "alice", "acme": "alice@acme", "umbrella": "alice@umbrella"}
    for name, username in users.items():
        connection = connect(site, username, f"{name}-secret")
        connection.create_sender("jobs").send(Message(body=name))
        connection.close()
    assert {name: site.take(name) for name in users} == {name: [name] for name in users}


@pytest.mark.parametrize(
    ("username", "secret"), [("alice", "acme"), ("alice@acme", "own"), ("alice@nowhere", "own"), ("bob@acme", "acme")]
)
def test_amqp_refuses_users_of_other_spaces(site: Site, username: str, secret: str) -> None:
    with pytest.raises(ConnectionException, match="uthentication"):
        connect(site, username, f"{secret}-secret")


def connect_to_host(site: Site, host: str, password: str) -> BlockingConnection:
    """Log in as alice over TLS with this server name."""
    url, domain = f"amqps://127.0.0.1:{site.waypost.port('amqps')}", SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_peer_authentication(SSLDomain.ANONYMOUS_PEER)
    more = {"ssl_domain": domain, "allowed_mechs": "PLAIN", "virtual_host": host}
    return BlockingConnection(url, WAIT_S, user="alice", password=password, **more)


def test_server_name_of_tls_chooses_the_space(site: Site) -> None:
    sent = connect_to_host(site, "umbrella", "umbrella-secret")
    sent.create_sender("jobs").send(Message(body="by host"))
    sent.close()
    assert site.take("umbrella") == ["by host"]
    with pytest.raises(ConnectionException, match="uthentication"):
        connect_to_host(site, "umbrella", "own-secret")


def test_full_space_refuses_only_itself(site: Site) -> None:
    with by_user_name(site, client_id="filler") as filler, own(site, client_id="other") as other:
        codes = [filler.publish_code("jobs", bytes(100_000)) for _ in range(12)]
        assert codes[0] == 0
        assert codes[-1] == FULL
        assert other.publish_code("jobs", b"still room") == 0
    stored = codes.count(0)
    wait_until(lambda: site.stored("acme") == stored, timeout_s=WAIT_S, what=f"status of {stored} messages")
    assert not site.stored("umbrella")
    site.take("acme", stored)


def test_removed_space_keeps_its_messages(site: Site) -> None:
    """A change of the configuration never touches stored messages, and never gives them to another space."""
    with by_user_name(site, client_id="last") as client:
        assert client.publish_code("jobs", b"kept") == 0
        site.delete("acme")
        client.ended.get(timeout=WAIT_S)
    wait_until(lambda: "space acme" in site.problems(), timeout_s=WAIT_S, what="problem")
    with SpaceClient(site, "alice@acme", "acme-secret", client_id="late") as late:
        assert late.code == REFUSED
    assert list(site.status()["spaces"]) == ["umbrella"]
    with in_umbrella(site, client_id="unaffected") as other:
        other.publish("jobs", b"mine")
    site.apply(ACME)
    wait_until(lambda: "acme" in site.status()["spaces"], timeout_s=WAIT_S, what="space")
    assert "space acme" not in site.problems()
    assert site.take("acme") == [b"kept"]


def test_spaces_survive_a_kill_each_with_its_own_epoch(site: Site) -> None:
    with by_user_name(site, client_id="durable") as client:
        assert client.publish_code("jobs", b"before") == 0
    before = {name: each["epoch"] for name, each in site.status()["spaces"].items()}
    site.waypost.kill()
    site.waypost.start()
    status = site.status()
    assert {name: each["epoch"] for name, each in status["spaces"].items()} == before
    assert len({status["epoch"], *before.values()}) == 3
    assert site.take("acme") == [b"before"]


def test_broken_store_of_one_space_does_not_stop_the_others(site: Site) -> None:
    site.waypost.stop()
    file = site.data / "spaces" / "umbrella" / "store.sqlite"
    kept = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    site.waypost.start()
    assert "space umbrella" in site.problems()
    with by_user_name(site, client_id="served") as client:
        assert client.code == 0
    with in_umbrella(site, client_id="refused") as refused:
        assert refused.code == REFUSED
    with pytest.raises(ConnectionException, match="uthentication"):  # not into the own space, with its password
        connect_to_host(site, "umbrella", "own-secret")
    with own(site, server_name="umbrella", client_id="fallen") as fallen:
        assert fallen.code == REFUSED
    site.waypost.stop()
    file.write_bytes(kept)
    site.waypost.start()
    assert "umbrella" in site.status()["spaces"]


def test_store_commands_look_into_a_space(site: Site) -> None:
    site.waypost.stop()
    shown = json.loads(output_of("store", "info", "--json", "--data", str(site.data / "spaces" / "acme")))
    assert shown
    site.waypost.start()
