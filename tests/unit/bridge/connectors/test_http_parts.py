"""Names, signatures and outcomes of HTTP requests."""

from __future__ import annotations

import pytest

from bridge.connectors.http.body import encode
from bridge.connectors.http.signing import batch_name, secret_of, signature
from bridge.connectors.http.verdict import ResponseVerdict, verdict, wait_s
from bridge.connectors.limits import HTTP_RETRY_AFTER_S_MAX
from bridge.connectors.messages import ConnectorMessage, MessageName
from bridge.connectors.settings import Format
from bridge.limits import JSON_BYTES_MAX
from bridge.plain import Hop
from bridge.publish_properties import PublishProperties


def message(sequence: int, address: str = "plant/7", *, gateway: str = "gw", payload: bytes = b"1") -> ConnectorMessage:
    name = MessageName(Hop(gateway, "e1"), address, sequence)
    return ConnectorMessage(0, name, address, "dev", 0, False, ("gw",), PublishProperties(), payload)


def test_signature_matches_the_standard() -> None:
    """The signature matches the example in the libraries of Standard Webhooks."""
    key = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_c2hvcnQ=", "not base64!", "whsec_ü"])
def test_invalid_secrets_raise(text: str) -> None:
    with pytest.raises(ValueError, match="openssl rand"):
        secret_of(text)


def test_batch_is_named_by_its_messages() -> None:
    assert batch_name([message(5), message(6)]) == "gw/e1/plant%2F7/5-6"
    assert batch_name([message(5, gateway="a.b/c")]) == "a%2Eb%2Fc/e1/plant%2F7/5-5"
    several = [message(5), message(7), message(1, "x")]
    assert batch_name(several).startswith("gw/")
    assert batch_name(several).endswith("/3")
    names = {
        batch_name(each) for each in (several, several[:2], several[1:], [message(5), message(8), message(1, "x")])
    }
    assert len(names) == 4


@pytest.mark.parametrize("address", ["ü/" * 200, "." * 300, "a\r\nX-Evil: 1"])
def test_name_is_a_valid_header(address: str) -> None:
    """The address that a device chooses must not become a header of its own."""
    name = batch_name([message(1, address)])
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 256
    assert "." not in name
    assert " " not in name


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, ResponseVerdict.ACCEPTED) for status in (200, 201, 202, 204)),
        *((status, ResponseVerdict.REJECTED) for status in (400, 413, 422)),
        *((status, ResponseVerdict.RETRY) for status in (408, 409, 425, 429, 500, 502, 503, 504)),
        *(
            (status, ResponseVerdict.MISCONFIGURED)
            for status in (101, 301, 302, 307, 308, 401, 403, 404, 405, 410, 415, 451)
        ),
    ],
)
def test_status_codes_map_to_outcomes(status: int, expected: ResponseVerdict) -> None:
    assert verdict(status) is expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", HTTP_RETRY_AFTER_S_MAX),
        ("9" * 400, HTTP_RETRY_AFTER_S_MAX),
        ("-5", 0.0),
        ("²", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_retry_after_is_read(said: str | None, expected: float) -> None:
    assert wait_s(said, now=1445412480.0) == expected


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        (b"12", b'"body":12'),
        (b"-", b'"body":"-"'),
        (b"true", b'"body":"true"'),
        (b'"x"', b'"body":"\\"x\\""'),
        (b'{"a":1e5}', b'"body":{"a":1e5}'),
        (b"[" * 5000, b'"body":"[[['),
        (b"{" + b" " * JSON_BYTES_MAX + b"}", b'"body":"{ '),
    ],
)
def test_only_valid_json_is_embedded_as_json(payload: bytes, written: bytes) -> None:
    assert written in encode([message(1, payload=payload)], Format.JSON)


def test_each_line_is_one_message() -> None:
    lines = encode([message(1, payload=b'{"a":\r\n1}'), message(2, payload=b"x\ny")], Format.NDJSON).split(b"\n")
    assert len(lines) == 3
    assert lines[-1] == b""
