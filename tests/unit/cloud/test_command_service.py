"""The hub's commands on an event loop: reports, storage and answers in this order, and their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cloud.hub.commands.documents import CommandDocument, InvalidCommand, check_command
from cloud.hub.commands.limits import CORRELATION_CHARACTERS_MAX, REQUESTS_MAX, WAITING_MAX
from cloud.hub.commands.service import ApplicationsUnavailable, CommandsBusy, Draft, HubCommands
from cloud.hub.limits import DOUBTED_ANSWER_S
from cloud.hub.registry.commands import CancelTooLate, CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.events import utc_us
from cloud.hub.registry.known_numbers import leave_known_numbers
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from tests.support.loop_wait import until
from tests.unit.cloud.command_line import StubLine

WAIT_S = 20.0
DRAFT = Draft("acme", "hall", "pump7", "on", b"{}", None, 60.0)


class Hub:
    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.url = sqlite_url(folder / "registry.db")
        self.told: list[tuple[str, str]] = []
        self.deaf = False
        self.deaf_tenant = ""
        self.commands = HubCommands(self.url, self.publish_outcome, knows=lambda _key: True, now=now)

    async def publish_outcome(self, news: CommandNews, command: CommandRecord) -> None:
        if self.deaf or command.tenant == self.deaf_tenant:
            raise ApplicationsUnavailable("the store is full")
        self.told.append((command.id, command.state))

    async def queue_news(self, command: CommandRecord, state: CommandState) -> bool:
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.commands.queue_news([CommandNews(command.id, *command.key, command.device, 5, state)], kept.set_result)
        return await asyncio.wait_for(kept, WAIT_S)


def run(folder: Path, work: Callable[[Hub], Awaitable[None]]) -> None:
    async def main() -> None:
        hub = Hub(folder)
        await hub.commands.open()
        try:
            await work(hub)
        finally:
            await hub.commands.close()

    asyncio.run(main())


def test_waiting_request_gets_each_change(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        sent = await hub.commands.send(DRAFT)
        waiting = asyncio.ensure_future(hub.commands.wait(sent.id, WAIT_S))
        assert await hub.queue_news(sent, CommandState.QUEUED)
        assert hub.told == [], "only what is over is told"
        assert await hub.queue_news(sent, CommandState.DELIVERED)
        over = await waiting
        assert over is not None
        assert over.state == "delivered"
        assert hub.told == [(sent.id, "delivered")]
        assert await hub.queue_news(sent, CommandState.EXPIRED)
        assert len(hub.told) == 1, "the first receipt counts"
        assert hub.commands.figures.over == {"delivered": 1, "expired": 0, "rejected": 0, "cancelled": 0}

    run(tmp_path, work)


def test_report_that_cannot_be_sent_to_applications_is_not_stored(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        sent = await hub.commands.send(DRAFT)
        hub.deaf = True
        assert not await hub.queue_news(sent, CommandState.DELIVERED)
        found = await hub.commands.get(sent.id)
        assert found is not None
        assert found.state == "waiting"
        assert hub.commands.trouble == "the store is full"
        hub.deaf = False
        assert await hub.queue_news(sent, CommandState.DELIVERED)
        assert hub.commands.trouble is None

    run(tmp_path, work)


def test_fault_of_one_tenants_applications_does_not_concern_others(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        ours, theirs = [await hub.commands.send(DRAFT._replace(tenant=tenant)) for tenant in ("acme", "south")]
        hub.deaf_tenant = "acme"
        answers = await asyncio.gather(*(hub.queue_news(each, CommandState.DELIVERED) for each in (ours, theirs)))
        assert answers == [False, True]
        assert hub.commands.trouble == "the store is full"
        hub.deaf_tenant = ""
        assert await hub.queue_news(ours, CommandState.DELIVERED)
        assert hub.commands.trouble is None

    run(tmp_path, work)


def test_commands_added_to_the_registry_elsewhere_are_sent(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        line = StubLine({})
        line.gateway = ("acme", "hall")
        hub.commands.dispatch.ready(line)  # type: ignore[arg-type]
        beside = await asyncio.to_thread(added_beside, hub)
        await until(lambda: beside in line.sent.values())

    run(tmp_path, work)


def added_beside(hub: Hub) -> str:
    opened = Commands(hub.url)
    try:
        return opened.add(DRAFT.record(hub.commands._now_us()), gateway_max=10, tenant_max=10, known=True).id
    finally:
        opened.close()


def test_command_without_a_gateway_expires_at_the_hub(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        sent = await hub.commands.send(DRAFT._replace(ttl_s=0.01))
        await until(lambda: hub.told == [(sent.id, "expired")])

    run(tmp_path, work)


def test_command_of_a_restored_registry_ends_without_its_gateway(tmp_path: Path) -> None:
    """Its gateway has reported the outcome to the original."""

    async def main() -> None:
        later = DRAFT.ttl_s + DOUBTED_ANSWER_S
        hub = Hub(tmp_path, now=lambda: time.time() + later)
        with contextlib.closing(open_registry(hub.url).database) as database:
            with contextlib.closing(Commands(hub.url)) as commands:
                sent = commands.add(DRAFT.record(utc_us()), gateway_max=9, tenant_max=9, known=True)
                commands.keep([CommandNews(sent.id, *sent.key, sent.device, 5, CommandState.QUEUED)])
            database.transaction(leave_known_numbers)
        await hub.commands.open()
        try:
            await until(lambda: hub.told == [(sent.id, "expired")])
            over = await hub.commands.wait(sent.id, WAIT_S)
        finally:
            await hub.commands.close()
        assert over is not None
        assert over.reason_code == "outcome-unknown"

    asyncio.run(main())


def test_cancelled_command_is_not_sent_and_its_request_is_answered(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        sent = await hub.commands.send(DRAFT)
        waits = asyncio.ensure_future(hub.commands.wait(sent.id, WAIT_S))
        cancelled = await hub.commands.cancel(sent.id, "ann@acme")
        assert cancelled is not None
        assert (cancelled.state, cancelled.reason) == ("cancelled", "cancelled by ann@acme")
        assert await waits == cancelled
        assert hub.told == [(sent.id, "cancelled")]
        assert await hub.commands.cancel(sent.id, "bob@acme") == cancelled
        line = StubLine({})
        hub.commands.dispatch.ready(line)
        after = await hub.commands.send(DRAFT)
        await until(lambda: bool(line.sent))
        assert len(line.sent) == 1, "the other one only"
        with pytest.raises(CancelTooLate):
            await hub.commands.cancel(after.id, "ann@acme")

    run(tmp_path, work)


def test_cancellation_elsewhere_is_reported(tmp_path: Path) -> None:
    """A cancellation by another process, as `waypost command cancel`, is reported."""

    async def work(hub: Hub) -> None:
        sent = await hub.commands.send(DRAFT)
        with contextlib.closing(Commands(hub.url)) as others:
            others.cancel(sent.id, "ann", 9)
        found = await hub.commands.wait(sent.id, WAIT_S)
        assert found is not None
        assert found.state == "cancelled"
        assert hub.told == [(sent.id, "cancelled")]

    run(tmp_path, work)


def test_concurrent_requests_are_bounded(tmp_path: Path) -> None:
    async def work(hub: Hub) -> None:
        asked = [asyncio.ensure_future(hub.commands.get("x")) for _ in range(REQUESTS_MAX + 1)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in done if each is not None] == [CommandsBusy]
        sent = await hub.commands.send(DRAFT)
        hub.commands._waiting = {str(number): set() for number in range(WAITING_MAX)}
        with pytest.raises(CommandsBusy):
            await hub.commands.wait(sent.id, 1.0)
        hub.commands._waiting = {}
        waited = await hub.commands.wait(sent.id, 0.01)
        assert waited is not None
        assert waited.state == "waiting", "as it is when the time is over"

    run(tmp_path, work)


def test_stopping_hub_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        hub = Hub(tmp_path)
        with pytest.raises(CommandsBusy, match="starting or stopping"):
            await hub.commands.get("x")
        await hub.commands.close()
        await hub.commands.close()

    asyncio.run(main())


GOOD = CommandDocument(gateway="hall", device="pump7", name="on")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (CommandDocument(gateway="", device="pump7", name="on"), "name of a gateway"),
        (CommandDocument(gateway="hall", device="pump7", name="on", payload="x", payload_base64="eA=="), "not both"),
        (CommandDocument(gateway="hall", device="pump7", name="on", payload_base64="%"), "not base64"),
        (CommandDocument(gateway="hall", device="pump7", name="on", reply_to="queue/jobs"), "reply_to"),
        (
            CommandDocument(
                gateway="hall", device="pump7", name="on", correlation_id="x" * (CORRELATION_CHARACTERS_MAX + 1)
            ),
            "correlation_id",
        ),
    ],
)
def test_invalid_commands_are_refused(document: CommandDocument, words: str) -> None:
    with pytest.raises(InvalidCommand, match=words):
        check_command(document, "acme", "")
    assert check_command(GOOD, "acme", "").payload == b""


@pytest.mark.parametrize(
    ("payload", "body", "content_type"), [("on", b"on", None), ({"a": 1}, b'{"a":1}', "application/json")]
)
def test_payload_is_text_or_json(payload: object, body: bytes, content_type: str | None) -> None:
    made = check_command(CommandDocument(gateway="hall", device="pump7", name="on", payload=payload), "acme", "")
    assert (made.payload, made.content_type) == (body, content_type)
