"""Any bytes: the machine does not raise, ends at most once, and can be dropped in any state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.engine import Attached, Closed, DeliveryState, Engine, Event, PeerOpened, Transfers
from bridge.engine.loops import LOOPS, EngineLoops
from bridge.sasl import SaslServer
from tests.support.machines import take_all
from tests.unit.amqp.wire import NOW, Pipe, message, of_kind


def record() -> list[bytes]:
    """Record a client's part of a conversation with all kinds of frames, turn by turn."""
    pipe = Pipe(open_both=False)
    client, server = pipe.client, pipe.server
    pipe.turn()
    server.open()
    pipe.turn()
    mine, theirs = pipe.sender(credit=20, desired_capabilities=("x",), properties={"a": 1})
    back, there = pipe.receiver("topic/b")
    for i in range(5):
        client.send(mine, i, message(b"x" * i, durable=True))
    client.send(mine, 9, message(bytes(3000)), settled=True)
    pipe.turn()
    server.settle(theirs, range(3))
    server.send_all(there, 0, [message(b"y")] * 3)
    pipe.turn()
    client.settle(back, [0], DeliveryState.ACCEPTED)
    client.settle(back, [1], DeliveryState.MODIFIED_FAILED)
    client.grant(back, 3, drain=True)
    pipe.turn()
    client.detach(mine)
    client.close()
    pipe.turn()
    return pipe.sent


TURNS = record()
CONVERSATION = b"".join(TURNS)
EDGES = list(accumulate(map(len, TURNS)))
"""Offsets at which the client waited for an answer: the following bytes are valid only after one."""


def feed(data: bytes, cuts: Sequence[int] = (), loops: EngineLoops = LOOPS) -> list[Event]:
    """Feed `data`, cut at `cuts`, to a server that accepts and answers everything it understands; return its events."""
    server = Engine(
        container_id="s",
        server=True,
        sasl=SaslServer(lambda *_: None, anonymous="anonymous"),
        max_message_size=10_000,
        loops=loops,
    )
    events: list[Event] = []
    tags = count()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        fresh = take_all(server, data[start:stop], NOW)
        for event in fresh:
            if isinstance(event, PeerOpened):
                server.open()
            elif isinstance(event, Attached):
                server.accept(event.link)
                if not event.link.is_sender:
                    server.grant(event.link, 20)
            elif isinstance(event, Transfers):
                server.settle(event.link, event.deliveries)
        events += fresh
        for link in server.links:
            if link.is_sender and link.credit > 0:
                server.send(link, next(tags), b"\x00\x53\x75\xa0\x00")
        server.data_to_send()
    if server.deadline is not None:
        events += server.handle_timeout(server.deadline)
    events += server.receive_eof(NOW + 1)
    closed = of_kind(events, Closed)
    assert len(closed) == 1
    assert events[-1] is closed[0]
    assert server.closed
    return events


def test_the_recording_is_understood() -> None:
    events = feed(CONVERSATION, EDGES)
    assert len(of_kind(events, Attached)) == 2
    assert sum(len(event.messages) for event in of_kind(events, Transfers)) == 6
    assert of_kind(events, Closed) == [Closed(None)]


def test_every_truncation() -> None:
    for size in range(0, len(CONVERSATION), 3):
        feed(CONVERSATION[:size], EDGES)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_events_do_not_depend_on_how_bytes_are_cut(cuts: list[int]) -> None:
    whole, cut = feed(CONVERSATION, EDGES), feed(CONVERSATION, [*EDGES, *cuts])
    for kind in (PeerOpened, Attached, Closed):
        assert len(of_kind(whole, kind)) == len(of_kind(cut, kind))
    assert [m for e in of_kind(whole, Transfers) for m in e.messages] == [
        m for e in of_kind(cut, Transfers) for m in e.messages
    ]


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_bytes(data: bytes, with_header: bool) -> None:
    feed((b"AMQP\x00\x01\x00\x00" if with_header else b"") + data)


damages = st.lists(
    st.tuples(st.integers(0, len(CONVERSATION) - 1), st.sampled_from(["set", "drop", "double"]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


@given(damages)
@settings(max_examples=250, deadline=None)
def test_damaged_recordings(damages: list[tuple[int, str, int]]) -> None:
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
