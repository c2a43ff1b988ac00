"""Commands on their way to gateways, against the registry: every order of events at gateways and lines."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from bridge.downlink import Key
from bridge.forwarders.outcome import ForwardOutcome
from cloud.hub.commands.dispatch import Dispatch
from cloud.hub.commands.limits import UNDER_WAY_MAX
from cloud.hub.commands.service import Draft
from cloud.hub.registry.commands import (
    CommandFilter,
    CommandNews,
    CommandRecord,
    CommandRefusal,
    CommandRefused,
    Commands,
    CommandState,
)
from cloud.hub.registry.location import sqlite_url
from tests.unit.cloud.command_line import GATEWAY, StubLine

DRAFT = Draft(*GATEWAY, "pump7", "on", b"{}", None, 60.0)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Commands]:
    opened = Commands(sqlite_url(tmp_path / "registry.db"))
    yield opened
    opened.close()


def add(registry: Commands, draft: Draft = DRAFT, now_us: int = 0, most: int = 1_000) -> CommandRecord:
    return registry.add(draft.record(now_us), gateway_max=most, tenant_max=2 * most, known=True)


class Store:
    """The registry; the test decides when its answers come."""

    def __init__(self, registry: Commands) -> None:
        self.registry = registry
        self.failing = False
        self._steps: list[Callable[[], None]] = []

    def take(
        self, key: Key, but: Collection[str], limit: int, then: Callable[[Sequence[CommandRecord] | None], None]
    ) -> None:
        self._steps.append(lambda: then(None if self.failing else self.registry.take(key, but, limit, 0)))

    def keep(self, news: CommandNews, then: Callable[[], None]) -> None:
        def work() -> None:
            if not self.failing:
                self.registry.keep([news])
            then()

        self._steps.append(work)

    def run(self, steps: int = 1_000) -> None:
        while self._steps and steps:
            steps -= 1
            self._steps.pop(0)()


class Hub:
    def __init__(self, registry: Commands) -> None:
        self.store = Store(registry)
        self.dispatch = Dispatch(self.store, lambda: 0)
        self.kept: dict[str, int] = {}

    def line(self, credit: int = 500) -> StubLine:
        line = StubLine(self.kept, credit)
        self.dispatch.ready(line)  # type: ignore[arg-type]
        return line

    def end(self, line: StubLine) -> None:
        line.open = False
        self.dispatch.ended(line)  # type: ignore[arg-type]


def states(registry: Commands) -> list[str]:
    return [each.state for each in reversed(registry.page(CommandFilter(), 1_000))]


def test_waiting_commands_are_sent_when_the_gateway_connects(registry: Commands) -> None:
    hub, first = Hub(registry), add(registry)
    line = hub.line()
    hub.store.run()
    assert list(line.sent.values()) == [first.id]
    assert states(registry) == ["sent"]
    line.answer(hub.dispatch)
    hub.store.run()
    assert states(registry) == ["queued"]
    second = add(registry)
    hub.dispatch.send_pending(GATEWAY)
    hub.store.run()
    assert list(line.sent.values()) == [second.id]
    line.answer(hub.dispatch, ForwardOutcome.REJECTED)
    hub.store.run()
    assert states(registry) == ["queued", "rejected"]


def test_released_command_is_sent_again_at_the_next_look(registry: Commands) -> None:
    hub, one = Hub(registry), add(registry)
    line = hub.line(credit=1)
    hub.store.run()
    line.credit = 0
    tag = next(iter(line.sent))
    del line.sent[tag]
    hub.dispatch.settled(line, tag, ForwardOutcome.RELEASED, "")  # type: ignore[arg-type]
    hub.store.run()
    assert not line.sent
    line.credit = 1
    hub.dispatch.retry_pending()
    hub.store.run()
    assert list(line.sent.values()) == [one.id]


def test_commands_in_flight_are_bounded(registry: Commands) -> None:
    hub = Hub(registry)
    for _ in range(UNDER_WAY_MAX + 1):
        add(registry)
    line = hub.line()
    hub.store.run()
    assert len(line.sent) == UNDER_WAY_MAX
    line.answer(hub.dispatch)
    hub.store.run()
    assert len(line.sent) == UNDER_WAY_MAX
    assert states(registry).count("sent") == UNDER_WAY_MAX


def test_failing_registry_only_delays(registry: Commands) -> None:
    hub, one = Hub(registry), add(registry)
    hub.store.failing = True
    line = hub.line()
    hub.store.run()
    assert not line.sent
    hub.store.failing = False
    hub.dispatch.retry_pending()
    hub.store.run()
    assert list(line.sent.values()) == [one.id]


@pytest.mark.parametrize("seed", range(12))
def test_gateway_stores_each_command_once_in_every_order_of_events(registry: Commands, seed: int) -> None:
    """Each command is at the gateway once, and the registry records it, although lines end, the hub is killed and the
    registry fails."""
    chance = random.Random(seed)
    hub, kept = Hub(registry), dict[str, int]()
    hub.kept = kept
    line: StubLine | None = None
    sent = 0

    def answer() -> None:
        if line is not None and line.sent:
            line.answer(hub.dispatch, told=chance.random() < 0.7)

    events = ("add", "add", "run", "run", "answer", "answer", "connect", "lose", "kill", "fail", "tick")
    for _ in range(250):
        event = chance.choice(events)
        if event == "add" and sent < 40:
            sent += 1
            add(registry)
            hub.dispatch.send_pending(GATEWAY)
        elif event == "run":
            hub.store.run(chance.randint(1, 4))
        elif event == "answer":
            answer()
        elif event == "connect":
            before, line = line, hub.line(chance.randint(1, 8))  # the old one ends after the new one is there
            if before is not None:
                hub.end(before)
        elif event == "lose" and line is not None:
            hub.end(line)
            line = None
        elif event == "kill":
            hub, line = Hub(registry), None
            hub.kept = kept
        elif event == "fail":
            hub.store.failing = not hub.store.failing
        elif event == "tick":
            hub.dispatch.retry_pending()
    hub.store.failing = False
    line = hub.line()
    for _ in range(1_000):
        hub.store.run()
        hub.dispatch.retry_pending()
        if not line.sent:
            break
        line.answer(hub.dispatch)
    hub.store.run()
    assert len(kept) == sent
    assert set(states(registry)) <= {"queued"}


def test_commands_of_a_gateway_and_of_a_tenant_are_limited(registry: Commands) -> None:
    for _ in range(2):
        add(registry, most=2)
    with pytest.raises(CommandRefused) as refused:
        add(registry, most=2)
    assert refused.value.why is CommandRefusal.FULL
    for _ in range(2):
        add(registry, DRAFT._replace(gateway="north"), most=2)
    with pytest.raises(CommandRefused) as refused:
        add(registry, DRAFT._replace(gateway="south"), most=2)
    assert refused.value.why is CommandRefusal.TENANT_FULL
    add(registry, DRAFT._replace(tenant="other"), most=2)


def test_command_to_an_unknown_gateway_is_refused(registry: Commands) -> None:
    with pytest.raises(CommandRefused) as refused:
        registry.add(DRAFT.record(0), gateway_max=1, tenant_max=1)
    assert refused.value.why is CommandRefusal.NO_GATEWAY


def receipt(command: CommandRecord, state: CommandState, **said: object) -> CommandNews:
    return CommandNews(command.id, *command.key, command.device, 5, state)._replace(**said)  # type: ignore[arg-type]


def test_first_receipt_counts(registry: Commands) -> None:
    one = add(registry)
    assert [each.state for _, each in registry.effective_news([receipt(one, CommandState.DELIVERED)])] == ["delivered"]
    assert states(registry) == ["waiting"], "nothing is written by looking"
    assert [each.state for each in registry.keep([receipt(one, CommandState.DELIVERED)])] == ["delivered"]
    assert registry.keep([receipt(one, CommandState.EXPIRED), receipt(one, CommandState.QUEUED)]) == []
    assert states(registry) == ["delivered"]


@pytest.mark.parametrize("forged", [{"gateway": "north"}, {"tenant": "other"}, {"device": "pump8"}, {"id": "x"}])
def test_receipt_is_accepted_only_from_its_own_gateway_and_device(registry: Commands, forged: dict[str, str]) -> None:
    one = add(registry)
    assert registry.keep([receipt(one, CommandState.DELIVERED, **forged)]) == []
    assert registry.keep([receipt(one, CommandState.DELIVERED, response=b"x", status=200, **forged)]) == []
    assert states(registry) == ["waiting"]


def test_command_that_may_have_arrived_does_not_expire_at_the_hub(registry: Commands) -> None:
    waits, gone = add(registry), add(registry, DRAFT._replace(gateway="north"))
    late = int(61e6)
    assert [each.id for each in registry.take(("acme", "north"), (), 10, 0)] == [gone.id]
    assert [each.id for each in registry.over(late, 10)] == [waits.id]
    expired = receipt(waits, CommandState.EXPIRED, waiting=True)
    assert registry.keep([expired, receipt(gone, CommandState.EXPIRED, waiting=True)]) == [
        waits._replace(state="expired", changed_at=5)
    ]
    assert registry.take(("acme", "hall"), (), 10, late) == []
    assert [each.id for each in registry.take(("acme", "north"), (), 10, late)] == [gone.id], "only the gateway knows"


def test_one_response_is_stored_for_any_state_of_the_command(registry: Commands) -> None:
    one = add(registry, DRAFT._replace(wants_response=True))
    response = CommandNews(one.id, *one.key, "pump7", 5, status=200, content_type="text/plain", response=b"yes")
    (kept,) = registry.keep([response])
    assert (kept.response, kept.response_status, kept.responded_at, kept.state) == (b"yes", 200, 5, "waiting")
    assert registry.keep([response._replace(response=b"no")]) == []
    registry.keep([receipt(one, CommandState.DELIVERED)])
    found = registry.get(one.id)
    assert found is not None
    assert (found.state, found.response) == ("delivered", b"yes")


def test_old_commands_are_deleted_a_few_at_a_time(registry: Commands) -> None:
    for _ in range(3):
        registry.keep([receipt(add(registry), CommandState.DELIVERED)])
    assert registry.forget(int(60e6), 10, 0) == 0, "its time is not over"
    assert registry.forget(int(61e6), 2, 0) == 2
    assert len(states(registry)) == 1
