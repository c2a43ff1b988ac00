"""The registry's server stops and returns under a hub: new messages are held and land once."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.batch import CAPABILITY, encode
from bridge.engine import DeliveryState
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.support.amqp_sender import AmqpSender
from tests.support.http_client import status
from tests.support.lake import rows
from tests.support.postgres import CAREFUL, PASSWORD, Postgres, binaries
from tests.support.processes import hub, wait_until

MESSAGES = 5
"""Messages in a batch."""


def batch(number: int) -> bytes:
    first = number * MESSAGES
    bodies = [b"%d" % sequence for sequence in range(first, first + MESSAGES)]
    run = Run("load", "device", 1 | CLOCK_GOOD, b"", bodies, time.time_ns())
    return data_section(encode([Stored(-1, first, run)], space="default", epoch="e" * 32))


@pytest.fixture
def server() -> Iterator[Postgres]:
    """Yield a server without the files of other tests, which it would sync at each stop and start."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with Postgres() as running:
        yield running


@contextmanager
def stopped(server: Postgres, how: signal.Signals) -> Iterator[None]:
    server.stop(how)
    try:
        yield
    finally:
        server.start()


def test_landing_waits_for_the_server_and_resumes(tmp_path: Path, server: Postgres) -> None:
    """Landing waits for the server and continues with it, and neither log nor status contains the password."""
    config = tmp_path / "hub.yaml"
    url = server.url(server.schema(), CAREFUL)
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec: {{registry: '{url}'}}\n")
    shown: list[str] = []
    with (
        hub(tmp_path, f"--config={config}") as running,
        AmqpSender(running.port("amqp"), "gw1", "telemetry", [CAPABILITY]) as gateway,
    ):
        sent = 0
        for how in (signal.SIGQUIT, signal.SIGINT):
            gateway.send(*(batch(number) for number in range(sent, sent + 20)))
            with stopped(server, how):  # with some of these in flight
                gateway.send(*(batch(number) for number in range(sent + 20, sent + 40)))
                wait_until(lambda: bool(status(running)["landing"]["failing"]), timeout_s=60, what="landing fails")
                shown.append(json.dumps(status(running)))
                assert "registry" in status(running)["landing"]["fault"]["reason"]
            sent += 40
            assert gateway.settled() == [DeliveryState.ACCEPTED] * sent
        wait_until(lambda: not status(running)["landing"]["failing"], timeout_s=60, what="landing succeeds")
        shown.append(json.dumps(status(running)))
        assert running.stop() == 0
    landed = Counter(row["sequence"] for row in rows(tmp_path / "hub" / "lake", "telemetry"))
    assert landed == Counter(range(sent * MESSAGES))
    shown.append(running.log.read_text())
    assert "the registry cannot be used" in shown[-1]
    assert "Traceback" not in shown[-1]
    for secret in (PASSWORD, CAREFUL.partition(":")[2]):
        assert not any(secret in text for text in shown)
