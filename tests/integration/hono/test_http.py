"""Devices made for Hono's HTTP adapter: Python's own HTTP client, and curl as in Hono's manual."""

from __future__ import annotations

import base64
import http.client
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from edge.broker.hono.limits import TTD_S_MAX
from tests.support import http_client
from tests.support.hono import TENANT, WAIT_S, Application, HonoDevice, flush, site
from tests.support.http_client import Answer
from tests.support.http_fields import INERT
from tests.support.processes import Waypost
from tests.support.programs import curl

JSON = {"Content-Type": "application/json"}


def ask(
    gateway: Waypost, method: str, path: str, body: bytes, headers: dict[str, str], auth_id: str | None = "sensor1"
) -> Answer:
    """Send a request as a device of the tenant; without `auth_id` it has no credentials."""
    if auth_id is not None:
        told = base64.b64encode(f"{auth_id}@{TENANT}:{auth_id}-secret".encode()).decode()
        headers = {"Authorization": f"Basic {told}", **headers}
    return http_client.ask(gateway, method, path, body, headers)


class TestPublish:
    """`/telemetry` and `/event`."""

    @pytest.mark.parametrize("qos", ["0", "1"])
    def test_telemetry(self, gateway: Waypost, application: Application, qos: str) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        assert ask(gateway, "POST", "/telemetry", b'{"temp": 5}', {**JSON, "qos-level": qos}).status == 202
        message = receiver.receive(WAIT_S)
        assert message.properties == {"device_id": "4711", "orig_adapter": "hono-http", "orig_address": "/telemetry"}
        assert (bytes(message.body), message.content_type) == (b'{"temp": 5}', "application/json")
        assert abs(message.creation_time - time.time()) < 60

    def test_event_is_on_disk_when_it_is_accepted(self, tmp_path: Path) -> None:
        with site(tmp_path) as gateway:
            assert ask(gateway, "POST", "/event?hono-ttl=600", b'{"alarm": 1}', JSON).status == 202
            gateway.kill()
        with gateway, Application(gateway) as application:
            message = application.receiver(f"event/{TENANT}").receive(WAIT_S)
            assert (bytes(message.body), message.properties["device_id"]) == (b'{"alarm": 1}', "4711")
            assert 500 < message.ttl <= 600

    @pytest.mark.parametrize("path", [f"/telemetry/{TENANT}/4712", "/telemetry//4712"])
    def test_gateway_publishes_for_a_device(self, gateway: Waypost, application: Application, path: str) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        assert ask(gateway, "PUT", path, b"x", {}, "gw").status == 202
        assert receiver.receive(WAIT_S).properties["device_id"] == "4712"

    @curl
    def test_curl_publishes_as_in_the_manual(self, gateway: Waypost) -> None:
        url = f"http://127.0.0.1:{gateway.port('http')}/telemetry"
        command = ["curl", "-si", "-u", f"sensor1@{TENANT}:sensor1-secret", "-H", "content-type: application/json"]
        done = subprocess.run(
            [*command, "--data-binary", '{"temp": 5}', url], capture_output=True, text=True, check=True, timeout=WAIT_S
        )
        assert done.stdout.startswith("HTTP/1.1 202")

    @pytest.mark.parametrize(
        ("method", "path", "body", "headers", "user", "status"),
        [
            ("PUT", "/telemetry//4711", b"x", {}, "gw", 403),
            ("PUT", "/telemetry//not-there", b"x", {}, "gw", 403),
            ("PUT", "/event//not-there", b"x", {}, "gw", 403),
            ("PUT", "/telemetry/OTHER/4712", b"x", {}, "gw", 403),
            ("PUT", "/telemetry/a/b/c", b"x", {}, "gw", 400),
            ("POST", "/telemetry", b"", {}, "sensor1", 400),
            ("POST", "/telemetry", b"x", {"qos-level": "2"}, "sensor1", 400),
            ("POST", "/telemetry", b"x", {"hono-ttd": "soon"}, "sensor1", 400),
            ("POST", "/event", b"x", {"hono-ttl": "-1"}, "sensor1", 400),
            ("POST", "/event", b"x", {}, "broken", 404),
            ("POST", "/event", b"x", {}, None, 401),
            ("POST", "/command/res/forged?hono-cmd-status=200", b"x", {}, "sensor1", 400),
            ("POST", "/command/res/forged", b"x", {}, "sensor1", 400),
        ],
    )
    def test_invalid_requests_are_refused(
        self,
        gateway: Waypost,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        user: str | None,
        status: int,
    ) -> None:
        answer = ask(gateway, method, path, body, headers, user)
        assert (answer.status, b"error" in answer.body) == (status, True)


