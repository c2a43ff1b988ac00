"""Commands of a device that moves among gateways, in random orders of events: each is delivered once and in order.

Those that were sent by labels stay at their gateways: each is delivered once, or rejected.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest
import sqlalchemy as sa

from bridge.command import UNKNOWN_DEVICE
from cloud.hub.commands.service import Draft
from cloud.hub.registry.command_moves import sending_name, split_sending
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import gateways, tenants

GATEWAYS: Final = ("hall", "roof", "yard")
DEVICE: Final = "cart"
STEPS: Final = 150
SECOND: Final = 1_000_000


class _Answer(NamedTuple):
    """Answer or receipt of a gateway on its way to the hub."""

    command: CommandRecord
    state: CommandState
    reason: str = ""
    returned: bool = False
    sent_at: int | None = None


class _Gateway:
    """Gateway as the hub sees it: names that it knows, a stored queue, and stored receipts."""

    def __init__(self) -> None:
        self.has_device = False
        self.names: set[str] = set()
        self.queue: list[CommandRecord] = []
        self.receipts: deque[_Answer] = deque()
        self.arriving: deque[CommandRecord] = deque()
        """Transfers on the present line."""
        self.answers: deque[_Answer] = deque()
        """Answers on the present line."""
        self.late: deque[_Answer] = deque()
        """Answers of former lines that the hub has received, and not stored yet."""

    def under_way(self) -> list[str]:
        return [each.id for each in self.arriving] + [each.command.id for each in self.answers]

    def receive(self) -> None:
        """Store the next command that has come, as `CommandInbox` does."""
        if not self.arriving:
            return
        command = self.arriving.popleft()
        name = sending_name(command.id, command.moves)
        if name not in self.names and not self.has_device:
            why = f"{UNKNOWN_DEVICE}{DEVICE}"
            self.answers.append(_Answer(command, CommandState.REJECTED, why, True, command.changed_at))
            return
        if name not in self.names:
            self.names.add(name)
            self.queue.append(command)
        self.answers.append(_Answer(command, CommandState.QUEUED))

    def give_back(self) -> None:
        """Return what waits, as `CommandReturns` does."""
        if not self.has_device:
            self.receipts += [_Answer(each, CommandState.REJECTED, "left", returned=True) for each in self.queue]
            self.queue.clear()


class _World:
    def __init__(self, seed: int, commands: Commands, devices: RegisteredDevices) -> None:
        self.random = random.Random(seed)
        self.commands = commands
        self.devices = devices
        self.now_us = SECOND
        self.there = "hall"
        """Gateway of the device by the registry."""
        self.places = {"hall"}
        """Gateways at which it was registered."""
        self.sent: list[CommandRecord] = []
        self.staying: set[str] = set()
        """Identifiers of the commands that were sent by labels."""
        self.done: list[str] = []
        """Identifiers of the commands that the device got."""
        self.gateways = {name: _Gateway() for name in GATEWAYS}
        self.gateways["hall"].has_device = True
        devices.add(self._row(), TenantLimits("acme", lambda _row: 100))

    def _row(self) -> NewDeviceRow:
        document = msgspec.json.encode({"ext": {"waypost": {"gateways": [self.there]}}}).decode()
        return NewDeviceRow("acme", DEVICE, document, [], self.now_us, "ann")

    def _any(self) -> tuple[str, _Gateway]:
        name = self.random.choice(GATEWAYS)
        return name, self.gateways[name]

    # --- events ---------------------------------------------------------------------------------------------------

    def send(self) -> None:
        named = self.random.choice(sorted(self.places))
        draft = Draft("acme", named, DEVICE, "go", b"", None, 10_000.0)
        self.sent.append(self.commands.add(draft.record(self.now_us), gateway_max=1_000, tenant_max=1_000))

    def send_by_labels(self) -> None:
        draft = Draft("acme", self.there, DEVICE, "go", b"", None, 10_000.0)
        bounds = {"gateway_max": 1_000, "tenant_max": 1_000}
        self.sent.append(self.commands.add(draft.record(self.now_us), **bounds, follows=False))
        self.staying.add(self.sent[-1].id)

    def move(self) -> None:
        self.there = self.random.choice(GATEWAYS)
        self.places.add(self.there)
        self.devices.replace(self._row(), lambda _there: None)

    def page(self) -> None:
        name, gateway = self._any()
        while gateway.arriving:  # of the same connection, before the page
            gateway.receive()
        gateway.has_device = name == self.there

    def dispatch(self) -> None:
        name, gateway = self._any()
        gateway.arriving += self.commands.take(("acme", name), gateway.under_way(), 3, self.now_us)

    def receive(self) -> None:
        self._any()[1].receive()

    def answer(self) -> None:
        name, gateway = self._any()
        if gateway.answers:
            self._apply(name, gateway.answers.popleft())

    def answer_late(self) -> None:
        name, gateway = self._any()
        if gateway.late:
            self._apply(name, gateway.late.popleft())

    def report(self) -> None:
        name, gateway = self._any()
        if gateway.receipts:
            self._apply(name, gateway.receipts.popleft())

    def repeat_report(self) -> None:
        """Report as before a lost acknowledgement: the gateway sends the same receipt again."""
        name, gateway = self._any()
        if gateway.receipts:
            self._apply(name, gateway.receipts[0])

    def lose_line(self) -> None:
        gateway = self._any()[1]
        for _ in range(self.random.randint(0, len(gateway.arriving))):
            gateway.receive()
        gateway.arriving.clear()
        received = self.random.randint(0, len(gateway.answers))
        gateway.late += list(gateway.answers)[:received]
        gateway.answers.clear()

    def deliver(self) -> None:
        gateway = self._any()[1]
        if gateway.has_device and gateway.queue:
            command = gateway.queue.pop(0)
            self.done.append(command.id)
            gateway.receipts.append(_Answer(command, CommandState.DELIVERED))

    def give_back(self) -> None:
        self._any()[1].give_back()

    def wait(self) -> None:
        self.now_us += SECOND

    def _apply(self, gateway: str, told: _Answer) -> None:
        identifier, moves = split_sending(sending_name(told.command.id, told.command.moves))
        news = CommandNews(identifier, "acme", gateway, DEVICE, self.now_us, told.state, told.reason, moves=moves)
        news = news._replace(returned=told.returned, sent_at=told.sent_at)
        self.commands.keep([each for each, _ in self.commands.effective_news([news])])

    # --- run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        events: list[Callable[[], None]] = [
            self.send,
            self.page,
            self.deliver,
            self.give_back,
            self.wait,
            self.answer_late,
            self.send_by_labels,
        ]
        events += [self.dispatch, self.receive, self.answer, self.report] * 2
        for _ in range(STEPS):
            self.random.choice([*events, self.move] if self.random.random() < 0.5 else events)()
            if self.random.random() < 0.1:
                self.random.choice([self.lose_line, self.repeat_report])()

    def settle(self) -> None:
        """Let everything that can happen happen, without further moves."""
        for name, gateway in self.gateways.items():
            gateway.has_device = name == self.there
        for _ in range(40 * len(self.sent) + 400):
            for event in (
                self.dispatch,
                self.receive,
                self.answer,
                self.give_back,
                self.answer_late,
                self.report,
                self.deliver,
                self.wait,
            ):
                event()
            if self._open() == 0:
                return

    def _open(self) -> int:
        return sum(count for state, count in self.commands.counts().items() if not CommandState(state).final)


def _add_gateways(tx: sa.Connection) -> None:
    row = {"first_seen": 1, "last_seen": 1, "connected": False, "remote": "", "generation": 0, "landed": 0}
    tx.execute(tenants.insert().values(name="acme", created_at=1))
    for name in GATEWAYS:
        tx.execute(gateways.insert().values(tenant="acme", name=name, **row))


@pytest.mark.parametrize("seed", range(8))
def test_each_command_is_delivered_once_and_in_order(tmp_path: Path, seed: int) -> None:
    url = sqlite_url(tmp_path / "registry.db")
    with contextlib.closing(open_registry(url).database) as database, contextlib.closing(Commands(url)) as commands:
        database.transaction(_add_gateways)
        world = _World(seed, commands, RegisteredDevices(database))
        world.run()
        world.settle()
        states = {each.id: commands.get(each.id) for each in world.sent}
        assert world.sent
        following = [each.id for each in world.sent if each.id not in world.staying]
        assert {found.state for found in states.values() if found is not None} <= {"delivered", "rejected"}
        assert [each for each in world.done if each not in world.staying] == following
        delivered = {each for each, found in states.items() if found is not None and found.state == "delivered"}
        assert len(world.done) == len(delivered), "each once"
        assert set(world.done) == delivered
