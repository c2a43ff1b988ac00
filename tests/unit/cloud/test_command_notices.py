"""Notices about commands: a hub reads what they name if it is concerned, and nothing otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from cloud.hub.commands.service import Draft, HubCommands
from cloud.hub.limits import NOTICE_BYTES_MAX, NOTICES_ROWS_MAX
from cloud.hub.registry import notices
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangedRow, ChangeHint, ChangeNotices, NoticeTopic
from tests.support.loop_wait import until
from tests.unit.cloud.command_line import StubLine

NEVER_S: Final = 60.0
DRAFT: Final = Draft("acme", "hall", "pump7", "on", b"{}", None, NEVER_S)


async def _tell(_news: CommandNews, _command: CommandRecord) -> None:
    """Publish to no application."""


@contextmanager
def transactions() -> Iterator[list[None]]:
    """Return a list that gets an entry for each transaction of a registry in the body."""
    began: list[None] = []

    def note(_connection: Any) -> None:
        began.append(None)

    sa.event.listen(sa.Engine, "begin", note)
    try:
        yield began
    finally:
        sa.event.remove(sa.Engine, "begin", note)


def run(folder: Path, work: Callable[[HubCommands, ChangeHint, Commands], Awaitable[None]]) -> None:
    """Run `work` with the commands of a hub that polls never, its hint, and the commands of another hub."""
    url = sqlite_url(folder / "registry.db")

    async def main() -> None:
        hint = ChangeHint()
        hub = HubCommands(url, _tell, lambda _key: True, hint=hint, poll_interval_s=NEVER_S)
        await hub.open()
        try:
            await work(hub, hint, other)
        finally:
            await hub.close()

    with closing(Commands(url)) as other:
        asyncio.run(main())


def test_a_hub_without_the_gateway_reads_nothing(tmp_path: Path) -> None:
    async def work(hub: HubCommands, hint: ChangeHint, _other: Commands) -> None:
        line = StubLine({})
        hub.dispatch.ready(line)  # type: ignore[arg-type]
        await hub._in_thread(lambda _registry: None)  # after the first look for that gateway
        with transactions() as began:
            hint.give([ChangedRow(NoticeTopic.COMMANDS, ("acme", "roof")), ChangedRow(NoticeTopic.RECEIPTS, ("x",))])
            await until(lambda: not hint._given.is_set(), "the notice was taken")
            await hub._in_thread(lambda _registry: None)
            await hub._read(lambda _registry: None)
        assert began == []

    run(tmp_path, work)


def test_a_named_gateway_gets_its_command_in_one_transaction(tmp_path: Path) -> None:
    async def work(hub: HubCommands, hint: ChangeHint, other: Commands) -> None:
        line = StubLine({}, credit=1)
        hub.dispatch.ready(line)  # type: ignore[arg-type]
        await hub._in_thread(lambda _registry: None)
        sent = other.add(DRAFT.record(hub._now_us()), gateway_max=9, tenant_max=9, known=True)
        with transactions() as began:
            hint.give([ChangedRow(NoticeTopic.COMMANDS, ("acme", "hall"))])
            await until(lambda: sent.id in line.sent.values(), "the command leaves")
        assert len(began) == 1

    run(tmp_path, work)


def test_a_named_receipt_ends_the_request_that_waits_for_it(tmp_path: Path) -> None:
    async def work(hub: HubCommands, hint: ChangeHint, other: Commands) -> None:
        sent = [await hub.send(DRAFT) for _ in range(2)]
        waiting = [asyncio.ensure_future(hub.wait(each.id, NEVER_S)) for each in sent]
        await until(lambda: len(hub._waiting) == 2)
        await hub._read(lambda _registry: None)
        for each in sent:
            other.keep([CommandNews(each.id, "acme", "hall", "pump7", 2, CommandState.DELIVERED)])
        with transactions() as began:
            hint.give([ChangedRow(NoticeTopic.RECEIPTS, (sent[0].id,))])
            found = await waiting[0]
        assert found is not None
        assert found.state == CommandState.DELIVERED.value
        assert len(began) == 1
        assert not waiting[1].done()
        hint.give()  # a notice that names nothing
        await waiting[1]

    run(tmp_path, work)


async def told_by(payload: str) -> notices.NoticedChanges:
    """Return what a task learns from a notice."""
    received = ChangeNotices(sqlite_url(Path("registry.db")))
    hint = received.follow(NoticeTopic.COMMANDS)
    received.pass_on(payload)
    return await hint.wait(0.0)


def test_a_notice_names_rows() -> None:
    async def main() -> None:
        rows = [("acme", "hall"), ("acme", "Küche")]
        found = await told_by(notices._payload(NoticeTopic.COMMANDS, rows))
        assert found == (frozenset(ChangedRow(NoticeTopic.COMMANDS, row) for row in rows), False)

    asyncio.run(main())


def test_a_notice_that_is_too_long_names_none() -> None:
    many = [("acme", f"gateway-{number}") for number in range(400)]
    assert notices._payload(NoticeTopic.COMMANDS, many) == NoticeTopic.COMMANDS.value
    some = many[:300]
    assert len(notices._payload(NoticeTopic.COMMANDS, some).encode()) <= NOTICE_BYTES_MAX


def test_notices_of_other_versions_are_taken_or_left() -> None:
    async def main() -> None:
        assert (await told_by("commands")).others, "an older hub names no rows"
        for unknown in ("[", "[1]", '["commands",{"a":1}]', '["orders",["a"]]', "orders", "[]", '[["a"]]'):
            assert await told_by(unknown) == (frozenset(), False), unknown

    asyncio.run(main())


def test_remembered_rows_are_bounded() -> None:
    async def main() -> None:
        hint = ChangeHint()
        for number in range(NOTICES_ROWS_MAX + 5):
            hint.give([ChangedRow(NoticeTopic.RECEIPTS, (str(number),))])
        found = await hint.wait(0.0)
        assert len(found.rows) == NOTICES_ROWS_MAX
        assert found.others
        assert await hint.wait(0.0) == (frozenset(), False)

    asyncio.run(main())
