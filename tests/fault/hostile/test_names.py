"""One client creates names without end: its quota stops it, other clients do not notice, and no name remains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from proton import Message
from proton.utils import LinkDetached, SendException

from edge.broker.limits import TOPIC_LEVELS_MAX, Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from tests.fault.hostile.naming import durable_filters, figures, queue_names, retained_names, session_names
from tests.support.amqp_client import amqp_client
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.problems import health
from tests.support.processes import Waypost, edge, resident_mib, wait_until

RESIDENT_MIB_MAX = 256.0
"""Half of the memory of a small Pi."""
WORST_S_MAX = 5.0
"""Longest round trip of another client, on a machine with other work; the slow tests report the figures."""
RESTART_S_MAX = 10.0
"""Longest restart on a machine with other work; alone it is 1.6 s for 20 000 queues."""

SETTLED_S = 10.0
"""Time after which a burst has returned its temporary memory."""

NAME_BYTES_MAX = 300
"""Limit of resident memory for a name: 20 000 of them are 6 MB of a small Pi."""
FIRST, MORE = 20_000, 40_000
ONCE_MIB_MAX = 9.0
"""Memory that a burst takes once, independent of the number of names.

It consists of first traffic, caches of SQLite, and allocator fragments of a session's thousand filters.
"""
LARGE = {"queuesMax": 100_000, "subscriptionsMax": 100_000, "sessionsMax": 100_000, "retainedMax": 100_000}

SMALL = {"queuesMax": 300, "subscriptionsMax": 200, "sessionsMax": 8, "retainedMax": 250, "queueUnusedS": 1}


def limited(folder: Path, limits: dict[str, int]) -> Waypost:
    """Create a gateway with changed limits."""
    gateway = {"apiVersion": "waypost/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": {"limits": limits}}
    queues = {"address": "queue/#", "type": "queue"}
    address = {"apiVersion": "waypost/v1", "kind": "Address", "metadata": {"name": "default.queues"}, "spec": queues}
    (folder / "g.yaml").write_text(yaml.safe_dump_all([gateway, address]))
    return edge(folder, "gw", "--config", str(folder / "g.yaml"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Waypost]:
    """Run a gateway with small limits."""
    with limited(tmp_path, SMALL) as running:
        yield running


def consume_all(gateway: Waypost, count: int) -> None:
    """Take every message of all queues."""
    with Raw(gateway, version=5).connect("consumer") as client:
        client.subscribe("queue/#", qos=1)
        for _ in range(count):
            packet = client.receive()
            assert isinstance(packet, packets.Publish)
            client.send(packets.PubAck(packet.packet_id))
        client.send(packets.PingReq())
        while not isinstance(client.receive(), packets.PingResp):
            pass


def can_make_queues(gateway: Waypost, prefix: str) -> bool:
    taken, _ = queue_names(gateway, 1, prefix=prefix)
    return taken == 1


def test_queues_stop_at_the_quota_and_are_removed_when_unused(small: Waypost) -> None:
    seen = figures(small, queue_names, 500)
    assert (seen.made, seen.refused) == (300, 200)
    assert seen.worst_s < WORST_S_MAX
    small.kill()
    small.start()
    assert not can_make_queues(small, "queue/other/"), "who made what is known after a restart"
    consume_all(small, 300)
    wait_until(lambda: can_make_queues(small, "queue/other/"), timeout_s=30, what="room for other queues")


def test_filters_stop_at_the_quota_and_end_with_their_sessions(small: Waypost) -> None:
    assert durable_filters(small, 500) == (200, 300)
    small.kill()
    small.start()
    with Raw(small, version=5).connect("other") as other:
        assert other.subscribe("plant/#", qos=1) == [1], "a session that ends with its connection keeps nothing"
    with Raw(small, version=5).connect("filters-0"):
        pass  # a clean start ends the session
    assert durable_filters(small, 200, prefix="more") == (200, 0)


def test_sessions_stop_at_the_quota(small: Waypost) -> None:
    clients = [Raw(small, version=5).connect(f"c{i}") for i in range(SMALL["sessionsMax"])]
    for version, expected in ((5, ReasonCode.QUOTA_EXCEEDED), (4, ReasonCode.SERVER_UNAVAILABLE)):
        with Raw(small, version=version) as late:
            late.send(packets.Connect("late", version))
            answer = late.receive()
            assert isinstance(answer, packets.ConnAck)
            assert answer.reason is expected
    Raw(small, version=5).connect("c0").close()  # an existing session is accepted
    for client in clients:
        client.close()


def test_retained_messages_stop_at_the_quota(small: Waypost) -> None:
    with Raw(small, version=5).connect("r") as client:
        answers = []
        for i in range(260):
            client.send(packets.Publish(f"r/{i}", b"x", qos=1, retain=True, packet_id=i + 1))
            answer = client.receive()
            assert isinstance(answer, packets.PubAck)
            answers.append(int(answer.reason) < 0x80)
        assert answers == [True] * 250 + [False] * 10
        client.send(packets.Publish("r/0", b"", qos=1, retain=True, packet_id=1))
        client.receive()
        client.send(packets.Publish("r/new", b"x", qos=1, retain=True, packet_id=2))
        answer = client.receive()
        assert isinstance(answer, packets.PubAck)
        assert int(answer.reason) < 0x80


def test_message_next_to_idle_filter_of_many_levels_is_processed(small: Waypost) -> None:
    """A message next to an idle filter of many levels is processed; it once blocked the loop for ever."""
    levels = ["a"] * (TOPIC_LEVELS_MAX - 1)
    with Raw(small, version=5) as client:
        expiry = Properties(session_expiry_interval_s=3_600)
        client.send(packets.Connect("deep", 5, properties=expiry))
        assert isinstance(client.receive(), packets.ConnAck)
        assert client.subscribe("/".join([*levels, "b"]), qos=1) == [1]
    small.kill()
    small.start()  # the session is idle now
    with Raw(small, version=5).connect("writer") as writer:
        writer.send(packets.Publish("/".join([*levels, "c"]), b"x", qos=1, packet_id=1))
        assert isinstance(writer.receive(), packets.PubAck)


def test_http_and_amqp_refuse_names_beyond_the_quota(small: Waypost) -> None:
    queue_names(small, 300)
    refused = ask(small, "POST", "/t/queue/over", b"x")
    assert refused.status == 429
    assert refused.headers["retry-after"]
    with amqp_client(small) as connection:
        with pytest.raises(LinkDetached) as detached:
            connection.create_receiver("queue/over")
        assert detached.value.condition == "amqp:resource-limit-exceeded"
        with pytest.raises(SendException):
            connection.create_sender("queue/over").send(Message(body="x"))


def test_refused_names_are_reported(small: Waypost) -> None:
    """A refused name is in the list of problems, and `/healthz` fails while it is there."""
    queue_names(small, 301)
    code, problems = health(small.port("http"))
    assert code == 503
    assert "queues" in {problem["name"] for problem in problems}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("attack", "refused", "each_max", "restarted_each_max"),
    [(queue_names, 5_000, 300, 300), (retained_names, 0, 300, 300), (durable_filters, 5_000, 600, 300)],
)
def test_maximum_number_of_names_stays_within_limits(  # type: ignore[no-untyped-def]
    tmp_path: Path, attack, refused: int, each_max: int, restarted_each_max: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The maximum number of names of the default configuration stays within the limits.

    The figures in bytes include all growth since the idle process, also the memory taken once (`ONCE_MIB_MAX`).
    """
    with edge(tmp_path, "gw") as gateway:
        time.sleep(SETTLED_S)
        fresh = resident_mib(gateway.pid)
        idle = figures(gateway, lambda *_: time.sleep(5) or (1, 0), 0)
        seen = figures(gateway, attack, Limits().queues_max + refused)
        time.sleep(SETTLED_S)
        memory = resident_mib(gateway.pid)
        gateway.kill()
        begin = time.monotonic()
        gateway.start()
        restart_s = time.monotonic() - begin
        time.sleep(SETTLED_S)
        restarted = resident_mib(gateway.pid)
        each, restarted_each = ((mib - fresh) * (1 << 20) / Limits().queues_max for mib in (memory, restarted))
        with capsys.disabled():
            print(f"\nidle {idle}\nseen {seen}\n{memory:.0f} MiB, restart {restart_s:.1f} s")
            print(f"{each:.0f} bytes a name, {restarted_each:.0f} after the restart")
        assert seen.made == Limits().queues_max
        assert seen.refused == refused
        assert memory < RESIDENT_MIB_MAX
        assert restarted < RESIDENT_MIB_MAX
        assert each < each_max
        assert restarted_each < restarted_each_max
        assert restart_s < RESTART_S_MAX
        assert seen.worst_s < WORST_S_MAX


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("names", "prefixes"),
    [
        (queue_names, ("queue/a/", "queue/b/")),
        (retained_names, ("retained/a/", "retained/b/")),
        (durable_filters, ("a", "b")),
        (session_names, ("a-", "b-")),
    ],
)
def test_memory_of_one_more_name_is_bounded(  # type: ignore[no-untyped-def]
    tmp_path: Path, names, prefixes: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with limited(tmp_path, LARGE) as running:
        resident = [resident_mib(running.pid)]
        for prefix, count in zip(prefixes, (FIRST, MORE), strict=True):
            assert names(running, count, prefix=prefix) == (count, 0)
            time.sleep(SETTLED_S)
            resident.append(resident_mib(running.pid))
    fresh, first, both = resident
    one_more = (both - first) * (1 << 20) / MORE
    once_mib = first - fresh - FIRST * one_more / (1 << 20)
    with capsys.disabled():
        print(f"\n{names.__name__}: {one_more:.0f} bytes one more, {once_mib:.1f} MiB once; {fresh:.0f} MiB at rest")
    assert one_more < NAME_BYTES_MAX
    assert once_mib < ONCE_MIB_MAX
