"""Online commands of applications over AMQP: the message is accepted when the device has accepted the command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import plain
from bridge import sections as s
from bridge.message import AMQP, DURABLE, Run, Stored
from cloud.hub.commands.applications import CommandEntry, read_command
from cloud.hub.commands.documents import InvalidCommand
from cloud.hub.commands.limits import ONLINE_SENDING_MAX, SENDING_MAX
from cloud.hub.commands.service import CommandsBusy, Draft
from cloud.hub.messaging.commands import read_queued_command
from cloud.hub.registry.commands import CommandRecord, CommandRefusal, CommandRefused, CommandState
from cloud.lake.faults import RegistryError
from edge.broker.delivery.anycast import AnycastGroup
from edge.broker.model.interfaces import DeliveryOutcome, Explanation

ADDRESS = "command/hall/pump7"
Outcome = Callable[[CommandRecord], CommandRecord | None]


def message(delivery: Any = "online") -> bytes:
    fields = plain.section(s.PROPERTIES, ["m1", None, ADDRESS, "stop"])
    return fields + plain.section(s.APPLICATION_PROPERTIES, {"delivery": delivery}) + plain.data_section(b"{}")


class Answers(AnycastGroup):
    """Records how the messages of an address are settled."""

    def __init__(self) -> None:
        self.settled: list[tuple[DeliveryOutcome, str]] = []
        self._reason = Explanation()

    def explain(self, _consumer: Any, _position: int, explanation: Explanation) -> None:
        self._reason = explanation

    def settle(self, _consumer: Any, _first: int, _last: int, outcome: DeliveryOutcome) -> None:
        self.settled.append((outcome, self._reason.condition))
        self._reason = Explanation()


class Space:
    """The entry of a tenant's commands, with the registry's part played by the test."""

    def __init__(
        self, send: Callable[[Draft], CommandRecord], wait: Callable[[], Awaitable[None]], end: Outcome
    ) -> None:
        self.answers = Answers()
        self.pumped = 0
        joined = SimpleNamespace(pump=self._count)
        subscriptions = SimpleNamespace(subscribe=lambda *_: joined)
        space: Any = SimpleNamespace(tenant="acme", router=SimpleNamespace(subscriptions=subscriptions))

        async def sent(draft: Draft) -> CommandRecord:
            self.last = send(draft)
            return self.last

        async def outcome(_identifier: str, _seconds: float) -> CommandRecord | None:
            await wait()
            return end(self.last)

        self.entry = CommandEntry(space, sent, outcome)

    def _count(self) -> None:
        self.pumped += 1

    def deliver(self, body: bytes | None = None) -> None:
        run = Run(ADDRESS, "app", AMQP | DURABLE | 1, b"", [body or message()])
        self.entry.deliver(self.answers, [Stored(0, 0, run)])

    async def settled(self, count: int) -> list[tuple[DeliveryOutcome, str]]:
        async with asyncio.timeout(20):
            while len(self.answers.settled) < count:
                await asyncio.sleep(0)
        return self.answers.settled


async def at_once() -> None:
    """Wait for nothing."""


def record(draft: Draft) -> CommandRecord:
    return draft.record(0)


def ended(state: CommandState, code: str | None = None) -> Outcome:
    return lambda sent: sent._replace(state=state.value, reason="why", reason_code=code)


@pytest.mark.parametrize(
    ("end", "settled"),
    [
        (ended(CommandState.DELIVERED), (DeliveryOutcome.ACCEPTED, "")),
        (ended(CommandState.REJECTED, "device-busy"), (DeliveryOutcome.REJECTED, "waypost:device-busy")),
        (ended(CommandState.REJECTED), (DeliveryOutcome.REJECTED, "waypost:rejected")),
        (ended(CommandState.EXPIRED, "outcome-unknown"), (DeliveryOutcome.REJECTED, "waypost:outcome-unknown")),
        (ended(CommandState.SENT), (DeliveryOutcome.REJECTED, "waypost:outcome-unknown")),
        (lambda _sent: None, (DeliveryOutcome.REJECTED, "waypost:outcome-unknown")),
    ],
)
def test_message_gets_the_outcome_of_its_command(end: Outcome, settled: tuple[DeliveryOutcome, str]) -> None:
    async def main() -> None:
        space = Space(record, at_once, end)
        space.deliver()
        assert await space.settled(1) == [settled]

    asyncio.run(main())


def refuse(why: CommandRefusal) -> Callable[[Draft], CommandRecord]:
    def send(_draft: Draft) -> CommandRecord:
        raise CommandRefused(why, "no")

    return send


@pytest.mark.parametrize(
    ("why", "condition"),
    [(CommandRefusal.NOT_CONNECTED, "waypost:gateway-not-connected"), (CommandRefusal.TENANT_FULL, "")],
)
def test_refused_command_is_rejected(why: CommandRefusal, condition: str) -> None:
    async def main() -> None:
        space = Space(refuse(why), at_once, ended(CommandState.DELIVERED))
        space.deliver()
        assert await space.settled(1) == [(DeliveryOutcome.REJECTED, condition)]

    asyncio.run(main())


def test_command_whose_commit_is_unknown_is_not_called_refused() -> None:
    """The row may be there, and then a hub sends it."""

    def lost(_draft: Draft) -> CommandRecord:
        raise RegistryError("the connection broke at its end")

    async def main() -> None:
        space = Space(lost, at_once, ended(CommandState.DELIVERED))
        space.deliver()
        space.deliver(message("stored"))
        assert await space.settled(2) == [
            (DeliveryOutcome.REJECTED, "waypost:outcome-unknown"),
            (DeliveryOutcome.REJECTED, ""),
        ]

    asyncio.run(main())


def test_hub_without_room_for_waiting_requests_reports_an_unknown_outcome() -> None:
    async def main() -> None:
        async def full() -> None:
            raise CommandsBusy("too many requests wait")

        space = Space(record, full, ended(CommandState.DELIVERED))
        space.deliver()
        assert await space.settled(1) == [(DeliveryOutcome.REJECTED, "waypost:outcome-unknown")]

    asyncio.run(main())


def test_waiting_commands_use_no_credit_and_have_a_limit() -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def wait() -> None:
            await over.wait()

        space = Space(record, wait, ended(CommandState.DELIVERED))
        for number in range(ONLINE_SENDING_MAX):
            space.deliver()
            while space.pumped <= number:
                await asyncio.sleep(0)
        assert space.entry.credit == SENDING_MAX
        space.deliver()
        assert await space.settled(1) == [(DeliveryOutcome.REJECTED, "amqp:resource-limit-exceeded")]
        space.deliver(message("stored"))
        assert (await space.settled(2))[1] == (DeliveryOutcome.ACCEPTED, "")
        over.set()
        settled = await space.settled(ONLINE_SENDING_MAX + 2)
        assert settled[2:] == [(DeliveryOutcome.ACCEPTED, "")] * ONLINE_SENDING_MAX

    asyncio.run(main())


def test_way_of_delivery_is_a_word() -> None:
    assert read_command("acme", ADDRESS, b"", message("online")).online
    assert not read_command("acme", ADDRESS, b"", message("stored")).online
    for wrong in ("now", 1, True):
        with pytest.raises(InvalidCommand, match="delivery"):
            read_command("acme", ADDRESS, b"", message(wrong))


def test_online_command_does_not_wait_in_a_queue_of_a_message_broker() -> None:
    assert read_queued_command("acme", message("stored"), "acme.replies.").key == "m1"
    with pytest.raises(InvalidCommand, match="online"):
        read_queued_command("acme", message("online"), "acme.replies.")
