"""Commands over HTTP with an answer that is cut, stalls or never comes: one clear error, also about a change."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.appliance.main import run
from edge.output.errors import CommandError, Exit
from edge.remote import contexts
from edge.remote.client import ConsoleClient
from edge.remote.contexts import Context, Contexts
from edge.remote.session import sign_in

BUSY = b'HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{"err'
STREAM = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT = b"event: status\ndata: {}\n\n"
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
METHODS = b'{"user":null,"open":false,"methods":["password"]}'
SESSION = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(METHODS), METHODS)

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve bytes, one answer to each connection; it is closed after that, or held open for an answer that stalls."""
    held: list[socket.socket] = []

    def start(*answers: bytes, stalls: bool = False) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        held.append(server)

        def answer() -> None:
            for each in answers:
                connection, _ = server.accept()
                connection.recv(65_536)
                connection.sendall(each)
                if stalls:
                    held.append(connection)
                else:
                    connection.close()

        threading.Thread(target=answer, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for each in held:
        each.close()


@pytest.mark.parametrize("stalls", [False, True], ids=["cut", "stalled"])
def test_error_without_its_end_is_known_by_its_status(serve: Serve, *, stalls: bool) -> None:
    with pytest.raises(CommandError, match="answers 503 Busy") as caught:
        ConsoleClient(serve(BUSY, stalls=stalls)).ask("status", answer_s=0.2)
    assert caught.value.error == "not-available"


def test_stream_that_is_cut_between_two_chunks_is_an_error(serve: Serve) -> None:
    events = ConsoleClient(serve(STREAM + CHUNK)).events("events", 5.0)
    assert next(events).name == "status"
    with pytest.raises(CommandError) as caught:
        next(events)
    assert caught.value.error == "connection-lost"


def test_stream_ends_with_its_last_chunk(serve: Serve) -> None:
    stream = serve(STREAM + CHUNK + b"0\r\n\r\n")
    assert [each.name for each in ConsoleClient(stream).events("events", 5.0)] == ["status"]


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 201 Created\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"], ids=["none", "cut"]
)
def test_change_without_an_answer_may_have_been_done(serve: Serve, answer: bytes) -> None:
    for method, error in (("POST", "outcome-unknown"), ("GET", "unreachable")):
        with pytest.raises(CommandError) as caught:
            ConsoleClient(serve(answer)).ask("configurations", method=method)
        assert (caught.value.error, caught.value.exit_code) == (error, Exit.UNREACHABLE)
        assert ("it may have been done" in caught.value.message) is (method == "POST")


def test_change_that_was_not_sent_was_not_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CommandError) as caught:
        ConsoleClient(f"http://127.0.0.1:{port}").ask("configurations", method="POST")
    assert caught.value.error == "unreachable"


def test_sign_in_with_a_cut_answer_is_one_error(serve: Serve) -> None:
    url = serve(SESSION, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{")
    with pytest.raises(CommandError) as caught:
        sign_in(Context(url=url), "anna", "secret")
    assert caught.value.error == "outcome-unknown"


class TestSignOut:
    @pytest.fixture(autouse=True)
    def home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    @staticmethod
    def sign_out(url: str) -> tuple[int, str]:
        """Return the exit code of `waypost logout`, and the cookie afterwards."""
        contexts.write(Contexts("hall", {"hall": Context(url=url, user="anna", cookie="session=1")}))
        return run(["logout"]), contexts.read().contexts["hall"].cookie

    def test_session_is_kept_while_its_node_is_away(self, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.sign_out(serve(b"")) == (Exit.UNREACHABLE, "session=1")
        assert "hall: the session may still be open, and is kept here" in capsys.readouterr().err

    @pytest.mark.parametrize("status", [b"200 OK", b"401 Unauthorized"])
    def test_session_that_has_ended_is_forgotten(self, serve: Serve, status: bytes) -> None:
        assert self.sign_out(serve(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" % status)) == (
            0,
            "",
        )