class TestCommands:
    """`hono-ttd`, and responses."""

    def test_command_arrives_in_the_answer(self, gateway: Waypost, application: Application) -> None:
        answers: list[Answer] = []
        device = threading.Thread(
            target=lambda: answers.append(ask(gateway, "POST", "/event?hono-ttd=15", b"{}", JSON))
        )
        device.start()
        application.until_ttd_of_message("4711", 15)
        replies = application.receiver(f"command_response/{TENANT}/app")
        application.command("4711", "set", b'{"brightness": 87}', reply="app", correlation="c-1")
        device.join(WAIT_S)
        (answer,) = answers
        assert (answer.status, answer.body, answer.headers["hono-command"]) == (200, b'{"brightness": 87}', "set")
        assert answer.headers.items() >= INERT.items()
        request = answer.headers["hono-cmd-req-id"]
        responding = threading.Thread(
            target=lambda: answers.append(ask(gateway, "POST", f"/command/res/{request}?hono-cmd-status=204", b"", {}))
        )
        responding.start()
        message = replies.receive(WAIT_S)
        replies.accept()
        flush(application.connection)
        responding.join(WAIT_S)
        assert answers[1].status == 202
        assert (message.correlation_id, message.properties["status"]) == ("c-1", 204)

    def test_pending_command_is_answered_at_once(self, gateway: Waypost, application: Application) -> None:
        application.command("lamp", "on", b"")
        answer = ask(gateway, "POST", "/telemetry", b"x", {"hono-ttd": "15"}, "gw")
        assert (answer.status, answer.headers["hono-command"]) == (200, "on")
        assert answer.headers["hono-cmd-target-device"] == "lamp"
        assert "hono-cmd-req-id" not in answer.headers

    def test_wait_for_a_command_is_limited(self, gateway: Waypost, application: Application) -> None:
        answers: list[Answer] = []
        device = threading.Thread(
            target=lambda: answers.append(ask(gateway, "POST", f"/event?hono-ttd={TTD_S_MAX + 1}", b"{}", JSON))
        )
        device.start()
        application.until_ttd_of_message("4711", TTD_S_MAX)
        application.command("4711", "enough", b"")
        device.join(WAIT_S)
        assert answers[0].headers["hono-command"] == "enough"

    def test_answer_without_a_command_comes_in_time(self, gateway: Waypost) -> None:
        started = time.monotonic()
        assert ask(gateway, "POST", "/telemetry", b"x", {"hono-ttd": "1"}).status == 202
        assert time.monotonic() - started >= 1

    def test_command_survives_a_device_that_disconnects(self, gateway: Waypost, application: Application) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port("http"), timeout=WAIT_S)
        told = base64.b64encode(f"sensor1@{TENANT}:sensor1-secret".encode()).decode()
        headers = {"Authorization": f"Basic {told}", "hono-ttd": "30"}
        connection.request("POST", "/event", b"leaving", headers)
        application.until_ttd_of_message("4711", 30)
        connection.close()
        application.command("4711", "on", b"kept")
        with HonoDevice(gateway, "sensor1") as device:
            device.subscribe("c///q/#", 1)
            assert device.received.get(timeout=WAIT_S).payload == b"kept"

    def test_command_survives_a_lost_answer(self, gateway: Waypost, application: Application) -> None:
        """The device resets the connection after the first bytes of the answer."""
        payload = b"x" * 3_000_000
        told = base64.b64encode(f"sensor1@{TENANT}:sensor1-secret".encode()).decode()
        device = socket.socket()
        device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        device.settimeout(WAIT_S)
        device.connect(("127.0.0.1", gateway.port("http")))
        head = f"POST /event HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {told}\r\nhono-ttd: 20\r\n"
        device.sendall(f"{head}content-type: text/plain\r\nContent-Length: 1\r\n\r\nx".encode())
        application.until_ttd_of_message("4711", 20)
        application.command("4711", "large", payload)
        assert device.recv(200).startswith(b"HTTP/1.1 200")
        device.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        device.close()
        answer = ask(gateway, "POST", "/event?hono-ttd=20", b"x", JSON)
        assert (answer.status, answer.headers["hono-command"], answer.body) == (200, "large", payload)


