"""One call of the engine does little work for a large read; later calls do the rest."""

from __future__ import annotations

import pytest

from bridge._native import PIECE_BYTES
from bridge.engine import Attached, Closed, Detached, Engine, Event, SessionEnded, Transfers
from bridge.engine.collector import ENDPOINTS_AT_ONCE
from bridge.engine.machine import EVENTS_AT_ONCE
from tests.support.frames import frame
from tests.unit.amqp.wire import NOW, Pipe, attach_links, message, of_kind

COUNT = 50
END = 0x17


def calls(server: Engine, data: bytes) -> list[list[Event]]:
    """Return the events of each call that these bytes take."""
    found = [list(server.receive_data(data, NOW))]
    while server.more:
        found.append(list(server.receive_data(b"", NOW)))
    return found


def flat(found: list[list[Event]]) -> list[Event]:
    return [event for each in found for event in each]


def test_attaches_and_detaches_come_in_parts() -> None:
    pipe = Pipe()
    links = [pipe.client.attach_sender(f"l{i}", "queue/a") for i in range(COUNT)]
    found = calls(pipe.server, pipe.client.data_to_send())
    assert max(map(len, found)) <= ENDPOINTS_AT_ONCE
    assert [event.link.name for event in of_kind(flat(found), Attached)] == [f"l{i}" for i in range(COUNT)]
    for event in of_kind(flat(found), Attached):
        pipe.server.accept(event.link)
    pipe.turn()
    for link in links:
        pipe.client.detach(link)
    found = calls(pipe.server, pipe.client.data_to_send())
    assert max(map(len, found)) <= ENDPOINTS_AT_ONCE
    assert len(of_kind(flat(found), Detached)) == COUNT


def test_proton_is_given_a_read_in_pieces() -> None:
    """The engine passes a read on in pieces, as Proton would need 15 ms for 64 KiB of attaches."""
    pipe = Pipe()
    for i in range(COUNT):
        pipe.client.attach_sender(f"l{i}", "x" * 1_000)
    data = pipe.client.data_to_send()
    found = [list(pipe.server.receive_data(data, NOW))]
    given = len(data) - len(pipe.server._rest)
    assert 0 < given <= PIECE_BYTES
    assert pipe.server.held_bytes >= len(data) - given, "the rest is counted"
    assert pipe.server.more
    while pipe.server.more:
        before = len(pipe.server._rest)
        found.append(list(pipe.server.receive_data(b"", NOW)))
        assert before - len(pipe.server._rest) <= PIECE_BYTES
    assert [event.link.name for event in of_kind(flat(found), Attached)] == [f"l{i}" for i in range(COUNT)]


def test_messages_are_given_to_proton_at_once() -> None:
    pipe = Pipe()
    [(mine, _)] = attach_links(pipe, 1)
    bodies = [message(b"%d" % i + bytes(1_000)) for i in range(COUNT)]
    pipe.client.send_all(mine, 0, bodies, settled=True)
    [event] = pipe.server.receive_data(pipe.client.data_to_send(), NOW)
    assert isinstance(event, Transfers)
    assert event.messages == bodies
    assert not pipe.server.more


def test_messages_on_many_links_are_reported_before_their_end() -> None:
    pipe = Pipe()
    for i, (mine, _) in enumerate(attach_links(pipe, COUNT)):
        pipe.client.send(mine, 0, message(b"%d" % i), settled=True)
    found = calls(pipe.server, pipe.client.data_to_send() + frame(END, None))
    assert max(map(len, found)) <= EVENTS_AT_ONCE
    kinds = [type(event) for event in flat(found)]
    assert kinds == [Transfers] * COUNT + [Detached] * COUNT + [SessionEnded]


def test_close_behind_many_frames_is_read() -> None:
    pipe = Pipe()
    for mine, _ in attach_links(pipe, COUNT):
        pipe.client.send(mine, 0, message(b"x"), settled=True)
    pipe.client.close()
    found = flat(calls(pipe.server, pipe.client.data_to_send()))
    assert [type(event) for event in found] == [Transfers] * COUNT + [Closed]
    pipe.turn()


