"""HTTP device API of a running gateway, with Python's own HTTP client and with curl."""

from __future__ import annotations

import base64
import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from proton import Message

from tests.support.amqp_client import connect_amqp
from tests.support.http_client import WAIT_S, Answer, ask
from tests.support.http_fields import INERT
from tests.support.paho_client import mqtt_client
from tests.support.processes import Waypost, edge, wait_until
from tests.support.programs import curl


class TestPublish:
    """`POST /t/<address>`."""

    def test_one_message_reaches_a_subscriber(self, gateway: Waypost) -> None:
        with mqtt_client(gateway, "subscriber", version=5) as subscriber:
            subscriber.subscribe("plant/#")
            answer = ask(gateway, "POST", "/t/plant/7/temp?ttl=60", b'{"t": 21}', {"Content-Type": "application/json"})
            assert (answer.status, answer.body) == (202, b"")
            message = subscriber.take()
            assert (message.topic, message.payload, message.qos) == ("plant/7/temp", b'{"t": 21}', 1)
            assert message.properties is not None
            assert message.properties.ContentType == "application/json"
            assert message.properties.MessageExpiryInterval in (59, 60)

    def test_queued_message_survives_a_kill(self, tmp_path: Path) -> None:
        with edge(tmp_path, "killed") as running:
            assert ask(running, "POST", "/t/queue/jobs", b"kept").status == 202
            running.kill()
        with running:
            assert ask(running, "GET", "/c/queue/jobs?settle=auto&wait=10").body == b"kept"

    def test_retain_and_headers_of_hono(self, gateway: Waypost) -> None:
        headers = {"QoS-Level": "0", "hono-ttl": "30"}
        assert ask(gateway, "POST", "/t/topic/kept?retain=true", b"last", headers).status == 202
        with mqtt_client(gateway, "subscriber", version=5) as subscriber:
            subscriber.subscribe("topic/kept")
            message = subscriber.take()
            assert (message.payload, message.retain, message.qos) == (b"last", True, 0)

    def test_proton_receives(self, gateway: Waypost) -> None:
        assert ask(gateway, "POST", "/t/queue/proton", b"hi", {"Content-Type": "text/plain"}).status == 202
        connection = connect_amqp(gateway, timeout_s=WAIT_S)
        receiver = connection.create_receiver("queue/proton")
        message = receiver.receive(WAIT_S)
        receiver.accept()
        assert (bytes(message.body), message.content_type, message.durable) == (b"hi", "text/plain", True)
        connection.close()

    @pytest.mark.parametrize(
        ("path", "headers", "status", "words"),
        [
            ("/t/", {}, 400, "1 to 1024 bytes"),
            ("/t/a/%23", {}, 400, "remove +, # and null"),
            ("/t/%24SYS/x", {}, 400, "belong to the broker"),
            ("/t/a%00b", {}, 400, "remove +, # and null"),
            ("/t/" + "/".join("x" * 200), {}, 400, "levels"),
            ("/t/a?qos=3", {}, 400, "qos is a whole number from 0 to 2"),
            ("/t/a?ttl=soon", {}, 400, "ttl is a whole number"),
            ("/t/a?retain=maybe", {}, 400, "retain is true or false"),
            ("/t/a", {"Content-Type": "x" * 300}, 400, "a content type has up to"),
            ("/t/a", {"Origin": "https://elsewhere.example"}, 403, "pages of other sites"),
            ("/t/a?device=" + "d" * 300, {}, 400, "a device's name"),
            ("/t/anycast/nobody", {}, 503, "no consumer"),
            ("/t/multicast/nobody", {}, 503, "no consumer"),
        ],
    )
    def test_refusals(self, gateway: Waypost, path: str, headers: dict[str, str], status: int, words: str) -> None:
        answer = ask(gateway, "POST", path, b"x", headers)
        assert answer.status == status
        assert words in answer.document["error"]
        assert ("retry-after" in answer.headers) == (status == 503)

    def test_body_above_the_limit_is_refused(self, gateway: Waypost) -> None:
        answer = ask(gateway, "POST", "/t/a", b"x" * (4 * 1024 * 1024 + 1))
        assert answer.status == 413
        assert "at most 4194304 bytes" in answer.document["error"]

    def test_page_of_the_gateway_itself_is_allowed(self, gateway: Waypost) -> None:
        own = f"http://127.0.0.1:{gateway.port('http')}"
        assert ask(gateway, "POST", "/t/a", b"x", {"Origin": own}).status == 202
        assert ask(gateway, "POST", "/t/a", b"x", {"Origin": "http://localhost:3000"}).status == 403

    @curl
    def test_curl_publishes(self, gateway: Waypost) -> None:
        url = f"http://127.0.0.1:{gateway.port('http')}/t/queue/curl"
        command = ["curl", "-sS", "-w", "%{http_code}", "-H", "Transfer-Encoding: chunked", "-d", "from curl", url]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
        assert done.stdout == "202"
        assert ask(gateway, "GET", "/c/queue/curl?settle=auto&wait=10").body == b"from curl"


