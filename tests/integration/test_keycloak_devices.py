"""Devices show tokens of a real Keycloak, from the realm of the documentation; Keycloak ends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from proton import ConnectionException
from proton.utils import BlockingConnection

from tests.demo.cluster.realm import AUDIENCE, DEVICE, SECRETS, issuer_settings
from tests.support.configured_gateway import gateway_with, resources
from tests.support.http_client import ask
from tests.support.keycloak import TIMEOUT_S, Keycloak
from tests.support.paho_client import PahoClient
from tests.support.processes import Waypost, free_port, wait_until

WAIT_S = 30.0
NOT_AUTHORIZED = 0x87
pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


@pytest.fixture(scope="module")
def keycloak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    with Keycloak(tmp_path_factory.mktemp("keycloak"), [f"http://127.0.0.1:{free_port()}/"]) as keycloak:
        yield keycloak


@pytest.fixture
def gateway(keycloak: Keycloak, tmp_path: Path) -> Iterator[Waypost]:
    asking = {"clientId": AUDIENCE, "clientSecret": SECRETS[AUDIENCE], "interval": "1s"}
    oidc = json.dumps({**issuer_settings(keycloak.url), "introspection": asking})
    text = resources(space=f"authenticationService: {{name: external, oidc: {oidc}}}")
    with gateway_with(tmp_path, text) as gateway:
        yield gateway


def client_of(gateway: Waypost, token: str) -> PahoClient:
    client = paho.Client(CallbackAPIVersion.VERSION2, DEVICE, protocol=paho.MQTTv5)
    client.username_pw_set("token", token)
    return PahoClient(client).connect(gateway.port("mqtt"))


def posted(gateway: Waypost, token: str, address: str) -> int:
    return ask(gateway, "POST", f"/t/{address}", b"x", {"Authorization": f"Bearer {token}"}).status


def opened(gateway: Waypost, token: str) -> BlockingConnection:
    url = f"amqp://127.0.0.1:{gateway.port('amqp')}"
    return BlockingConnection(
        url, timeout=WAIT_S, user="token", password=token, allowed_mechs="PLAIN", allow_insecure_mechs=True
    )


def test_device_has_the_rights_of_its_roles_until_its_token_is_revoked(keycloak: Keycloak, gateway: Waypost) -> None:
    token = keycloak.device_token(DEVICE)
    assert posted(gateway, token, "plant/7/temperature") == 202
    assert posted(gateway, token, "plant/8/temperature") == 403
    with client_of(gateway, token) as device:
        assert device.code == 0
        device.publish("plant/7/pressure", b"1")
        assert device.subscribe("plant/7/#") == [NOT_AUTHORIZED]
        over_amqp = opened(gateway, token)
        keycloak.revoke(DEVICE, token)
        wait_until(lambda: not device.client.is_connected(), timeout_s=WAIT_S, what="the end over MQTT")
        with pytest.raises(ConnectionException, match="ended the token"):
            over_amqp.wait(lambda: False, timeout=WAIT_S)
    assert posted(gateway, token, "plant/7/temperature") == 401


def test_disabled_device_is_disconnected(keycloak: Keycloak, gateway: Waypost) -> None:
    """The last test of the module: Keycloak then gives this client no token."""
    token = keycloak.device_token(DEVICE)
    with client_of(gateway, token) as device:
        assert device.code == 0
        keycloak.disable_client(DEVICE)
        wait_until(lambda: not device.client.is_connected(), timeout_s=WAIT_S, what="the end over MQTT")
    assert posted(gateway, token, "plant/7/temperature") == 401
