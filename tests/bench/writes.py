"""Bytes on the medium for each byte of payload: the wear of a card.

Each broker has its own file system and block device (`medium`). The count runs from the first publish to the broker's
end, so that delayed writes are included; one durable subscriber receives the messages. Bodies are noise, which does not
compress. With `--full` it also runs without the subscriber, as during an outage of the uplink.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from edge.broker.store.sqlite import FILE_NAME
from tests.bench.brokers import Broker, MosquittoEach, MosquittoSaving, WaypostBroker, WaypostInMemory, WaypostWaiting
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadFailed, LoadGenerators
from tests.bench.medium import Medium
from tests.bench.packages import BrokerMissing, say
from tests.bench.peers import RabbitMQ
from tests.bench.result import Result, at_most
from tests.bench.sessions import absent_session
from tests.support.processes import wait_until

PAYLOAD: Final = 100


class Rate(NamedTuple):
    per_s: int
    seconds: int
    connections: int


RATES: Final = (Rate(10, 15, 10), Rate(1_000, 30, 50), Rate(50_000, 5, 50))
PEERS: Final[tuple[Callable[[Path], Broker], ...]] = (MosquittoSaving, MosquittoEach, RabbitMQ)


WARM_USUAL: Final = 200_000
"""Messages before the count, so that files have their final size: a gateway runs for months."""
WARM: Final = {"rabbitmq": 20_000, "mosquitto-each": 2_000}
"""Fewer messages for brokers that would take minutes."""
SETTLED_S: Final = 1.0
GOAL: Final = 2.5
"""Most bytes for a byte when commits may wait 100 ms, at GOAL_PER_S messages a second."""
GOAL_PER_S: Final = 1_000


class Written(NamedTuple):
    amplification: float
    """Bytes to the medium per byte of payload."""
    carried_per_s: float
    """Acknowledged messages a second."""


def measure(load: LoadGenerators, make: Callable[[Path], Broker], rate: Rate, *, kept: bool) -> Written:
    """Measure one broker under one rate. Raises BrokerMissing, LoadFailed."""
    messages = rate.per_s * rate.seconds
    subscriber = () if kept else ("-S", "1", "-C", "-f", "load/#")
    with Medium() as medium, make(medium.folder) as broker:
        if kept:
            absent_session(broker)
        publish = ("-c", str(rate.connections), "-s", str(PAYLOAD), *subscriber)
        warm = ("-n", str(WARM.get(broker.name, WARM_USUAL)), "-w", "2000", "-T", "300")
        load.run("mqttload", broker.port("mqtt"), *publish, *warm)
        _checkpoint(medium.folder)
        before = _settled(medium)
        figures = load.run(
            "mqttload", broker.port("mqtt"), *publish, "-n", str(messages), "-r", str(rate.per_s), "-T", "300"
        )
        broker.stop()
        written = medium.written() - before
    found = Written(written / (messages * PAYLOAD), figures["pub_per_s"])
    say(
        f"  {rate.per_s:,}/s {'kept' if kept else 'through'}: {broker.name} writes {found.amplification:.2f} bytes "
        f"a byte, carried {found.carried_per_s:,.0f}/s"
    )
    return found


def _checkpoint(folder: Path) -> None:
    """Checkpoint the gateway's write-ahead log after the warm-up: up to 16 MiB that would exceed the measured bytes."""
    for path in folder.rglob(FILE_NAME):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _settled(medium: Medium) -> int:
    """Return the bytes written once writing has stopped."""
    found: list[int] = []

    def same() -> bool:
        found.append(medium.written())
        return len(found) > 1 and found[-1] == found[-2]

    wait_until(same, timeout_s=60, what="the medium is quiet", every_s=SETTLED_S)
    return found[-1]


def run(load: LoadGenerators, settings: Settings) -> list[Result]:
    results: list[Result] = []
    for kept in (False, True) if settings.full else (False,):
        for rate in RATES:
            ours = measure(load, WaypostBroker, rate, kept=kept)
            results.append(_waiting(measure(load, WaypostWaiting, rate, kept=kept), rate, kept=kept))
            results.append(_in_memory(measure(load, WaypostInMemory, rate, kept=kept), rate, kept=kept))
            for peer in PEERS:
                results += _beside(load, ours, peer, rate, kept=kept)
    return results


def _waiting(found: Written, rate: Rate, *, kept: bool) -> Result:
    goal = at_most(GOAL, found.amplification) if rate.per_s == GOAL_PER_S else None
    return Result(
        f"{_name(rate, kept=kept)}-batch", f"the same, commits waiting 100 ms for company ({rate.per_s} msg/s)",
        "bytes/byte", found.amplification, goal, details={"waypost_carried_per_s": found.carried_per_s},
    )  # fmt: skip


def _in_memory(found: Written, rate: Rate, *, kept: bool) -> Result:
    return Result(
        f"{_name(rate, kept=kept)}-memory", f"the same, kept in memory only ({rate.per_s} msg/s)",
        "bytes/byte", found.amplification, None, details={"waypost_carried_per_s": found.carried_per_s},
    )  # fmt: skip


def _name(rate: Rate, *, kept: bool) -> str:
    return f"writes-{rate.per_s}{'-kept' if kept else ''}"


def _beside(
    load: LoadGenerators, ours: Written, peer: Callable[[Path], Broker], rate: Rate, *, kept: bool
) -> list[Result]:
    try:
        theirs = measure(load, peer, rate, kept=kept)
    except (BrokerMissing, LoadFailed) as error:
        say(f"  skipped: {error}")
        return []
    return [
        Result(
            _name(rate, kept=kept),
            f"bytes to the medium per byte of payload at {rate.per_s} msg/s of {PAYLOAD} B, all of it "
            + ("kept" if kept else "taken by a durable subscriber"),
            "bytes/byte", ours.amplification, None, getattr(peer, "name", ""), theirs.amplification,
            ours.amplification / theirs.amplification if theirs.amplification else None,
            details={"waypost_carried_per_s": ours.carried_per_s, "peer_carried_per_s": theirs.carried_per_s},
        )
    ]  # fmt: skip


BENCHMARK = Benchmark("store-writes", "bytes written to the medium per byte of payload, by rate", 400, run)