class TestNobodyAsked:
    """An address space without authentication, as Hono's adapters with it switched off."""

    def test_devices_name_themselves(self, tmp_path: Path) -> None:
        with site(tmp_path, authentication="none") as gateway, Application(gateway, None) as application:
            receiver = application.receiver(f"telemetry/{TENANT}")
            assert ask(gateway, "PUT", f"/telemetry/{TENANT}/77", b"http", {}, None).status == 202
            assert receiver.receive(WAIT_S).properties["device_id"] == "77"
            assert ask(gateway, "POST", "/telemetry", b"x", {}, None).status == 401
            with HonoDevice(gateway, None) as device:
                device.publish(f"t/{TENANT}/78", b"mqtt", 1)
                assert receiver.receive(WAIT_S).properties["device_id"] == "78"
                device.publish("t/elsewhere/78", b"an address as any other", 1)
                device.subscribe(f"c/{TENANT}/78/q/#", 1)
                application.command("78", "on", b"go")
                message = device.received.get(timeout=WAIT_S)
                assert (message.topic, message.payload) == (f"c/{TENANT}/78/q//on", b"go")
            with HonoDevice(gateway, "sensor1") as device:
                device.publish("t", b"by name", 1)
                assert receiver.receive(WAIT_S).properties["device_id"] == "4711"


class TestWebPages:
    """Pages of other origins (CORS), where the address space lists them."""

    PAGE = "https://page.example"
    PREFLIGHT: ClassVar = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,hono-ttd",
    }

    def test_listed_page_sends_telemetry_and_reads_commands(self, tmp_path: Path) -> None:
        with site(tmp_path, device_api=f', corsAllowedOrigins: ["{self.PAGE}"]') as gateway:
            asked = ask(gateway, "OPTIONS", "/telemetry", b"", self.PREFLIGHT, auth_id=None)
            assert asked.status == 200
            assert asked.headers["access-control-allow-origin"] == self.PAGE
            assert "hono-ttd" in asked.headers["access-control-allow-headers"]
            with Application(gateway) as application:
                receiver = application.receiver(f"telemetry/{TENANT}")
                sent = ask(gateway, "POST", "/telemetry", b"{}", {**JSON, "Origin": self.PAGE, "qos-level": "1"})
                assert sent.status == 202
                assert sent.headers["access-control-allow-origin"] == self.PAGE
                assert "hono-command" in sent.headers["access-control-expose-headers"]
                assert bytes(receiver.receive(WAIT_S).body) == b"{}"
            foreign = ask(
                gateway, "OPTIONS", "/event", b"", {**self.PREFLIGHT, "Origin": "https://other.example"}, None
            )
            assert foreign.status == 403
            assert ask(gateway, "OPTIONS", "/telemetry", b"", {}, auth_id=None).status == 204, (
                "no preflight, no message"
            )

    def test_unlisted_page_is_refused(self, gateway: Waypost) -> None:
        asked = ask(gateway, "OPTIONS", "/telemetry", b"", self.PREFLIGHT, auth_id=None)
        assert asked.status == 403
        assert "access-control-allow-origin" not in asked.headers
