"""A hub in a network with IPv6 only, and one that listens for both: gateways enrol, messages land, people look."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from pathlib import Path

import pytest

from tests.support.enrolled import enrolling_hub, init_gateway, landed, run_fleet
from tests.support.password_device import PasswordDevice
from tests.support.processes import Waypost, gateway_at, wait_until

WAIT_S = 60.0
MESSAGES = 20


def answers(hub: Waypost, host: str) -> int:
    """Return the status with which a hub answers at an address that people open."""
    connection = http.client.HTTPSConnection(
        host, hub.port("https"), timeout=10, context=ssl._create_unverified_context()
    )
    with contextlib.closing(connection):
        connection.request("GET", "/livez")
        return connection.getresponse().status


def send(folder: Path, url: str) -> None:
    """Enrol a gateway by a URL, and send messages through it until they have landed."""
    code, output = init_gateway(folder, url, run_fleet(folder, "token", "create"))
    assert code == 0, output
    with gateway_at(folder / "hall") as gateway:
        device = PasswordDevice(folder / "hall", gateway.port("mqtt"))
        device.send(MESSAGES)
        wait_until(lambda: len(landed(folder)) == MESSAGES, timeout_s=WAIT_S, what="all messages have landed")
        device.close()


def test_hub_with_ipv6_only(tmp_path: Path) -> None:
    with enrolling_hub(tmp_path, "--amqp=[::1]:0", "--http=[::1]:0", "--name=::1") as hub:
        assert hub.endpoints["amqps"][0] == "[::1]"
        assert answers(hub, "::1") == 200
        with pytest.raises(ConnectionRefusedError):
            answers(hub, "127.0.0.1")
        send(tmp_path, f"amqps://[::1]:{hub.port('amqps')}")


def test_hub_that_listens_for_both(tmp_path: Path) -> None:
    with enrolling_hub(tmp_path, "--amqp=[::]:0", "--http=[::]:0") as hub:
        assert (answers(hub, "::1"), answers(hub, "127.0.0.1")) == (200, 200)
        send(tmp_path, f"amqps://127.0.0.1:{hub.port('amqps')}")
        assert "gateway hall connected from 127.0.0.1" in hub.log.read_text(), "an address of IPv4, not one in IPv6"
