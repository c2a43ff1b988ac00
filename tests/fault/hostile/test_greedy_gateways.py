"""Gateways that send the largest possible batches to a real hub do not delay another one's small batches."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.amqp_values import encode
from bridge.limits import VALUES_MAX
from bridge.message import AMQP
from tests.fault.hostile.other_gateway import OtherGateway
from tests.fault.hostile.watch import await_memory
from tests.support.hostile_gateway import HostileGateway, columns_of, sealed, table_of
from tests.support.processes import Waypost, hub, peak_mib, resident_mib, wait_until

GREEDY = 3
BATCHES = 4
"""Number of batches, each of which takes the landing some seconds."""
SLOWER_MAX = 3
"""Limit of the slow-down of another gateway, compared with its longest answer while the hub is idle."""
FLOOR_S = 2.0
"""Additional time on a machine with two busy cores."""
ROUNDS = 3
"""Number of attempts: other work on the machine delays gateways, so one round without harm is enough."""
ANSWERS = 4
RESIDENT_MIB_MAX = 1_024.0
KEPT_MIB_MAX = 100.0
RETURNED_S = 60.0


def said_once_for_all() -> list[bytes]:
    """Return batches with 60 MB of properties each, written as 360 MB of JSON."""
    columns = columns_of([1_000], properties=b"\x26\0\1a\xea\x60" + b"\x01" * 60_000)
    return [sealed(table_of("a", 1_000 * i, 1_000), columns, messages=1_000, ranges=1) for i in range(BATCHES)]


def many_values() -> list[bytes]:
    """Return batches with 8 MB of AMQP lists each.

    They have the maximum number of translated values: 8 million, half a microsecond each.
    """
    body = b"\0\x53\x77" + encode([[]] * (VALUES_MAX - 1))
    columns = columns_of([2_000], flags=1 | AMQP, bodies=[body] * 2_000)
    return [sealed(table_of("a", 2_000 * i, 2_000), columns, messages=2_000, ranges=1) for i in range(BATCHES)]


@contextlib.contextmanager
def greedy(running: Waypost, batches: list[bytes]) -> Iterator[None]:
    """Run some gateways that send all batches, as far as the hub lets them."""
    gateways = [HostileGateway(running.port("amqp"), f"greedy {number}") for number in range(GREEDY)]

    def send(gateway: HostileGateway) -> None:
        with contextlib.suppress(OSError, AssertionError):  # it is cut off at the end
            gateway.send(*batches).settled()

    threads = [threading.Thread(target=send, args=(gateway,), daemon=True) for gateway in gateways]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for gateway in gateways:
            gateway.socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(60)
        for gateway in gateways:
            gateway.close()


def longest_s(other: OtherGateway, answers: int) -> float:
    """Return the longest wait for this many answers from now on."""
    seen, other.longest_s = other.rounds, 0.0
    wait_until(lambda: other.rounds >= seen + answers or other.failure is not None, timeout_s=90, what="answers")
    assert other.failure is None, other.failure
    return other.longest_s


@pytest.mark.timeout(300)
@pytest.mark.parametrize("made", [many_values, pytest.param(said_once_for_all, marks=pytest.mark.slow)])
def test_a_small_batch_does_not_wait_for_large_ones(tmp_path: Path, made: Callable[[], list[bytes]]) -> None:
    batches = made()
    worst: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with hub(folder) as running, OtherGateway(running, "other") as other:
            idle_s = longest_s(other, ANSWERS)
            before = resident_mib(running.pid)
            with greedy(running, batches):
                longest_s(other, 1)  # until the large batches have arrived
                busy_s = longest_s(other, ANSWERS)
            assert peak_mib(running.pid) < RESIDENT_MIB_MAX
            worst.append((idle_s, busy_s))
            if busy_s > SLOWER_MAX * idle_s + FLOOR_S:
                continue
            await_memory(running.pid, before, kept_mib=KEPT_MIB_MAX, timeout_s=RETURNED_S)
            return
    pytest.fail(f"another gateway waited too long, (idle, beside greedy ones) in seconds: {worst}")
