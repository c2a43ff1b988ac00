"""Commands from any of three hubs to devices at real gateways, while hubs are killed, drained and started again.

Each device takes a command once, or the end of the command is reported with a reason. A request that waits for it
(``?wait=``) at any hub ends within a second of the receipt.

``WAYPOST_SEED=N ./waypost test tests/fault/test_commands_of_three_hubs.py -m slow -s``
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from edge.configuration.first_gateway import FirstGateway, yaml_of
from tests.support.http_client import Answer, ask
from tests.support.hub_replicas import hub_replicas
from tests.support.paho_client import PahoClient, mqtt_client
from tests.support.postgres import Postgres
from tests.support.processes import Waypost, wait_until
from tests.support.seeds import chosen_seed

HUBS: Final = 3
GATEWAYS: Final = 6
SENDERS: Final = 3
"""Threads that send a command each, and wait for its end."""
ONLINE: Final = 0.2
"""Part of the commands that a device takes now or never."""
DRAIN_S: Final = 2
WAIT_S: Final = 30
RETRY_S: Final = 0.05
AT_ONCE_S: Final = 1.0
"""Longest time from the receipt at one hub to the answer of a request that waits at another one."""
FINAL: Final = {"delivered", "rejected", "expired", "cancelled"}


class CommandedDevice:
    """Device at a gateway that counts the commands it takes."""

    def __init__(self, gateway: Waypost, name: str) -> None:
        self.name = name
        self.taken: Counter[str] = Counter()
        """Times that it took a command, by the name of the command."""
        self._client: PahoClient = mqtt_client(gateway, f"device-{name}")
        self._client.client.on_message = lambda _client, _data, message: self._take(message.topic)
        self._client.subscribe(f"command/{name}/#")

    def _take(self, topic: str) -> None:
        self.taken[topic.rpartition("/")[2]] += 1

    def close(self) -> None:
        self._client.close()


class CommandEnd(NamedTuple):
    """End of a command, as a request reports it."""

    device: str
    name: str
    online: bool
    state: str
    reason: str | None
    late_s: float | None
    """Time from its receipt to the answer of the request that waited for it; None if no request waited then."""


class Sender(threading.Thread):
    """Sends commands, each at any hub, and waits for its end at any hub."""

    def __init__(self, hubs: Sequence[Waypost], numbers: queue.SimpleQueue[int | None], seed: int) -> None:
        """`numbers` of the commands; None ends it."""
        super().__init__(daemon=True)
        self.ends: list[CommandEnd] = []
        self._hubs = hubs
        self._numbers = numbers
        self._dice = random.Random(seed)

    def run(self) -> None:
        while (number := self._numbers.get()) is not None:
            self.ends.append(self._command(number))

    def _command(self, number: int) -> CommandEnd:
        gateway, name = f"gw{number % GATEWAYS}", f"on{number}"
        device, online = f"pump-{gateway}", self._dice.random() < ONLINE
        wanted: dict[str, Any] = {"gateway": gateway, "device": device, "name": name}
        wanted |= {"delivery": "online"} if online else {"ttl_s": 600}
        body = json.dumps(wanted).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"command-{number}"}
        sent = self._ask("POST", "commands", body, headers).document
        if "id" not in sent:
            return CommandEnd(device, name, online, "refused", sent["code"], None)
        while True:
            began_s = time.time()
            found = self._ask("GET", f"commands/{sent['id']}?wait={WAIT_S}").document
            ended_s, changed_s = time.time(), datetime.fromisoformat(found["changed_at"]).timestamp()
            if found["state"] in FINAL:
                late_s = ended_s - changed_s if began_s < changed_s else None
                return CommandEnd(device, name, online, found["state"], found["reason_code"] or found["reason"], late_s)

    def _ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Ask one hub after the other until one answers; a hub that restarts, or is about to, does not."""
        while True:
            try:
                answer = ask(
                    self._dice.choice(self._hubs), method, f"/api/v1/{path}", body, headers, timeout_s=WAIT_S + 5
                )
            except (OSError, HTTPException):
                time.sleep(RETRY_S)
                continue
            if answer.status in (HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.CONFLICT):
                return answer
            assert answer.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT), answer
            time.sleep(RETRY_S)


