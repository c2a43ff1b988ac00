"""Bodies compressed with gzip, from any protocol."""

from __future__ import annotations

import gzip

import pytest

from spark.decoding import reasons
from spark.decoding.decoder import Decoder
from spark.decoding.limits import BODY_BYTES_MAX, GZIP_MEMBERS_MAX
from spark.decoding.value import EncodedMessage, Value


def values(body: bytes, content_type: str | None = None) -> list[tuple[str, float | None]]:
    return [(value.metric, value.value) for value in Decoder().values(EncodedMessage(body, "plant/7", content_type))]


def reason(body: bytes) -> str | None:
    (value,) = Decoder().values(EncodedMessage(body, "plant/7", "application/json"))
    return value.reason


@pytest.mark.parametrize("content_type", [None, "application/json", "application/gzip"])
def test_a_gzip_body_is_read(content_type: str | None) -> None:
    assert values(gzip.compress(b'{"t": 21.5, "h": 5}'), content_type) == [("t", 21.5), ("h", 5.0)]
    assert values(gzip.compress(b"21.") + gzip.compress(b"5")) == [("", 21.5)], "members are one body"


def test_it_is_decompressed_within_the_bound() -> None:
    number = b"1".rjust(BODY_BYTES_MAX)
    assert values(gzip.compress(number)) == [("", 1.0)]
    assert reason(gzip.compress(number + b" ")) == reasons.TOO_LARGE
    assert reason(gzip.compress(bytes(50_000_000))) == reasons.TOO_LARGE
    assert values(gzip.compress(b"") * (GZIP_MEMBERS_MAX - 1) + gzip.compress(b"1")) == [("", 1.0)]
    assert reason(gzip.compress(b"") * (GZIP_MEMBERS_MAX + 1)) == reasons.NOT_GZIP


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(gzip.compress(b"1")[:-1], id="cut short"),
        pytest.param(gzip.compress(b"1") + b"rest", id="something after it"),
        pytest.param(b"\x1f\x8b\x08 and so on", id="only its magic bytes"),
    ],
)
def test_what_is_no_gzip(body: bytes) -> None:
    assert reason(body) == reasons.NOT_GZIP


def test_what_it_holds_is_judged_as_ever() -> None:
    assert Decoder().values(EncodedMessage(gzip.compress(b"\xff\xfe"))) == [Value("", reason=reasons.NOT_TEXT)]
