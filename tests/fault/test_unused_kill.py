"""SIGKILL while an unused durable AMQP subscription is removed: each message is once in the ledger."""

from __future__ import annotations

import random
from pathlib import Path

from bridge.amqp_values import Symbol, Uint
from edge.broker.delivery.dead_letters import LossReason
from edge.broker.mqtt import packets as p
from tests.support.frames import ATTACH, DETACH, RECEIVER, FramePeer
from tests.support.processes import Waypost, edge, wait_until
from tests.support.session_client import SessionClient
from tests.support.store_rows import query

MESSAGES = 500
BODY_BYTES = 8_000
WAIT_S = 60.0
FOR_A_SECOND = (Uint(2), Symbol("link-detach"), Uint(1))
"""Durability, expiry policy and timeout of a source (AMQP 1.0 section 3.5.3)."""


def subscribe(gateway: Waypost) -> None:
    """Subscribe a client that does not return."""
    with FramePeer(gateway.port("amqp"), "client") as peer:
        peer.begin()
        peer.attach("link", 0, RECEIVER, "plant/1", source=FOR_A_SECOND)
        source = peer.expect(ATTACH).fields[5].value
        assert source[1:4] == list(FOR_A_SECOND)
        publish(gateway)
        peer.send(DETACH, Uint(0), False)


def publish(gateway: Waypost) -> None:
    sender = SessionClient(gateway, "sender", 5)
    for number in range(MESSAGES):
        sender.send(p.Publish("plant/1", b"%0*d" % (BODY_BYTES, number), 1, packet_id=number + 1))
    for _ in range(MESSAGES):
        assert isinstance(sender.next(), p.PubAck)
    sender.close()


def dropped(data: Path) -> int:
    """Return the number of messages in the ledger."""
    return sum(row[0] for row in query(data, "SELECT messages FROM ledger"))


def subscriptions(data: Path) -> int:
    return len(query(data, "SELECT 1 FROM state WHERE kind = 'subscription'"))


def test_each_message_is_dropped_once_across_kill(tmp_path: Path) -> None:
    dice, data = random.Random(11), tmp_path / "gw"
    with edge(tmp_path, "gw") as gateway:
        subscribe(gateway)
        limit = 1 + dice.randrange(MESSAGES // 2)
        wait_until(lambda: dropped(data) >= limit, timeout_s=WAIT_S, what="some are dropped", every_s=0.001)
        gateway.kill()
        gateway.start()
        wait_until(lambda: subscriptions(data) == 0, timeout_s=WAIT_S, what="the subscription has ended")
    entries = query(data, "SELECT first, last, messages, bytes, reason FROM ledger ORDER BY first")
    assert {reason for *_, reason in entries} == {LossReason.UNUSED.value}
    assert sum(size for _, _, _, size, _ in entries) == MESSAGES * BODY_BYTES
    following = 0
    for first, last, messages, *_ in entries:
        assert first == following, "ranges lie behind one another"
        assert messages == last - first + 1
        following = last + 1
    assert following == MESSAGES
