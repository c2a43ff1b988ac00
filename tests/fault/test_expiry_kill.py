"""SIGKILL while unread messages expire: each is at the expiry address once, and once in the ledger."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import paho.mqtt.client as paho

from tests.support.configured_gateway import gateway_with
from tests.support.paho_loop import stop_loop
from tests.support.processes import Waypost, wait_until
from tests.support.store_rows import query

MESSAGES = 6_000
BODY_BYTES = 4_000
KILLS_MAX = 4
WAIT_S = 60.0

RESOURCES = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {listeners: {mqtt: "127.0.0.1:0"}}}
---
{apiVersion: waypost/v1, kind: AddressSpace, metadata: {name: default}, spec: {authenticationService: {name: none}}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.jobs},
  spec: {address: jobs, type: queue, messageTtl: {maximum: 1000}, expiry: late}}
---
{apiVersion: waypost/v1, kind: Address, metadata: {name: default.late}, spec: {address: late, type: deadletter}}
"""


def client(gateway: Waypost) -> paho.Client:
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, f"c{time.monotonic_ns()}", protocol=paho.MQTTv5)
    made.max_inflight_messages_set(200)
    return made


def publish(gateway: Waypost) -> None:
    made, acked, all_acked = client(gateway), 0, threading.Event()

    def count(*_: object) -> None:
        nonlocal acked
        acked += 1
        if acked == MESSAGES:
            all_acked.set()

    made.on_publish = count
    made.connect("127.0.0.1", gateway.port("mqtt"))
    made.loop_start()
    for number in range(MESSAGES):
        made.publish("jobs", b"%0*d" % (BODY_BYTES, number), 1)
    assert all_acked.wait(WAIT_S)
    made.disconnect()
    stop_loop(made)


def take(gateway: Waypost, count: int) -> list[int]:
    """Take at least `count` messages of the expiry address, and those that arrive within a second more."""
    made, got = client(gateway), list[int]()
    made.on_message = lambda _client, _data, message: got.append(int(message.payload))
    made.connect("127.0.0.1", gateway.port("mqtt"))
    made.subscribe("late", 1)
    made.loop_start()
    wait_until(lambda: len(got) >= count, timeout_s=WAIT_S, what="every message is at the expiry address")
    wait_until(lambda: backlog(gateway, "late") == 0, timeout_s=WAIT_S, what="nothing waits there")
    made.disconnect()
    stop_loop(made)
    return got


def backlog(gateway: Waypost, address: str) -> int:
    return sum(row[0] for row in query(gateway.data, "SELECT behind FROM backlog WHERE log = ?", f"queue {address}"))


def wait_for_fewer(gateway: Waypost, limit: int) -> None:
    wait_until(lambda: backlog(gateway, "jobs") < limit, timeout_s=WAIT_S, what="some expire", every_s=0.001)


def ledger(gateway: Waypost) -> list[tuple[int, ...]]:
    return query(gateway.data, "SELECT first, last, messages, bytes, reason FROM ledger ORDER BY first")


def test_each_message_expires_once_across_kills(tmp_path: Path) -> None:
    dice = random.Random(5)
    with gateway_with(tmp_path, RESOURCES) as gateway:
        publish(gateway)
        left = [MESSAGES]
        while left[-1] > 0 and len(left) <= KILLS_MAX:
            limit = left[-1] - dice.randrange(left[-1])
            wait_for_fewer(gateway, limit)
            gateway.kill()
            left.append(backlog(gateway, "jobs"))
            gateway.start()
        wait_until(lambda: backlog(gateway, "jobs") == 0, timeout_s=WAIT_S, what="everything has expired")
        got = take(gateway, MESSAGES)
        assert sorted(got) == list(range(MESSAGES))
        entries = ledger(gateway)
        assert {reason for *_, reason in entries} == {"dead-lettered: expired"}
        assert sum(messages for _, _, messages, _, _ in entries) == MESSAGES
        assert sum(size for _, _, _, size, _ in entries) == MESSAGES * BODY_BYTES
        following = 0
        for first, last, *_ in entries:
            assert first == following, "ranges lie behind one another"
            following = last + 1
