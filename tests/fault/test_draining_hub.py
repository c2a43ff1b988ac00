"""A hub that stops while another one serves: probes, and gateways that move without loss."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import pytest

from bridge.batch import CAPABILITY, encode
from bridge.engine import DeliveryState
from bridge.hub_addresses import RECONNECT_AFTER_MS
from bridge.message import CLOCK_GOOD, Run, Stored
from bridge.plain import data_section
from tests.support.amqp_sender import AmqpSender
from tests.support.http_client import ask, document
from tests.support.hub_replicas import hub_replicas
from tests.support.lake import rows
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, standing_still, wait_until

WAIT_S: Final = 30.0
GATEWAYS: Final = ("gw1", "gw2", "gw3")


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[list[Waypost]]:
    with hub_replicas(tmp_path_factory.mktemp("hubs"), postgres.url(postgres.schema()), 100) as running:
        yield running


def batch(gateway: str, sequence: int) -> bytes:
    run = Run("load", "device", 1 | CLOCK_GOOD, b"", [b"%d" % sequence], time.time_ns())
    return data_section(encode([Stored(-1, sequence, run)], space="default", epoch=gateway[-1] * 32))


class DrivenGateway(threading.Thread):
    """Sends one batch after the other until it is stopped, each until a hub accepts it."""

    def __init__(self, name: str, hubs: list[Waypost]) -> None:
        super().__init__(daemon=True)
        self.gateway = name
        self.accepted = 0
        self.hints_ms: list[int] = []
        self.stopped = threading.Event()
        self._ports = [hub.port("amqp") for hub in hubs]

    def run(self) -> None:
        while not self.stopped.is_set():
            for port in self._ports:
                try:
                    sender = AmqpSender(port, self.gateway, "telemetry", [CAPABILITY])
                except OSError:
                    continue
                with sender:
                    self._send(sender)
                    if sender.condition is not None:
                        info = dict(sender.condition.info)
                        self.hints_ms += [int(info[RECONNECT_AFTER_MS])] if RECONNECT_AFTER_MS in info else []

    def _send(self, sender: AmqpSender) -> None:
        with contextlib.suppress(OSError):  # a reset in place of the close: it connects again
            while not self.stopped.is_set() and not sender.closed:
                sent = len(sender.settled())
                sender.send(batch(self.gateway, self.accepted))
                outcomes = sender.settled()
                if len(outcomes) == sent + 1 and outcomes[-1] is DeliveryState.ACCEPTED:
                    self.accepted += 1


@pytest.mark.timeout(400)
def test_gateways_leave_a_hub_that_stops(hubs: list[Waypost]) -> None:
    first, second = hubs
    for hub in hubs:
        assert ask(hub, "GET", "/livez", headers={"Host": "192.0.2.1"}).body == b"ok\n"
        assert ask(hub, "GET", "/readyz", headers={"Host": "192.0.2.1"}).status == HTTPStatus.OK
    wait_until(
        lambda: len(document(first, "/api/v1/system")["hubs"]) == 2, timeout_s=WAIT_S, what="hubs see each other"
    )
    gateways = [DrivenGateway(name, hubs) for name in GATEWAYS]
    for gateway in gateways:
        gateway.start()
    wait_until(lambda: all(each.accepted > 2 for each in gateways), timeout_s=WAIT_S, what="gateways send")
    assert first.process is not None
    first.process.send_signal(signal.SIGTERM)
    unready: list[bytes] = []

    def stops() -> bool:
        try:
            answer = ask(first, "GET", "/readyz")
        except OSError:
            return True
        unready.extend([answer.body] if answer.status == HTTPStatus.SERVICE_UNAVAILABLE else [])
        return bool(unready)

    wait_until(stops, timeout_s=WAIT_S, what="the hub is not ready")
    assert first.ends() == 0
    assert unready in ([], [b"the hub stops\n"])
    before = {each.gateway: each.accepted for each in gateways}
    wait_until(
        lambda: all(each.accepted > before[each.gateway] for each in gateways), timeout_s=WAIT_S, what="they go on"
    )
    for gateway in gateways:
        gateway.stopped.set()
        gateway.join(WAIT_S)
    asked = [gateway.gateway for gateway in gateways if gateway.hints_ms]
    assert asked, "they were asked to connect again later, but for those that got a reset"
    found = Counter((row["gateway"], row["sequence"]) for row in rows(first.data.parent / "lake", "telemetry"))
    assert max(found.values()) == 1
    for gateway in gateways:
        mine = {sequence for name, sequence in found if name == gateway.gateway}
        assert mine >= set(range(gateway.accepted))

    def states() -> list[str]:
        return sorted(each["state"] for each in document(second, "/api/v1/system")["hubs"])

    wait_until(lambda: states() == ["serving", "stopped"], timeout_s=WAIT_S, what="the other hub knows it")


def test_signal_that_is_forwarded_ends_a_hub_in_order(hubs: list[Waypost]) -> None:
    hub = hubs[1]
    with standing_still(hub.pid):
        for number in (signal.SIGTERM, signal.SIGINT):  # both wait until it continues
            os.kill(hub.pid, number)
    assert hub.ends() == 0
