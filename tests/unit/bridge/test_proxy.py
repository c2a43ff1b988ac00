"""CONNECT through a proxy (RFC 9110 section 9.3.6), byte by byte."""

from __future__ import annotations

import base64

import pytest

from bridge.limits import PROXY_ANSWER_BYTES_MAX
from bridge.proxy import Proxy, ProxyError, Tunnel, parse_proxy, proxy_fault

PROXY = Proxy(host="proxy.plant", port=3128, username="gw 1", password="geheim:ß")
ANSWER = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n"


def test_request_is_encoded() -> None:
    line, host, shown = Tunnel(PROXY, "hub.example", 443).request.decode().removesuffix("\r\n\r\n").split("\r\n")
    assert (line, host) == ("CONNECT hub.example:443 HTTP/1.1", "Host: hub.example:443")
    assert base64.b64decode(shown.removeprefix("Proxy-Authorization: Basic ")).decode() == "gw 1:geheim:ß"
    assert Tunnel(Proxy(host="p"), "::1", 1).request == b"CONNECT [::1]:1 HTTP/1.1\r\nHost: [::1]:1\r\n\r\n"


def test_answer_is_read_byte_by_byte() -> None:
    tunnel = Tunnel(PROXY, "hub.example", 443)
    for i in range(len(ANSWER)):
        assert not tunnel.open
        tunnel.receive(ANSWER[i : i + 1])
    assert tunnel.open


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection without an answer"),
        (ANSWER + b"SSH-2.0", "bytes after its answer"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "is not an HTTP proxy"),
        (b"x" * (PROXY_ANSWER_BYTES_MAX + 1), "is not an HTTP proxy"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "correct its user name or password"),
        (b"HTTP/1.0 503 \x1b[31mno\r\n\r\n", r"does not connect to hub.example:443: 503 \?\[31mno"),
    ],
)
def test_refusals_raise(answer: bytes, why: str) -> None:
    with pytest.raises(ProxyError, match=why) as caught:
        Tunnel(PROXY, "hub.example", 443).receive(answer)
    assert "geheim" not in str(caught.value)


def test_proxy_that_requires_credentials_gets_them() -> None:
    with pytest.raises(ProxyError):
        Tunnel(Proxy(host="proxy"), "hub", 1).receive(b"HTTP/1.1 407 x\r\n\r\n")


def test_proxy_is_written_as_text() -> None:
    assert parse_proxy("http://gw%201:geheim%3A%C3%9F@proxy.plant") == PROXY
    assert parse_proxy("http://[::1]:8080/") == Proxy(host="::1", port=8080)
    assert PROXY.place == "proxy.plant:3128"
    assert "geheim" not in repr(PROXY)


@pytest.mark.parametrize(
    "text", ["https://proxy", "proxy:3128", "http://", "http://name@proxy", "http://a%3Ab:c@proxy", "http://proxy/path"]
)
def test_invalid_proxies_raise(text: str) -> None:
    with pytest.raises(ValueError, match=r"written|together|colon"):
        parse_proxy(text)


def test_inconsistent_settings_are_reported() -> None:
    assert proxy_fault(PROXY) == ""
    assert "go together" in proxy_fault(Proxy(host="proxy", password="x"))
