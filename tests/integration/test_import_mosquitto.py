"""A gateway with the imported configuration of a Mosquitto broker answers its clients as that broker does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import paho.mqtt.client as paho
import pytest

from tests.support.command import output_of
from tests.support.mosquitto import Listener, Mosquitto, installed
from tests.support.paho_loop import running_loop
from tests.support.processes import Waypost, gateway_at, wait_until

pytestmark = installed
WAIT_S = 30.0
ACL = """user pump7
topic write plant/pump7/#
topic write literal/%u
topic readwrite state/pump7
user person
topic read plant/#
topic readwrite cmd/#
pattern write up/%u
"""
USERS = {"pump7": "one", "person": "two words"}
TOPICS = ("plant/pump7/t", "plant/other", "state/pump7", "cmd/x", "up/pump7", "up/person", "literal/pump7", "else")


class MovedSite(NamedTuple):
    """The broker, the gateway that replaces it, and the peer of its bridge."""

    broker: Mosquitto
    gateway: Waypost
    cloud: Mosquitto


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovedSite]:
    folder = tmp_path_factory.mktemp("moved")
    broker = folder / "broker"
    broker.mkdir()
    with Mosquitto(folder / "cloud").running() as cloud:
        for number, (name, password) in enumerate(USERS.items()):
            command = ["mosquitto_passwd", *(["-c"] if number == 0 else []), "-b", str(broker / "passwd")]
            subprocess.run([*command, name, password], check=True, timeout=WAIT_S, capture_output=True)
        (broker / "passwd").chmod(0o644)
        (broker / "acl").write_text(ACL)
        settings = ("allow_anonymous false", f"password_file {broker}/passwd", f"acl_file {broker}/acl")
        bridge = ("connection cloud", f"address 127.0.0.1:{cloud.port}", 'topic plant/# out 1 "" site9/')
        with Mosquitto(broker, *settings, *bridge).running() as old:
            made = folder / "gw.yaml"
            output_of("import", str(broker / "mosquitto.conf"), "-f", str(made), "--name", "hall")
            made.write_text(made.read_text().replace(f"127.0.0.1:{old.port}", "127.0.0.1:0"))
            output_of("apply", "--data", str(folder / "gw"), "-f", str(made))
            with gateway_at(folder / "gw") as gateway:
                yield MovedSite(old, gateway, cloud)


def published(port: int, user: str, password: str) -> dict[str, bool] | str:
    """Return which topics a user may publish to; the reason when it cannot log in."""
    reasons: dict[int, bool] = {}
    refused: list[str] = []
    connected: list[bool] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"as-{user}", protocol=paho.MQTTv5)
    client.username_pw_set(user, password)
    client.on_connect = lambda *found: (refused if found[3].is_failure else connected).append(found[3].getName())
    client.on_publish = lambda *found: reasons.update({found[2]: not found[3].is_failure})
    client.connect("127.0.0.1", port)
    with running_loop(client):
        wait_until(lambda: bool(refused or connected), timeout_s=WAIT_S, what="an answer to CONNECT")
        if refused:
            return refused[0]
        sent = {topic: client.publish(topic, b"x", 1).mid for topic in TOPICS}
        wait_until(lambda: len(reasons) == len(sent), timeout_s=WAIT_S, what="an answer to each PUBLISH")
    return {topic: reasons[mid] for topic, mid in sent.items()}


@pytest.mark.parametrize("user", [*USERS, "unknown"])
def test_users_keep_password_and_rights(site: MovedSite, user: str) -> None:
    password = USERS.get(user, "x")
    old, new = (published(port, user, password) for port in (site.broker.port, site.gateway.port("mqtt")))
    if user in USERS:
        assert old == new
        assert isinstance(new, dict)
        assert True in new.values()
        assert False in new.values()
        assert isinstance(published(site.gateway.port("mqtt"), user, "wrong"), str)
    else:
        assert isinstance(old, str)
        assert isinstance(new, str)


def test_bridge_goes_on(site: MovedSite) -> None:
    with Listener(site.cloud.port, "site9/plant/pump7/bridged").listening() as listener:
        arguments = ["-p", str(site.gateway.port("mqtt")), "-u", "pump7", "-P", USERS["pump7"], "-q", "1"]
        command = ["mosquitto_pub", *arguments, "-t", "plant/pump7/bridged", "-m", "21"]
        subprocess.run(command, check=True, timeout=WAIT_S)
        wanted = [("site9/plant/pump7/bridged", b"21")]
        wait_until(lambda: listener.messages == wanted, timeout_s=WAIT_S, what="the message at the cloud")