def gateway_of(folder: Path, name: str, hubs: Sequence[Waypost]) -> Waypost:
    """Return a gateway that knows all hubs."""
    urls = [f"amqp://127.0.0.1:{hub.port('amqp')}" for hub in hubs]
    file = folder / f"{name}.yaml"
    settings = FirstGateway(name=name, mqtt="127.0.0.1:0", amqp=None, http=None, hub=urls, forward=["load/#"])
    file.write_text(yaml_of(settings).replace("standard", "none"))
    return Waypost(folder / f"{name}.log", "run", "--data", str(folder / name), f"--config={file}")


def is_connected(hub: Waypost, gateway: str) -> bool:
    """Return whether a hub shows that a gateway is connected."""
    answer = ask(hub, "GET", f"/api/v1/gateways/{gateway}")
    return answer.status == HTTPStatus.OK and bool(answer.document["connected"])


@pytest.fixture
def hubs(tmp_path: Path, postgres: Postgres) -> Iterator[list[Waypost]]:
    with hub_replicas(tmp_path, postgres.url(postgres.schema()), 10, count=HUBS, drain_s=DRAIN_S) as running:
        yield running


@pytest.fixture
def devices(tmp_path: Path, hubs: list[Waypost]) -> Iterator[list[CommandedDevice]]:
    """Return a device at each gateway; each gateway prefers another hub."""
    with ExitStack() as stack:
        found = []
        for number in range(GATEWAYS):
            turn, name = number % HUBS, f"gw{number}"
            gateway = stack.enter_context(gateway_of(tmp_path, name, [*hubs[turn:], *hubs[:turn]]))
            found.append(CommandedDevice(gateway, f"pump-{name}"))
            stack.callback(found[-1].close)
        for number in range(GATEWAYS):
            for hub in hubs:
                wait_until(
                    lambda h=hub, n=number: is_connected(h, f"gw{n}"), timeout_s=WAIT_S, what="all are connected"
                )
        yield found


def send_while_restarting(hubs: list[Waypost], count: int, restarts: int, seed: int) -> list[CommandEnd]:
    """Send commands while hubs are killed and drained in turn, some with each restart; return how each ended."""
    numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    senders = [Sender(hubs, numbers, seed + part) for part in range(SENDERS)]
    for sender in senders:
        sender.start()
    for part in range(restarts + 1):
        for number in range(part * count // (restarts + 1), (part + 1) * count // (restarts + 1)):
            numbers.put(number)
        if part == restarts:
            break
        victim = hubs[part % HUBS]
        if part % 2:
            victim.stop()
        else:
            victim.kill()
        victim.start()
    for _ in senders:
        numbers.put(None)
    for sender in senders:
        sender.join(300.0)
        assert not sender.is_alive()
    return [end for sender in senders for end in sender.ends]


def check(ends: Sequence[CommandEnd], devices: Sequence[CommandedDevice], count: int) -> list[float]:
    """Check each command at its device; return the times from receipts to answers, sorted."""
    taken = {device.name: device.taken for device in devices}
    assert len({end.name for end in ends}) == len(ends) == count
    for end in ends:
        times = taken[end.device][end.name]
        if end.state == "delivered":
            assert times == 1, end
        else:
            assert end.online, end
            assert end.reason, end
            assert times <= 1, end
    assert sum(taken_by.total() for taken_by in taken.values()) <= count
    late_s = sorted(end.late_s for end in ends if end.late_s is not None)
    outcomes = Counter((("online" if end.online else "stored"), end.state, end.reason) for end in ends)
    for outcome, number in sorted(outcomes.items(), key=str):
        print(f"{number} commands: {outcome}")
    p50_s, p99_s = (late_s[int(len(late_s) * part)] for part in (0.5, 0.99))
    told = f"{p50_s:.3f} s after the receipt (median), {p99_s:.3f} s (99 %), {late_s[-1]:.3f} s (all)"
    print(f"{len(late_s)} waiting requests ended {told}")
    return late_s


@pytest.mark.timeout(300)
def test_commands_reach_devices_once_while_a_hub_is_killed(hubs: list[Waypost], devices: list[CommandedDevice]) -> None:
    check(send_while_restarting(hubs, 24, 1, 1), devices, 24)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_thousand_commands_while_hubs_restart(hubs: list[Waypost], devices: list[CommandedDevice]) -> None:
    late_s = check(send_while_restarting(hubs, 1_000, 20, chosen_seed()), devices, 1_000)
    assert late_s[-1] < AT_ONCE_S
