"""QoS 1 and 2 over connections that break at any moment, with commits that finish at any moment, in both directions.

A conforming client talks to the machine over a wire that is cut now and then. In the end every QoS 2 message has
arrived exactly once, every QoS 1 message at least once, and neither side waits for anything.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.message import Run
from edge.broker.limits import Limits
from edge.broker.mqtt import events
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import MqttDelivery
from edge.broker.mqtt.state import SessionState
from tests.support.machines import take_all
from tests.support.mqtt_connection import split


class Exchange(RuleBasedStateMachine):
    """Exchange with the client's state; the machine has the server's state."""

    @initialize(version=st.sampled_from((4, 5)))
    def start(self, version: int) -> None:
        self.version = version
        self.state = SessionState()
        self.commits: deque[tuple[MqttConnection, int, list[int]]] = deque()
        self.releases: deque[list[int]] = deque()
        self.published: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.sent_up: dict[int, p.Publish] = {}  # not acknowledged by PUBACK or PUBREC
        self.released_up: list[int] = []  # PUBREL sent
        self.sent_down: list[bytes] = []
        self.received: list[bytes] = []
        self.holding: set[int] = set()  # QoS 2 identifiers the client has received
        self.counter = 0
        self.dial()

    def dial(self) -> None:
        self.connection = MqttConnection(Limits(inflight_max=4), 0.0)
        self.connection.receive_data(p.Connect("c", self.version, clean_start=False).encode(), 0.0)
        self.take(self.connection.accept(self.state, True))
        self.to_server = b""
        for packet_id in self.released_up:
            self.to_server += p.PubRel(packet_id).encode(self.version)
        for packet in self.sent_up.values():
            again = p.Publish(packet.topic, packet.payload, packet.qos, dup=True, packet_id=packet.packet_id)
            self.to_server += again.encode(self.version)

    def take(self, found: Any) -> None:
        for event in found:
            match event:
                case events.PublishEvent(run, ids):
                    self.published += run.bodies
                    self.commits.append((self.connection, run.qos, ids))
                case events.PubRelEvent(ids):
                    self.releases.append(ids)
                case events.AcknowledgedEvent(messages):
                    self.acknowledged += [delivery.run.bodies[index] for delivery, index in messages]
                case events.DisconnectedEvent():
                    assert not self.connection.closed or event.reason == "the network connection was closed"

    # --- steps --------------------------------------------------------------------------------------------------

    @rule(qos=st.sampled_from((1, 2)))
    def client_publishes(self, qos: int) -> None:
        free = [n for n in range(1, 7) if n not in self.sent_up and n not in self.released_up]
        if free:
            self.counter += 1
            packet = p.Publish("t", b"%d-%d" % (qos, self.counter), qos, packet_id=free[0])
            self.sent_up[free[0]] = packet
            self.to_server += packet.encode(self.version)

    @rule(qos=st.sampled_from((1, 2)), count=st.integers(1, 3))
    def server_delivers(self, qos: int, count: int) -> None:
        count = min(count, self.connection.window)
        if count:
            bodies = [b"%d-%d" % (qos, self.counter + n) for n in range(1, count + 1)]
            self.counter += count
            self.sent_down += bodies
            self.connection.deliver(MqttDelivery(Run("t", "x", qos, b"", bodies), qos, False, None))

    @rule(size=st.integers(1, 40))
    def server_reads(self, size: int) -> None:
        data, self.to_server = self.to_server[:size], self.to_server[size:]
        self.take(take_all(self.connection, data, 0.0))
        assert not self.connection.closed

    @rule()
    def client_reads(self) -> None:
        for packet in split(self.connection.data_to_send(), self.version):
            match packet:
                case p.PubAck(packet_id):
                    self.sent_up.pop(packet_id)
                case p.PubRec(packet_id):
                    if self.sent_up.pop(packet_id, None) is not None:
                        self.released_up.append(packet_id)
                    self.to_server += p.PubRel(packet_id).encode(self.version)
                case p.PubComp(packet_id):
                    if packet_id in self.released_up:
                        self.released_up.remove(packet_id)
                case p.Publish(_, payload, 1, packet_id=packet_id):
                    self.received.append(payload)
                    self.to_server += p.PubAck(packet_id).encode(self.version)
                case p.Publish(_, payload, 2, packet_id=packet_id):
                    if packet_id not in self.holding:
                        self.holding.add(packet_id)
                        self.received.append(payload)
                    self.to_server += p.PubRec(packet_id).encode(self.version)
                case p.PubRel(packet_id):
                    self.holding.discard(packet_id)
                    self.to_server += p.PubComp(packet_id).encode(self.version)

    @rule()
    def commit(self) -> None:
        if self.commits:
            connection, qos, ids = self.commits.popleft()
            connection.acknowledge(qos, ids)

    @rule()
    def commit_releases(self) -> None:
        if self.releases:
            self.state.complete(self.releases.popleft())

    @rule()
    def wire_breaks(self) -> None:
        self.take(self.connection.receive_eof(0.0))
        self.dial()

    # --- invariants ---------------------------------------------------------------------------------------------

    @invariant()
    def exactly_once_is_never_twice(self) -> None:
        if hasattr(self, "published"):
            for messages in (self.published, self.received, self.acknowledged):
                twice = [each for each in messages if each.startswith(b"2-")]
                assert len(twice) == len(set(twice))

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for _ in range(200):
            self.client_reads()
            while self.to_server:
                self.server_reads(1_000)
            while self.commits:
                self.commit()
            while self.releases:
                self.commit_releases()
        assert not self.sent_up
        assert not self.released_up
        assert not self.state.incoming
        assert not self.state.pending
        assert not self.state.releasing
        assert self.state.in_flight == 0
        assert set(self.received) == set(self.sent_down)
        assert sorted(self.acknowledged) == sorted(self.sent_down)
        assert self.connection.window == 4


TestExchange = Exchange.TestCase
TestExchange.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
