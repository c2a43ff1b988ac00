"""Commands, outcomes and copies at a message broker: what is accepted, what waits, and what is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from proton import Message

from bridge.batch import decode, encode
from bridge.dialer import PeerEndpoint
from bridge.engine import Link
from bridge.lane import BatchLane
from bridge.message import Run, Stored
from cloud.hub.commands.documents import InvalidCommand
from cloud.hub.commands.service import ApplicationsUnavailable, CommandsBusy, Draft
from cloud.hub.messaging import commands, copies, outcome
from cloud.hub.messaging.commands import QueuedCommands, read_queued_command
from cloud.hub.messaging.copies import BrokerCopies
from cloud.hub.messaging.links import BrokerAway, BrokerLinks, BrokerRefusal
from cloud.hub.messaging.outcome import BrokerOutcomes
from cloud.hub.messaging.service import HubMessaging
from cloud.hub.messaging.settings import BrokerSettings
from cloud.hub.registry.commands import CommandNews, CommandRecord, CommandRefusal, CommandRefused, CommandState
from tests.support.feeding import running

SETTINGS: Final = BrokerSettings(
    endpoints=(PeerEndpoint("127.0.0.1", 1),),
    tenants=("acme",),
    commands="{tenant}.commands",
    outcomes="{tenant}.outcomes",
    replies="{tenant}.replies.",
    copies="{tenant}.copies",
)


def message(**fields: Any) -> bytes:
    fields = {"id": "m1", "subject": "on", "properties": {"gateway": "gw1", "device": "lamp"}, **fields}
    return bytes(Message(body=b"x", **fields).encode())


def draft() -> Draft:
    return read_queued_command("acme", message(), "acme.replies.")


class Queue:
    """Message of a queue, as `ReceivedCommand`."""

    address = "acme.commands"
    over = False

    def __init__(self, content: bytes) -> None:
        self.message = content
        self.settled: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def settle(self, why: str | None) -> None:
        self.settled.set_result(why)


class Broker:
    """Broker that records messages, and answers as `answer` says."""

    def __init__(self, answer: Callable[[str], Exception | None] = lambda _address: None) -> None:
        self.sent: list[str] = []
        self._answer = answer

    def send(self, address: str, content: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent.append(address)
        error = self._answer(address)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future


class Connection:
    """AMQP connection to a broker that gives no credit."""

    def __init__(self) -> None:
        self.engine = self

    def up(self, *, batching: bool) -> None:
        assert not batching

    def wake(self) -> None:
        return

    def attach_sender(self, name: str, _target: str) -> Link:
        return Link(None, None, name, is_sender=True, ours=True)


@running
async def test_messages_that_were_given_up_do_not_pile_up() -> None:
    links = BrokerLinks((), lambda _received: None, 1)
    links.opened(Connection(), 0.0)  # type: ignore[arg-type]
    for _ in range(3):
        links.send("acme.outcomes", b"").cancel()
    last = links.send("acme.outcomes", b"")
    assert links.waiting == 1
    links.end()
    assert isinstance(last.exception(), BrokerAway)


class TestCommands:
    def test_command_is_read(self) -> None:
        made = read_queued_command(
            "acme", message(reply_to="acme.replies.a", ttl=5, correlation_id="c"), "acme.replies."
        )
        assert (made.tenant, made.gateway, made.device, made.name) == ("acme", "gw1", "lamp", "on")
        assert (made.key, made.reply_to, made.correlation_id, made.ttl_s) == ("m1", "acme.replies.a", "c", 5)

    def test_address_of_the_command_may_be_in_to(self) -> None:
        made = read_queued_command("acme", message(properties={}, address="command/gw2/a/b"), "acme.replies.")
        assert (made.gateway, made.device) == ("gw2/a", "b")

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"id": None}, "message-id is missing"),
            ({"properties": {}}, "gateway"),
            ({"subject": None}, "subject is missing"),
            ({"reply_to": "other.replies.a"}, "reply_to must begin"),
        ],
    )
    def test_incomplete_command_is_refused(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidCommand, match=said):
            read_queued_command("acme", message(**fields), "acme.replies.")

    @running
    async def test_command_waits_until_the_registry_has_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commands, "RETRY_S", 0.0)
        refusals: list[Exception] = [
            CommandsBusy("busy"), CommandRefused(CommandRefusal.TENANT_FULL, "too many commands"),
        ]  # fmt: skip
        troubles: list[str | None] = []

        async def send(_draft: Draft) -> CommandRecord:
            troubles.append(queue.trouble)
            if refusals:
                raise refusals.pop()
            return draft().record(0)

        queue = QueuedCommands(send, lambda _address: ("acme", "acme.replies."))
        received = Queue(message())
        queue.take(received)  # type: ignore[arg-type]
        assert await received.settled is None
        assert [trouble is None for trouble in troubles] == [True, False, False]
        assert queue.trouble is None

    @running
    async def test_command_to_an_unknown_gateway_is_rejected(self) -> None:
        async def send(_draft: Draft) -> CommandRecord:
            raise CommandRefused(CommandRefusal.NO_GATEWAY, "no such gateway")

        queue = QueuedCommands(send, lambda _address: ("acme", "acme.replies."))
        received = Queue(message())
        queue.take(received)  # type: ignore[arg-type]
        assert await received.settled == "no such gateway"
        assert queue.rejected == 1

    @running
    async def test_unfinished_command_is_left_to_the_broker_at_the_end(self) -> None:
        asked = asyncio.Event()

        async def send(_draft: Draft) -> CommandRecord:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        queue = QueuedCommands(send, lambda _address: ("acme", "acme.replies."))
        received = Queue(message())
        queue.take(received)  # type: ignore[arg-type]
        await asked.wait()
        await queue.stop()
        assert not received.settled.done()


def news(tenant: str = "acme", reply_to: str | None = None) -> tuple[CommandNews, CommandRecord]:
    record = draft()._replace(tenant=tenant, reply_to=reply_to).record(0)
    record = record._replace(state=CommandState.DELIVERED.value)
    return CommandNews(record.id, *record.key, record.device, 0, CommandState.DELIVERED, ""), record


class TestOutcomes:
    @running
    async def test_outcome_goes_to_the_tenant_and_to_the_sender(self) -> None:
        broker = Broker()
        outcomes = BrokerOutcomes(SETTINGS, broker.send)
        await outcomes.publish(*news(reply_to="acme.replies.a"))
        await outcomes.publish(*news(reply_to="command-reply/of-a-space"))
        await outcomes.publish(*news(tenant="other"))
        assert broker.sent == ["acme.outcomes", "acme.replies.a", "acme.outcomes"]
        assert outcomes.published == 3

    @pytest.mark.parametrize("error", [BrokerAway("away"), BrokerRefusal("no such queue")])
    @running
    async def test_outcome_that_is_not_confirmed_waits(self, error: Exception) -> None:
        with pytest.raises(ApplicationsUnavailable):
            await BrokerOutcomes(SETTINGS, Broker(lambda _address: error).send).publish(*news())

    @running
    async def test_sender_without_a_queue_delays_nothing(self) -> None:
        broker = Broker(lambda address: BrokerRefusal("gone") if "replies" in address else None)
        outcomes = BrokerOutcomes(SETTINGS, broker.send)
        await outcomes.publish(*news(reply_to="acme.replies.a"))
        assert (outcomes.published, outcomes.refused) == (1, 1)

    @running
    async def test_silent_broker_is_not_waited_for_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outcome, "PUBLISH_S_MAX", 0.01)
        outcomes = BrokerOutcomes(SETTINGS, lambda _a, _m: asyncio.get_running_loop().create_future())
        with pytest.raises(ApplicationsUnavailable):
            await outcomes.publish(*news())

    @running
    async def test_waiting_outcomes_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outcome, "OUTCOMES_MAX", 1)
        outcomes = BrokerOutcomes(SETTINGS, lambda _a, _m: asyncio.get_running_loop().create_future())
        waiting = asyncio.ensure_future(outcomes.publish(*news()))
        await asyncio.sleep(0)
        with pytest.raises(ApplicationsUnavailable, match="too many"):
            await outcomes.publish(*news())
        waiting.cancel()


def live(count: int, lane: BatchLane = BatchLane.LIVE, address: str = "plant") -> Any:
    run = Run(address, "d", 0, b"", [b"%d" % i for i in range(count)], 1)
    return decode(encode([Stored(-1, 0, run)], space="s", epoch="e" * 32, lane=lane))


class TestCopies:
    @running
    async def test_live_messages_of_named_tenants_are_copied(self) -> None:
        broker = Broker()
        made = BrokerCopies(SETTINGS, broker.send, lambda: True)
        made.take("acme", "gw", live(3))
        made.take("acme", "gw", live(3, BatchLane.BACKLOG))
        made.take("other", "gw", live(3))
        made.take("acme", "gw", live(3, address="command-receipt/lamp"))
        await asyncio.sleep(0)
        assert broker.sent == ["acme.copies"] * 3
        assert (made.made, made.missed) == (3, 0)

    @running
    async def test_copies_are_dropped_while_the_broker_is_away_or_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        away = BrokerCopies(SETTINGS, Broker().send, lambda: False)
        away.take("acme", "gw", live(2))
        assert away.missed == 2
        monkeypatch.setattr(copies, "COPIES_UNCONFIRMED_MAX", 2)
        slow = BrokerCopies(SETTINGS, lambda _a, _m: asyncio.get_running_loop().create_future(), lambda: True)
        slow.take("acme", "gw", live(2))
        slow.take("acme", "gw", live(2))
        assert slow.missed == 2
        monkeypatch.setattr(copies, "COPIES_WAITING_BYTES_MAX", 1)
        small = BrokerCopies(SETTINGS, Broker().send, lambda: True)
        small.take("acme", "gw", live(2))
        assert small.missed == 2

    @running
    async def test_copies_that_are_not_confirmed_are_counted(self) -> None:
        made = BrokerCopies(SETTINGS, Broker(lambda _address: BrokerAway("gone")).send, lambda: True)
        made.take("acme", "gw", live(2))
        await asyncio.sleep(0)
        assert (made.made, made.missed) == (0, 2)


@running
async def test_hub_without_a_broker_uses_its_own_spaces() -> None:
    done: list[str] = []

    async def publish(_news: CommandNews, _command: CommandRecord) -> None:
        done.append("outcome")

    async def send(_draft: Draft) -> CommandRecord:
        raise AssertionError

    messaging = HubMessaging(None, "hub", publish=publish, copy=lambda _t, _g, _b: done.append("copy"))
    messaging.start(send)
    await messaging.publish_outcome(*news())
    messaging.copy("acme", "gw", live(1))
    assert done == ["outcome", "copy"]
    assert messaging.figures is None
    await messaging.stop()
