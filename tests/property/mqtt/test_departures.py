"""Messages that C writes at once for a subscriber equal the single messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import AMQP, CLOCK_GOOD, DURABLE, RETAIN, Run
from edge.broker.limits import Limits
from edge.broker.mqtt.events import ConnectEvent, MqttDelivery
from edge.broker.mqtt.limits import USUAL_TOPIC_CHARACTERS_MAX
from edge.broker.mqtt.outbound import SHORT_LENGTH_MAX, PublishSender
from edge.broker.mqtt.state import PACKET_ID_MAX, InFlight, SessionState
from tests.support.examples import examples

TOKEN = object()
TOPICS = st.sampled_from(("a", "plant/7/temp", "ä/ü", "t" * USUAL_TOPIC_CHARACTERS_MAX))
BODIES = st.one_of(
    st.binary(max_size=200), st.sampled_from((b"x" * 120, b"x" * 9_000, b"x" * (SHORT_LENGTH_MAX - 150)))
)
PLAIN = st.sampled_from((0, CLOCK_GOOD, 1 | DURABLE, 1 | DURABLE | CLOCK_GOOD))
RUNS = st.builds(
    lambda topic, flags, bodies: Run(topic, "d", flags, b"", bodies),
    TOPICS,
    PLAIN,
    st.lists(BODIES, min_size=1, max_size=4),
)


def outbound(
    version: int, packet_bytes_max: int, in_flight: int, following: int
) -> tuple[PublishSender, SessionState, list[bytes]]:
    state, out = SessionState(), list[bytes]()
    before = MqttDelivery(Run("b", "d", 1, b"", [b""] * in_flight), 1, False, None)
    state.outgoing.update((n + 1, (before, n)) for n in range(in_flight))
    state._next = following
    connect = ConnectEvent(version, "c", True, 0, 0, maximum_packet_size=packet_bytes_max)
    return PublishSender(connect, state, out, Limits()), state, out


def flying(state: SessionState) -> list[Any]:
    """Return the messages in flight, in the order in which they are to be repeated."""

    def of(entry: InFlight) -> Any:
        delivery, place = entry
        return delivery.run, delivery.qos, delivery.retain, delivery.token, delivery.identifiers, delivery.kept, place

    return [(packet_id, of(entry)) for packet_id, entry in state.outgoing.items()]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(RUNS, min_size=1, max_size=6),
    st.sampled_from((3, 4, 5)),
    st.integers(0, 2),
    st.sampled_from(((), (1,), (300, 70_000))),
    st.integers(0, 5),
    st.sampled_from((1, 3, 127, 65_530, PACKET_ID_MAX)),
)
def test_messages_equal_single_ones(
    runs: list[Run], version: int, qos_max: int, identifiers: tuple[int, ...], in_flight: int, following: int
) -> None:
    one_by_one, its_state, its_out = outbound(version, PACKET_ID_MAX, in_flight, following)
    for run in runs:
        one_by_one.deliver(MqttDelivery(run, min(run.qos, qos_max), False, TOKEN, identifiers), send=True)
    together, state, out = outbound(version, PACKET_ID_MAX, in_flight, following)
    ids = sum(len(run) for run in runs if run.qos and qos_max)
    assert together.deliver_all(runs, MqttDelivery(runs[0], min(qos_max, 1), False, TOKEN, identifiers), ids)
    assert b"".join(out) == b"".join(its_out)
    assert flying(state) == flying(its_state)


@pytest.mark.parametrize(
    ("run", "packet_bytes_max"),
    [
        (Run("a", "d", 1 | RETAIN, b"", [b"x"]), 1_000),
        (Run("a", "d", 1 | AMQP, b"", [b"x"]), 1_000),
        (Run("a", "d", 2, b"", [b"x"]), 1_000),
        (Run("a", "d", 1, b"\x01\x01", [b"x"]), 1_000),
        (Run("a", "d", 1, b"", [b"x" * 1_000]), 1_000),
        (Run("a", "d", 1, b"", [b"x" * SHORT_LENGTH_MAX]), 1 << 20),
        (Run("t" * (USUAL_TOPIC_CHARACTERS_MAX + 1), "d", 1, b"", [b"x"]), 1_000),
    ],
)
def test_unusual_message_sends_all_through_the_general_path(run: Run, packet_bytes_max: int) -> None:
    plain = Run("a", "d", 1, b"", [b"x"])
    alike = MqttDelivery(plain, 1, False, TOKEN)
    made, state, out = outbound(4, packet_bytes_max, 0, 1)
    assert not made.deliver_all([plain, run, plain], alike, 2 + len(run))
    assert not out
    assert not state.outgoing
    assert made.deliver_all([plain], alike, 1)


def test_client_with_aliases_gets_single_messages() -> None:
    made = PublishSender(ConnectEvent(5, "c", True, 0, 0, topic_alias_maximum=3), SessionState(), [], Limits())
    run = Run("plant/7", "d", 0, b"", [b"x"])
    assert not made.deliver_all([run], MqttDelivery(run, 1, False, TOKEN), 0)
