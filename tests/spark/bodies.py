"""Bodies of messages with their known values: the expected result of decoding, without a decoder.

Each form is a function of a random generator and the time of the message. The rules are those of
`docs/explanation/analytics.md` ("What is read"); reasons are written out here, because queries of users compare them.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

import cbor2

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AHEAD_MAX: Final = timedelta(minutes=5)
"""Longest time that a device's clock may be ahead of the landing of its message."""
IN_2038: Final = datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)
"""Last second of a signed 32-bit clock."""
FIRST_BELIEVED: Final = datetime(2020, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
HOUR: Final = timedelta(hours=1)
NOT_FINITE: Final = "not a finite number"
ZONES: Final = tuple(timezone(timedelta(minutes=minutes)) for minutes in (60, 120, -240, 330, 0))
"""Berlin in winter and summer, New York, Kolkata, UTC."""
BERLIN_CHANGES: Final = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


class Known(NamedTuple):
    """Value of a body, or `reason` why a value could not be read; `metric` is empty for the whole message.

    `device`: device named by the message, if it is not the sender. `alias`, `datatype`: of a Sparkplug birth.
    """

    metric: str
    value: float | None = None
    text: str | None = None
    reason: str | None = None
    measured_at: datetime | None = None
    unit: str | None = None
    device: str | None = None
    alias: int | None = None
    datatype: int | None = None


class Body(NamedTuple):
    """Bytes of a body, their content type, and their values."""

    content: bytes
    content_type: str | None
    known: Sequence[Known]


class Sent(NamedTuple):
    """Times of a message: measured, received by its gateway, landed. `name`: the last level of its address."""

    at: datetime
    received: datetime
    ingested: datetime
    name: str


Form = Callable[[random.Random, Sent], Body]


def _number(randoms: random.Random) -> float:
    return round(randoms.uniform(-40, 60), 2)


def _json(document: object, *known: Known, content_type: str | None = None) -> Body:
    return Body(json.dumps(document, ensure_ascii=False).encode(), content_type, known)


def bare(randoms: random.Random, sent: Sent) -> Body:
    """Numbers as shells and C programs write them."""
    value = _number(randoms)
    spelt: Sequence[tuple[str, float]] = (
        (f"{value}", value),
        (f"{abs(value)}".join("+ ").strip(), abs(value)),
        (".5", 0.5),
        ("007", 7.0),
        ("12", 12.0),
        ("1e3", 1_000.0),
        (f"{value}\0", value),
    )
    text, number = randoms.choice(spelt)
    return Body(text.encode(), None, [Known(sent.name, number)])


def flat(randoms: random.Random, _: Sent) -> Body:
    """Object with numbers, words, true, false and null; with names outside ASCII, and a duplicate name."""
    first, second, on = _number(randoms), _number(randoms), randoms.random() < 0.5
    document = {"t": first, "größe": second, "on": on, "state": "läuft", "spare": None, "n": 3}
    known = [
        Known("t", first),
        Known("größe", second),
        Known("on", float(on), "true" if on else "false"),
        Known("state", text="läuft"),
        Known("spare"),
        Known("n", 3.0),
    ]
    body = json.dumps(document, ensure_ascii=False).encode()
    if randoms.random() < 0.2:
        body = b'{"t": -1, ' + body[1:]  # a duplicate name: the last value counts
    if randoms.random() < 0.2:
        body = b"\xef\xbb\xbf" + body
    return Body(body, randoms.choice((None, "application/json", "application/x-www-form-urlencoded")), known)


def nested(randoms: random.Random, _: Sent) -> Body:
    """Nested objects and arrays, sometimes compressed."""
    values = [_number(randoms) for _ in range(4)]
    document = {"air": {"humidity": values[0], "p": {"abs": values[1]}}, "cells": values[2:], "rows": [[1, True]]}
    known = [
        Known("air.humidity", values[0]),
        Known("air.p.abs", values[1]),
        Known("cells.0", values[2]),
        Known("cells.1", values[3]),
        Known("rows.0.0", 1.0),
        Known("rows.0.1", 1.0, "true"),
    ]
    body = _json(document, *known)
    return body._replace(content=gzip.compress(body.content)) if randoms.random() < 0.3 else body


def timed(randoms: random.Random, sent: Sent) -> Body:
    """Object with its own time, in one of the formats of devices."""
    field, written, measured_at = randoms.choice(_times(randoms, sent.at))
    value = _number(randoms)
    inner = _number(randoms)
    document = {field: written, "t": value, "air": {"humidity": inner}}
    return _json(
        document, Known("t", value, measured_at=measured_at), Known("air.humidity", inner, measured_at=measured_at)
    )


def _times(randoms: random.Random, at: datetime) -> Sequence[tuple[str, object, datetime]]:
    """Yield a field, its value, and the time that it means."""
    micros = (at - EPOCH) // MICROSECOND
    second, milli = at.replace(microsecond=0), EPOCH + timedelta(milliseconds=micros // 1_000)
    in_zone = at.astimezone(randoms.choice(ZONES))
    return (
        ("ts", micros // 1_000_000, second),
        ("time", micros // 1_000, milli),
        ("timestamp", micros, at),
        ("TS", micros * 1_000 + 7, at),
        ("ts", micros // 1_000 / 1_000, milli),
        ("ts", str(micros // 1_000), milli),
        ("Time", in_zone.isoformat(), at),
        ("ts", in_zone.isoformat(timespec="milliseconds"), milli),
        ("timestamp", at.replace(tzinfo=None).isoformat(" "), at),
        ("ts", at.strftime("%Y-%m-%dt%H:%M:%Sz"), second),
        ("ts", at.strftime("%a, %d %b %Y %H:%M:%S GMT"), second),
    )


def zoned(randoms: random.Random, sent: Sent) -> Body:
    """Local time of Berlin with its offset, before and after the change to summer time."""
    zone = ZONES[1] if sent.at >= BERLIN_CHANGES else ZONES[0]
    value = _number(randoms)
    return _json({"ts": sent.at.astimezone(zone).isoformat(), "t": value}, Known("t", value, measured_at=sent.at))


def wrong_clock(randoms: random.Random, sent: Sent) -> Body:
    """Time of a device with a wrong clock, or a time at the limit of what is accepted."""
    value, ahead = _number(randoms), sent.ingested + AHEAD_MAX
    # The limit is sent in one epoch only: two values with one time and one sequence have no order.
    early = FIRST_BELIEVED if sent.at < BERLIN_CHANGES - HOUR else FIRST_BELIEVED + (sent.at - EPOCH) % (24 * HOUR)
    choices: Sequence[tuple[object, datetime]] = (
        (5_000, EPOCH + timedelta(seconds=5_000)),
        (0, EPOCH),
        (IN_2038.isoformat(), IN_2038),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (ahead.isoformat(), ahead),
        ((ahead + MICROSECOND).isoformat(), ahead + MICROSECOND),
        (early.isoformat(), early),
        ("2019-12-31T23:59:59.999999Z", FIRST_BELIEVED - MICROSECOND),
        ("1969-12-31T23:59:59Z", EPOCH - timedelta(seconds=1)),
    )
    written, measured_at = randoms.choice(choices)
    return _json({"ts": written, "t": value}, Known("t", value, measured_at=measured_at))


def not_a_time(randoms: random.Random, _: Sent) -> Body:
    """Fields named like a time that hold ordinary values."""
    value = _number(randoms)
    return _json(
        {"time": 12, "ts": "soon", "t": value}, Known("time", 12.0), Known("ts", text="soon"), Known("t", value)
    )


def records(randoms: random.Random, sent: Sent) -> Body:
    """List of records with a time each. A record without a time has its list position in the name."""
    times = [sent.at - timedelta(seconds=10 * back) for back in (2, 1, 0)]
    values = [_number(randoms) for _ in times]
    document: list[dict[str, Any]] = [
        {"ts": at.isoformat(), "t": value} for at, value in zip(times, values, strict=True)
    ]
    if randoms.random() < 0.7:
        return _json(document, *(Known("t", value, measured_at=at) for at, value in zip(times, values, strict=True)))
    del document[1]["ts"]
    measured_at = (times[0], None, times[2])
    return _json(document, *(Known(f"{n}.t", value, measured_at=measured_at[n]) for n, value in enumerate(values)))


def senml(randoms: random.Random, sent: Sent) -> Body:
    """Pack with base fields, units, all kinds of values, a sum and relative times; in JSON or CBOR."""
    first, second, total = _number(randoms), _number(randoms), abs(_number(randoms))
    second_us = (sent.at - EPOCH) // timedelta(seconds=1)
    base = EPOCH + timedelta(seconds=second_us)
    records: list[dict[str, Any]] = [
        {"bn": "urn:dev:", "bt": second_us, "bu": "Cel", "n": "t", "v": first},
        {"n": "t", "t": -7, "v": second},
        {"n": "rh", "u": "%RH", "v": 50},
        {"n": "open", "vb": False, "u": "/"},
        {"n": "label", "vs": "käse"},
        {"n": "energy", "u": "Wh", "s": total},
        {"n": "blob", "vd": "AAAA"},
    ]
    known = [
        Known("urn:dev:t", first, measured_at=base, unit="Cel"),
        Known("urn:dev:t", second, measured_at=base - timedelta(seconds=7), unit="Cel"),
        Known("urn:dev:rh", 50.0, measured_at=base, unit="%RH"),
        Known("urn:dev:open", 0.0, "false", measured_at=base, unit="/"),
        Known("urn:dev:label", text="käse", measured_at=base, unit="Cel"),
        Known("urn:dev:energy.sum", total, measured_at=base, unit="Wh"),
        Known("urn:dev:blob", reason="bytes or a value of a kind that no column has"),
    ]
    if randoms.random() < 0.3:
        labels = {"bn": -2, "bt": -3, "bu": -4, "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4, "s": 5, "t": 6, "vd": 8}
        numbered = [{labels[name]: value for name, value in record.items()} for record in records]
        return Body(cbor2.dumps(numbered), "application/senml+cbor", known)
    return _json(records, *known, content_type=randoms.choice((None, "application/senml+json", "application/json")))


def senml_relative(randoms: random.Random, sent: Sent) -> Body:
    """Pack with times relative to the gateway's reception."""
    first, second = _number(randoms), _number(randoms)
    known = [
        Known("a", first, measured_at=sent.received - timedelta(seconds=90), unit="K"),
        Known("b", second, measured_at=sent.received, unit="V"),
    ]
    return _json([{"n": "a", "u": "K", "t": -90, "v": first}, {"n": "b", "u": "V", "v": second}], *known)


def binary(randoms: random.Random, sent: Sent) -> Body:
    """CBOR: half and full floats, whole numbers of any size, bytes, tags."""
    value = _number(randoms)
    document = {"t": value, "half": 1.5, "n": -7, "big": 2**70, "raw": b"\0\1", "inner": {"on": True, "xs": [1, 2]}}
    document |= {"ts": cbor2.CBORTag(0, sent.at.isoformat()), "uri": cbor2.CBORTag(32, "a:b")}
    document["geo"] = cbor2.CBORTag(103, {"lat": [52.5, 1]})
    measured_at = sent.at
    known = [
        Known("t", value, measured_at=measured_at),
        Known("half", 1.5, measured_at=measured_at),
        Known("n", -7.0, measured_at=measured_at),
        Known("big", 2.0**70, measured_at=measured_at),
        Known("raw", reason="bytes or a value of a kind that no column has"),
        Known("inner.on", 1.0, "true", measured_at=measured_at),
        Known("inner.xs.0", 1.0, measured_at=measured_at),
        Known("inner.xs.1", 2.0, measured_at=measured_at),
        Known("uri", text="a:b", measured_at=measured_at),
        Known("geo.lat.0", 52.5, measured_at=measured_at),
        Known("geo.lat.1", 1.0, measured_at=measured_at),
    ]
    content = cbor2.dumps(document)
    if randoms.random() < 0.3:
        return Body(b"\xd9\xd9\xf7" + content, None, known)
    return Body(content, "application/cbor", known)


def plain_text(randoms: random.Random, sent: Sent) -> Body:
    """Texts, and numbers and documents sent as text."""
    value = _number(randoms)
    choices: Sequence[tuple[str, Known]] = (
        ("ok", Known(sent.name, text="ok")),
        ("  zwei Wörter ", Known(sent.name, text="  zwei Wörter ")),
        (f" {value} ", Known(sent.name, value)),
        ("NaN", Known(sent.name, text="NaN")),
        ('{"t": 5}', Known("t", 5.0)),
        ("{open", Known(sent.name, text="{open")),
    )
    said, known = randoms.choice(choices)
    return Body(said.encode(), "text/plain; charset=utf-8", [known])


def whole_numbers(randoms: random.Random, _: Sent) -> Body:
    """Integers at and beyond the exact range of a double; those beyond keep their digits as text."""
    exact = 2**53
    document = {"even": exact, "odd": exact + 1, "less": -exact - 1, "id": 2**63 + randoms.randrange(1, 1_000) * 2 + 1}
    document["huge"] = 10**30
    known = [
        Known("even", float(exact)),
        Known("odd", float(exact), str(exact + 1)),
        Known("less", -float(exact), str(-exact - 1)),
        Known("id", float(document["id"]), str(document["id"])),
        Known("huge", 1e30, str(10**30)),
    ]
    return _json(document, *known)


def not_finite(randoms: random.Random, sent: Sent) -> Body:
    """Values that are not finite numbers; the other values of the message are read."""
    value = _number(randoms)
    spelt = randoms.choice(("NaN", "nan", "-nan", "Infinity", "-inf", "1e999", "9" * 400, "1.#QNAN"))
    bad = Known("bad", reason=NOT_FINITE)
    form = randoms.randrange(3)
    if form == 0:
        return Body(b"NaN", None, [Known("", reason=NOT_FINITE)])
    if form == 1:
        document = {"bad": randoms.choice((float("nan"), float("-inf"))), "t": value}
        return Body(cbor2.dumps(document), "application/cbor", [bad, Known("t", value)])
    return Body(f'{{"bad": {spelt}, "t": {value}}}'.encode(), "application/json", [bad, Known("t", value)])


def unreadable(randoms: random.Random, _: Sent) -> Body:
    """Body that is rejected as a whole, with the reason."""
    content, content_type, reason = randoms.choice(_UNREADABLE)
    return Body(content, content_type, [Known("", reason=reason)])


def _deep(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


_UNREADABLE: Final[Sequence[tuple[bytes, str | None, str]]] = (
    (b"\xff\xfe\xfd", None, "not UTF-8 text"),
    (b"", None, "neither JSON nor a number"),
    (b"hello", None, "neither JSON nor a number"),
    (b"1_000", None, "neither JSON nor a number"),
    (b'{"t": ', "application/json", "not JSON"),
    (b"{}", None, "no values"),
    (b'{"ts": 1774742400}', None, "no values"),
    (b"  ", "text/plain", "no values"),
    (_deep(17), None, "nested deeper than 16 levels"),
    (b"[" + b"1," * 1_024 + b"1]", None, "more than 1024 values"),
    (b'{"' + b"n" * 257 + b'": 1}', None, "a name of more than 256 characters"),
    (rb'{"a": 1, "\ud800": 2}', None, "text with half a character"),
    (b"\x1f\x8b\x08 not gzip", None, "not gzip, though it begins so"),
    (b"\xa1\x61", "application/cbor", "not CBOR"),
    (b"\x08\x96\x01", "application/protobuf", "Protobuf without a registered schema"),
    (b"<t>5</t>", "application/xml", "no decoder for its content type"),
    (b'[{"bver": 42, "n": "t", "v": 1}]', "application/senml+json", "a SenML version that is not known"),
    (b'[{"n": "t", "v": 1, "x_": 1}]', "application/senml+json", "a SenML field that must be understood and is not"),
    (b'[{"v": 1}]', "application/senml+json", "a SenML name that is empty or has characters a name may not have"),
    (b"[1]", "application/senml+json", "not SenML"),
    (b"x" * 5_000, None, "neither JSON nor a number"),
)
TOO_LARGE: Final = Body(b"1" * 262_145, None, [Known("", reason="a body of more than 262144 bytes")])


def machine(randoms: random.Random, sent: Sent) -> Body:
    """Battery, uptime and signal strength, the input of device health."""
    up = (sent.at - datetime(2026, 3, 28, tzinfo=UTC)) // timedelta(seconds=1)
    if sent.at > BERLIN_CHANGES:  # the device has restarted
        up -= 25 * 3_600
    volts, rssi = round(3.9 - up / 1e6 + randoms.uniform(-0.01, 0.01), 4), -randoms.randrange(60, 90)
    document = {"ts": sent.at.isoformat(), "batt": volts, "uptime_ms": up * 1_000, "radio": {"rssi": rssi}}
    known = [Known("batt", volts), Known("uptime_ms", up * 1_000.0), Known("radio.rssi", float(rssi))]
    return _json(document, *(one._replace(measured_at=sent.at) for one in known))


FORMS: Final[Mapping[str, Form]] = {
    form.__name__: form
    for form in (
        bare,
        flat,
        nested,
        timed,
        zoned,
        wrong_clock,
        not_a_time,
        records,
        senml,
        senml_relative,
        binary,
        plain_text,
        whole_numbers,
        not_finite,
        unreadable,
        machine,
    )
}
