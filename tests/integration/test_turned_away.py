"""A gateway at its connection limit refuses the next client in the terms of the client's protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import ConnectionException
from proton.utils import BlockingConnection

from edge.broker.limits import TURNED_AWAY_MAX, TURNED_AWAY_S
from edge.broker.listeners.refusals import NO_ROOM
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets
from tests.support.configured_gateway import gateway_with
from tests.support.hostile import WAIT_S, Raw
from tests.support.processes import Waypost, wait_until

ROOM = 3
RESOURCES = f"""
apiVersion: waypost/v1
kind: Gateway
metadata: {{name: small}}
spec:
  listeners: {{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0"}}
  limits: {{connectionsMax: {ROOM}, handshakeS: 120}}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {{name: default}}
spec: {{authenticationService: {{name: AUTHENTICATION}}}}
---
apiVersion: user.enmasse.io/v1beta1
kind: MessagingUser
metadata: {{name: default.first}}
spec:
  username: first
  authentication: {{type: password, password: c2VjcmV0LXNlY3JldA==}}
  authorization: [{{operations: [send, recv], addresses: ["#"]}}]
"""


def small(folder: Path, authentication: str) -> Waypost:
    return gateway_with(folder, RESOURCES.replace("AUTHENTICATION", authentication))


@pytest.fixture(scope="module", params=["none", "standard"])
def full(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Waypost]:
    """Gateway with all connections taken by idle clients that have authenticated."""
    with small(tmp_path_factory.mktemp("small"), request.param) as gateway, contextlib.ExitStack() as stack:
        for i in range(ROOM):
            client = stack.enter_context(Raw(gateway))
            client.connect(f"first-{i}", username="first", password=b"secret-secret")
        yield gateway


@pytest.mark.parametrize("version", [3, 4, 5])
def test_mqtt_client_above_the_connection_limit_is_refused(full: Waypost, version: int) -> None:
    """CONNACK with 0x97 and a reason, or return code 3 [MQTT-3.1.4-2]; then the connection ends."""
    with Raw(full, version) as client:
        client.send(packets.Connect("late", version, username="x", password=b"y"), packets.PingReq())
        answer = client.receive()
        assert isinstance(answer, packets.ConnAck)
        assert answer.reason is (R.QUOTA_EXCEEDED if version == 5 else R.SERVER_UNAVAILABLE)
        assert answer.properties.reason_string == (NO_ROOM if version == 5 else None)
        assert client.receive() is None


@pytest.mark.parametrize("user", [None, "joe"])
def test_amqp_client_above_the_connection_limit_is_refused(full: Waypost, user: str | None) -> None:
    """An independent client reads amqp:resource-limit-exceeded in the close."""
    host = f"127.0.0.1:{full.port('amqp')}"
    password = "secret" if user else None
    with pytest.raises(ConnectionException, match=f"amqp:resource-limit-exceeded.*{NO_ROOM}"):
        BlockingConnection(host, timeout=WAIT_S, user=user, password=password, allow_insecure_mechs=True)


def test_closed_connection_makes_room_for_another(tmp_path: Path) -> None:
    def accepts() -> bool:
        with Raw(gateway, 5) as client:
            answer = client.send(packets.Connect("later", 5)).receive()
            return isinstance(answer, packets.ConnAck) and answer.reason is R.SUCCESS

    with small(tmp_path, "none") as gateway:
        with contextlib.ExitStack() as stack:
            for i in range(ROOM):
                stack.enter_context(Raw(gateway).connect(f"first-{i}"))
            assert not accepts()
        wait_until(accepts, timeout_s=WAIT_S, what="room")


def test_silent_sockets_do_not_keep_clients_out(tmp_path: Path) -> None:
    """The oldest silent socket gives way, even before its handshake time-out."""
    with small(tmp_path, "none") as gateway, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Raw(gateway)) for _ in range(ROOM)]
        stack.enter_context(Raw(gateway, 5).connect("late"))
        assert silent[0].receive() is None, "the oldest is closed"


def test_number_and_time_of_refusals_is_limited(full: Waypost) -> None:
    """Beyond the second limit connections close without an answer; a silent client keeps no other waiting."""
    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        flood = [stack.enter_context(Raw(full)) for _ in range(TURNED_AWAY_MAX + 40)]
        assert all(client.receive() is None for client in flood[TURNED_AWAY_MAX:])
        assert time.monotonic() - begin < 0.9 * TURNED_AWAY_S, "closed at once"
        assert all(client.receive() is None for client in flood)
        assert TURNED_AWAY_S / 2 < time.monotonic() - begin < TURNED_AWAY_S + WAIT_S / 2, "waited for, and not for long"
