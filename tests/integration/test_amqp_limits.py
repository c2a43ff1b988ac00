"""Limits and rules of AMQP that no client library breaks: the gateway's answers and when it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bridge.amqp_values import DescribedValue, Symbol, Uint, Ulong, encode
from tests.support.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    RECEIVER,
    ROOM,
    SENDER,
    TRANSFER,
    FramePeer,
    frame,
)
from tests.support.processes import Waypost

CHANNEL_MAX = 255
HANDLE_MAX = 0x7FFF_FFFF
FRAME_BYTES_MAX = 65_536
LINKS_MAX = 1_024
DURABLE = (Uint(2), Symbol("never"))
"""Terminus durability and expiry policy of a source (section 3.5.3)."""
NO_STATE_YET = None
ACCEPTED, REJECTED = 0x24, 0x25
"""Descriptors of outcomes (section 3.4)."""


@pytest.fixture
def peer(gateway: Waypost) -> Iterator[FramePeer]:
    with FramePeer(gateway.port("amqp")) as connected:
        yield connected


def in_a_session(peer: FramePeer) -> FramePeer:
    peer.begin()
    return peer


class TestAnnounced:
    def test_limits_are_announced(self, peer: FramePeer) -> None:
        assert peer.opened.fields[2:4] == [FRAME_BYTES_MAX, CHANNEL_MAX]
        assert peer.begin().fields[4] == HANDLE_MAX

    def test_peer_may_use_the_limits(self, peer: FramePeer) -> None:
        assert peer.begin(CHANNEL_MAX).fields[0] == CHANNEL_MAX
        peer.begin()
        peer.attach("last", HANDLE_MAX, SENDER, "queue/limits")
        assert peer.expect(ATTACH).fields[0] == "last"
        name = "n" * (FRAME_BYTES_MAX - 200)
        peer.attach(name, 1, SENDER, "queue/limits")
        assert peer.expect(ATTACH).fields[0] == name


@pytest.mark.parametrize(
    ("condition", "crime"),
    [
        ("amqp:connection:framing-error", lambda p: p.send(BEGIN, None, Uint(0), ROOM, ROOM, channel=CHANNEL_MAX + 1)),
        ("amqp:connection:framing-error", lambda p: in_a_session(p).attach("l", HANDLE_MAX + 1, SENDER, "queue/a")),
        (
            "amqp:connection:framing-error",
            lambda p: in_a_session(p).attach("l" * FRAME_BYTES_MAX, 0, SENDER, "queue/a"),
        ),
        ("amqp:connection:framing-error", lambda p: p.socket.sendall(frame(BEGIN, None, Uint(0), ROOM, ROOM) * 300)),
        ("amqp:not-allowed", lambda p: p.attach("l", 0, SENDER, "queue/a")),
        ("amqp:invalid-field", lambda p: in_a_session(p).transfer(5, 0, b"x")),
        ("amqp:invalid-field", lambda p: in_a_session(p).grant(5, 10)),
        ("amqp:invalid-field", lambda p: in_a_session(p).send(DETACH, Uint(5), True)),
        (
            "amqp:invalid-field",
            lambda p: in_a_session(p).attach("l", 0, SENDER, "queue/a").attach("l", 1, SENDER, "queue/a"),
        ),
        (
            "amqp:not-allowed",
            lambda p: in_a_session(p).attach("l", 0, RECEIVER, "queue/none").transfer(0, 0, b"not for a receiver"),
        ),
    ],
    ids=[
        "channel above channel-max",
        "handle above handle-max",
        "frame above max-frame-size",
        "a session for every begin on one channel",
        "attach without a session",
        "transfer on a handle without a link",
        "flow on a handle without a link",
        "detach of a handle without a link",
        "a link name that is attached",
        "transfer on a link the peer receives on",
    ],
)
def test_violation_ends_the_connection(peer: FramePeer, condition: str, crime: Callable[[FramePeer], object]) -> None:
    crime(peer)
    assert peer.ended() == condition


def test_links_above_the_limit_are_refused_then_the_connection_ends(peer: FramePeer) -> None:
    """Each link beyond the limit is refused; a peer that goes on using refused links is disconnected."""
    peer.begin()
    for i in range(2 * LINKS_MAX + 1):
        peer.attach(f"l{i}", i, SENDER, "queue/many")
    refused = 0
    while (found := peer.receive()) is not None:
        if found.code == DETACH:
            assert found.error == "amqp:resource-limit-exceeded"
            refused += 1
        elif found.code not in (ATTACH, 0x13):
            assert found.error == "amqp:resource-limit-exceeded"
            break
    assert refused == LINKS_MAX
    assert peer.receive() is None


def test_dispositions_of_settled_deliveries_are_allowed(peer: FramePeer) -> None:
    """Dispositions of settled deliveries are not counted as messages of the peer."""
    peer.begin()
    peer.attach("in", 0, RECEIVER, "topic/settled").grant(0, 50)
    peer.attach("out", 1, SENDER, "topic/settled")
    peer.expect(ATTACH)
    peer.expect(ATTACH)
    for i in range(10):
        peer.transfer(1, i, b"x")
    for _ in range(10):
        found = peer.expect(TRANSFER)
        answer = (
            DISPOSITION,
            True,
            Uint(found.fields[1]),
            Uint(found.fields[1]),
            True,
            DescribedValue(Ulong(0x24), []),
        )
        peer.send(*answer).send(*answer)
    peer.transfer(1, 10, b"y")
    assert peer.expect(TRANSFER).payload.endswith(b"y")


def durable(peer: FramePeer, *rest: object) -> FramePeer:
    return peer.attach("sub", 0, RECEIVER, "topic/kept", *rest, source=DURABLE)


@pytest.mark.parametrize(
    "message",
    [
        bytes.fromhex("005375a00361626300"),
        bytes.fromhex("005375a0036162"),
        bytes.fromhex("005377a102c328"),
        bytes.fromhex("005375a10161"),
        bytes.fromhex("005374c1040152026b"),
        bytes.fromhex("005375a00161005373c0010000"),
        bytes.fromhex("005377c10301a16b"),
        bytes.fromhex("00537773ffffffff"),
        bytes.fromhex("005370c10100005375a00161"),
        b"",
        b"abc",
    ],
    ids=[
        "a byte behind it", "cut short", "no UTF-8", "data that is text", "a key without a value", "out of order",
        "a map that is cut short", "no character", "a header that is a map", "empty", "no sections",
    ],
)  # fmt: skip
def test_malformed_message_is_rejected_and_the_next_one_accepted(peer: FramePeer, message: bytes) -> None:
    """Consumers get only the valid message, and the link goes on (part 3, section 3.2)."""
    peer.begin()
    peer.attach("out", 0, SENDER, "queue/malformed").expect(ATTACH)
    peer.attach("in", 1, RECEIVER, "queue/malformed").grant(1, 10).expect(ATTACH)
    peer.send(TRANSFER, Uint(0), Uint(0), b"0", Uint(0), payload=message)
    outcome = peer.expect(DISPOSITION).fields[4]
    assert outcome.descriptor == REJECTED
    assert outcome.value[0].value[0] == "amqp:decode-error"
    peer.transfer(0, 1, b"good")
    found = peer.expect(TRANSFER)
    assert found.payload.endswith(b"good")
    number = Uint(found.fields[1])
    peer.send(DISPOSITION, True, number, number, True, DescribedValue(Ulong(0x24), []))
    assert peer.expect(DISPOSITION).fields[4].descriptor == ACCEPTED


def test_link_to_a_will_is_refused(peer: FramePeer) -> None:
    peer.begin()
    peer.attach("will", 0, SENDER, "$lwt")
    assert peer.expect(DETACH).error == "amqp:not-implemented"


def test_message_to_a_will_over_the_anonymous_relay_is_refused(peer: FramePeer) -> None:
    peer.begin()
    peer.attach("relay", 0, SENDER, None).expect(ATTACH)
    message = encode(DescribedValue(Ulong(0x73), [None, None, "$lwt"])) + encode(DescribedValue(Ulong(0x75), b"gone"))
    peer.send(TRANSFER, Uint(0), Uint(0), b"0", Uint(0), payload=message)
    outcome = peer.expect(DISPOSITION).fields[4]
    assert outcome.descriptor == REJECTED
    assert outcome.value[0].value[0] == "amqp:not-implemented"


class TestStolenLink:
    """A link name is attached once between two containers, on any connection or session (section 2.6.1)."""

    @pytest.mark.parametrize(("role", "address"), [(RECEIVER, "topic/s"), (RECEIVER, "queue/s"), (SENDER, "queue/s")])
    def test_by_another_connection_of_the_container(self, gateway: Waypost, role: bool, address: str) -> None:
        with FramePeer(gateway.port("amqp"), "twice") as old, FramePeer(gateway.port("amqp"), "twice") as new:
            old.begin()
            old.attach("one", 0, role, address).expect(ATTACH)
            new.begin()
            new.attach("one", 0, role, address).expect(ATTACH)
            assert old.expect(DETACH).error == "amqp:link:stolen"
            old.send(DETACH, Uint(0), True)
            old.attach("two", 1, role, address).expect(ATTACH)  # the connection continues

    def test_by_another_session_of_the_connection(self, peer: FramePeer) -> None:
        peer.begin()
        peer.attach("one", 0, RECEIVER, "topic/s").expect(ATTACH)
        peer.begin(1)
        mine, theirs = DescribedValue(Ulong(0x28), ["topic/s"]), DescribedValue(Ulong(0x29), [None])
        peer.send(ATTACH, "one", Uint(0), RECEIVER, None, None, mine, theirs, channel=1)
        assert peer.expect(DETACH).error == "amqp:link:stolen"

    @pytest.mark.parametrize(("container", "name"), [("twice", "other"), ("another", "one")])
    def test_other_links_and_containers_stay_attached(self, gateway: Waypost, container: str, name: str) -> None:
        with FramePeer(gateway.port("amqp"), "twice") as old, FramePeer(gateway.port("amqp"), container) as new:
            for peer, link in ((old, "one"), (new, name)):
                peer.begin()
                peer.attach(link, 0, RECEIVER, "topic/both").grant(0, 1).expect(ATTACH)
            new.attach("out", 1, SENDER, "topic/both").expect(ATTACH)
            new.transfer(1, 0, b"to both")
            assert old.expect(TRANSFER).payload.endswith(b"to both")
            assert new.expect(TRANSFER).payload.endswith(b"to both")


class TestDurableSubscription:
    """A link is detached and attached again by the same container, perhaps on another connection (section 2.6.3)."""

    def test_stolen_by_the_same_container(self, gateway: Waypost) -> None:
        with FramePeer(gateway.port("amqp"), "thief") as old, FramePeer(gateway.port("amqp"), "thief") as new:
            old.begin()
            durable(old).expect(ATTACH)
            new.begin()
            durable(new).expect(ATTACH)
            detached = old.expect(DETACH)
            assert detached.error == "amqp:link:stolen"
            assert not detached.fields[1:2] or not detached.fields[1], "closed would end the subscription"
            old.send(DETACH, Uint(0), False)
            new.grant(0, 10).attach("out", 1, SENDER, "topic/kept").expect(ATTACH)  # the credit is already granted
            new.transfer(1, 0, b"for the new one")
            assert new.expect(TRANSFER).payload.endswith(b"for the new one")
            new.send(DETACH, Uint(0), True)

    def test_unsettled_deliveries_are_delivered_again(self, gateway: Waypost) -> None:
        """The peer may list remembered deliveries in `unsettled`; the gateway claims to remember none."""
        with FramePeer(gateway.port("amqp"), "resumes") as peer:
            peer.begin()
            durable(peer).grant(0, 10).expect(ATTACH)
            peer.attach("out", 1, SENDER, "topic/kept").expect(ATTACH)
            for i in range(3):
                peer.transfer(1, i, b"%d" % i)
            found = [peer.expect(TRANSFER) for _ in range(3)]
            first = Uint(found[0].fields[1])
            peer.send(DISPOSITION, True, first, first, True, DescribedValue(Ulong(0x24), []))
            peer.send(DETACH, Uint(0), False)
            peer.expect(DETACH)
        with FramePeer(gateway.port("amqp"), "resumes") as peer:
            peer.begin()
            durable(peer, {each.fields[2]: NO_STATE_YET for each in found[1:]})
            answer = peer.expect(ATTACH)
            assert answer.fields[7:8] in ([], [None]), "unsettled"
            peer.grant(0, 10)
            again = [peer.expect(TRANSFER) for _ in range(2)]
            assert [each.payload[-1:] for each in again] == [b"1", b"2"]
            assert not any(each.fields[9:10] == [True] for each in again), "resume: they are deliveries of their own"
            peer.send(DETACH, Uint(0), True)
            peer.expect(DETACH)


def test_frame_shorter_than_its_header_ends_the_connection(peer: FramePeer) -> None:
    peer.socket.sendall(b"\0\0\0\x04\x02\0\0\0" + encode(None))
    assert peer.ended() == "amqp:connection:framing-error"
