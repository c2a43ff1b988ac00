"""Two AMQP engines against each other, and the bytes between them."""

from __future__ import annotations

import pytest

from bridge.amqp_values import DescribedValue, Symbol, Uint, Ulong, decode, encode
from bridge.engine import (
    Attached,
    Closed,
    Condition,
    DeliveryState,
    Detached,
    Dispositions,
    Engine,
    LinkFlow,
    PeerOpened,
    SessionEnded,
    Terminus,
    TerminusKind,
    Transfers,
)
from bridge.engine.machine import CLOSE_WAIT_S
from bridge.engine.terminus import source, target
from bridge.sasl import SaslClient, SaslServer
from tests.support.frames import ATTACH, BEGIN, FLOW, HEADER, OPEN, SOURCE, TARGET, frame, terminus
from tests.unit.amqp.wire import NOW, Pipe, message, of_kind


class TestOpen:
    def test_both_sides_learn_the_container_of_the_peer(self) -> None:
        pipe = Pipe(
            client={
                "hostname": "plant",
                "desired_capabilities": ("a", "b"),
                "properties": {"product": "test"},
                "offered_capabilities": ("one",),
            },
            open_both=False,
        )
        pipe.turn()
        assert pipe.at_server == [
            PeerOpened("client", "plant", ("a", "b"), ("one",), {"product": "test"}, "anonymous"),
        ]
        pipe.server.open()
        pipe.turn()
        (opened,) = pipe.at_client
        assert isinstance(opened, PeerOpened)
        assert opened.container_id == "server"

    def test_bare_header_counts_as_anonymous(self) -> None:
        client = Engine(container_id="bare", server=False)
        server = Engine(container_id="server", server=True)
        client.open()
        (opened,) = server.receive_data(client.data_to_send(), NOW)
        assert isinstance(opened, PeerOpened)
        assert opened.identity == "anonymous"

    def test_missing_open_times_out(self) -> None:
        server = Engine(container_id="server", server=True, handshake_timeout_s=3.0, now=NOW)
        assert server.deadline == NOW + 3.0
        assert server.handle_timeout(NOW + 1.0) == ()
        (closed,) = server.handle_timeout(NOW + 3.0)
        assert isinstance(closed, Closed)
        assert server.closed

    def test_roles_and_sasl_are_checked(self) -> None:
        with pytest.raises(TypeError):
            Engine(container_id="x", server=True, sasl=SaslClient())


