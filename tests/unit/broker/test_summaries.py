"""Summaries of readings: values that are merged, and messages that stay as they are."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.amqp_values import DescribedValue, Symbol, Timestamp, Uint, Ulong, decode, encode
from bridge.message import AMQP, Run
from bridge.sections import section_at, sections
from edge.broker.message.mqtt_properties import decode_run
from edge.broker.message.readings import BODY_BYTES_MAX, NUMBER_MAX
from edge.broker.message.translation import parse_message
from edge.broker.retention import summaries

S = 1_000_000_000


def run(body: bytes, at: int = 0, flags: int = 1) -> tuple[Run, bytes]:
    return Run("plant/7", "d", flags, b"", [body], at), body


def summed(*messages: tuple[Run, bytes]) -> dict[str, object]:
    whole = summaries.summarise(messages)
    assert whole is not None
    (body,) = whole.bodies
    return dict(json.loads(body))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"21.5", "bare"),
        (b"-3", "bare"),
        (b'{"temp": 1}', "object"),
        (b'{"accel": {"x": 1}, "unit": "g"}', "object"),
        (b'{"on": true}', None),
        (b'{"text": "a"}', None),
        (b'{"\xff": 1}', None),
        (b"[1, 2]", None),
        (b"1" + b"0" * 400, None),
        (b"warm", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b'{"a": 1', None),
        (b'{"a":' * 2000, None),
        (json.dumps({str(n): n for n in range(summaries.NUMBERS_MAX + 1)}).encode(), None),
        (b'{"a": 1, "b": "' + b"x" * BODY_BYTES_MAX + b'"}', None),
    ],
)
def test_only_readings_are_summarised(body: bytes, kind: str | None) -> None:
    found = summaries.kind(*run(body))
    assert (found and found.split()[0]) == kind


def test_last_message_carries_statistics_of_the_others() -> None:
    bodies = [b'{"t": 20, "unit": "C"}', b'{"t": 26, "unit": "C"}', b'{"t": 23, "unit": "K", "ok": true}']
    messages = [run(body, at=(n + 1) * S) for n, body in enumerate(bodies)]
    assert summed(*messages) == {
        "t": 23,
        "unit": "K",
        "ok": True,
        "thinned": {"messages": 3, "from": S, "to": 3 * S, "min": {"t": 20}, "max": {"t": 26}, "mean": {"t": 23.0}},
    }
    whole = summaries.summarise(messages)
    assert whole is not None
    assert whole.received_at == 3 * S
    assert decode_run(whole.properties).user_property == ((summaries.PROPERTY, "3"),)


def test_bare_number_has_the_empty_name() -> None:
    body = summed(run(b"1", S), run(b"2", 2 * S))
    assert body[""] == 2
    assert body["thinned"] == {"messages": 2, "from": S, "to": 2 * S, "min": {"": 1}, "max": {"": 2}, "mean": {"": 1.5}}


def test_lookalike_of_a_summary_is_unchanged() -> None:
    assert summaries.summarise([run(b'{"t": 1, "thinned": "by hand"}'), run(b'{"t": 2}')]) is None


@given(st.lists(st.integers(-1000, 1000), min_size=4, max_size=40), st.integers(1, 3))
def test_summarising_is_associative(numbers: list[int], cut: int) -> None:
    messages = [run(b'{"t": %d}' % number, (n + 1) * S) for n, number in enumerate(numbers)]
    first, rest = summaries.summarise(messages[:-cut]), messages[-cut:]
    assert first is not None
    twice = summed((first, first.bodies[0]), *rest)
    once = summed(*messages)
    assert isinstance(once["thinned"], dict)
    assert isinstance(twice["thinned"], dict)
    assert math.isclose(once["thinned"]["mean"]["t"], twice["thinned"].pop("mean")["t"], abs_tol=1e-9)
    del once["thinned"]["mean"]
    assert once == twice
    assert once["thinned"]["min"] == {"t": min(numbers)}
    assert once["thinned"]["messages"] == len(numbers)


@pytest.mark.parametrize(
    "last",
    [
        b'{"t": 1, "id": 123456789012345678901234567890}',
        b'{"t": 1, "text": "\\ud800"}',
        b'{"t": 1, "a": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"t": 1, "thinned": {"messages": 1' + b"0" * 400 + b', "min": {}, "max": {}, "mean": {"t": 1}}}',
        b'{"t": 1, "thinned": {"messages": 3, "min": {}, "max": {}, "mean": {"t": 1e300}}}',
        b'{"t": 1, "thinned": {"messages": 3, "min": {}, "max": {}, "mean": {"t": 1}, "from": 1' + b"0" * 40 + b"}}",
        b'{"t": 1, "x": 1' + b"0" * 400 + b"}",
    ],
)
def test_no_message_raises(last: bytes) -> None:
    whole = summaries.summarise([run(b'{"t": 2}'), run(last)])
    assert whole is None or json.loads(whole.bodies[0])["thinned"]["messages"] == 2


@given(st.lists(st.floats(-NUMBER_MAX, NUMBER_MAX), min_size=2, max_size=50))
def test_every_valid_number_can_be_added(numbers: list[float]) -> None:
    body = summed(*(run(json.dumps({"t": number}).encode()) for number in numbers))
    assert isinstance(body["thinned"], dict)
    assert math.isfinite(body["thinned"]["mean"]["t"])
    assert body["thinned"]["max"]["t"] == max(numbers)


class TestAmqp:
    """Messages that came in over AMQP, as the store has them: without their header."""

    FLAGS = 1 | AMQP
    PROPERTIES = encode(DescribedValue(Ulong(0x73), ["id-7", None, "plant/7", "temperature"]))
    APPLICATION = encode(DescribedValue(Ulong(0x74), {"site": "north"}))
    ANNOTATIONS = encode(DescribedValue(Ulong(0x72), {Symbol("x-opt-mine"): "kept"}))

    def message(self, code: int, value: object, *before: bytes) -> tuple[Run, bytes]:
        return run(b"".join(before) + encode(DescribedValue(Ulong(code), value)), S, self.FLAGS)

    def summed(self, *messages: tuple[Run, bytes]) -> bytes:
        assert len({summaries.kind(*message) for message in messages}) == 1
        assert summaries.kind(*messages[0]) is not None
        whole = summaries.summarise(messages)
        assert whole is not None
        assert whole.flags == self.FLAGS
        (body,) = whole.bodies
        assert parse_message(body).annotations["x-opt-waypost-thinned"] == len(messages)
        return body

    def test_json_in_a_data_section_is_summarised(self) -> None:
        body = self.summed(*(self.message(0x75, b'{"t": %d, "unit": "C"}' % number) for number in (1, 4)))
        assert json.loads(parse_message(body).body) == {
            "t": 4,
            "unit": "C",
            "thinned": {"messages": 2, "from": S, "to": S, "min": {"t": 1}, "max": {"t": 4}, "mean": {"t": 2.5}},
        }

    def test_sections_around_the_body_are_unchanged(self) -> None:
        before = (self.ANNOTATIONS, self.PROPERTIES, self.APPLICATION)
        body = self.summed(*(self.message(0x75, b"%d" % number, *before) for number in (1, 2, 3)))
        assert parse_message(body).annotations["x-opt-mine"] == "kept"
        rest = body[section_at(body, 0).end :]
        assert rest.startswith(self.PROPERTIES + self.APPLICATION + b"\x00\x53\x75")
        assert json.loads(parse_message(body).body)["thinned"]["mean"] == {"": 2.0}

    def test_string_of_json_stays_a_string(self) -> None:
        body = self.summed(*(self.message(0x77, text) for text in ('{"t": 1}', '{"t": 3}')))
        found = parse_message(body)
        assert found.is_text
        assert json.loads(found.body)["thinned"]["max"] == {"t": 3}

    def test_map_keeps_the_encoding_of_its_pairs(self) -> None:
        values = [
            {"t": Uint(20), "deep": {"x": 1.5}, "on": True, "at": Timestamp(5)},
            {"t": Uint(30), "at": Timestamp(9)},
        ]
        messages = [self.message(0x77, value) for value in values]
        body = self.summed(*messages)
        (section,) = [section for section in sections(body) if section.code == 0x77]
        value, _ = decode(body, section.value)
        thinned = value.pop("thinned")
        assert value == {"t": 30, "at": 9}
        assert isinstance(value["at"], Timestamp), "a time is not a measured value"
        assert encode("t") + encode(Uint(30)) in body
        assert thinned["min"] == {"t": 20, "deep.x": 1.5}
        again = self.summed_again(run(body, S, self.FLAGS), self.message(0x77, {"t": Uint(40)}))
        assert again["messages"] == 3
        assert again["mean"] == {"t": 30.0, "deep.x": 1.5}

    def summed_again(self, *messages: tuple[Run, bytes]) -> dict[str, object]:
        whole = summaries.summarise(messages)
        assert whole is not None
        (section,) = [section for section in sections(whole.bodies[0]) if section.code == 0x77]
        value, _ = decode(whole.bodies[0], section.value)
        assert parse_message(whole.bodies[0]).annotations["x-opt-waypost-thinned"] == 3
        return dict(value["thinned"])

    def test_number_becomes_a_map(self) -> None:
        body = self.summed(self.message(0x77, 20), self.message(0x77, 2.5))
        (section,) = [section for section in sections(body) if section.code == 0x77]
        value, _ = decode(body, section.value)
        assert value[""] == 2.5
        assert value["thinned"]["mean"] == {"": 11.25}

    @pytest.mark.parametrize(
        "body",
        [
            encode(DescribedValue(Ulong(0x77), True)),
            encode(DescribedValue(Ulong(0x77), float("nan"))),
            encode(DescribedValue(Ulong(0x77), float("inf"))),
            encode(DescribedValue(Ulong(0x77), {1: 2})),
            encode(DescribedValue(Ulong(0x77), {Symbol("t"): 2})),
            encode(DescribedValue(Ulong(0x77), "warm")),
            encode(DescribedValue(Ulong(0x77), [1, 2])),
            encode(DescribedValue(Ulong(0x75), b"\xff")),
            encode(DescribedValue(Ulong(0x75), b"1")) * 2,
            encode(DescribedValue(Ulong(0x75), b"1"))
            + encode(DescribedValue(Ulong(0x78), {Symbol("signature"): b"s"})),
            encode(DescribedValue(Ulong(0x73), [None, None, None, None, "reply"]))
            + encode(DescribedValue(Ulong(0x75), b"1")),
            encode(DescribedValue(Ulong(0x73), [None] * 5 + ["c-1"])) + encode(DescribedValue(Ulong(0x75), b"1")),
            encode(DescribedValue(Ulong(0x73), [None] * 10 + ["group"])) + encode(DescribedValue(Ulong(0x75), b"1")),
            encode(DescribedValue(Ulong(0x73), [None])),
            b"\x00\x53\x75\xa0\x09",
            b"no message",
        ],
    )
    def test_message_with_more_meaning_than_its_numbers_is_unchanged(self, body: bytes) -> None:
        assert summaries.kind(*run(body, flags=self.FLAGS)) is None

    def test_only_messages_about_the_same_subject_are_merged(self) -> None:
        others = [
            (),
            (self.PROPERTIES,),
            (self.APPLICATION,),
            (encode(DescribedValue(Ulong(0x73), ["id-8", None, "plant/7", "pressure"])),),
            (encode(DescribedValue(Ulong(0x74), {"site": "south"})),),
        ]
        kinds = {summaries.kind(*self.message(0x77, 1, *before)) for before in others}
        assert len(kinds) == len(others)
        same = encode(DescribedValue(Ulong(0x73), ["id-8", None, "plant/7", "temperature"]))
        assert summaries.kind(*self.message(0x77, 1, same)) in kinds

    @given(st.binary(max_size=200))
    def test_any_bytes_are_accepted(self, body: bytes) -> None:
        one = run(body, flags=self.FLAGS)
        if summaries.kind(*one) is not None:
            summaries.summarise([one, one])