class TestBatch:
    """`POST /t`."""

    def test_array_is_a_batch(self, gateway: Waypost) -> None:
        items = [
            {"address": "queue/batch", "body": "text"},
            {"address": "queue/batch", "body": {"t": 1}, "ttl": 60},
            {"address": "queue/batch", "base64": base64.b64encode(b"\0\xff").decode()},
        ]
        answer = ask(gateway, "POST", "/t", json.dumps(items).encode(), {"Content-Type": "application/json"})
        assert (answer.status, answer.document) == (202, {"accepted": 3})
        found = [ask(gateway, "GET", "/c/queue/batch?settle=auto&wait=10") for _ in items]
        assert [answer.body for answer in found] == [b"text", b'{"t": 1}', b"\0\xff"]
        assert [answer.headers["content-type"] for answer in found] == [
            "application/octet-stream", "application/json", "application/octet-stream"
        ]  # fmt: skip

    def test_lines_are_a_batch(self, gateway: Waypost) -> None:
        with mqtt_client(gateway, "subscriber", version=5) as subscriber:
            subscriber.subscribe("lines/+")
            lines = b"".join(b'{"address": "lines/%d", "body": %d}\n' % (i % 3, i) for i in range(1000))
            answer = ask(gateway, "POST", "/t", lines, {"Content-Type": "application/x-ndjson"})
            assert (answer.status, answer.document) == (202, {"accepted": 1000})
            assert [int(subscriber.take().payload) for _ in range(1000)] == list(range(1000))

    def test_one_bad_item_refuses_the_batch(self, gateway: Waypost) -> None:
        items = b'[{"address": "queue/none", "body": 1}, {"address": "queue/#", "body": 2}]'
        answer = ask(gateway, "POST", "/t", items, {"Content-Type": "application/json"})
        assert answer.status == 400
        assert answer.document["error"].startswith('item 1: "queue/#" is not an address')
        assert ask(gateway, "GET", "/c/queue/none").status == 204

    def test_answers_in_order(self, gateway: Waypost) -> None:
        items = [{"address": name, "body": 1} for name in ("queue/some", "anycast/nobody", "queue/some")]
        answer = ask(gateway, "POST", "/t", json.dumps(items).encode(), {"Content-Type": "application/json"})
        assert answer.status == 503
        assert answer.document["accepted"] == 2
        assert [result["status"] for result in answer.document["results"]] == [202, 503, 202]