@pytest.mark.parametrize("settled", [False, True])
def test_expensive_messages_come_in_parts(settled: bool) -> None:
    pipe = Pipe()
    [(mine, theirs)] = attach_links(pipe, 1)
    theirs.bound_transfers(8)
    pipe.client.send_all(mine, 0, [message(b"%d" % i) for i in range(COUNT)], settled=settled)
    found = of_kind(flat(calls(pipe.server, pipe.client.data_to_send())), Transfers)
    assert [len(event.messages) for event in found] == [8] * (COUNT // 8) + [COUNT % 8]
    assert [body for event in found for body in event.messages] == [message(b"%d" % i) for i in range(COUNT)]
    deliveries = [number for event in found for number in event.deliveries]
    assert deliveries == ([] if settled else list(range(COUNT)))
    pipe.server.settle(theirs, deliveries)
    pipe.turn()
    assert not pipe.client.closed


def test_bytes_received_meanwhile_are_reported_afterwards() -> None:
    pipe = Pipe()
    links = attach_links(pipe, COUNT)
    for mine, _ in links:
        pipe.client.send(mine, 0, message(b"first"), settled=True)
    found = list(pipe.server.receive_data(pipe.client.data_to_send(), NOW))
    assert pipe.server.more
    held = pipe.server.held_bytes
    for mine, _ in links:
        pipe.client.send(mine, 1, message(b"second"), settled=True)
    later = pipe.client.data_to_send()
    found += pipe.server.receive_data(later, NOW)
    assert pipe.server.held_bytes >= held + len(later) - 1
    while pipe.server.more:
        found += pipe.server.receive_data(b"", NOW)
    bodies: dict[str, list[bytes]] = {}
    for event in of_kind(found, Transfers):
        bodies.setdefault(event.link.name, []).extend(event.messages)
    assert bodies == {f"l{i}": [message(b"first"), message(b"second")] for i in range(COUNT)}


@pytest.mark.parametrize("end", ["eof", "shed"])
def test_end_reports_the_rest_and_closed_once(end: str) -> None:
    pipe = Pipe()
    for mine, _ in attach_links(pipe, COUNT):
        pipe.client.send(mine, 0, message(b"x"), settled=True)
    found = list(pipe.server.receive_data(pipe.client.data_to_send(), NOW))
    if end == "shed":
        found += pipe.server.shed()
        assert not pipe.server.more
    found += pipe.server.receive_eof(NOW)
    assert len(of_kind(found, Transfers)) == COUNT
    assert [type(event) for event in found[COUNT:]] == [Closed]
    assert not pipe.server.more
    assert not list(pipe.server.receive_data(b"", NOW))


def test_garbage_behind_many_frames_closes() -> None:
    """Garbage ends the connection after the events in front of it."""
    pipe = Pipe()
    for i in range(COUNT):
        pipe.client.attach_sender(f"l{i}", "queue/a")
    found = flat(calls(pipe.server, pipe.client.data_to_send() + b"no frame at all, surely"))
    assert [type(event) for event in found] == [Attached] * COUNT + [Closed]


def test_invalid_frame_ends_the_connection_in_either_reader() -> None:
    """A timer that fires between two calls finds the invalid frame too."""
    pipe = Pipe()
    for i in range(COUNT):
        pipe.client.attach_sender(f"l{i}", "queue/a")
    found = [list(pipe.server.receive_data(pipe.client.data_to_send() + b"no frame" * 10, NOW))]
    while pipe.server.more:
        found.append(list(pipe.server.handle_timeout(NOW)))
    assert len(of_kind(flat(found), Attached)) == COUNT
    (closed,) = of_kind(flat(found), Closed)
    assert closed.condition is not None
    assert closed.condition.name == "amqp:connection:framing-error"
