"""Readings summed up: what is kept of several, and what is left alone."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.message import AMQP, Run
from edge.broker import summaries
from edge.broker.mqtt.properties import decode_run

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
        (b"[1, 2]", None),
        (b"warm", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b'{"a": 1', None),
        (b'{"a":' * 2000, None),
        (json.dumps({str(n): n for n in range(summaries.NUMBERS_MAX + 1)}).encode(), None),
        (b'{"a": 1, "b": "' + b"x" * summaries.BODY_BYTES_MAX + b'"}', None),
    ],
)
def test_only_readings_are_summed_up(body: bytes, kind: str | None) -> None:
    assert summaries.kind(*run(body)) == kind


def test_amqp_messages_stay_as_they_are() -> None:
    assert summaries.kind(*run(b"21.5", flags=1 | AMQP)) is None


def test_the_last_message_with_what_the_others_were() -> None:
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


def test_a_bare_number_has_the_empty_name() -> None:
    body = summed(run(b"1", S), run(b"2", 2 * S))
    assert body[""] == 2
    assert body["thinned"] == {"messages": 2, "from": S, "to": 2 * S, "min": {"": 1}, "max": {"": 2}, "mean": {"": 1.5}}


def test_what_only_looks_like_a_summary_is_left_alone() -> None:
    assert summaries.summarise([run(b'{"t": 1, "thinned": "by hand"}'), run(b'{"t": 2}')]) is None


@given(st.lists(st.integers(-1000, 1000), min_size=4, max_size=40), st.integers(1, 3))
def test_summing_up_twice_is_summing_up_once(numbers: list[int], cut: int) -> None:
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
