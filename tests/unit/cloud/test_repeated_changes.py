"""Lost answers to changes at a hub's console: what was made is listed, and a repeat cannot undo it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from edge.appliance.main import run
from edge.output.errors import Exit


class HubStub:
    """Console of a hub with version 3 wanted on each gateway. Changes of `silent` ones are done without an answer."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.requests: list[tuple[str, dict[str, list[str]], str | None]] = []
        """Changes: last part of the path that is a name, query, and idempotency key."""
        hub = self

        class Console(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                name = parts.path.removeprefix("/api/v1/").removeprefix("configurations/").removesuffix("/rollback")
                hub.requests.append((name, parse_qs(parts.query), self.headers["Idempotency-Key"]))
                if name not in hub.silent:
                    back = {"gateway": name, "version": 4, "repeats": 1, "why": "it was good", "made": True}
                    self._answer({**back, "gateways": [{"gateway": "hall", "version": 4}]})

            def _answer(self, document: object) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(msgspec.json.encode(document))

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Console)

    def run(self, *words: str) -> int:
        """Run a command at the hub; return its exit code."""
        return run([*words, "--hub", f"http://127.0.0.1:{self.server.server_address[1]}"])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStub]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    stub = HubStub()
    thread = threading.Thread(target=stub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    stub.server.shutdown()
    thread.join()
    stub.server.server_close()


def test_lost_answer_of_a_rollback_lists_what_was_made_and_can_be_repeated(
    hub: HubStub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.silent = {"yard"}
    assert hub.run("config", "rollback", "hall", "yard", "shed") == Exit.UNREACHABLE
    assert [name for name, _, _ in hub.requests] == ["hall", "yard"]
    printed = capsys.readouterr()
    assert printed.out == "hall: version 4, back to version 1: it was good\n"
    assert "error[outcome-unknown]" in printed.err
    assert "repeat it for yard: a gateway that has gone back stays there" in printed.err


def test_configuration_of_several_gateways_is_one_request(hub: HubStub, tmp_path: Path) -> None:
    file = tmp_path / "address.yaml"
    file.write_text(
        "{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs}, spec: {address: jobs, type: queue}}\n"
    )
    assert hub.run("config", "apply", "-f", str(file), "hall", "store-*") == 0
    [(name, query, _)] = hub.requests
    assert (name, query["gateways"]) == ("configurations", ["hall,store-*"])


def test_lost_answer_of_a_command_names_its_key(hub: HubStub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.silent = {"commands"}
    assert hub.run("command", "send", "lamp@hall", "on") == Exit.UNREACHABLE
    [(_, _, key)] = hub.requests
    assert key is not None
    assert f"repeat it with --idempotency-key {key}: it is then sent once" in capsys.readouterr().err
