"""A gateway with bearer tokens of a real issuer, over every protocol; it disconnects when they expire."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, SyncRequestResponse

from bridge.engine import Closed, PeerOpened
from bridge.sasl import bearer
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets as p
from tests.conformance.mqtt.runner import Client
from tests.conformance.mqtt.socket_target import SocketLink
from tests.support.amqp_client import detached_with
from tests.support.bearer import SCOPE, resources_with, until_closed
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import ask
from tests.support.issuer import SigningKey, TestIssuer
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until

WAIT_S = 20.0


class Site:
    def __init__(self, issuer: TestIssuer, gateway: Waypost) -> None:
        self.issuer, self.gateway = issuer, gateway

    @property
    def amqp(self) -> str:
        return f"amqp://127.0.0.1:{self.gateway.port('amqp')}"

    def mqtt(self) -> Client:
        return Client(SocketLink(("127.0.0.1", self.gateway.port("mqtt"))), 5, [])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tokens")
    with TestIssuer(SigningKey("k1", "RS256")) as issuer, gateway_with(folder, resources_with(issuer)) as gateway:
        yield Site(issuer, gateway)


def block(token: str) -> Properties:
    return Properties(authentication_method=bearer.MECHANISM, authentication_data=bearer.message(token))


class TestMqtt:
    @pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
    def test_token_is_accepted_as_password(self, site: Site, version: int) -> None:
        paho_client = paho.Client(CallbackAPIVersion.VERSION2, f"tok{version}", protocol=version)
        paho_client.username_pw_set("token", site.issuer.token("ann", SCOPE))
        with PahoClient(paho_client).connect(site.gateway.port("mqtt")) as client:
            assert client.code == 0
            client.subscribe("up/#")
            client.publish("up/1", b"hello")
            assert client.take().payload == b"hello"

    def test_token_is_renewed_by_auth_and_its_expiry_ends_the_connection(self, site: Site) -> None:
        client = site.mqtt()
        client.link.send(p.Connect("mq", 5, properties=block(site.issuer.token("ann", SCOPE, 6.0))).encode())
        assert client.next().reason is R.SUCCESS  # type: ignore[union-attr]
        began = time.monotonic()
        renewed = site.issuer.token("ann", "recv:up/#", 9.0)
        client.link.send(p.Auth(R.RE_AUTHENTICATE, block(renewed)).encode(5))
        answer = client.next()
        assert isinstance(answer, p.Auth)
        assert answer.reason is R.SUCCESS
        client.link.send(p.Publish("up/1", b"x", 1, packet_id=1).encode(5))
        assert client.next().reason is R.NOT_AUTHORIZED  # type: ignore[union-attr]
        goodbye = next((packet for _ in range(4) if (packet := client.next()) is not None), None)
        assert isinstance(goodbye, p.Disconnect)
        assert goodbye.reason is R.MAXIMUM_CONNECT_TIME
        assert 7.0 < time.monotonic() - began < 20.0
        client.link.drop()

    @pytest.mark.parametrize("fault", ["expired", "audience", "stranger", "none"])
    def test_invalid_token_is_refused(self, site: Site, fault: str) -> None:
        token = {
            "expired": site.issuer.token("ann", SCOPE, -1.0),
            "audience": site.issuer.token("ann", SCOPE, aud="other"),
            "stranger": SigningKey("k1", "RS256").token(site.issuer.claims("ann", SCOPE)),
            "none": "x",
        }[fault]
        client = site.mqtt()
        client.link.send(p.Connect("bad", 5, properties=block(token)).encode())
        assert client.next().reason is R.BAD_USER_NAME_OR_PASSWORD  # type: ignore[union-attr]
        client.link.drop()


def opened(site: Site, token: str, older_as: str | None = None) -> tuple[list[Any], str | None]:
    """See `until_closed`."""
    with socket.create_connection(("127.0.0.1", site.gateway.port("amqp")), WAIT_S) as connection:
        return until_closed(connection, token, older_as=older_as)


def opened_until_expiry(site: Site, older_as: str | None = None) -> tuple[list[Any], str | None]:
    """Open with a token that expires soon; with a longer life if a busy machine used it too late."""
    for life_s in (2.0, 5.0, 12.0):
        found, failure = opened(site, site.issuer.token("ann", SCOPE, life_s), older_as)
        if failure is None:
            break
    return found, failure


class TestAmqp:
    def test_expired_token_of_oauthbearer_ends_the_connection(self, site: Site) -> None:
        found, failure = opened_until_expiry(site)
        assert failure is None
        assert any(isinstance(event, PeerOpened) for event in found)
        (closed,) = [event for event in found if isinstance(event, Closed)]
        assert closed.condition.name == "amqp:unauthorized-access"
        assert "expired" in closed.condition.description

    def test_invalid_token_of_oauthbearer_is_refused(self, site: Site) -> None:
        found, failure = opened(site, site.issuer.token("ann", SCOPE, aud="other"))
        assert "refused our credentials (SASL outcome 1)" in str(failure)
        assert not any(isinstance(event, PeerOpened) for event in found)

    @pytest.mark.parametrize("user", ["ann", ""])
    def test_token_is_accepted_by_xoauth2(self, site: Site, user: str) -> None:
        found, failure = opened_until_expiry(site, user)
        assert failure is None
        assert any(isinstance(event, PeerOpened) for event in found)

    @pytest.mark.parametrize(("user", "claims"), [("bob", {}), ("ann", {"aud": "other"})])
    def test_invalid_token_of_xoauth2_is_refused(self, site: Site, user: str, claims: dict[str, str]) -> None:
        found, failure = opened(site, site.issuer.token("ann", SCOPE, **claims), older_as=user)
        assert "refused our credentials (SASL outcome 1)" in str(failure)
        assert not any(isinstance(event, PeerOpened) for event in found)

    def test_token_is_accepted_as_password_of_plain(self, site: Site) -> None:
        token = site.issuer.token("ann", SCOPE)
        connection = BlockingConnection(
            site.amqp, timeout=WAIT_S, user="token", password=token, allowed_mechs="PLAIN", allow_insecure_mechs=True
        )
        connection.create_sender("jobs").send(Message(body="one"))
        receiver = connection.create_receiver("jobs", credit=1)
        assert receiver.receive(WAIT_S).body == "one"
        receiver.accept()
        connection.close()

    def test_put_token_gives_and_withdraws_rights(self, site: Site) -> None:
        connection = BlockingConnection(site.amqp, timeout=WAIT_S, allowed_mechs="ANONYMOUS")
        with detached_with("amqp:unauthorized-access"):
            connection.create_sender("jobs")
        tokens = SyncRequestResponse(connection, "$cbs")

        def put(token: str) -> int:
            answer = tokens.call(Message(properties={"operation": "put-token", "type": "jwt"}, body=token))
            return int(answer.properties["status-code"])

        assert put(site.issuer.token("ann", SCOPE, -1.0)) == 401
        assert put(site.issuer.token("ann", SCOPE, 60.0)) == 202
        sender = connection.create_sender("jobs")
        sender.send(Message(body="two"))
        assert put(site.issuer.token("bob", SCOPE, 60.0)) == 401  # the connection belongs to ann
        assert put(site.issuer.token("ann", "recv:jobs", 6.0)) == 202
        with detached_with("amqp:unauthorized-access"):  # a link without the right is detached
            sender.send(Message(body="three"), timeout=WAIT_S)
        with pytest.raises(ConnectionException, match="expired"):
            connection.wait(lambda: False, timeout=WAIT_S)
        connection.close()


class TestHttp:
    def ask(self, site: Site, token: str | None) -> tuple[int, str | None]:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        answer = ask(site.gateway, "POST", "/t/up/http", b"x", headers)
        return answer.status, answer.headers.get("www-authenticate")

    def test_bearer_token_decides_rights(self, site: Site) -> None:
        assert self.ask(site, site.issuer.token("ann", SCOPE))[0] == 202
        assert self.ask(site, site.issuer.token("ann", "recv:up/#"))[0] == 403
        assert self.ask(site, "x") == (401, 'Bearer realm="waypost", Basic realm="waypost", charset="UTF-8"')
        assert self.ask(site, None) == (401, 'Bearer realm="waypost", Basic realm="waypost", charset="UTF-8"')


def test_rotated_keys_reach_a_running_gateway(site: Site) -> None:
    site.issuer.keys.append(SigningKey("k2"))

    def let_in() -> bool:
        client = site.mqtt()
        client.link.send(p.Connect("rot", 5, properties=block(site.issuer.token("ann", SCOPE))).encode())
        answer = client.next()
        client.link.drop()
        return isinstance(answer, p.ConnAck) and answer.reason is R.SUCCESS

    wait_until(let_in, timeout_s=WAIT_S, what="a token signed with the new key is taken", every_s=1.0)
