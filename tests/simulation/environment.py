"""Time and randomness, which a program requests from the system. In a simulation both come from the seed."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import bridge.socket_attempt
import bridge.transport.deadlines
import edge.broker.listeners.tcp
import edge.broker.router.sender_credit
from bridge.backoff import BackoffPolicy
from edge.broker.delivery import feeds
from edge.broker.model import isolation
from edge.broker.router import connector_uplink, peer_connector
from tests.simulation.scheduler import Scheduler

BACKOFF = BackoffPolicy(first_s=0.1, limit_s=1.0, stable_s=5.0)
"""Backoff of uplinks: shorter than the product's, so that a run becomes idle sooner."""

ITERATED = (bridge.transport.deadlines, edge.broker.listeners.tcp, edge.broker.router.sender_credit)
"""Modules that iterate over sets of objects, in the order of memory addresses, which does not depend on the seed."""

EPOCH_NS = 1_800_000_000_000_000_000
"""Wall clock time when virtual time was 0."""


def wall_ns(scheduler: Scheduler) -> int:
    """Return UTC nanoseconds of the running process."""
    return EPOCH_NS + int(scheduler.now_s * 1e9) + scheduler.process.clock_offset_ns


class OrderedSet(dict[Any, None]):
    """Set that iterates in the order of insertion."""

    def add(self, value: Any) -> None:
        self[value] = None

    def discard(self, value: Any) -> None:
        self.pop(value, None)


async def listen(_name: str, make: Callable[[], Any], host: str, port: int, _backlog: int) -> Any:
    """Stand in for `bridge.transport.listening.listen` on the simulated network."""
    return await asyncio.get_running_loop().create_server(make, host, port)


async def connect(make: Callable[[], Any], host: str, port: int, *, tls: Any = None, **_: Any) -> Any:
    """Stand in for `bridge.connecting.connect`."""
    await asyncio.get_running_loop().create_connection(make, host, port, ssl=tls)


@contextmanager
def simulated(scheduler: Scheduler, source: Random) -> Iterator[None]:
    """Provide simulated time and randomness to the modules that use them."""

    def report(_name: str, _outcome: str, error: Exception) -> None:
        scheduler.raised(scheduler.process, error)

    def monotonic_s() -> float:
        return scheduler.now_s

    def now_ns() -> int:
        return wall_ns(scheduler)

    def now_s() -> float:
        return wall_ns(scheduler) / 1e9

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=source.getrandbits(128), version=4)

    def make_random(*seed: Any) -> Random:
        return Random(*seed) if seed else Random(source.getrandbits(64))

    def token_bytes(nbytes: int | None = None) -> bytes:
        return source.randbytes(32 if nbytes is None else nbytes)

    with (
        ExitStack() as ordered,
        mock.patch.object(time, "time_ns", now_ns),
        mock.patch.object(time, "time", now_s),
        mock.patch.object(time, "monotonic", monotonic_s),
        mock.patch.object(time, "perf_counter", monotonic_s),
        mock.patch.object(uuid, "uuid4", uuid4),
        mock.patch.object(random, "Random", make_random),
        mock.patch.object(secrets, "token_bytes", token_bytes),
        mock.patch.object(secrets, "token_hex", lambda nbytes=None: token_bytes(nbytes).hex()),
    ):
        for module in ITERATED:
            ordered.enter_context(mock.patch.object(module, "set", OrderedSet, create=True))
        for module in (isolation, feeds):
            ordered.enter_context(mock.patch.object(module, "report", report))
        for module in (connector_uplink, peer_connector):
            ordered.enter_context(mock.patch.object(module, "BACKOFF", BACKOFF))
        ordered.enter_context(mock.patch.object(edge.broker.listeners.tcp, "listen", listen))
        ordered.enter_context(mock.patch.object(bridge.socket_attempt, "connect", connect))
        yield
