"""SenML against the examples of RFC 8428, by section."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest

from spark.decoding import reasons
from spark.decoding.decoder import Decoder
from spark.decoding.limits import METRIC_CHARACTERS_MAX, VALUES_MAX
from spark.decoding.value import EncodedMessage, Value

NOW_US = 1_773_480_360_000_000
BASE = "urn:dev:ow:10e2073a0108006:"
T0_US = 1_276_020_076_001_000
SERIES = [1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
SECTION_6 = bytes.fromhex(
    "87a721781b75726e3a6465763a6f773a31306532303733613031303830303"
    "63a22fb41d303a15b00106223614120050067766f6c74616765016156"
    "02fb405e066666666666a3006763757272656e74062402fb3ff3333333333333"
    "a3006763757272656e74062302fb3ff4cccccccccccda3006763757272656e74062202fb3ff6666666666666"
    "a3006763757272656e74062102f93e00a3006763757272656e74062002fb3ff999999999999aa300"
    "6763757272656e74060002fb3ffb333333333333"
)
SECTION_5_1_2 = [
    {"bn": BASE, "bt": 1.276020076001e9, "bu": "A", "bver": 5, "n": "voltage", "u": "V", "v": 120.1},
    *({"n": "current", "t": t, "v": v} for t, v in zip(range(-5, 1), SERIES, strict=True)),
]


def read(pack: object, content_type: str = "application/senml+json") -> list[Value]:
    body = pack if isinstance(pack, bytes) else json.dumps(pack).encode()
    return Decoder().values(EncodedMessage(body, "a", content_type, NOW_US))


@pytest.mark.parametrize(
    ("pack", "content_type"),
    [
        (SECTION_5_1_2, "application/senml+json"),
        (SECTION_6, "application/senml+cbor"),
        (SECTION_5_1_2, ""),
    ],
    ids=["5.1.2", "6", "5.1.2 of a device that cannot say what it sends"],
)
def test_multiple_data_points(pack: object, content_type: str) -> None:
    voltage, *currents = read(pack, content_type)
    assert voltage == Value(f"{BASE}voltage", 120.1, None, None, T0_US, "V")
    assert currents == [
        Value(f"{BASE}current", value, None, None, T0_US + t * 1_000_000, "A")
        for t, value in zip(range(-5, 1), SERIES, strict=True)
    ]


def test_5_1_1_single_data_point() -> None:
    assert read([{"n": "urn:dev:ow:10e2073a01080063", "u": "Cel", "v": 23.1}]) == [
        Value("urn:dev:ow:10e2073a01080063", 23.1, None, None, NOW_US, "Cel")
    ]


def test_5_1_3_relative_times_and_base_without_value() -> None:
    pack = [
        {"bn": "urn:dev:ow:10e2073a01080063", "bt": 1.320067464e9, "bu": "%RH", "v": 21.2},
        {"t": 10, "v": 21.3},
        {"u": "lon", "t": 50, "v": 24.30621},
    ]
    found = read(pack)
    at = 1_320_067_464_000_000
    assert [(one.value, one.time_us, one.unit) for one in found] == [
        (21.2, at, "%RH"),
        (21.3, at + 10_000_000, "%RH"),
        (24.30621, at + 50_000_000, "lon"),
    ]
    assert read([{"bn": "d:", "bt": -60}, {"n": "t", "v": 1}])[0].time_us == NOW_US - 60_000_000


def test_5_1_5_different_data_types() -> None:
    pack = [
        {"bn": BASE, "n": "temp", "u": "Cel", "v": 23.1},
        {"n": "label", "vs": "Machine Room"},
        {"n": "open", "vb": False},
        {"n": "nfc-reader", "vd": "aGkgCg"},
    ]
    assert read(pack) == [
        Value(f"{BASE}temp", 23.1, None, None, NOW_US, "Cel"),
        Value(f"{BASE}label", None, "Machine Room", None, NOW_US),
        Value(f"{BASE}open", 0.0, "false", None, NOW_US),
        Value(f"{BASE}nfc-reader", reason=reasons.NOT_A_SCALAR),
    ]


def test_base_value_and_sum() -> None:
    found = read([{"bn": "m", "bv": 20, "bs": 100, "v": 1.5, "s": 5}, {"v": -1}])
    assert [(one.metric, one.value) for one in found] == [("m", 21.5), ("m.sum", 105.0), ("m", 19.0)]


@pytest.mark.parametrize(
    ("pack", "reason"),
    [
        ({}, reasons.NOT_SENML),
        ([], reasons.NO_VALUES),
        ([{"bn": "x"}], reasons.NO_VALUES),
        ([1], reasons.NOT_SENML),
        ([{"v": 1}], reasons.SENML_NAME),
        ([{"n": "-x", "v": 1}], reasons.SENML_NAME),
        ([{"n": "x y", "v": 1}], reasons.SENML_NAME),
        ([{"n": "x" * (METRIC_CHARACTERS_MAX + 1), "v": 1}], reasons.TOO_LONG),
        ([{"n": "x", "u": "x" * (METRIC_CHARACTERS_MAX + 1), "v": 1}], reasons.TOO_LONG),
        ([{"n": "x"}], reasons.NOT_SENML),
        ([{"n": "x", "v": 1, "vs": "1"}], reasons.NOT_SENML),
        ([{"n": "x", "v": "1"}], reasons.NOT_SENML),
        ([{"n": "x", "v": True}], reasons.NOT_SENML),
        ([{"n": "x", "vb": 1}], reasons.NOT_SENML),
        ([{"n": 1, "v": 1}], reasons.NOT_SENML),
        ([{"n": "x", "v": 1, "t": "now"}], reasons.NOT_SENML),
        ([{"n": "x", "v": 1, "bver": 11}], reasons.SENML_VERSION),
        ([{"n": "x", "v": 1, "new_": 1}], reasons.SENML_MUST_UNDERSTAND),
        ([{"n": "good", "v": 1}, {"n": "bad", "v": None}], reasons.NOT_SENML),
        ([{"n": "x", "v": 1}] * (VALUES_MAX + 1), reasons.TOO_MANY),
    ],
)
def test_a_pack_that_is_none_says_why(pack: Any, reason: str) -> None:
    assert read(pack) == [Value("", reason=reason)]
    assert read(cbor2.dumps(pack), "application/senml+cbor") == [Value("", reason=reason)]


def test_a_unit_that_no_column_holds_is_a_reject() -> None:
    """JSON can encode half a surrogate pair; one such unit must not end the job for all gateways."""
    for label in ("u", "bu"):
        assert read([{"n": "x", label: "\ud800", "v": 1}]) == [Value("", reason=reasons.NOT_UNICODE)]


def test_fields_that_need_not_be_understood() -> None:
    assert read([{"n": "x", "v": 1, "ut": 5, "new": {"a": 1}, "bver": 26}]) == [Value("x", 1.0, time_us=NOW_US)]
    assert read(cbor2.dumps([{0: "x", 2: 1, 99: 1}]), "application/senml+cbor") == [Value("x", 1.0, time_us=NOW_US)]
