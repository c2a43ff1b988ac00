"""Recorded conversation of an AMQP client, and a server that is fed with its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count, pairwise

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
