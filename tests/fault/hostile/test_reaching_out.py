"""Clients name hosts in every possible field: the gateway dials none of them (server-side request forgery).

A gateway connects only to hosts in its resources, which are written by authorised users. `test_tokens` covers tokens
and their issuers.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message, ProtonException
from proton.utils import SyncRequestResponse

from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.handshake import WillMessage
from tests.fault.hostile.web import ask, send_raw
from tests.support.amqp_client import amqp_client
from tests.support.hostile import Raw
from tests.support.processes import Waypost


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """Listen where no connection may arrive."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        yield listening


def urls(trap: socket.socket) -> list[str]:
    where = f"127.0.0.1:{trap.getsockname()[1]}"
    return [f"{scheme}://{where}/queue" for scheme in ("amqp", "mqtt", "http")] + [where]


def untouched(trap: socket.socket) -> bool:
    try:
        trap.accept()[0].close()
    except TimeoutError:
        return True
    return False


def test_mqtt_makes_gateway_dial_no_host(gateway: Waypost, trap: socket.socket) -> None:
    for number, url in enumerate(urls(trap)):
        will = WillMessage(url, b"x", 1)
        with Raw(gateway, 5).connect(f"reacher-{number}", will=will) as client:
            client.subscribe(f"{url}/#", url)
            answered = Properties(response_topic=url, user_property=(("host", url),))
            client.send(packets.Publish(url, b"x", qos=1, packet_id=1, properties=answered))
            while not isinstance(client.receive(), packets.PubAck):
                pass
    assert untouched(trap)


def test_amqp_makes_gateway_dial_no_host(gateway: Waypost, trap: socket.socket) -> None:
    with amqp_client(gateway) as connection:
        for url in urls(trap):
            with contextlib.suppress(ProtonException):
                connection.create_receiver(url, credit=1, name=f"from {url}")
            with contextlib.suppress(ProtonException):
                connection.create_sender(url, name=f"to {url}").send(Message(address=url, reply_to=url, body="x"))
    assert untouched(trap)


@pytest.mark.parametrize("kind", ["connector", "org.apache.qpid.dispatch.connector", "sslProfile", "autoLink"])
def test_management_makes_no_connector(gateway: Waypost, trap: socket.socket, kind: str) -> None:
    host, port = trap.getsockname()
    body: dict[str, Any] = {"host": host, "port": str(port), "role": "route-container", "url": urls(trap)[0]}
    with amqp_client(gateway) as connection:
        request = Message(properties={"operation": "CREATE", "type": kind, "name": "reach"}, body=body)
        answer = SyncRequestResponse(connection, "$management").call(request)
        assert answer.properties["statusCode"] >= 400
    assert untouched(trap)


def test_http_makes_gateway_dial_no_host(gateway: Waypost, trap: socket.socket) -> None:
    port = gateway.port("http")
    for url in urls(trap):
        ask(port, "POST", f"/t/{url.replace('/', '%2F')}", {"Response-Address": url, "Referer": url}, body=b"x")
        send_raw(
            port,
            f"GET {url} HTTP/1.1\r\nHost: {url.split('/')[-2] if '/' in url else url}\r\n\r\n".encode(),
            timeout_s=0.5,
        )
        send_raw(port, f"CONNECT {url} HTTP/1.1\r\nHost: {url}\r\n\r\n".encode(), timeout_s=0.5)
    assert untouched(trap)
