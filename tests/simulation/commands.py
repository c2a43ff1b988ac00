"""Commands to a device of the gateway: the application that sends them, and their table in the hub's registry.

The application writes a command into the registry, as `waypost command` does. The hub's own service and dispatch
read it from there (`cloud.hub.commands`). The identifier of a command is its name in the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, cast
from unittest import mock

from cloud.hub.commands import service
from cloud.hub.commands.service import HubCommands
from cloud.hub.registry.commands import DOWN, CommandNews, CommandRecord, CommandState
from edge.broker.router.commands.addresses import PLAIN
from tests.simulation.environment import wall_ns
from tests.simulation.gateway import DEVICE, NAME
from tests.simulation.history import History
from tests.simulation.registry import Database
from tests.simulation.scheduler import Process, Scheduler

PERIOD_S: Final = 0.1
TTL_S: Final = 86_400
"""Longer than any clock here jumps: nothing expires."""
TENANT: Final = "default"


class CommandTable:
    """Table of commands that survives the hubs that use it."""

    def __init__(self, database: Database, history: History) -> None:
        self.rows: dict[str, CommandRecord] = {}
        """Records by identifier, in the order in which they were sent."""
        self.database = database
        self.history = history

    @property
    def waiting(self) -> int:
        """Return the number of commands that the gateway has not confirmed to the hub."""
        return sum(each.state in DOWN for each in self.rows.values())


class SimulatedCommands:
    """Substitute for `cloud.hub.registry.commands.Commands`."""

    def __init__(self, table: CommandTable, *, reading: bool = False) -> None:
        del reading  # both connections see the same rows
        self._rows = table.rows
        self._database = table.database
        self._history = table.history

    def take(self, key: tuple[str, str], but: Collection[str], limit: int, now_us: int) -> list[CommandRecord]:
        fails = self._database.transaction()
        there = [each for each in self._rows.values() if each.key == key and each.state in DOWN and each.id not in but]
        for each in there[:limit]:
            self._rows[each.id] = each._replace(state=CommandState.SENT.value, changed_at=now_us)
        self._database.end(fails)
        return there[:limit]

    def newest(self) -> int:
        self._database.end(self._database.transaction())
        return len(self._rows)

    def gateways_of(self, after: int) -> set[tuple[str, str]]:
        self._database.end(self._database.transaction())
        return {each.key for each in self._rows.values() if each.number > after}

    def newest_move(self) -> int:
        return 0  # its device is a user of the gateway

    def held_gateways(self, limit: int) -> Sequence[tuple[str, str]]:
        return ()

    def effective_news(self, news: Iterable[CommandNews]) -> list[tuple[CommandNews, CommandRecord]]:
        self._database.end(self._database.transaction())
        return [(each, found) for each in news if (found := self._changed(each)) is not None]

    def keep(self, news: Iterable[CommandNews]) -> list[CommandRecord]:
        fails = self._database.transaction()
        changed: list[CommandRecord] = []
        for each in news:
            found = self._changed(each)
            if found is not None:
                self._rows[found.id] = found
                self._history.record("command", found.id, found.state)
                changed.append(found)
        self._database.end(fails)
        return changed

    def next_gateways(self, changed: Iterable[CommandRecord]) -> set[tuple[str, str]]:
        return set()  # no command waits for another one

    def doubted(self, now_us: int, limit: int) -> list[CommandRecord]:
        return []  # no registry is restored

    def over(self, now_us: int, limit: int) -> list[CommandRecord]:
        self._database.end(self._database.transaction())
        return []

    def counts(self) -> dict[str, int]:
        self._database.end(self._database.transaction())
        return {}

    def forget(self, before_us: int, limit: int, now_us: int) -> int:
        self._database.end(self._database.transaction())
        return 0

    def _changed(self, news: CommandNews) -> CommandRecord | None:
        found = self._rows.get(news.id)
        if found is None or news.state is None:
            return None
        before = CommandState(found.state)
        if before.final or news.state is before:
            return None
        return found._replace(state=news.state.value, changed_at=news.at, reason=news.reason)


class Application:
    """Sends commands now and then, independent of the hub."""

    def __init__(self, scheduler: Scheduler, table: CommandTable, random: Random) -> None:
        self.name = "app"
        self.sending = True
        self._scheduler = scheduler
        self._table = table
        self._random = random
        self._process = Process(self.name)
        self._later()

    @property
    def waiting(self) -> int:
        """Return the number of commands that are not known to be at the gateway."""
        return self._table.waiting

    def _later(self) -> None:
        self._scheduler.after(PERIOD_S * 2 * self._random.random(), self._process, self._send)

    def _send(self) -> None:
        if not self.sending:
            return
        self._later()
        for _ in range(self._random.choice((1, 1, 3))):
            command = self._command(len(self._table.rows) + 1, int(wall_ns(self._scheduler) // 1_000))
            self._table.history.record("send", self.name, PLAIN.queue(DEVICE), (command.id,), 2)
            self._table.rows[command.id] = command

    def _command(self, number: int, now_us: int) -> CommandRecord:
        name = f"{self.name}.{number}"
        return CommandRecord(
            number=number,
            id=name,
            tenant=TENANT,
            gateway=NAME,
            device=DEVICE,
            name="set",
            content_type=None,
            payload=name.encode(),
            correlation_id=None,
            reply_to=None,
            wants_response=False,
            sent_by="",
            created_at=now_us,
            expires_at=now_us + TTL_S * 1_000_000,
            state=CommandState.WAITING.value,
            reason="",
            changed_at=now_us,
        )


async def _tell(_news: CommandNews, _command: CommandRecord) -> None:
    """Do nothing: no application listens."""


def commands_of_a_hub(scheduler: Scheduler, table: CommandTable) -> HubCommands:
    """Return the command service of one hub process; the caller opens it."""
    return HubCommands(cast(Any, table), _tell, lambda _key: True, now=lambda: wall_ns(scheduler) / 1e9)


@contextmanager
def simulated_commands() -> Iterator[None]:
    """Make hubs open the simulated table in place of the registry's."""
    with mock.patch.object(service, "Commands", SimulatedCommands):
        yield
