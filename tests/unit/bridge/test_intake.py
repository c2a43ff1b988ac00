"""The hub's end of a link, with a bare engine as its peer: accepted and refused input, and bounds of memory."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bridge import plain
from bridge.batch import CAPABILITY, cost, encode
from bridge.engine import Attached, Closed, Condition, DeliveryState, Detached, Dispositions, Engine, Link
from bridge.intake import Intake, IntakeLimits
from bridge.limits import LEDGER_BYTES_MAX, STATUS_BYTES_MAX
from bridge.message import Run, Stored
from bridge.plain import Hop
from tests.support.frames import OPEN, frame
from tests.support.machines import take_all
from tests.support.shell import Shell
from tests.unit.bridge.intake_service import RecordingService


def batch_message(first: int = 0, count: int = 1, size: int = 10) -> bytes:
    run = Run("plant", "dev", 1, b"", [b"x" * size] * count, 5)
    return plain.data_section(encode([Stored(0, first, run)], space="s", epoch="e"))


SIZE = cost(plain.body_start(batch_message(size=400)))
"""Bytes of a batch of 400 bytes once it is decoded."""


class Pair:
    """A client engine and an intake; bytes pass until both are quiet."""

    def __init__(
        self, limits: IntakeLimits | None = None, *, container_id: str = "gw1", refusing: bool = False
    ) -> None:
        self.service = RecordingService()
        self.service.refusing = refusing
        self.client = Engine(container_id=container_id, server=False)
        self.server = Engine(container_id="hub", server=True)
        self.shell = Shell()
        self.intake = Intake(self.server, self.service, self.shell, limits=limits)
        self.events: list[Any] = []
        self.client.open()
        self.settle()

    def settle(self) -> None:
        while True:
            up, down = self.client.data_to_send(), self.server.data_to_send()
            if not up and not down:
                return
            if up:
                self.intake.handle(take_all(self.server, up, 0.0))
            if down:
                self.events += take_all(self.client, down, 0.0)

    def attach(self, target: str | None, *, batching: bool = False) -> Link:
        link = self.client.attach_sender(target or "none", target, desired_capabilities=(CAPABILITY,) * batching)
        self.settle()
        return link

    def send(self, link: Link, *messages: bytes, first_tag: int = 0) -> None:
        for tag, message in enumerate(messages, first_tag):
            self.client.send(link, tag, message)
        self.settle()

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def outcomes(self) -> list[tuple[int, DeliveryState]]:
        return [(tag, state) for event in self.told(Dispositions) for tag, state, _, _ in event.items]


def test_second_open_ends_the_connection() -> None:
    pair = Pair()
    pair.attach("telemetry")
    pair.intake.handle(pair.server.receive_data(frame(OPEN, "gw2"), 0.0))
    pair.settle()
    assert pair.service.calls == [("connected", "gw1"), ("disconnected", "gw1")]
    [closed] = pair.told(Closed)
    assert closed.condition is not None
    assert closed.condition.name == "amqp:illegal-state"


class TestLinks:
    def test_batches_are_offered_to_peers_that_desire_them(self) -> None:
        pair = Pair()
        assert pair.attach("telemetry", batching=True).offered_capabilities == (CAPABILITY,)
        assert pair.attach("status").offered_capabilities == ()

    @pytest.mark.parametrize("target", ["elsewhere", None, ""])
    def test_unknown_targets_are_not_found(self, target: str | None) -> None:
        pair = Pair()
        pair.attach(target)
        [detached] = pair.told(Detached)
        assert detached.condition.name == "amqp:not-found"
        assert pair.told(Closed) == []

    def test_receivers_are_not_found(self) -> None:
        pair = Pair()
        pair.client.attach_receiver("commands", "commands")
        pair.settle()
        assert [event.condition.name for event in pair.told(Detached)] == ["amqp:not-found"]
        assert pair.told(Attached) == []


class TestConnection:
    def test_container_id_is_the_gateway(self) -> None:
        pair = Pair()
        assert pair.intake.gateway == "gw1"
        pair.client.close()
        pair.settle()
        pair.intake.handle(pair.server.receive_eof(0.0))
        assert pair.service.calls == [("connected", "gw1"), ("disconnected", "gw1")]

    def test_empty_container_id_is_refused(self) -> None:
        pair = Pair(container_id="")
        assert [event.condition.name for event in pair.told(Closed)] == ["amqp:invalid-field"]
        assert pair.service.calls == []

    def test_service_may_refuse(self) -> None:
        pair = Pair(refusing=True)
        assert [event.condition.name for event in pair.told(Closed)] == ["amqp:unauthorized-access"]


class TestSettlement:
    def test_nothing_is_settled_before_the_service_settles(self) -> None:
        pair = Pair()
        pair.send(pair.attach("telemetry", batching=True), batch_message(), batch_message(1))
        assert pair.outcomes == []
        assert pair.intake.unsettled[0] == 2
        pair.intake.accept(reversed(pair.service.tokens))
        pair.settle()
        assert sorted(pair.outcomes) == [(0, DeliveryState.ACCEPTED), (1, DeliveryState.ACCEPTED)]
        assert pair.intake.unsettled == (0, 0)

    def test_batch_carries_the_ends_of_the_store(self) -> None:
        pair = Pair()
        body = plain.body_of(batch_message())
        pair.send(
            pair.attach("telemetry", batching=True), plain.batch_message(body, {3: 70, 1 << 40: 1}), batch_message()
        )
        assert [call[1] for call in pair.service.calls if call[0] == "batch"] == [{3: 70, 1 << 40: 1}, {}]

    def test_void_tokens_are_skipped(self) -> None:
        pair = Pair()
        pair.send(pair.attach("telemetry", batching=True), batch_message())
        pair.intake.accept([*pair.service.tokens, *pair.service.tokens, 99])
        pair.settle()
        assert pair.outcomes == [(0, DeliveryState.ACCEPTED)]
        pair.intake.handle(pair.server.receive_eof(0.0))
        pair.intake.accept(pair.service.tokens)
        pair.intake.release(pair.service.tokens)

    def test_reject_carries_its_reason(self) -> None:
        pair = Pair()
        pair.send(pair.attach("telemetry", batching=True), batch_message())
        pair.intake.reject(pair.service.tokens[0], "amqp:not-allowed", "wrong space")
        pair.settle()
        [event] = pair.told(Dispositions)
        assert event.items[0][1] is DeliveryState.REJECTED
        assert event.items[0][3] == Condition("amqp:not-allowed", "wrong space")

    def test_release_includes_later_batches_and_ends_the_connection(self) -> None:
        pair = Pair()
        pair.send(pair.attach("telemetry", batching=True), *[batch_message(i) for i in range(4)])
        pair.intake.release([pair.service.tokens[1]])
        pair.intake.accept(pair.service.tokens)
        pair.settle()
        assert [state for _, state in sorted(pair.outcomes)[1:]] == [DeliveryState.RELEASED] * 3
        assert [event.condition.name for event in pair.told(Closed)] == ["amqp:resource-limit-exceeded"]

    def test_settled_batch_has_a_token_without_effect(self) -> None:
        pair = Pair()
        link = pair.attach("telemetry", batching=True)
        pair.client.send(link, 0, batch_message(), settled=True)
        pair.settle()
        assert pair.intake.unsettled == (0, 0)
        pair.intake.accept(pair.service.tokens)


class TestMalformed:
    @pytest.fixture(autouse=True)
    def _quiet(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL)

    @pytest.mark.parametrize(("target", "batching"), [("telemetry", True), ("telemetry", False), ("ledger", False)])
    @pytest.mark.parametrize("message", [b"", b"junk", plain.data_section(b"junk")[:-1], batch_message()[:40]])
    def test_malformed_batch_goes_to_the_service_and_is_never_rejected(
        self, target: str, batching: bool, message: bytes
    ) -> None:
        pair = Pair()
        link = pair.attach(target, batching=batching)
        pair.send(link, message)
        [(_, unread)] = [call for call in pair.service.calls if call[0] == "unread"]
        assert (unread.link, unread.content) == (target, message)
        assert unread.delivery is not None
        assert unread.why
        assert pair.outcomes == [], "not answered before it is durable"
        pair.intake.accept(pair.service.tokens)
        pair.settle()
        assert pair.outcomes == [(0, DeliveryState.ACCEPTED)]
        assert pair.intake.malformed == 1
        assert pair.told(Closed) == []
        if batching:
            pair.send(link, batch_message(), first_tag=1)
            assert len(pair.service.tokens) == 2

    @pytest.mark.parametrize("message", [b"", b"junk", plain.data_section(b"junk")[:-1]])
    def test_malformed_status_is_refused(self, message: bytes) -> None:
        pair = Pair()
        pair.send(pair.attach("status"), message)
        assert pair.outcomes == [(0, DeliveryState.REJECTED)]
        assert pair.told(Closed) == []

    @pytest.mark.parametrize("body", [b"", b"[1]", b'{"a":', b'"\xff"', b"\xff", b'{"a":' + b"[" * 50_000])
    def test_documents_must_be_json_objects(self, body: bytes) -> None:
        pair = Pair()
        pair.send(pair.attach("status"), plain.data_section(body))
        assert pair.outcomes == [(0, DeliveryState.REJECTED)]


class TestDocuments:
    @pytest.mark.parametrize(("target", "bytes_max"), [("status", STATUS_BYTES_MAX), ("ledger", LEDGER_BYTES_MAX)])
    def test_documents_are_bounded_before_they_are_read(self, target: str, bytes_max: int) -> None:
        pair = Pair()
        document = b'{"a":"' + b"x" * (bytes_max - 8) + b'"}'
        pair.send(pair.attach(target), plain.data_section(document), plain.data_section(document + b" "))
        pair.shell.turn()
        told = [call[0] for call in pair.service.calls]
        assert told == ["connected", target, *(["unread"] if target == "ledger" else [])]

    def test_status_is_passed_on(self) -> None:
        pair = Pair()
        pair.send(pair.attach("status"), plain.data_section(b'{"state": "up"}'))
        assert pair.service.calls[-1] == ("status", "gw1", {"state": "up"})
        assert pair.outcomes == [(0, DeliveryState.ACCEPTED)]

    def test_ledger_waits_for_the_service(self) -> None:
        pair = Pair()
        pair.send(pair.attach("ledger"), plain.data_section(b'{"reason": "expired"}'))
        assert pair.service.calls[-1] == ("ledger", "gw1", {"reason": "expired"})
        assert pair.outcomes == []
        pair.intake.accept(pair.service.tokens)
        pair.settle()
        assert pair.outcomes == [(0, DeliveryState.ACCEPTED)]


class TestPlain:
    def test_relayed_messages_keep_their_names(self) -> None:
        pair = Pair()
        run = Run("plant/7", "pump", 1, b"", [b"22.5", b"22.6"], 123)
        pair.send(pair.attach("telemetry"), *plain.messages(Hop("gw9", "epoch"), 41, run))
        arrivals = [call[1] for call in pair.service.calls if call[0] == "message"]
        assert [(a.gateway, a.epoch, a.sequence, a.hops) for a in arrivals] == [
            ("gw9", "epoch", 41, ("gw9",)),
            ("gw9", "epoch", 42, ("gw9",)),
        ]
        assert [(a.run.address, a.run.device, a.run.received_at) for a in arrivals] == [("plant/7", "pump", 123)] * 2
        assert [plain.body_of(a.run.bodies[0]) for a in arrivals] == [b"22.5", b"22.6"]


class TestCredit:
    def test_unsettled_batches_are_bounded(self) -> None:
        pair = Pair(IntakeLimits(batches_unsettled=4))
        link = pair.attach("telemetry", batching=True)
        assert link.credit == 4
        pair.send(link, *[batch_message(i) for i in range(4)])
        assert link.credit == 0
        pair.intake.accept(pair.service.tokens[:1])
        pair.settle()
        assert link.credit == 1
        pair.intake.accept(pair.service.tokens[1:])
        pair.settle()
        assert link.credit == 4

    def test_unsettled_bytes_are_bounded(self) -> None:
        """Batches above the bound stay encoded until there is room; credit returns when all are decoded."""
        pair = Pair(IntakeLimits(batches_unsettled=8, bytes_unsettled=3 * SIZE))
        link = pair.attach("telemetry", batching=True)
        pair.send(link, *[batch_message(i, size=400) for i in range(8)])
        for decoded in (3, 6):
            assert len(pair.service.tokens) == decoded
            assert pair.intake.unsettled[1] <= 3 * SIZE
            assert link.credit == 0, "still above the limit"
            pair.intake.accept(list(pair.service.tokens))
            pair.settle()
        assert (len(pair.service.tokens), link.credit) == (8, 6)

    def test_batch_above_the_limit_is_decoded_alone(self) -> None:
        pair = Pair(IntakeLimits(batches_unsettled=8, bytes_unsettled=10))
        pair.send(pair.attach("telemetry", batching=True), batch_message(0), batch_message(1))
        assert len(pair.service.tokens) == 1
        pair.intake.accept(pair.service.tokens)
        assert len(pair.service.tokens) == 2

    def test_nothing_is_decoded_while_the_service_has_no_room(self) -> None:
        pair = Pair()
        pair.service.room = False
        pair.send(pair.attach("telemetry", batching=True), batch_message(0))
        assert pair.service.tokens == []
        pair.service.room = True
        pair.intake.resume_decoding()
        assert len(pair.service.tokens) == 1

    def test_turn_has_a_bounded_share(self) -> None:
        """A batch that exceeds the share of this turn is decoded in the next one, and the order stays."""
        pair = Pair(IntakeLimits(bytes_a_turn=SIZE + 1))
        status = pair.attach("status")
        pair.send(pair.attach("telemetry", batching=True), *[batch_message(i, size=400) for i in range(4)])
        pair.send(status, plain.data_section(b"{}"))
        for decoded in (2, 4):
            assert len(pair.service.tokens) == decoded
            assert len(pair.shell.steps) == 1
            pair.shell.turn()
        assert pair.service.calls[-1] == ("status", "gw1", {})

    def test_connection_with_too_many_waiting_bytes_is_not_read(self) -> None:
        pair = Pair(IntakeLimits(bytes_unsettled=SIZE, bytes_unread=SIZE))
        pair.send(pair.attach("telemetry", batching=True), *[batch_message(i, size=4000) for i in range(40)])
        assert pair.shell.paused
        while pair.shell.paused:
            pair.intake.accept(pair.service.tokens)
            pair.settle()
        assert len(pair.service.tokens) < 40

    def test_waiting_batches_end_with_their_link(self) -> None:
        pair = Pair(IntakeLimits(bytes_unsettled=10))
        link = pair.attach("telemetry", batching=True)
        pair.send(link, batch_message(0), batch_message(1))
        pair.client.detach(link)
        pair.settle()
        pair.intake.resume_decoding()
        assert len(pair.service.tokens) == 1
