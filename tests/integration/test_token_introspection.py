"""A gateway that asks a real issuer about tokens: ended ones close connections, known ones work without it."""

from __future__ import annotations

from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException
from proton.utils import BlockingConnection

from edge.broker.security.known_tokens import FILE
from edge.broker.security.tokens import digest_of
from tests.support.bearer import SCOPE, resources_with
from tests.support.configured_gateway import gateway_with
from tests.support.http_client import ask
from tests.support.issuer import SigningKey, TestIssuer
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, wait_until

SECRET = "a-s3cret-of-the-node"
ASKING = f", introspection: {{clientId: node, clientSecret: {SECRET}, interval: 1s}}"
WAIT_S = 30.0


def client_of(gateway: Waypost, token: str, name: str = "c1") -> PahoClient:
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    client.username_pw_set("token", token)
    return PahoClient(client).connect(gateway.port("mqtt"))


def posted(gateway: Waypost, token: str) -> int:
    return ask(gateway, "POST", "/t/up/http", b"x", {"Authorization": f"Bearer {token}"}).status


def opened(gateway: Waypost, token: str) -> BlockingConnection:
    url = f"amqp://127.0.0.1:{gateway.port('amqp')}"
    return BlockingConnection(
        url, timeout=WAIT_S, user="token", password=token, allowed_mechs="PLAIN", allow_insecure_mechs=True
    )


def test_ended_token_closes_its_connections_and_opens_none(tmp_path: Path) -> None:
    with TestIssuer(SigningKey("k1", "RS256")) as issuer:
        issuer.introspection_secret = SECRET
        pump, fan = issuer.token("pump", SCOPE, 3_600.0), issuer.token("fan", SCOPE, 3_600.0)
        issuer.opaque_tokens["opaque-token-of-a-valve"] = issuer.claims("valve", SCOPE, 3_600.0)
        text = resources_with(issuer, ASKING)
        with gateway_with(tmp_path, text) as gateway:
            with client_of(gateway, pump) as client, client_of(gateway, "opaque-token-of-a-valve", "v") as valve:
                assert (client.code, valve.code) == (0, 0)
                connection = opened(gateway, pump)
                assert posted(gateway, pump) == 202
                issuer.ended.add(pump)
                wait_until(lambda: not client.client.is_connected(), timeout_s=WAIT_S, what="the end over MQTT")
                with pytest.raises(ConnectionException, match="ended the token"):
                    connection.wait(lambda: False, timeout=WAIT_S)
                assert valve.client.is_connected()
            assert posted(gateway, pump) == 401
            assert posted(gateway, fan) == 202
            digest, file = digest_of(fan.encode()), gateway.data / FILE
            wait_until(lambda: digest in file.read_text(), timeout_s=WAIT_S, what="the file of known tokens")
        issuer.answering = False
        with gateway_with(tmp_path, text) as gateway:
            assert posted(gateway, fan) == 202
            assert posted(gateway, "opaque-token-of-a-valve") == 202
            assert posted(gateway, pump) == 503
            assert posted(gateway, issuer.token("new", SCOPE)) == 503
        written = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.suffix in (".json", ".log"))
        assert fan.encode() not in written
        assert b"opaque-token-of-a-valve" not in written
