"""Clients and refusals of a running gateway, with clients of other projects: Mosquitto, Paho, Proton."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, ConnectionClosed, LinkDetached

from edge.appliance.clients.activity import GAPS_MIN
from edge.appliance.main import run
from edge.broker.limits import REFUSAL_TIMES_MAX
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from tests.support import configured_gateway as gateways
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, wait_until

mosquitto = pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
RESOURCES = gateways.resources(
    gateways.address("jobs", "jobs", "queue"),
    gateways.user("alice", "send, recv", '"plant/#", jobs'),
    gateways.user("boss", "view, manage"),
)
BOSS = gateways.basic("boss", "boss")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Waypost]:
    with gateways.gateway_with(tmp_path, RESOURCES) as running:
        yield running


def data_of(gateway: Waypost) -> str:
    return gateway.arguments[gateway.arguments.index("--data") + 1]


def get(gateway: Waypost, path: str) -> Any:
    answer = ask(gateway, "GET", path, headers=BOSS)
    assert answer.status == 200, answer.body
    return answer.document


def refusals(gateway: Waypost, query: str = "") -> list[tuple[str, str, str, str, int]]:
    found = get(gateway, f"/api/v1/refusals{query}")["refusals"]
    return [(each["reason"], each["user"], each["client"], each["address"], each["count"]) for each in found]


def wait_for(gateway: Waypost, *wanted: tuple[str, str, str, str, int]) -> None:
    wait_until(lambda: set(wanted) <= set(refusals(gateway)), timeout_s=20, what=f"{wanted}")


def blocking(gateway: Waypost, user: str, password: str) -> BlockingConnection:
    return BlockingConnection(
        f"amqp://127.0.0.1:{gateway.port('amqp')}", timeout=20, user=user, password=password, allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )  # fmt: skip


class TestRefusals:
    @mosquitto
    def test_a_login_with_mosquitto(self, gateway: Waypost, capsys: pytest.CaptureFixture[str]) -> None:
        call = ["mosquitto_pub", "-p", str(gateway.port("mqtt")), "-i", "m1", "-t", "plant/a", "-m", "x"]
        for user, password in (("alice", "wrong"), ("pump8", "x")):
            for _ in range(REFUSAL_TIMES_MAX):
                done = subprocess.run([*call, "-u", user, "-P", password], capture_output=True, timeout=20, check=False)
                assert done.returncode
        wait_for(
            gateway,
            ("wrong-password", "alice", "m1", "", REFUSAL_TIMES_MAX),
            ("unknown-user", "pump8", "m1", "", REFUSAL_TIMES_MAX),
        )
        (entry,) = get(gateway, "/api/v1/refusals?q=pump8")["refusals"]
        assert entry["remote"] == "127.0.0.1"
        problems = [each for each in get(gateway, "/api/v1/status")["problems"] if each["name"] == "device refused"]
        assert sorted(each["what"].split(" ")[0] for each in problems) == ["alice", "pump8"]
        assert run(["client", "refusals", "--data", data_of(gateway), "-q", "pump8"]) == 0
        shown = capsys.readouterr().out
        assert "pump8 from 127.0.0.1 as client m1: unknown-user, 5 times" in shown
        assert "waypost user add pump8" in shown
        assert run(["client", "refusals", "--data", data_of(gateway), "--limit", "1", "--json"]) == 0
        page = json.loads(capsys.readouterr().out)
        assert (len(page["items"]), page["total"]) == (1, 2)

    def test_an_answer_does_not_tell_an_unknown_user_from_a_wrong_password(self, gateway: Waypost) -> None:
        answers = []
        for user in ("alice", "pump8"):
            with Raw(gateway, 5) as client:
                client.send(packets.Connect("c", 5, username=user, password=b"wrong"))
                answers.append(client.receive())
        assert answers[0] == answers[1]
        wait_for(gateway, ("wrong-password", "alice", "c", "", 1), ("unknown-user", "pump8", "c", "", 1))

    def test_rights_over_mqtt(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("c", username="alice", password=b"alice") as client:
            client.subscribe("secret/#")
            client.send(packets.Publish("secret/a", b"x", qos=1, packet_id=1))
            assert client.receive() is not None
        wait_for(
            gateway,
            ("not-allowed-to-receive", "alice", "c", "secret/#", 1),
            ("not-allowed-to-send", "alice", "c", "secret/a", 1),
        )

    def test_logins_and_rights_over_amqp(self, gateway: Waypost) -> None:
        with pytest.raises(ConnectionException):
            blocking(gateway, "alice", "wrong")
        connection = blocking(gateway, "alice", "alice")
        with pytest.raises(LinkDetached):
            connection.create_sender("secret/a")
        with pytest.raises(LinkDetached):
            connection.create_receiver("secret/b")
        container = connection.container.container_id
        connection.close()
        wait_for(
            gateway,
            ("wrong-password", "alice", "", "", 1),
            ("not-allowed-to-send", "alice", container, "secret/a", 1),
            ("not-allowed-to-receive", "alice", container, "secret/b", 1),
        )

    def test_logins_and_rights_over_http(self, gateway: Waypost) -> None:
        assert ask(gateway, "POST", "/t/secret/a", b"x", gateways.basic("alice", "alice")).status == 403
        assert ask(gateway, "GET", "/c/secret/b", headers=gateways.basic("alice", "alice")).status == 403
        assert ask(gateway, "GET", "/c/jobs", headers=gateways.basic("alice", "wrong")).status == 401
        wait_for(
            gateway,
            ("not-allowed-to-send", "alice", "", "secret/a", 1),
            ("not-allowed-to-receive", "alice", "", "secret/b", 1),
            ("wrong-password", "alice", "", "", 1),
        )

    def test_violations_of_the_protocol_and_wrong_ports(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("c", username="alice", password=b"alice") as client:
            client.send(b"\xf0\x00")  # AUTH without a method
            client.receive()
        with Raw(gateway, 4) as client:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            client.receive()
        wait_for(gateway, ("protocol-error", "alice", "c", "", 1), ("wrong-port", "", "", "", 1))

    def test_the_metric_counts_by_reason(self, gateway: Waypost) -> None:
        assert ask(gateway, "GET", "/c/jobs", headers=gateways.basic("alice", "wrong")).status == 401
        body = ask(gateway, "GET", "/metrics", headers=BOSS).body.decode()
        assert 'waypost_refused_total{reason="wrong-password"} 1.0' in body

    def test_only_users_who_may_view_see_them(self, gateway: Waypost) -> None:
        assert ask(gateway, "GET", "/api/v1/refusals").status == 401
        assert ask(gateway, "GET", "/api/v1/refusals", headers=gateways.basic("alice", "alice")).status == 403
        for query in ("limit=0", "limit=501", "limit=x", "after=x"):
            assert ask(gateway, "GET", f"/api/v1/refusals?{query}", headers=BOSS).status == 400


def clients(gateway: Waypost, query: str = "") -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in get(gateway, f"/api/v1/clients{query}")["clients"]}


def client_command(gateway: Waypost, *words: str, code: int = 0) -> int:
    assert run(["client", *words, "--data", data_of(gateway)]) == code
    return code


ALICE: dict[str, Any] = {"username": "alice", "password": b"alice"}
KEPT = Properties(session_expiry_interval_s=600)


class TestList:
    def test_clients_of_each_protocol(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("kept", **ALICE, properties=KEPT) as gone:
            gone.subscribe("plant/#", qos=1)
        connection = blocking(gateway, "alice", "alice")
        sender, receiver = connection.create_sender("plant/b"), connection.create_receiver("jobs")
        with Raw(gateway, 4).connect("m4", **ALICE) as reader, Raw(gateway, 5).connect("m5", **ALICE) as writer:
            reader.subscribe("plant/+")
            for number in range(1, 4):
                writer.send(packets.Publish("plant/a", b"x", qos=1, packet_id=number))
                assert isinstance(writer.receive(), packets.PubAck)
            sender.send(Message(body="x"))
            for _ in range(4):
                assert isinstance(reader.receive(), packets.Publish)
            found = clients(gateway)
            container = connection.container.container_id
            assert set(found) == {"kept", "m4", "m5", container}
            assert [found[each]["protocol"] for each in ("m4", "m5", container)] == ["MQTT 3.1.1", "MQTT 5", "AMQP 1.0"]
            assert {each["user"] for each in found.values()} == {"alice"}
            assert (found["m5"]["in"], found["m5"]["out"]) == (3, 0)
            assert (found["m4"]["in"], found["m4"]["out"], found["m4"]["subscriptions"]) == (0, 4, 1)
            assert (found[container]["in"], found[container]["subscriptions"]) == (1, 1)
            assert found["m5"]["remote"].startswith("127.0.0.1:")
            assert found["m5"]["last_at"] >= found["m5"]["connected_at"]
            assert (found["kept"]["state"], found["kept"]["queued"], found["kept"]["connected_at"]) == (
                "absent",
                4,
                None,
            )
            assert list(clients(gateway, "?state=absent")) == ["kept"]
            assert list(clients(gateway, "?sort=in&limit=1")) == ["m5"]
            assert list(clients(gateway, "?sort=out&limit=1")) == ["m4"]
            assert list(clients(gateway, "?sort=queued&limit=1")) == ["kept"]
            assert set(clients(gateway, "?q=alice&state=connected")) == {"m4", "m5", container}
            assert list(clients(gateway, "?q=m5")) == ["m5"]
        receiver.close()
        connection.close()

    def test_a_device_that_polls(self, gateway: Waypost) -> None:
        alice = gateways.basic("alice", "alice")
        with ThreadPoolExecutor(1) as threads:
            polled = threads.submit(ask, gateway, "GET", "/c/jobs?wait=20&settle=auto", None, alice)
            wait_until(lambda: "alice" in clients(gateway), timeout_s=20, what="the poll is listed")
            assert clients(gateway)["alice"]["protocol"] == "HTTP"
            assert ask(gateway, "DELETE", "/api/v1/clients/alice", headers=BOSS).status == 409
            assert ask(gateway, "POST", "/t/jobs", b"x", alice).status == 202
            assert polled.result(20).status == 200
        assert clients(gateway) == {}

    def test_pages(self, gateway: Waypost) -> None:
        open_ones = [Raw(gateway, 4).connect(f"c{number}", **ALICE) for number in range(5)]
        for sort, last in (("name", "c4"), ("in", "c4"), ("last", "c4")):
            names, after = list[str](), ""
            while True:
                page = get(gateway, f"/api/v1/clients?limit=2&sort={sort}{after}")
                names += [each["name"] for each in page["clients"]]
                assert page["total"] == 5
                if page["next"] is None:
                    break
                after = f"&after={page['next']}"
            assert names == [f"c{number}" for number in range(5)], sort
            assert names[-1] == last
        for query in ("sort=size", "state=odd", "after=x", "limit=501"):
            assert ask(gateway, "GET", f"/api/v1/clients?{query}", headers=BOSS).status == 400
        name_position = get(gateway, "/api/v1/clients?limit=2")["next"]
        assert ask(gateway, "GET", f"/api/v1/clients?sort=in&after={name_position}", headers=BOSS).status == 400
        for client in open_ones:
            client.socket.close()

    def test_the_command(self, gateway: Waypost, capsys: pytest.CaptureFixture[str]) -> None:
        hostile = "evil\x1b[2J/#+\u202e"
        with Raw(gateway, 5).connect(hostile, **ALICE) as client:
            client.subscribe("plant/#")
            client_command(gateway, "list")
            shown = capsys.readouterr().out
            assert "\x1b" not in shown
            assert "evil\\x1b[2J/#+\\u202e" in shown
            assert all(len(text) <= 80 for text in shown.splitlines())
            client_command(gateway, "show", hostile)
            shown = capsys.readouterr().out
            assert "plant/# (QoS 0)" in shown
            assert "recv,send:plant/#" in shown
            client_command(gateway, "list", "--json", "-q", "evil")
            assert json.loads(capsys.readouterr().out)["total"] == 1
        assert run(["client", "show", "nobody", "--data", data_of(gateway)]) == 1
        assert "client nobody not found" in capsys.readouterr().err


class TestSilence:
    def silent(self, gateway: Waypost) -> list[str]:
        problems = get(gateway, "/api/v1/status")["problems"]
        return [each["what"] for each in problems if each["name"] == "device silent"]

    @pytest.mark.timeout(180)
    def test_a_device_that_stops_to_send(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("pump7", **ALICE, keep_alive_s=60) as client:
            sent_at = 0.0
            for _ in range(GAPS_MIN + 2):  # each when the gateway has noted the one before
                client.send(packets.Publish("plant/a", b"x"))
                wait_until(
                    lambda before=sent_at: (get(gateway, "/api/v1/clients/pump7")["last_at"] or 0) > before + 0.25,  # type: ignore[misc]
                    timeout_s=20,
                    what="the message is noted",
                )
                sent_at = get(gateway, "/api/v1/clients/pump7")["last_at"]
            wait_until(lambda: self.silent(gateway), timeout_s=60, what="the silence is a notice")
            assert self.silent(gateway)[0].startswith("pump7: no message since ")
            detail = get(gateway, "/api/v1/clients/pump7")
            assert (detail["state"], detail["user"]) == ("silent", "alice")
            assert 1 <= detail["usual_interval_s"] < 20
            assert list(clients(gateway, "?state=silent")) == ["pump7"]
            client.send(packets.Publish("plant/a", b"x"))
            wait_until(lambda: not self.silent(gateway), timeout_s=20, what="it sends again")


def attach_until_closed(connection: BlockingConnection) -> None:
    """Attach links; a connection that is being closed refuses them."""
    while True:
        with contextlib.suppress(LinkDetached):
            connection.create_sender("jobs")


class TestDisconnect:
    @pytest.mark.parametrize("version", [4, 5])
    def test_an_mqtt_client(self, gateway: Waypost, version: int) -> None:
        properties = {"properties": KEPT} if version == 5 else {"clean_start": False}
        with Raw(gateway, version).connect("c", **ALICE, **properties) as client:
            client_command(gateway, "disconnect", "c")
            answer = client.receive()
            if version == 5:
                assert isinstance(answer, packets.Disconnect)
                assert answer.reason == ReasonCode.ADMINISTRATIVE_ACTION
            else:
                assert answer is None
        wait_until(lambda: clients(gateway)["c"]["state"] == "absent", timeout_s=20, what="its session is kept")
        with Raw(gateway, version).connect("c", **ALICE, **properties) as client:
            client_command(gateway, "disconnect", "c", "--end-session")
            client.receive()
        wait_until(lambda: not clients(gateway), timeout_s=20, what="its session has ended")
        for session in ("keep", "end"):
            audit = f"audit: user=operator from=127.0.0.1 DELETE /api/v1/clients/c?session={session} -> 200"
            wait_until(lambda text=audit: text in gateway.log.read_text(), timeout_s=20, what=audit)  # type: ignore[misc]

    def test_the_session_of_an_absent_client(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("c", **ALICE, properties=KEPT) as client:
            client.subscribe("plant/#", qos=1)
        wait_until(lambda: clients(gateway)["c"]["state"] == "absent", timeout_s=20, what="it is absent")
        client_command(gateway, "disconnect", "c")
        assert list(clients(gateway)) == ["c"]
        client_command(gateway, "disconnect", "c", "--end-session")
        wait_until(lambda: not clients(gateway), timeout_s=20, what="its session has ended")

    def test_an_amqp_client(self, gateway: Waypost) -> None:
        connection = blocking(gateway, "alice", "alice")
        container = connection.container.container_id
        assert ask(gateway, "DELETE", f"/api/v1/clients/{container}?session=end", headers=BOSS).status == 400
        client_command(gateway, "disconnect", container)
        with pytest.raises(ConnectionClosed, match="amqp:connection:forced"):
            attach_until_closed(connection)

    def test_a_name_of_several_clients(self, gateway: Waypost) -> None:
        connection = blocking(gateway, "alice", "alice")
        container = connection.container.container_id
        with Raw(gateway, 5).connect(container, **ALICE):
            answer = ask(gateway, "DELETE", f"/api/v1/clients/{container}", headers=BOSS)
            assert answer.status == 409
            assert f"mqtt/{container}" in answer.document["error"]
            assert ask(gateway, "DELETE", f"/api/v1/clients/mqtt/{container}", headers=BOSS).status == 200
        connection.close()

    def test_it_needs_the_right_to_manage(self, gateway: Waypost) -> None:
        with Raw(gateway, 5).connect("c", **ALICE) as client:
            for headers, status in (({}, 401), (gateways.basic("alice", "alice"), 403)):
                assert ask(gateway, "DELETE", "/api/v1/clients/c", headers=headers).status == status
            assert ask(gateway, "DELETE", "/api/v1/clients/other", headers=BOSS).status == 404
            client.send(packets.PingReq())
            assert isinstance(client.receive(), packets.PingResp)
