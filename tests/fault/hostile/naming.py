"""Client that creates names as fast as it can: queues by publishing, durable filters by subscribing."""

from __future__ import annotations

import itertools
import time
from statistics import quantiles
from typing import Final, NamedTuple

from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.hostile import Raw, Witness
from tests.support.processes import Waypost, resident_mib

WINDOW: Final = 500
"""Number of publications in flight."""
FILTERS_EACH: Final = 1_000
"""Number of filters in one session."""
EXPIRY_S: Final = 3_600


class TimedWitness(Witness):
    """Witness that keeps every round trip."""

    def __init__(self, gateway: Waypost) -> None:
        super().__init__(gateway)
        self.seconds: list[float] = []

    def _round(self) -> None:
        begin = time.monotonic()
        super()._round()
        self.seconds.append(time.monotonic() - begin)


class Figures(NamedTuple):
    """Effect of an attack on a gateway."""

    made: int
    refused: int
    bytes_each: float
    p50_s: float
    p99_s: float
    worst_s: float
    took_s: float


def queue_names(
    gateway: Waypost, count: int, *, prefix: str = "queue/", body: bytes = b"x", retain: bool = False
) -> tuple[int, int]:
    """Return (taken, refused) of `count` messages, each for its own queue."""
    taken = refused = 0
    with Raw(gateway, version=5).connect("namer") as client:
        names = iter(range(count))
        under_way = 0
        while True:
            for i in itertools.islice(names, WINDOW - under_way):
                number = i % 60_000 + 1
                client.send(packets.Publish(f"{prefix}{i:08d}", body, qos=1, retain=retain, packet_id=number))
                under_way += 1
            if not under_way:
                return taken, refused
            answer = client.receive()
            assert isinstance(answer, packets.PubAck), answer
            under_way -= 1
            taken += answer.reason < 0x80
            refused += answer.reason >= 0x80


def retained_names(gateway: Waypost, count: int, *, prefix: str = "retained/") -> tuple[int, int]:
    """Return (taken, refused) of `count` retained messages, like `queue_names`."""
    return queue_names(gateway, count, prefix=prefix, retain=True)


def session_names(gateway: Waypost, count: int, *, prefix: str = "session-") -> tuple[int, int]:
    """Return (taken, refused) of `count` sessions without a subscription that outlive their connections."""
    taken = 0
    for number in range(count):
        with Raw(gateway, version=5) as client:
            expiry = Properties(session_expiry_interval_s=EXPIRY_S)
            client.send(packets.Connect(f"{prefix}{number}", 5, properties=expiry))
            answer = client.receive()
            assert isinstance(answer, packets.ConnAck), answer
            taken += not answer.reason
    return taken, count - taken


def durable_filters(gateway: Waypost, count: int, *, prefix: str = "filters") -> tuple[int, int]:
    """Return (taken, refused) of `count` filters of sessions that outlive their connections."""
    taken = refused = 0
    for session in range(-(-count // FILTERS_EACH)):
        with Raw(gateway, version=5) as client:
            client.send(
                packets.Connect(f"{prefix}-{session}", 5, properties=Properties(session_expiry_interval_s=EXPIRY_S))
            )
            answer = client.receive()
            assert isinstance(answer, packets.ConnAck), answer
            if answer.reason:
                refused += FILTERS_EACH
                continue
            wanted = [f"{prefix}/{session}/{i}" for i in range(min(FILTERS_EACH, count - session * FILTERS_EACH))]
            for start in range(0, len(wanted), 100):
                part = tuple(SubscriptionRequest(each, 1) for each in wanted[start : start + 100])
                client.send(packets.Subscribe(1, part))
                while not isinstance(answer := client.receive(), packets.SubAck):
                    assert answer is not None
                taken += sum(code < 0x80 for code in answer.codes)
                refused += sum(code >= 0x80 for code in answer.codes)
    return taken, refused


def figures(gateway: Waypost, attack, count: int) -> Figures:  # type: ignore[no-untyped-def]
    """Run an attack next to a client that sends messages to itself."""
    before = resident_mib(gateway.pid)
    with TimedWitness(gateway) as witness:
        begin = time.monotonic()
        made, refused = attack(gateway, count)
        took = time.monotonic() - begin
    assert witness.failure is None, witness.failure
    grown = (resident_mib(gateway.pid) - before) * (1 << 20)
    parts = quantiles(witness.seconds, n=100)
    return Figures(made, refused, grown / max(1, made), parts[49], parts[98], max(witness.seconds), took)
