"""Online commands at a hub: refused without a connected gateway, sent at most once, and completed in their time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.requests import Request

from bridge.command import ONLINE_COMMANDS, OnlineReason, read, refusal_text
from bridge.downlink import Key
from bridge.forwarders.outcome import ForwardOutcome
from cloud.fleet.commands import command
from cloud.hub.commands.dispatch import Dispatch, command_to_send
from cloud.hub.commands.documents import (
    CommandDocument,
    InvalidCommand,
    check_command,
    command_document,
    outlook_document,
    outlook_for,
)
from cloud.hub.commands.http import PATH, routes
from cloud.hub.commands.limits import ONLINE_TTL_S_DEFAULT, ONLINE_TTL_S_MAX, TTL_S_DEFAULT
from cloud.hub.commands.service import ApplicationsUnavailable, CommandsBusy, Draft, HubCommands
from cloud.hub.data import WRITER
from cloud.hub.groups import Presence
from cloud.hub.limits import ONLINE_ANSWER_S
from cloud.hub.registry.commands import (
    CommandNews,
    CommandOutlook,
    CommandRecord,
    CommandRefused,
    Commands,
    CommandState,
)
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from edge.output.errors import CommandError
from tests.unit.cloud.command_line import GATEWAY, StubLine

SECOND = 1_000_000
TTL_S = 10.0
DRAFT = Draft(*GATEWAY, "pump7", "stop", b"{}", None, TTL_S, online=True)
END_US = int(TTL_S * SECOND)
UNKNOWN_US = END_US + int(ONLINE_ANSWER_S * SECOND)


class Line(StubLine):
    """Line to a gateway that knows online commands, unless it is an old one."""

    def __init__(self, *, old: bool = False) -> None:
        super().__init__({})
        self.properties = {} if old else {ONLINE_COMMANDS: "1"}
        self.messages: list[bytes] = []

    def send(self, tag: int, message: bytes) -> None:
        super().send(tag, message)
        self.messages.append(message)


class Store:
    """The registry; the test decides when its answers come."""

    def __init__(self, registry: Commands) -> None:
        self.registry = registry
        self._steps: list[Callable[[], None]] = []

    def take(
        self, key: Key, but: Collection[str], limit: int, then: Callable[[Sequence[CommandRecord] | None], None]
    ) -> None:
        def work() -> None:
            found = self.registry.take(key, but, limit, 0)
            self._steps.append(lambda: then(found))

        self._steps.append(work)

    def keep(self, news: CommandNews, then: Callable[[], None]) -> None:
        self.registry.keep([news])
        self._steps.append(then)

    def run(self, steps: int = 1_000) -> None:
        while self._steps and steps:
            steps -= 1
            self._steps.pop(0)()


class Hub:
    def __init__(self, registry: Commands) -> None:
        self.registry = registry
        self.store = Store(registry)
        self.now_us = 0
        self.dispatch = Dispatch(self.store, lambda: self.now_us)

    def line(self, *, old: bool = False) -> Line:
        line = Line(old=old)
        self.dispatch.ready(line)  # type: ignore[arg-type]
        return line

    def send(self, draft: Draft = DRAFT) -> CommandRecord:
        sent = add(self.registry, draft)
        self.dispatch.send_pending(GATEWAY)
        return sent

    def outcome(self, sent: CommandRecord) -> tuple[str, str | None]:
        self.store.run()
        return outcome(self.registry, sent)


def add(registry: Commands, draft: Draft = DRAFT, *, connected: bool = True) -> CommandRecord:
    return registry.add(draft.record(0), gateway_max=100, tenant_max=100, known=True, connected=connected)


def outcome(registry: Commands, sent: CommandRecord) -> tuple[str, str | None]:
    found = registry.get(sent.id)
    assert found is not None
    return found.state, found.reason_code


def receipt(sent: CommandRecord, state: CommandState, code: OnlineReason | None = None) -> CommandNews:
    return CommandNews(sent.id, *GATEWAY, sent.device, UNKNOWN_US + 1, state, "", code=code)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Commands]:
    opened = Commands(sqlite_url(tmp_path / "registry.db"))
    yield opened
    opened.close()


class TestDispatch:
    def test_gateway_gets_the_end_of_the_command(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run()
        assert read(line.messages[0]).online_until_ms == sent.expires_at // 1_000
        line.answer(hub.dispatch)
        assert hub.outcome(sent) == ("queued", None)
        registry.keep([receipt(sent, CommandState.DELIVERED)])
        assert hub.outcome(sent) == ("delivered", None)
        assert command_to_send(sent._replace(online=None), 0).online_until_ms is None

    @pytest.mark.parametrize(
        ("answer", "why", "code"),
        [
            (ForwardOutcome.REJECTED, refusal_text(OnlineReason.DEVICE_BUSY, "no: credit"), "device-busy"),
            (ForwardOutcome.REJECTED, "unknown device pump7: add it", None),
            (ForwardOutcome.RELEASED, "", "gateway-busy"),
        ],
    )
    def test_gateway_that_does_not_take_it_ends_it(
        self, registry: Commands, answer: ForwardOutcome, why: str, code: str | None
    ) -> None:
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run()
        [tag] = line.sent
        del line.sent[tag]
        hub.dispatch.settled(line, tag, answer, why)  # type: ignore[arg-type]
        assert hub.outcome(sent) == ("rejected", code)
        hub.dispatch.retry_pending()
        hub.store.run()
        assert line.sent == {}

    def test_old_gateway_gets_no_online_command(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        stored = add(registry, DRAFT._replace(online=False))
        line = hub.line(old=True)
        assert hub.outcome(sent) == ("rejected", "gateway-too-old")
        assert list(line.sent.values()) == [stored.id]

    def test_line_that_ends_before_sending_ends_the_command(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        stored = add(registry, DRAFT._replace(online=False))
        line = hub.line()
        hub.store.run(1)
        line.open = False
        hub.dispatch.ended(line)  # type: ignore[arg-type]
        assert hub.outcome(sent) == ("rejected", "gateway-not-connected")
        again = hub.line()
        hub.store.run()
        assert list(again.sent.values()) == [stored.id]

    def test_command_on_its_way_is_not_sent_over_the_next_line(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run()
        line.open = False
        hub.dispatch.ended(line)  # type: ignore[arg-type]
        assert not hub.dispatch.is_connected(GATEWAY)
        again = hub.line()
        assert hub.dispatch.is_connected(GATEWAY)
        assert hub.outcome(sent) == ("sent", None)
        assert again.sent == {}

    def test_command_whose_time_ends_before_it_is_sent_is_not_sent(self, registry: Commands) -> None:
        """The registry's thread, or the whole process, may be held up between the claim and the sending."""
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run(1)
        hub.now_us = END_US
        assert hub.outcome(sent) == ("expired", "not-sent")
        assert line.sent == {}

    def test_line_without_credit_gets_no_online_command(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run(1)
        line.credit = 0
        assert hub.outcome(sent) == ("rejected", "gateway-busy")
        assert line.sent == {}

    def test_answer_over_a_replaced_line_counts(self, registry: Commands) -> None:
        hub, sent = Hub(registry), add(registry)
        line = hub.line()
        hub.store.run()
        [tag] = line.sent
        hub.line()
        words = refusal_text(OnlineReason.DEVICE_BUSY, "no")
        hub.dispatch.settled(line, tag, ForwardOutcome.REJECTED, words)  # type: ignore[arg-type]
        assert hub.outcome(sent) == ("rejected", "device-busy")

    def test_clock_of_the_sending_hub_does_not_lengthen_the_time(self, registry: Commands) -> None:
        sent = add(registry)
        assert command_to_send(sent, -300 * SECOND).ttl_ms == TTL_S * 1_000
        assert command_to_send(sent, 4 * SECOND).ttl_ms == 6_000


class TestDocuments:
    @pytest.mark.parametrize(
        ("words", "ttl_s"),
        [
            ({}, TTL_S_DEFAULT),
            ({"delivery": "online"}, ONLINE_TTL_S_DEFAULT),
            ({"delivery": "online", "ttl_s": ONLINE_TTL_S_MAX}, ONLINE_TTL_S_MAX),
            ({"ttl_s": ONLINE_TTL_S_MAX + 1}, ONLINE_TTL_S_MAX + 1),
        ],
    )
    def test_time_to_live_depends_on_the_delivery(self, words: dict[str, Any], ttl_s: float) -> None:
        draft = check_command(CommandDocument(gateway="hall", device="pump7", name="on", **words), "acme", "")
        assert draft.ttl_s == ttl_s
        row = command_document(draft.record(0))
        assert (row["delivery"], row["reason_code"]) == (words.get("delivery", "stored"), None)

    def test_long_online_command_is_invalid(self) -> None:
        document = CommandDocument(
            gateway="hall", device="pump7", name="on", delivery="online", ttl_s=ONLINE_TTL_S_MAX + 1
        )
        with pytest.raises(InvalidCommand, match="at most"):
            check_command(document, "acme", "")

    @pytest.mark.parametrize(
        ("delivery", "connected", "when"),
        [("online", True, "now"), ("online", False, "never"), ("stored", False, "when it connects")],
    )
    def test_rehearsal_says_that_it_does_not_wait(self, delivery: Any, connected: bool, when: str) -> None:
        document = CommandDocument(device="pump7", name="on", delivery=delivery)
        outlook = outlook_for(document, CommandOutlook("hall", connected, None, ""))
        assert outlook_document(outlook)["when"] == when


class Served:
    """A hub on an event loop; the test sets its clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.failures = 0
        """Number of outcomes that cannot be published."""
        self.told: list[tuple[str, str | None]] = []
        url = sqlite_url(folder / "registry.db")
        self.commands = HubCommands(
            url, self.publish_outcome, lambda _key: True, now=lambda: self.now_s, poll_interval_s=0.01
        )

    async def publish_outcome(self, _news: CommandNews, command: CommandRecord) -> None:
        if self.failures:
            self.failures -= 1
            raise ApplicationsUnavailable("the store is full")
        self.told.append((command.state, command.reason_code))


@pytest.mark.parametrize(("taken", "state"), [(True, ("expired", "outcome-unknown")), (False, ("expired", "not-sent"))])
def test_command_without_an_outcome_is_completed_when_its_time_is_over(
    tmp_path: Path, taken: bool, state: tuple[str, str]
) -> None:
    async def main() -> None:
        hub = Served(tmp_path)
        await hub.commands.open()
        try:
            with pytest.raises(CommandRefused):
                await hub.commands.send(DRAFT)
            line = Line()
            line.credit = int(taken)
            hub.commands.dispatch.ready(line)  # type: ignore[arg-type]
            sent = await hub.commands.send(DRAFT)
            if taken:
                found = await hub.commands.get(sent.id)
                while found is not None and found.state != "sent":
                    await asyncio.sleep(0)
                    found = await hub.commands.get(sent.id)
            hub.now_s = UNKNOWN_US / SECOND
            over = await hub.commands.wait_delivered(sent.id, 20.0)
            assert over is not None
            assert (over.state, over.reason_code) == state
            assert hub.told == [state]
        finally:
            await hub.commands.close()

    asyncio.run(main())


def test_answer_of_a_gateway_is_stored_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.commands.service.KEEP_AGAIN_S", 0.0)

    async def main() -> None:
        hub = Served(tmp_path)
        await hub.commands.open()
        try:
            hub.failures = 2
            hub.commands.dispatch.ready(Line(old=True))  # type: ignore[arg-type]
            sent = await hub.commands.send(DRAFT)
            over = await hub.commands.wait_delivered(sent.id, 20.0)
            assert over is not None
            assert (over.state, over.reason_code) == ("rejected", "gateway-too-old")
            assert hub.failures == 0
        finally:
            await hub.commands.close()

    asyncio.run(main())


def test_request_is_read_with_the_time_at_which_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        hub = Served(tmp_path)
        await hub.commands.open()
        try:
            found: asyncio.Future[Sequence[CommandRecord] | None] = asyncio.get_running_loop().create_future()
            hub.commands.dispatch.ready(Line())  # type: ignore[arg-type]
            hub.commands.dispatch.is_connected(GATEWAY)
            held = threading.Event()
            blocked = asyncio.ensure_future(hub.commands._in_thread(lambda registry: (add(registry), held.wait())))
            hub.commands.take(GATEWAY, (), 9, found.set_result)
            hub.now_s = TTL_S
            held.set()
            await blocked
            assert await found == []
        finally:
            held.set()
            await hub.commands.close()

    asyncio.run(main())


class BusyCommands:
    """Takes a command, and has no room for a request that waits."""

    async def send(self, draft: Draft) -> CommandRecord:
        return draft.record(0)

    async def wait(self, _identifier: str, _seconds: float) -> CommandRecord | None:
        raise CommandsBusy("too many requests wait for commands")


class OpenAccess:
    @contextlib.asynccontextmanager
    async def admitted(self, _request: Request) -> AsyncIterator[tuple[None, None]]:
        yield None, None


def test_request_that_cannot_wait_gets_its_command() -> None:
    """Otherwise its sender would send the command again, without knowing that it runs."""
    sending = next(each for each in routes(BusyCommands(), OpenAccess()) if each.methods == {"POST"})  # type: ignore[arg-type]

    async def receive() -> dict[str, Any]:
        body = {"gateway": "hall", "device": "pump7", "name": "stop", "delivery": "online"}
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def main() -> None:
        scope = {"type": "http", "method": "POST", "path": PATH, "query_string": b"wait=5", "headers": []}
        answer = await sending.endpoint(Request(scope, receive))
        assert (answer.status_code, json.loads(bytes(answer.body))["state"]) == (202, "waiting")

    asyncio.run(main())


@pytest.mark.parametrize("connected", [True, False])
def test_command_line_sends_only_to_a_connected_gateway(tmp_path: Path, connected: bool) -> None:
    (tmp_path / WRITER).write_text("a" * 32)
    with contextlib.closing(Registry(sqlite_url(tmp_path / "registry.db"), "a" * 32)) as registry:
        registry.directory.presence({("default", "hall"): Presence("-", connected, 1, connects=1)})
    words = ["send", "pump7@hall", "stop", "--data", str(tmp_path), "--online"]
    rehearsed = CliRunner().invoke(command, [*words, "--dry-run"])
    assert rehearsed.stdout.startswith("hall  now" if connected else "hall  never: it is not connected")
    assert rehearsed.exit_code == 1 - connected
    sent = CliRunner().invoke(command, [*words, "--json"], standalone_mode=False)
    if not connected:
        assert isinstance(sent.exception, CommandError)
        assert sent.exception.error == "gateway-not-connected"
        return
    [shown] = json.loads(sent.stdout)["items"]
    assert (shown["state"], shown["delivery"], shown["reason_code"]) == ("waiting", "online", None)