class TestPoll:
    """`GET /c/<address>`."""

    def test_waiting_request_gets_the_next_message(self, gateway: Waypost) -> None:
        answers: queue.Queue[Answer] = queue.Queue()
        waiting = threading.Thread(target=lambda: answers.put(ask(gateway, "GET", "/c/queue/wait?settle=auto&wait=20")))
        polls(gateway, 0)
        waiting.start()
        polls(gateway, 1)
        connection = connect_amqp(gateway, timeout_s=WAIT_S)
        sender = connection.create_sender("queue/wait")
        sender.send(Message(body="reboot", content_type="text/plain", correlation_id="c1", reply_to="answers/7"))
        answer = answers.get(timeout=WAIT_S)
        waiting.join()
        connection.close()
        assert (answer.status, answer.body) == (200, b"reboot")
        assert answer.headers["waypost-address"] == "queue/wait"
        assert answer.headers["waypost-response-address"] == "answers/7"
        assert base64.b64decode(answer.headers["waypost-correlation-data"]) == b"c1"
        assert answer.headers["content-type"] == "text/plain"

    @pytest.mark.parametrize("content_type", ["text/html", "image/svg+xml", "application/xhtml+xml"])
    def test_body_of_a_device_is_not_run_as_a_page(self, gateway: Waypost, content_type: str) -> None:
        """A browser that opens the address runs no script from it (stored cross-site scripting)."""
        script = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
        assert ask(gateway, "POST", "/t/queue/page", script, {"Content-Type": content_type}).status == 202
        answer = ask(gateway, "GET", "/c/queue/page?settle=auto&wait=10")
        assert (answer.body, answer.headers["content-type"]) == (script, content_type)
        assert answer.headers.items() >= INERT.items()

    @pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/api/v1/status", "/c/queue/no", "/nowhere"])
    def test_a_browser_guesses_no_type(self, gateway: Waypost, path: str) -> None:
        """Documents and metrics quote names chosen by devices."""
        answer = ask(gateway, "GET", path)
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_request_without_a_message_is_answered_in_time(self, gateway: Waypost) -> None:
        began = time.monotonic()
        assert ask(gateway, "GET", "/c/queue/empty?settle=auto&wait=1").status == 204
        assert time.monotonic() - began >= 0.9

    def test_disconnected_client_takes_no_message(self, gateway: Waypost) -> None:
        polls(gateway, 0)
        gone = socket.create_connection(("127.0.0.1", gateway.port("http")), WAIT_S)
        gone.sendall(b"GET /c/queue/left?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        polls(gateway, 1)
        gone.close()
        polls(gateway, 0)
        assert ask(gateway, "POST", "/t/queue/left", b"for somebody else").status == 202
        assert ask(gateway, "GET", "/c/queue/left?settle=auto&wait=10").body == b"for somebody else"

    def test_clients_get_each_message_once_and_in_order(self, gateway: Waypost) -> None:
        lines = b"".join(b'{"address": "queue/once", "body": %d}\n' % i for i in range(30))
        assert ask(gateway, "POST", "/t", lines, {"Content-Type": "application/x-ndjson"}).status == 202
        assert [int(ask(gateway, "GET", "/c/queue/once?settle=auto&wait=5").body) for _ in range(30)] == list(range(30))
        assert ask(gateway, "GET", "/c/queue/once").status == 204

    def test_anycast(self, gateway: Waypost) -> None:
        answers: queue.Queue[Answer] = queue.Queue()
        waiting = threading.Thread(target=lambda: answers.put(ask(gateway, "GET", "/c/anycast/a?settle=auto&wait=20")))
        polls(gateway, 0)
        waiting.start()
        polls(gateway, 1)
        assert ask(gateway, "POST", "/t/anycast/a", b"hand to hand").status == 202
        assert answers.get(timeout=WAIT_S).body == b"hand to hand"
        waiting.join()

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "POST", "TRACE"])
    def test_other_methods_take_no_message(self, gateway: Waypost, method: str) -> None:
        """RFC 9110 section 9.2.1: HEAD changes nothing. Starlette answers it wherever it answers GET."""
        address = f"queue/{method.lower()}"
        assert ask(gateway, "POST", f"/t/{address}", b"kept").status == 202
        answer = ask(gateway, method, f"/c/{address}?wait=5")
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
        assert ask(gateway, "GET", f"/c/{address}?settle=auto&wait=10").body == b"kept"

    @pytest.mark.parametrize(
        ("path", "status", "words"),
        [
            ("/c/topic/x", 409, "is a topic"),
            ("/c/queue/x?wait=-1", 400, "wait is a whole number"),
            ("/c/queue/%2B", 400, "remove +, # and null"),
        ],
    )
    def test_refusals(self, gateway: Waypost, path: str, status: int, words: str) -> None:
        answer = ask(gateway, "GET", path)
        assert answer.status == status
        assert words in answer.document["error"]


def polls(gateway: Waypost, count: int) -> None:
    """Wait until this many requests wait for a message.

    A status is cached for a moment: a test that starts a request waits for 0 first, as the one before it may still
    be counted.
    """

    def there() -> bool:
        found: int = ask(gateway, "GET", "/api/v1/status").document["clients"]["http"]
        return found == count

    condition: Callable[[], bool] = there
    wait_until(condition, timeout_s=WAIT_S, what=f"{count} requests waiting")