class TestClose:
    def test_close_with_a_condition_is_reported_once_on_each_side(self) -> None:
        pipe = Pipe()
        pipe.server.close(Condition("amqp:connection:forced", "going down"))
        pipe.turn()
        assert pipe.at_client == [Closed(Condition("amqp:connection:forced", "going down"))]
        assert pipe.at_server == [Closed(None)]
        assert pipe.client.closed
        assert pipe.server.closed

    def test_info_of_a_close_is_read(self) -> None:
        pipe = Pipe()
        pipe.server.close(Condition("amqp:connection:forced", "going down", (("after-ms", "250"), ("at", "x"))))
        pipe.turn()
        (closed,) = pipe.at_client
        assert closed.condition.info == (("after-ms", "250"), ("at", "x"))
        assert pipe.client.receive_eof(NOW) == []
        assert pipe.client.receive_eof(NOW) == []

    def test_eof_without_close_ends_the_connection(self) -> None:
        pipe = Pipe()
        (closed,) = pipe.server.receive_eof(NOW)
        assert isinstance(closed, Closed)
        assert closed.condition is not None
        assert pipe.server.closed
        assert pipe.server.data_to_send() == b""

    def test_commands_after_the_end_do_nothing(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.send(mine, 1, message(b"x"))
        pipe.turn()
        pipe.server.receive_eof(NOW)
        pipe.server.settle(theirs, [0])
        pipe.server.grant(theirs, 5)
        pipe.server.detach(theirs)
        pipe.server.close()
        assert pipe.server.attach_sender("late", "q").closed

    def test_unanswered_close_times_out(self) -> None:
        pipe = Pipe()
        pipe.server.close()
        assert pipe.server.data_to_send()
        assert not pipe.server.closed
        assert pipe.server.deadline == 0.0
        assert pipe.server.handle_timeout(NOW) == ()
        assert pipe.server.deadline == NOW + CLOSE_WAIT_S
        (closed,) = pipe.server.handle_timeout(NOW + CLOSE_WAIT_S)
        assert isinstance(closed, Closed)
        assert pipe.server.closed


class TestTime:
    def test_idle_peer_is_disconnected(self) -> None:
        pipe = Pipe(server={"idle_timeout_s": 4.0})
        deadline = pipe.server.deadline
        assert deadline is not None
        assert deadline <= NOW + 4.01
        (closed,) = pipe.server.handle_timeout(deadline)
        assert isinstance(closed, Closed)
        assert closed.condition is not None
        assert "idle" in closed.condition.description
        assert pipe.server.data_to_send()
        assert pipe.server.closed

    def test_paused_peer_is_not_disconnected_and_gets_empty_frames(self) -> None:
        pipe = Pipe(server={"idle_timeout_s": 4.0}, client={"idle_timeout_s": 6.0})
        now, beats = NOW, b""
        while now < NOW + 40.0:
            deadline = pipe.server.deadline
            assert deadline is not None
            assert now < deadline <= now + 4.01, "neither at once nor never"
            now = deadline
            assert pipe.server.handle_timeout(now, listening=False) == []
            beats += pipe.server.data_to_send()
        assert len(beats) >= 8 * 10, "an empty frame at least each half of what the client waits"
        assert not beats.strip(b"\0\x08\x02")
        (closed,) = pipe.server.handle_timeout(now)
        assert isinstance(closed, Closed)

    @pytest.mark.parametrize("heard_s", [0.0, 20.0])
    def test_bytes_read_after_a_pause_count(self, heard_s: float) -> None:
        """Bytes that are read before the check of a deadline keep the connection alive."""
        pipe = Pipe(server={"idle_timeout_s": 4.0}, client={"idle_timeout_s": 0.0})
        assert pipe.server.handle_timeout(NOW + 20.0, listening=False) == []
        now = NOW + 20.0 + heard_s
        pipe.server.receive_data(b"\0\0\0\x08\x02\0\0\0", now)
        assert pipe.server.handle_timeout(now) == []
        deadline = pipe.server.deadline
        assert deadline is not None
        assert now + 3.9 < deadline <= now + 4.01
        (closed,) = pipe.server.handle_timeout(deadline)
        assert isinstance(closed, Closed)

    def test_peer_without_idle_timeout_is_never_disconnected(self) -> None:
        pipe = Pipe(server={"idle_timeout_s": 0.0}, client={"idle_timeout_s": 0.0})
        assert pipe.server.handle_timeout(NOW + 1.0, listening=False) == []
        assert pipe.server.deadline is None

    def test_open_deadline_applies_to_paused_peers(self) -> None:
        server = Engine(container_id="server", server=True, handshake_timeout_s=3.0, now=NOW)
        (closed,) = server.handle_timeout(NOW + 3.0, listening=False)
        assert isinstance(closed, Closed)

    def test_empty_frames_keep_it_alive(self) -> None:
        pipe = Pipe(server={"idle_timeout_s": 4.0}, client={"idle_timeout_s": 0.0})
        now = NOW
        for _ in range(20):
            now += 0.5
            for engine in (pipe.client, pipe.server):
                if engine.deadline is not None and engine.deadline <= now:
                    engine.handle_timeout(now)
            pipe.turn(now)
        assert pipe.at_server == []
        assert not pipe.server.closed


class TestAttach:
    def test_termini_arrive_complete(self) -> None:
        pipe = Pipe()
        wanted = source(
            "topic/a",
            durability=2,
            expiry="never",
            timeout_s=7,
            distribution_mode="copy",
            capabilities=("topic", "shared"),
            filters={"f": DescribedValue(Symbol("apache.org:selector-filter:string"), "a > 1")},
        )
        link = pipe.client.attach_receiver("r", wanted, desired_capabilities=("x:1",), properties={"k": "v"})
        pipe.turn()
        (attached,) = of_kind(pipe.at_server, Attached)
        assert attached.link.source == wanted
        assert attached.link.is_sender
        assert attached.link.desired_capabilities == ("x:1",)
        assert attached.link.properties["k"] == "v"
        pipe.server.accept(attached.link, source=source("topic/a", dynamic=False), offered_capabilities=("x:1",))
        pipe.turn()
        assert of_kind(pipe.at_client, Attached) == [Attached(link)]
        assert link.attached
        assert link.offered_capabilities == ("x:1",)
        assert link.source == source("topic/a")

    def test_anonymous_relay_and_coordinator_are_distinguished(self) -> None:
        pipe = Pipe()
        pipe.client.attach_sender("relay", target(None))
        pipe.client.attach_sender("transactions", Terminus(kind=TerminusKind.COORDINATOR))
        pipe.turn()
        relay, coordinator = (event.link.target for event in of_kind(pipe.at_server, Attached))
        assert relay.kind is TerminusKind.TARGET
        assert relay.address is None
        assert coordinator.kind is TerminusKind.COORDINATOR

    def test_dynamic_source_gets_its_address(self) -> None:
        pipe = Pipe()
        link = pipe.client.attach_receiver("r", source(None, dynamic=True))
        pipe.turn()
        (attached,) = of_kind(pipe.at_server, Attached)
        assert attached.link.source.dynamic
        pipe.server.accept(attached.link, source=source("temp/1", dynamic=True))
        pipe.turn()
        assert link.source.address == "temp/1"

    def test_refusal_is_a_detach_with_the_reason(self) -> None:
        pipe = Pipe()
        link = pipe.client.attach_sender("s", "nowhere")
        pipe.turn()
        pipe.server.refuse(of_kind(pipe.at_server, Attached)[0].link, Condition("amqp:not-found", "no such address"))
        pipe.turn()
        assert pipe.at_client == [Detached(link, True, Condition("amqp:not-found", "no such address"))]
        assert link.closed
        assert pipe.client.links == []
        assert pipe.server.links == []

    def test_too_many_links_are_refused(self) -> None:
        pipe = Pipe(server={"links_max": 2})
        links = [pipe.client.attach_sender(f"s{i}", "a") for i in range(3)]
        pipe.turn()
        assert len(of_kind(pipe.at_server, Attached)) == 2
        (detached,) = of_kind(pipe.at_client, Detached)
        assert detached.link is links[2]
        assert detached.condition.name == "amqp:resource-limit-exceeded"

    def test_link_may_be_attached_again_under_its_name(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.detach(mine, closed=False)
        pipe.turn()
        assert of_kind(pipe.at_server, Detached) == [Detached(theirs, False, None)]
        again, _ = pipe.sender()
        assert again.attached

    def test_end_of_a_session_ends_its_links(self) -> None:
        pipe = Pipe()
        _, theirs = pipe.sender()
        end = b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x17\x45"
        events = pipe.server.receive_data(end, NOW)
        assert list(events) == [Detached(theirs, False, None), SessionEnded(None)]
        pipe.server.settle(theirs, [0])
        assert pipe.server.data_to_send()


class TestOutput:
    def test_read_that_needs_no_answer_writes_nothing(self) -> None:
        """A read without an answer leaves no output, as a later commit settles the messages of a device."""
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.turn()
        assert not pipe.server.has_output
        pipe.client.send(mine, 0, message(b"x"))
        events = pipe.server.receive_data(pipe.client.data_to_send(), NOW)
        assert [type(event) for event in events] == [Transfers]
        assert not pipe.server.has_output
        pipe.server.settle(theirs, [0])
        assert pipe.server.has_output
        pipe.turn()
        assert not pipe.server.has_output
        pipe.client.close()
        pipe.server.receive_data(pipe.client.data_to_send(), NOW)
        assert pipe.server.has_output


class TestTransfer:
    def test_messages_of_one_read_are_one_group(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        for i in range(5):
            pipe.client.send(mine, i, message(b"%d" % i))
        pipe.turn()
        (transfers,) = pipe.at_server
        assert isinstance(transfers, Transfers)
        assert list(transfers.deliveries) == [0, 1, 2, 3, 4]
        assert transfers.messages == [message(b"%d" % i) for i in range(5)]
        assert not transfers.settled
        assert theirs.credit == 5

    def test_settled_and_unsettled_messages_keep_their_order(self) -> None:
        pipe = Pipe()
        mine, _ = pipe.sender()
        for i, settled in enumerate((False, True, True, False)):
            pipe.client.send(mine, i, message(b"%d" % i), settled=settled)
        pipe.turn()
        assert [(list(e.deliveries), len(e.messages), e.settled) for e in of_kind(pipe.at_server, Transfers)] == [
            ([0], 1, False),
            ([], 2, True),
            ([1], 1, False),
        ]

    @pytest.mark.parametrize("chunk", [7, 4096, 1 << 20])
    @pytest.mark.parametrize("size", [0, 1, 511, 65_530, 65_536, 200_000, 1_000_000])
    def test_large_messages_are_assembled(self, size: int, chunk: int) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        mine, _ = pipe.sender()
        whole = bytes(i & 0xFF for i in range(size))
        pipe.client.send(mine, 1, whole)
        pipe.client.send(mine, 2, b"after")
        pipe.turn(chunk=chunk)
        received = [one for event in of_kind(pipe.at_server, Transfers) for one in event.messages]
        assert received == [whole, b"after"]

    def test_transfers_arrive_byte_by_byte(self) -> None:
        pipe = Pipe()
        mine, _ = pipe.sender()
        pipe.client.send_all(mine, 0, [message(b"one"), message(b"two")])
        pipe.turn(chunk=1)
        received = [one for event in of_kind(pipe.at_server, Transfers) for one in event.messages]
        assert received == [message(b"one"), message(b"two")]

    def test_outcomes_return_under_their_tags(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        tags = [7, 300, 70_000, 2**40, 5, 9]
        for tag in tags:
            pipe.client.send(mine, tag, message(b"x"))
        pipe.turn()
        states = [
            DeliveryState.ACCEPTED,
            DeliveryState.REJECTED,
            DeliveryState.RELEASED,
            DeliveryState.MODIFIED_FAILED,
            DeliveryState.MODIFIED_UNDELIVERABLE,
            DeliveryState.MODIFIED,
        ]
        why = Condition("amqp:not-found", "words")
        for delivery, state in enumerate(states):
            pipe.server.settle(theirs, [delivery], state, why if state is DeliveryState.REJECTED else None)
        pipe.turn()
        (dispositions,) = of_kind(pipe.at_client, Dispositions)
        told = {tag: (state, settled, condition) for tag, state, settled, condition in dispositions.items}
        assert told == {
            tag: (state, True, why if state is DeliveryState.REJECTED else None)
            for tag, state in zip(tags, states, strict=True)
        }

    def test_settling_twice_or_an_unknown_tag_does_nothing(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.send(mine, 1, message(b"x"))
        pipe.turn()
        pipe.server.settle(theirs, [0, 0, 17])
        pipe.server.settle(theirs, [0])
        pipe.client.settle_sent(mine, 99)
        pipe.turn()
        assert [len(e.items) for e in of_kind(pipe.at_client, Dispositions)] == [1]

    def test_transfer_beyond_the_credit_closes(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender(credit=2)
        theirs.credit = 1  # as if only one had been granted
        for i in range(2):
            pipe.client.send(mine, i, message(b"x"))
        pipe.turn()
        (detached,) = of_kind(pipe.at_server, Detached)
        assert detached.condition.name == "amqp:link:transfer-limit-exceeded"
        (told,) = of_kind(pipe.at_client, Detached)
        assert told.condition.name == "amqp:link:transfer-limit-exceeded"

    def test_message_beyond_the_credit_is_not_reported(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender(credit=3)
        theirs.credit = 1  # as if only one had been granted
        for i, settled in enumerate((False, True, False)):
            pipe.client.send(mine, i, message(b"%d" % i), settled=settled)
        pipe.turn()
        assert [event.messages for event in of_kind(pipe.at_server, Transfers)] == [[message(b"0")]]

    @pytest.mark.parametrize("size", [1001, 100_000])
    def test_message_above_the_maximum_size_closes(self, size: int) -> None:
        pipe = Pipe(server={"max_message_size": 1000, "max_frame_size": 2048})
        mine, _ = pipe.sender()
        assert mine.max_message_size == 1000
        pipe.client.send(mine, 1, bytes(size))
        pipe.turn(chunk=4096)
        (told,) = of_kind(pipe.at_client, Detached)
        assert told.condition.name == "amqp:link:message-size-exceeded"


class TestFlow:
    def test_changed_credit_is_reported(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender(credit=3)
        assert mine.credit == 3
        pipe.client.send(mine, 1, message(b"x"))
        assert mine.credit == 2
        pipe.turn()
        assert of_kind(pipe.at_client, LinkFlow) == []
        pipe.server.grant(theirs, 4)
        pipe.turn()
        assert of_kind(pipe.at_client, LinkFlow) == [LinkFlow(mine, 6, False)]

    def test_drain_returns_unused_credit(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.receiver(credit=5)
        pipe.client.grant(mine, 0, drain=True)
        pipe.turn()
        assert of_kind(pipe.at_server, LinkFlow) == [LinkFlow(theirs, 5, True)]
        assert theirs.draining
        pipe.server.send(theirs, 1, message(b"x"))
        pipe.server.drained(theirs)
        pipe.turn()
        assert len(of_kind(pipe.at_client, Transfers)) == 1
        assert of_kind(pipe.at_client, LinkFlow) == [LinkFlow(mine, 0, True)]
        assert (mine.credit, theirs.credit, theirs.draining) == (0, 0, False)
        pipe.client.grant(mine, 2)
        pipe.turn()
        assert theirs.credit == 2
        assert not theirs.draining

    @pytest.mark.parametrize("used", [0, 3])
    def test_drain_without_credit_is_answered(self, used: int) -> None:
        """The sender answers a drain with its flow state (section 2.6.7). A receiver waits for that answer when it
        takes its credit back and drains at once, and also when a message has just used its last credit."""
        server = Engine(container_id="server", server=True)
        session = [Uint(0), Uint(100), Uint(0), Uint(100)]
        attach = ["r", Uint(0), True, None, None, terminus(SOURCE, "queue/a"), terminus(TARGET, None)]
        opening = (
            HEADER + frame(OPEN, "raw") + frame(BEGIN, None, Uint(0), Uint(100), Uint(100)) + frame(ATTACH, *attach)
        )
        link = of_kind(list(server.receive_data(opening, NOW)), Attached)[0].link
        server.open()
        server.accept(link)
        server.receive_data(frame(FLOW, *session, Uint(0), Uint(0), Uint(3)), NOW)
        server.send_all(link, 1, [message(b"x")] * used)
        server.data_to_send()
        drain = frame(FLOW, *session, Uint(0), Uint(used), Uint(0), None, True)
        assert server.receive_data(drain, NOW) == [LinkFlow(link, 0, True)]
        server.drained(link)
        answer, _ = decode(server.data_to_send(), 8)
        assert answer.descriptor == FLOW
        assert answer.value[4:9] == [0, used, 0, None, True], "handle, delivery-count, link-credit, available, drain"
        assert not server.data_to_send()
        server.receive_data(frame(FLOW, *session, Uint(0), Uint(used), Uint(2)), NOW)
        assert (link.credit, link.draining) == (2, False)


class TestSasl:
    def test_plain_is_accepted(self) -> None:
        asked = []

        def authenticate(mechanism: str, identity: str, secret: bytes) -> str | None:
            asked.append((mechanism, identity, secret))
            return "device-7" if secret == b"s3cret" else None

        pipe = Pipe(sasl=(SaslClient("joe", "s3cret", plain=True), SaslServer(authenticate)), open_both=False)
        pipe.turn()
        assert asked == [("PLAIN", "joe", b"s3cret")]
        (opened,) = pipe.at_server
        assert isinstance(opened, PeerOpened)
        assert opened.identity == "device-7"

    def test_plain_is_refused_unless_allowed(self) -> None:
        asked: list[tuple[str, str, bytes]] = []
        client = SaslClient("joe", "s3cret")
        pipe = Pipe(sasl=(client, SaslServer(lambda *claim: asked.append(claim))), open_both=False)
        pipe.turn()
        assert asked == []
        assert not client.done
        assert client.failure is not None

    def test_wrong_password_closes_both(self) -> None:
        pipe = Pipe(sasl=(SaslClient("joe", "no", plain=True), SaslServer(lambda *_: None)), open_both=False)
        pipe.turn()
        for engine, events in ((pipe.client, pipe.at_client), (pipe.server, pipe.at_server)):
            (closed,) = events
            assert isinstance(closed, Closed)
            assert closed.condition is not None
            assert closed.condition.name == "amqp:unauthorized-access"
            assert engine.closed

    def test_external_uses_the_identity_of_tls(self) -> None:
        pipe = Pipe(sasl=(SaslClient(external=True), SaslServer(external="gw1")), open_both=False)
        pipe.turn()
        (opened,) = pipe.at_server
        assert isinstance(opened, PeerOpened)
        assert opened.identity == "gw1"

    @pytest.mark.parametrize(
        ("mechanism", "response", "let_in"),
        [
            ("PLAIN", b"\0joe\0secret", True),
            ("PLAIN", b"joe\0joe\0secret", True),
            ("PLAIN", b"boss\0joe\0secret", False),
            ("EXTERNAL", b"", True),
            ("EXTERNAL", b"gw1", True),
            ("EXTERNAL", b"boss", False),
        ],
    )
    def test_client_may_not_act_for_another_user(self, mechanism: str, response: bytes, let_in: bool) -> None:
        """An authorization identity other than the user's own is refused (RFC 4422 section 3.6, RFC 4616 section 2)."""
        server = SaslServer(lambda _mechanism, user, _secret: user, external="gw1")
        init = encode(DescribedValue(Ulong(0x41), [Symbol(mechanism), response]))
        server.receive(b"AMQP\x03\x01\x00\x00" + (len(init) + 8).to_bytes(4, "big") + b"\x02\x01\0\0" + init)
        assert (server.failure is None) is let_in
        assert server.identity == (("joe" if mechanism == "PLAIN" else "gw1") if let_in else None)

    def test_anonymous_is_refused_unless_allowed(self) -> None:
        pipe = Pipe(sasl=(SaslClient(), SaslServer(lambda *_: "x")), open_both=False)
        pipe.turn()
        (closed,) = pipe.at_client
        assert isinstance(closed, Closed)
        client = Engine(container_id="bare", server=False)
        client.open()
        server = Engine(container_id="server", server=True, sasl=SaslServer(lambda *_: "x"))
        (closed,) = server.receive_data(client.data_to_send(), NOW)
        assert isinstance(closed, Closed)
        assert server.data_to_send() == b"AMQP\x03\x01\x00\x00"


class TestMemory:
    def test_ended_connections_leave_no_objects(self) -> None:
        def rss_kib() -> int:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4

        def live(i: int) -> None:
            pipe = Pipe()
            mine, theirs = pipe.sender()
            pipe.client.send_all(mine, 0, [message(bytes(500))] * 5)
            pipe.turn()
            pipe.server.settle(theirs, [0, 1])
            if i % 3 == 0:
                pipe.client.close()
                pipe.turn()
            elif i % 3 == 1:
                pipe.server.receive_eof(NOW)
            else:
                pipe.server.receive_data(bytes(100), NOW)

        for i in range(200):
            live(i)
        before = rss_kib()
        for i in range(600):
            live(i)
        assert rss_kib() - before < 1500  # 600 leaked connections would be some 10 MiB
