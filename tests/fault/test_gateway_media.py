"""The medium under a serving gateway fails and recovers: no acknowledgement meanwhile, service by itself afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.kills.checker import Kill, Produced, judge
from tests.fault.kills.clients import MqttConsumer
from tests.support.medium import Files, Medium
from tests.support.processes import Waypost, edge, free_port, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Medium]:
    (tmp_path / "gw").mkdir()
    with Medium(tmp_path / "gw", folder=tmp_path) as medium:
        yield medium


@pytest.fixture
def gateway(tmp_path: Path, medium: Medium) -> Iterator[Waypost]:
    gateway = edge(tmp_path, "gw", f"--mqtt=127.0.0.1:{free_port()}")
    gateway.environment = medium.environment
    with gateway:
        yield gateway


FAULTS: dict[str, Callable[[Medium], None]] = {
    "full": lambda medium: medium.limit(20_000),
    "write EIO": lambda medium: medium.fail(Files.ALL, write=errno.EIO),
    "sync EIO": lambda medium: medium.fail(Files.ALL, sync=errno.EIO),
    "read-only": lambda medium: medium.fail(Files.ALL, write=errno.EROFS, sync=errno.EROFS, opening=errno.EROFS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_service_resumes_by_itself(gateway: Waypost, medium: Medium, fault: str) -> None:
    port = gateway.port("mqtt")
    consumer = MqttConsumer("kept", port, "topic/kept", 1)
    publisher = Publisher("sender", port, "topic/kept", window=5)
    consumer.start()
    assert consumer.ready.wait(WAIT_S)
    publisher.start()
    wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
    FAULTS[fault](medium)
    wait_until(lambda: medium.count("failures") > 5, timeout_s=WAIT_S, what="commits fail")
    before = len(publisher.acked)
    failures = medium.count("failures")
    wait_until(lambda: medium.count("failures") > failures + 5, timeout_s=WAIT_S, what="commits are tried again")
    assert len(publisher.acked) == before, "nothing is acked that is not on the medium"
    medium.heal()
    wait_until(lambda: len(publisher.acked) > before + 50, timeout_s=WAIT_S, what="messages are acked again")
    publisher.end()
    gateway.kill()  # what was acked must not depend on what this process remembers
    gateway.start()
    acked = set(publisher.acked)
    wait_until(
        lambda: acked <= {body for _, body in consumer.consumed.got}, timeout_s=WAIT_S, what="all of it was delivered"
    )
    consumer.end()
    verdict = judge([Produced("sender", publisher.acked, publisher.sent)], [consumer.consumed], [Kill(0.0, 1e12)])
    assert not [problem for problem in verdict.problems if "again" not in problem], verdict.problems
