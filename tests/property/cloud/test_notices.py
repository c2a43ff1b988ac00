"""Commands of two hubs with one registry, while notices between them are lost, doubled and late."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from cloud.hub.commands.service import Draft, HubCommands
from cloud.hub.registry.commands import CommandNews, CommandRecord, CommandState
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangedRow, ChangeHint, NoticeTopic
from tests.support.loop_wait import until
from tests.unit.cloud.command_line import StubLine

POLL_S: Final = 0.02
WAIT_S: Final = 60.0
COMMANDS: Final = 12
GATEWAY: Final = ("acme", "hall")


class UnreliableHint(ChangeHint):
    """Hint that is lost, doubled or late, by chance."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def give(self, rows: Collection[ChangedRow] = ()) -> None:
        rows = self._dice.choice((rows, ()))  # an older hub names none
        for _ in range(self._dice.choice((0, 0, 1, 2))):
            asyncio.get_running_loop().call_later(
                self._dice.choice((0.0, 0.0, 0.005, 3 * POLL_S)), ChangeHint.give, self, rows
            )


async def _publish(_news: CommandNews, _command: CommandRecord) -> None:
    """Publish to no application."""


async def deliver_through(folder: Path, dice: random.Random) -> None:
    """Send commands at both hubs to a gateway that moves between them, and wait for each at either hub."""
    hints = [UnreliableHint(dice), UnreliableHint(dice)]
    url = sqlite_url(folder / "registry.db")
    hubs = [HubCommands(url, _publish, lambda _key: True, hint=hint, poll_interval_s=POLL_S) for hint in hints]
    for hub in hubs:
        await hub.open()
    kept: dict[str, int] = {}
    try:
        here, line = hubs[0], StubLine(kept)
        here.dispatch.ready(line)  # type: ignore[arg-type]
        waits: list[asyncio.Task[CommandRecord | None]] = []
        for number in range(COMMANDS):
            sent = await dice.choice(hubs).send(Draft(*GATEWAY, "pump7", f"on{number}", b"", None, 60.0))
            for hint in hints:
                hint.give([ChangedRow(NoticeTopic.COMMANDS, GATEWAY)])
            waits.append(asyncio.ensure_future(dice.choice(hubs).wait(sent.id, WAIT_S)))
            if dice.random() < 0.3:  # the gateway moves; what has no answer is sent again
                line.open = False
                here.dispatch.ended(line)  # type: ignore[arg-type]
                here, line = dice.choice(hubs), StubLine(kept)
                here.dispatch.ready(line)  # type: ignore[arg-type]
            await asyncio.sleep(dice.choice((0.0, POLL_S / 2)))
        while len(kept) < COMMANDS:
            await until(lambda: line.sent, "a command at its gateway")
            line.answer(here.dispatch)
        for identifier in kept:
            news = CommandNews(identifier, *GATEWAY, "pump7", 1, CommandState.DELIVERED)
            stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            here.queue_news([news], stored.set_result)
            assert await stored
            for hint in hints:
                hint.give([ChangedRow(NoticeTopic.RECEIPTS, (identifier,))])
        found = await asyncio.gather(*waits)
        assert [each.state for each in found if each is not None] == ["delivered"] * COMMANDS
    finally:
        for hub in hubs:
            await hub.close()


@pytest.mark.parametrize("seed", range(6))
def test_commands_do_not_depend_on_notices(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(deliver_through(Path(folder), random.Random(seed)))
