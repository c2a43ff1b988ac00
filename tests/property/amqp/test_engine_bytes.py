"""Any bytes: the machine does not raise, ends at most once, and can be dropped in any state."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.engine import Attached, Closed, PeerOpened, Transfers
from tests.property.amqp.conversation import CONVERSATION, EDGES, feed
from tests.unit.amqp.wire import of_kind


def test_recording_is_understood() -> None:
    events = feed(CONVERSATION, EDGES)
    assert len(of_kind(events, Attached)) == 2
    assert sum(len(event.messages) for event in of_kind(events, Transfers)) == 6
    assert of_kind(events, Closed) == [Closed(None)]


def test_every_truncation_is_accepted() -> None:
    for size in range(0, len(CONVERSATION), 3):
        feed(CONVERSATION[:size], EDGES)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_events_do_not_depend_on_how_bytes_are_split(cuts: list[int]) -> None:
    whole, cut = feed(CONVERSATION, EDGES), feed(CONVERSATION, [*EDGES, *cuts])
    for kind in (PeerOpened, Attached, Closed):
        assert len(of_kind(whole, kind)) == len(of_kind(cut, kind))
    assert [m for e in of_kind(whole, Transfers) for m in e.messages] == [
        m for e in of_kind(cut, Transfers) for m in e.messages
    ]


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_accepted(data: bytes, with_header: bool) -> None:
    feed((b"AMQP\x00\x01\x00\x00" if with_header else b"") + data)


damages = st.lists(
    st.tuples(st.integers(0, len(CONVERSATION) - 1), st.sampled_from(["set", "drop", "double"]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


@given(damages)
@settings(max_examples=250, deadline=None)
def test_damaged_recordings_are_accepted(damages: list[tuple[int, str, int]]) -> None:
    data = bytearray(CONVERSATION)
    for position, how, value in damages:
        at = min(position, len(data) - 1)
        if how == "set":
            data[at] = value
        elif how == "drop":
            del data[at : at + value % 7]
        else:
            data[at:at] = data[at : at + value % 40]
    feed(bytes(data), EDGES)
