"""Blocking AMQP client of Qpid Proton, connected to a gateway of a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from proton.utils import BlockingConnection, LinkDetached

from tests.support.processes import Waypost

WAIT_S: Final = 20.0


def connect_amqp(gateway: Waypost, *, timeout_s: float = WAIT_S, **options: Any) -> BlockingConnection:
    """Connect to the port of AMQP; `options` are those of `BlockingConnection`."""
    return BlockingConnection(f"127.0.0.1:{gateway.port('amqp')}", timeout=timeout_s, **options)


@contextlib.contextmanager
def amqp_client(gateway: Waypost, *, timeout_s: float = WAIT_S, **options: Any) -> Iterator[BlockingConnection]:
    """Connect, and close at the end."""
    with contextlib.closing(connect_amqp(gateway, timeout_s=timeout_s, **options)) as connection:
        yield connection


@contextlib.contextmanager
def detached_with(condition: str) -> Iterator[None]:
    """Expect that the gateway or hub detaches a link with this condition."""
    with pytest.raises(LinkDetached) as caught:
        yield
    assert caught.value.condition == condition
