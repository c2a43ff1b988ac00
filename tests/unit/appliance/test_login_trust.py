"""Trust of `waypost login` in a server that no authority of this machine has signed."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bridge.enrolment import AUTHORITY_PATH
from edge.appliance.main import run
from edge.output.errors import Exit
from edge.remote import contexts
from edge.remote.contexts import Context, Contexts
from edge.remote.session import UnknownCertificate, trusted
from edge.remote.trust import fingerprint
from tests.support.certificates import Authority


class ShownAuthority:
    """A server with a certificate of an authority, which shows any text as its authority."""

    def __init__(self, authority: Authority) -> None:
        shown = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = shown.text.encode() if self.path == AUTHORITY_PATH else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.text = ""
        self.server = HTTPServer(("127.0.0.1", 0), Answers)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued = authority.issue("server")
        context.load_cert_chain(issued.certificate, issued.key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("evil"), "evil")


@pytest.fixture(scope="module")
def server(evil: Authority) -> Iterator[ShownAuthority]:
    made = ShownAuthority(evil)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an authority with padding at the end of its Base64. A lenient decoder stops there."""
    while True:
        text = Path(Authority(tmp_path_factory.mktemp("real"), "real").certificate).read_text()
        if base64.b64encode(ssl.PEM_cert_to_DER_cert(text)).endswith(b"="):
            return text


def found(server: ShownAuthority, shown: str) -> UnknownCertificate:
    server.text = shown
    unknown = trusted(Context(url=server.url), None)
    assert isinstance(unknown, UnknownCertificate)
    return unknown


def test_authority_of_the_server_is_accepted_and_nothing_around_it(server: ShownAuthority, evil: Authority) -> None:
    own = Path(evil.certificate).read_text()
    unknown = found(server, f"{own}more words\n")
    assert (unknown.what, unknown.context.ca, unknown.context.certificate) == ("authority", own, "")
    assert unknown.fingerprint == fingerprint(own)


@pytest.mark.parametrize("evil_first", [False, True])
def test_another_authority_next_to_the_real_one_is_not_accepted(
    server: ShownAuthority, evil: Authority, real: str, evil_first: bool
) -> None:
    """An attacker in between shows the public certificate of the hub, and one of his own."""
    own = Path(evil.certificate).read_text()
    unknown = found(server, own + real if evil_first else real + own)
    assert (unknown.what, unknown.context.ca) == ("certificate", "")
    assert unknown.fingerprint not in (fingerprint(real), fingerprint(own))


def test_fingerprint_is_of_one_certificate(evil: Authority, real: str) -> None:
    with pytest.raises(ValueError, match=r"one.*2"):
        fingerprint(real + Path(evil.certificate).read_text())
    with pytest.raises(ValueError, match="PEM"):
        fingerprint("words")


@pytest.mark.parametrize("kept", ["certificate", "ca"])
def test_changed_certificate_is_reported_as_such(
    server: ShownAuthority,
    real: str,
    kept: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    server.text = ""
    assert run(["login", server.url]) == Exit.UNREACHABLE
    assert "error[certificate-not-trusted]" in capsys.readouterr().err
    contexts.write(Contexts("hall", {"hall": Context(url=server.url, **{kept: real})}))
    for words in ([], [server.url], [server.url, "--name", "other"]):
        assert run(["login", *words]) == Exit.UNREACHABLE
        error = capsys.readouterr().err
        assert "error[certificate-changed]" in error
        assert "not the accepted one" in error
