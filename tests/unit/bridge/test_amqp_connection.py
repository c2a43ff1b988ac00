"""The shared handler of dialled AMQP connections, over two engines and links that record their calls."""

from __future__ import annotations

from collections.abc import Callable

from bridge.amqp_connection import AmqpConnection, LinkDown, LinkUp
from bridge.engine import (
    Accepted,
    Attached,
    Condition,
    Detached,
    Dispositions,
    Engine,
    Link,
    LinkFlow,
    PeerOpened,
    Transfers,
)
from bridge.uplink import UplinkShell
from tests.support.machines import take_all
from tests.unit.amqp.wire import message

END = b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x17\x45"
"""The peer ends its session (AMQP 1.0 section 2.7.6)."""


class RecordedLinks:
    """One sender, attached as soon as the peer has opened."""

    def __init__(self, waits_s: float = 0.0) -> None:
        self.calls: list[str] = []
        self.left: Callable[[], None] | None = None
        self.connection: AmqpConnection | None = None
        self.bytes = 0
        self._waits_s = waits_s
        self._link: Link | None = None
        self.expected: Link | None = None
        """Second link of the peer, if expected."""

    @property
    def deadline(self) -> float | None:
        return 7.0

    def driven_by(self, driver: UplinkShell) -> None:
        self.calls.append("driven by")

    def count_bytes(self, size: int) -> None:
        self.bytes += size

    def opened(self, connection: AmqpConnection, now: float) -> None:
        self.connection = connection
        self._link = connection.engine.attach_sender("s", "a")

    def attached(self, link: Link) -> bool:
        if link is self._link and self.connection is not None:
            self.connection.up(batching=True)
        return link in (self._link, self.expected)

    def detached(self, event: Detached, now: float) -> None:
        self.calls.append("detached")

    def settled(self, event: Dispositions, now: float) -> None:
        self.calls.append("settled")

    def progressed(self, event: LinkFlow | Accepted) -> None:
        """Do nothing: these links have no messages of their own."""

    def received(self, event: Transfers, now: float) -> bool:
        return False

    def handle_timeout(self, now: float) -> None:
        self.calls.append("timeout")

    def flush(self) -> None:
        self.calls.append("flush")

    def leave(self, left: Callable[[], None]) -> None:
        self.calls.append("leave")
        self.left = left

    def end(self) -> None:
        self.calls.append("end")

    def wait_s(self, condition: Condition | None) -> float:
        return self._waits_s


class Peers:
    """A connection and its peer, which accepts each link."""

    def __init__(self, links: RecordedLinks) -> None:
        self.links = links
        self.connection = AmqpConnection(Engine(container_id="gw1", server=False), links)
        self.peer = Engine(container_id="hub", server=True)
        self.events: list[LinkUp | LinkDown] = []
        self.taken: list[Link] = []
        """Links that the peer accepted."""
        self.carry()

    def carry(self) -> None:
        """Carry bytes both ways until no side has any left."""
        busy = True
        while busy:
            out, back = self.connection.data_to_send(), self.peer.data_to_send()
            busy = bool(out or back)
            for event in take_all(self.peer, out, 0.0) if out else ():
                if isinstance(event, PeerOpened):
                    self.peer.open()
                elif isinstance(event, Attached):
                    self.peer.accept(event.link)
                    self.taken.append(event.link)
            self.events += take_all(self.connection, back, 0.0) if back else ()


def test_connection_is_up_with_its_links_and_down_once() -> None:
    peers = Peers(RecordedLinks(waits_s=3.0))
    assert peers.events == [LinkUp("hub", batching=True)]
    assert peers.connection.deadline == 7.0
    assert peers.links.bytes > 0
    (down,) = peers.connection.receive_eof(0.0)
    assert isinstance(down, LinkDown)
    assert down.wait_s == 3.0
    assert list(peers.connection.receive_eof(0.0)) == []
    peers.connection.close("late")
    assert [call for call in peers.links.calls if call in ("leave", "end")] == ["end"]


def test_links_end_before_the_connection() -> None:
    peers = Peers(RecordedLinks())
    peers.connection.close("the configuration changed")
    peers.links.calls.clear()
    peers.carry()
    peers.connection.handle_timeout(1.0)
    assert peers.links.calls == ["timeout"], "nothing is flushed while the links leave"
    assert not any(isinstance(event, LinkDown) for event in peers.events)
    assert peers.links.left is not None
    peers.links.left()
    peers.carry()
    assert peers.events[-1] == LinkDown("the configuration changed")
    assert peers.links.calls == ["timeout", "end"]


def test_session_ended_by_the_peer_ends_the_connection() -> None:
    peers = Peers(RecordedLinks())
    take_all(peers.connection, END, 0.0)
    assert peers.links.calls[-2:] == ["detached", "leave"]
    assert peers.links.left is not None
    peers.links.left()
    peers.carry()
    down = peers.events[-1]
    assert isinstance(down, LinkDown)
    assert down.reason.startswith("the peer ended the session")


def test_messages_on_a_sending_link_end_the_connection() -> None:
    peers = Peers(RecordedLinks())
    theirs = peers.peer.attach_sender("intruder", "a")
    peers.carry()
    assert theirs.closed, "a gateway accepts no links"
    peers.links.expected = ours = peers.connection.engine.attach_receiver("ours", "a")
    peers.carry()
    peers.connection.engine.grant(ours, 1)
    peers.carry()
    peers.peer.send(peers.taken[-1], 0, message(b"x"))
    peers.carry()
    assert peers.links.calls[-1] == "leave"
