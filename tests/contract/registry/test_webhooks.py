"""Webhooks of a hub, on SQLite and on PostgreSQL: events in order, failures, pauses, and another hub that goes on.

The time is the one that the service is given; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from cloud.hub.events.service import HubEvents
from cloud.hub.registry.database import Database
from cloud.hub.registry.event_reader import EventLog, EventReader
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.labels import put
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.webhooks import (
    RegisteredWebhooks,
    TooManyWebhooks,
    WebhookProgress,
    WebhookRecord,
    WebhookState,
)
from cloud.hub.webhooks import delivery as delivery_module
from cloud.hub.webhooks import sending
from cloud.hub.webhooks import service as service_module
from cloud.hub.webhooks.delivery import WebhookClock, pause_of, progress_of
from cloud.hub.webhooks.limits import (
    CLAIM_SILENT_S,
    FAILED_ATTEMPTS_MIN,
    FAILED_S_MAX,
    PLACE_S,
    RETRY_JITTER,
    RETRY_S_FIRST,
    RETRY_S_MAX,
    TESTS_TENANT_MAX,
)
from cloud.hub.webhooks.reach import PublicAddresses, ReachableNetwork
from cloud.hub.webhooks.sending import make_secret
from cloud.hub.webhooks.service import HubWebhooks, WebhookTestsBusy
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.support.notified import WebhookServer

START_S = 1_800_000_000.0
HOUR, DAY = 3_600.0, 86_400.0


def event(
    number: int, tenant: str = "acme", gateway: str = "hall", kind: EventType = EventType.ALERT_FIRED
) -> FleetEvent:
    return make_event(int((START_S + number) * 1e6), kind, tenant, gateway, f"n{number}")


def record(url: str, **more: Any) -> WebhookRecord:
    values: dict[str, Any] = {
        "id": "w1", "tenant": "", "url": url, "types": "[]", "gateways": "[]", "selector": "", "secret": make_secret(),
        "older_secret": None, "older_until": None, "made_at": 1, "changed_at": 1, "changed_by": "ann",
        "state": "active", "number": 0, "holder": None, "reached": 0, "gap_told": 0, "attempts": 0, "due_at": 0,
        "failing_since": None, "failure": "", "delivered_at": None,
    }  # fmt: skip
    return WebhookRecord(**{**values, **more})


class Clock:
    """Time of a test."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.wall_s = 0.0
        """Seconds by which the clock of the hub is ahead."""

    @property
    def clock(self) -> WebhookClock:
        return WebhookClock(lambda: self.now_s + self.wall_s, lambda: self.now_s)


class World:
    """One hub with webhooks."""

    def __init__(self, place: Place, clock: Clock, hub: str = HERE) -> None:
        self.clock = clock
        self.database: Database = open_registry(place.url).database
        self.tables = RegisteredWebhooks(place.url)
        self.events = HubEvents(place.url, lambda: clock.now_s)
        self.webhooks = HubWebhooks(place.url, hub, self.events, [], clock.clock)

    async def open(self) -> None:
        await self.events.open()
        await self.webhooks.open()

    async def close(self) -> None:
        await self.webhooks.close()
        await self.events.close()
        self.tables.close()
        self.database.close()

    def append(self, *made: FleetEvent) -> None:
        self.database.transaction(lambda tx: append_events(tx, made))

    def add(self, url: str, **more: Any) -> WebhookRecord:
        return self.tables.add(record(url, **more), 0, 20, 500)

    def read(self, identifier: str = "w1") -> WebhookRecord:
        found = self.tables.get(identifier)
        assert found is not None
        return found

    async def look(self) -> None:
        """Look for events once, and wait for the deliveries that begin."""
        await self.webhooks.look(self.tables.sendable())
        if self.webhooks._turns:
            await asyncio.wait(self.webhooks._turns.values())
        await asyncio.sleep(0)

    async def after(self, seconds: float) -> None:
        self.clock.now_s += seconds
        await self.look()


Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def run(place: Place) -> Callable[[Story], None]:
    def runs(story: Story) -> None:
        async def main() -> None:
            world = World(place, Clock())
            await world.open()
            try:
                await story(world)
            finally:
                await world.close()

        asyncio.run(main())

    return runs


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer() as running:
        yield running


def subjects(server: WebhookServer) -> list[str]:
    return [each.document["data"].get("subject", each.document["type"]) for each in server.requests]


class TestDelivery:
    def test_events_come_in_order_once_and_signed(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(*(event(number) for number in range(120)))
            made = world.add(server.url)
            await world.look()
            assert subjects(server) == [f"n{number}" for number in range(120)]
            first = server.requests[0]
            stamp, identity = first.headers["webhook-timestamp"], first.headers["webhook-id"]
            assert (stamp, identity) == (str(int(START_S)), f"w1-{first.document['data']['number']}")
            key = base64.b64decode(made.secret.removeprefix("whsec_"))
            signed = hmac.digest(key, f"{identity}.{stamp}.".encode() + first.body, "sha256")
            assert first.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
            assert (first.document["type"], first.document["timestamp"]) == ("alert.fired", "2027-01-15T08:00:00.000Z")
            await world.after(1)
            world.append(event(120))
            await world.after(1)
            assert subjects(server)[120:] == ["n120"]
            found = world.read()
            assert (found.holder, found.attempts, found.failure) == (None, 0, "")
            assert found.delivered_at == int(world.clock.now_s * 1e6)

        run(story)

    def test_only_wanted_events_are_sent(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.database.transaction(lambda tx: put(tx, "acme", "hall", {"site": "lyon"}))
            world.append(
                event(1),
                event(2, "other"),
                event(3, gateway="door"),
                event(4, kind=EventType.GATEWAY_CONNECTED),
                event(5, gateway=""),
            )
            world.add(server.url, id="tenant", tenant="other")
            world.add(server.url, id="types", types='["gateway"]')
            world.add(server.url, id="gateways", gateways='["door"]')
            world.add(server.url, id="selector", selector="site=lyon", types='["alert"]')
            world.webhooks._addresses = PublicAddresses(world.webhooks._names, [ReachableNetwork.parse("127.0.0.0/8")])
            await world.look()
            ids = [each.headers["webhook-id"].split("-")[0] for each in server.requests]
            got = sorted(zip(ids, subjects(server), strict=True))
            assert got == [("gateways", "n3"), ("selector", "n1"), ("tenant", "n2"), ("types", "n4")]

        run(story)

    def test_unwanted_events_are_passed_over_without_a_write(
        self, run: Callable[[Story], None], server: WebhookServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def story(world: World) -> None:
            world.add(server.url, types='["rollout"]')
            world.append(*(event(number) for number in range(4)))
            await world.look()
            assert world.read().number == 0
            monkeypatch.setattr(service_module, "SCANNED_MAX", 4)
            await world.look()  # nothing new: what was passed over is in memory
            world.append(event(5, kind=EventType.ROLLOUT_CHANGED))
            await world.look()
            assert subjects(server) == ["n5"]
            world.append(*(event(number) for number in range(4)))
            await world.look()
            assert world.read().reached == 9

        run(story)

    def test_webhook_begins_with_the_next_event_or_behind_a_number(
        self, run: Callable[[Story], None], server: WebhookServer
    ) -> None:
        async def story(world: World) -> None:
            world.append(event(1), event(2))
            world.tables.add(record(server.url, id="next"), None, 20, 500)
            world.tables.add(record(server.url, id="second"), 1, 20, 500)
            world.tables.add(record(server.url, id="future"), 10**9, 20, 500)
            await world.look()
            assert subjects(server) == ["n2"]
            world.append(event(3))
            await world.look()
            assert sorted(subjects(server)) == ["n2", "n3", "n3", "n3"]

        run(story)

    def test_large_event_is_sent_without_its_data(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            large = {f"key{number}": "x" * 200 for number in range(120)}
            world.append(make_event(int(START_S * 1e6), EventType.ALERT_FIRED, "acme", "hall", "big", **large))
            world.add(server.url)
            await world.look()
            [request] = server.requests
            assert len(request.body) < 1_000
            assert request.document["data"]["data"] == {"left_out": "the data of this event is too large"}

        run(story)


class TestFailures:
    def test_event_is_sent_until_it_is_taken_and_the_next_one_after_it(
        self, run: Callable[[Story], None], server: WebhookServer
    ) -> None:
        async def story(world: World) -> None:
            world.append(event(1), event(2))
            world.add(server.url)
            server.status = 503
            await world.look()
            found = world.read()
            assert (found.attempts, found.holder, found.state) == (1, None, "active")
            assert "503" in found.failure
            await world.look()
            assert len(server.requests) == 1, "the second attempt is not due yet"
            await world.after(RETRY_S_FIRST * 2)
            assert world.read().attempts == 2
            server.status = 200
            await world.after(HOUR)
            assert subjects(server) == ["n1", "n1", "n1", "n2"]
            assert len({each.headers["webhook-id"] for each in server.requests}) == 2
            assert world.read().failing_since is None

        run(story)

    def test_pauses_double_up_to_an_hour(self) -> None:
        assert [pause_of(attempts, 0) for attempts in (1, 2, 3, 4)] == [5, 10, 20, 40]
        assert pause_of(1_000_000, 0) == RETRY_S_MAX
        assert pause_of(1, 1) == RETRY_S_FIRST * (1 + RETRY_JITTER)

    def test_server_may_ask_for_a_longer_pause(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.status, server.fields = 429, {"Retry-After": "600"}
            await world.look()
            assert world.read().due_at == int((world.clock.now_s + 600) * 1e6)

        run(story)

    def test_redirect_is_not_followed(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.status, server.fields = 307, {"Location": server.url + "/other"}
            await world.look()
            assert [each.path for each in server.requests] == ["/hook"]
            assert "redirect" in world.read().failure

        run(story)

    def test_server_that_hangs_is_given_up(
        self, run: Callable[[Story], None], server: WebhookServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "POST_S_MAX", 0.2)

        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.held = threading.Event()
            try:
                await world.look()
            finally:
                server.held.set()
            assert "does not answer" in world.read().failure

        run(story)

    def test_server_that_is_gone_ends_it(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.status = 410
            await world.look()
            assert world.read().state == "gone"
            await world.after(DAY)
            assert len(server.requests) == 1
            assert world.webhooks.trouble is None

        run(story)

    def test_webhook_that_fails_for_days_is_paused_with_a_problem(
        self, run: Callable[[Story], None], server: WebhookServer
    ) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.status = 500
            for _ in range(4):
                await world.after(FAILED_S_MAX / 3)
            assert world.read().state == "active", "so few attempts say nothing: hubs were down"
            few = progress_of(world.read())._replace(attempts=FAILED_ATTEMPTS_MIN)
            assert world.tables.write(world.read(), few, None) is not None
            await world.after(HOUR * 2)
            assert world.read().state == "failed"
            world.webhooks._failed = world.tables.watched().failed
            assert world.webhooks.trouble is not None
            assert "w1" in world.webhooks.trouble
            server.status = 200
            world.tables.change("w1", lambda before: before._replace(state="active", due_at=0, attempts=0))
            await world.look()
            assert subjects(server)[-1] == "n1"
            assert world.tables.watched().failed == []

        run(story)

    def test_clock_that_goes_back_stops_nothing(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            world.clock.wall_s += 700 * DAY
            await world.look()
            server.status = 500
            world.append(event(2))
            await world.look()
            assert world.read().attempts == 1
            server.status = 200
            world.clock.wall_s -= 700 * DAY
            await world.look()
            world.append(event(3))
            await world.look()
            assert subjects(server) == ["n1", "n2", "n2", "n3"]

        run(story)

    def test_internal_error_is_a_failed_attempt(
        self, run: Callable[[Story], None], server: WebhookServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_event: object) -> bytes:
            raise LookupError("not foreseen")

        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            with monkeypatch.context() as patched:
                patched.setattr(delivery_module, "event_body", broken)
                await world.look()
            assert (world.read().attempts, world.read().failure) == (1, "internal error: LookupError")
            await world.look()
            assert server.requests == []
            await world.after(HOUR)
            assert subjects(server) == ["n1"]

        run(story)

    def test_failure_ends_when_nothing_wanted_waits(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            server.status = 500
            await world.look()
            world.tables.change("w1", lambda before: before._replace(types='["rollout"]', changed_at=2))
            await world.after(HOUR)
            assert (world.read().attempts, world.read().failing_since, world.read().reached) == (0, None, 1)

        run(story)

    def test_tests_at_a_time_are_limited(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            made = world.add(server.url)
            server.held = threading.Event()
            tests = [asyncio.create_task(world.webhooks.test(made)) for _ in range(TESTS_TENANT_MAX)]
            while len(server.requests) < TESTS_TENANT_MAX:
                await asyncio.sleep(0.01)
            with pytest.raises(WebhookTestsBusy):
                await world.webhooks.test(made)
            server.held.set()
            assert await asyncio.gather(*tests) == [None] * TESTS_TENANT_MAX

        run(story)

    def test_tenant_does_not_reach_the_hubs_own_network(
        self, run: Callable[[Story], None], server: WebhookServer
    ) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url, tenant="acme")
            await world.look()
            assert "not a public address" in world.read().failure
            assert server.requests == []

        run(story)

    @pytest.mark.parametrize("url", ["http://", "http://[::1", "https://a..b/", "http://x:99999/", "http://\u0080/"])
    def test_url_that_cannot_be_used_is_a_failure(self, run: Callable[[Story], None], url: str) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(url)
            await world.look()
            assert world.read().attempts == 1

        run(story)


class TestChanges:
    def test_paused_webhook_keeps_its_place(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.add(server.url)
            world.tables.change("w1", lambda before: before._replace(state="paused", changed_at=2))
            world.append(event(1), event(2))
            await world.look()
            assert server.requests == []
            world.tables.change("w1", lambda before: before._replace(state="active", changed_at=3))
            await world.look()
            assert subjects(server) == ["n1", "n2"]

        run(story)

    def test_both_secrets_sign_for_a_time(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            until = int((START_S + HOUR) * 1e6)
            world.add(server.url, older_secret=make_secret(), older_until=until)
            world.append(event(1))
            await world.look()
            world.append(event(2))
            await world.after(HOUR)
            assert [len(each.headers["webhook-signature"].split()) for each in server.requests] == [2, 1]

        run(story)

    @pytest.mark.parametrize("what", ["paused", "changed", "removed"])
    def test_change_during_a_turn_ends_it_and_loses_no_place(
        self, run: Callable[[Story], None], server: WebhookServer, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        monkeypatch.setattr(delivery_module, "PROGRESS_S", 0.0)

        async def story(world: World) -> None:
            world.append(*(event(number) for number in range(3)))
            world.add(server.url)
            server.held = threading.Event()
            looking = asyncio.create_task(world.look())
            while not server.requests:
                await asyncio.sleep(0.01)
            if what == "removed":
                assert world.tables.remove("w1")
            else:
                state = "paused" if what == "paused" else "active"
                world.tables.change("w1", lambda before: before._replace(state=state, changed_at=2))
            server.held.set()
            await looking
            assert subjects(server) == ["n0"]
            if what != "removed":
                assert (world.read().holder, world.read().delivered_at) == (None, int(START_S * 1e6))
            if what == "changed":
                await world.look()
                assert subjects(server) == ["n0", "n1", "n2"]

        run(story)

    def test_new_filter_gets_what_the_old_one_has_passed_over_since(
        self, run: Callable[[Story], None], server: WebhookServer
    ) -> None:
        async def story(world: World) -> None:
            world.add(server.url, types='["rollout"]')
            found = world.tables.sendable()
            world.tables.change("w1", lambda before: before._replace(types="[]", changed_at=2))
            world.append(event(1))
            await world.webhooks.look(found)  # it has read the webhooks before the change
            await world.look()
            assert subjects(server) == ["n1"]

        run(story)

    def test_place_is_written_after_a_minute(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.add(server.url, types='["rollout"]')
            world.append(event(1))
            await world.look()
            await world.after(PLACE_S - 1)
            assert world.read().reached == 0
            await world.after(1)
            assert world.read().reached == 1
            await world.after(HOUR)
            assert world.read().number == 1, "it has not moved"

        run(story)

    def test_attempt_in_progress_leaves_a_change_alone(self, run: Callable[[Story], None]) -> None:
        async def story(world: World) -> None:
            claimed = world.tables.claim(world.add("http://x/", attempts=9, due_at=5, failing_since=3), HERE)
            assert claimed is not None
            zeros = {"url": "http://y/", "attempts": 0, "due_at": 0, "failing_since": None, "changed_at": 2}
            world.tables.change("w1", lambda before: before._replace(**zeros))
            failed = WebhookProgress(7, 0, 10, 99, 3, "503")
            written = world.tables.write(claimed, failed, None, WebhookState.GONE, delivered=4)
            assert written is not None
            assert (written.attempts, written.due_at, written.failing_since, written.state) == (0, 0, None, "active")
            assert written.reached == 4, "what was passed over may be wanted now"

        run(story)

    def test_limits_of_webhooks(self, run: Callable[[Story], None]) -> None:
        async def story(world: World) -> None:
            for number in range(2):
                world.tables.add(record("http://x/", id=f"a{number}", tenant="acme"), None, 2, 3)
            with pytest.raises(TooManyWebhooks):
                world.tables.add(record("http://x/", id="a2", tenant="acme"), None, 2, 3)
            world.tables.add(record("http://x/", id="b0", tenant="other"), None, 2, 3)
            with pytest.raises(TooManyWebhooks):
                world.tables.add(record("http://x/", id="b1", tenant="third"), None, 2, 3)
            found, total = world.tables.page("acme", "", 1)
            assert ([each.id for each in found], total) == (["a0"], 2)
            assert [each.id for each in world.tables.page(None, "a1", 9)[0]] == ["b0"]

        run(story)


class TestGaps:
    def test_deleted_events_are_a_gap_once(
        self, run: Callable[[Story], None], server: WebhookServer, place: Place
    ) -> None:
        async def story(world: World) -> None:
            world.add(server.url, types='["alert"]')
            world.append(*(event(number) for number in range(5)))
            with closing(EventLog(place.url)) as kept:
                kept.clean_up(0, 2, 100)
            await world.look()
            assert subjects(server) == ["gap", "n3", "n4"]
            gap = server.requests[0].document["data"]
            with closing(EventReader(place.url)) as reader:
                assert gap["missed_to"] == reader.newest() - 2
            world.append(event(5, kind=EventType.GATEWAY_CONNECTED))
            await world.look()
            assert len(server.requests) == 3

        run(story)

    def test_gap_is_told_until_it_is_taken(
        self, run: Callable[[Story], None], server: WebhookServer, place: Place
    ) -> None:
        async def story(world: World) -> None:
            world.add(server.url, types='["rollout"]')
            world.append(*(event(number) for number in range(5)))
            with closing(EventLog(place.url)) as kept:
                kept.clean_up(0, 2, 100)
            server.status = 500
            await world.look()
            server.status = 200
            await world.after(HOUR)
            await world.after(HOUR)
            assert subjects(server) == ["gap", "gap"]
            assert len({each.headers["webhook-id"] for each in server.requests}) == 1

        run(story)

    def test_place_of_another_registry_is_a_gap(self, run: Callable[[Story], None], server: WebhookServer) -> None:
        async def story(world: World) -> None:
            world.append(event(1))
            world.add(server.url)
            await world.look()
            far = WebhookProgress(reached=10**6, gap_told=0)
            assert world.tables.write(world.read(), far, None) is not None
            await world.look()
            await world.after(1)
            assert subjects(server) == ["n1", "gap"]
            world.append(event(2))
            await world.after(1)
            assert subjects(server) == ["n1", "gap", "n2"]

        run(story)


class TestTwoHubs:
    def run_with_second(self, place: Place, story: Callable[[World, World], Awaitable[None]]) -> None:
        clock = Clock()
        worlds = World(place, clock), World(place, clock, THERE)

        async def main() -> None:
            async with contextlib.AsyncExitStack() as ends:
                for world in worlds:
                    await world.open()
                    ends.push_async_callback(world.close)
                await story(*worlds)

        asyncio.run(main())

    def test_hubs_that_look_at_once_send_each_event_once(self, place: Place, server: WebhookServer) -> None:
        async def story(here: World, there: World) -> None:
            here.append(*(event(number) for number in range(20)))
            here.add(server.url)
            await asyncio.gather(here.look(), there.look())
            await asyncio.gather(here.look(), there.look())
            assert subjects(server) == [f"n{number}" for number in range(20)]

        self.run_with_second(place, story)

    def test_other_hub_goes_on_when_the_first_one_is_silent(self, place: Place, server: WebhookServer) -> None:
        """The first one writes nothing any more, as one that was killed; one that only stood still notices."""

        async def story(here: World, there: World) -> None:
            here.append(event(1), event(2))
            here.add(server.url)
            claimed = here.tables.claim(here.read(), HERE)
            assert claimed is not None
            await there.look()
            await there.after(CLAIM_SILENT_S - 1)
            assert server.requests == []
            renewed = here.tables.write(claimed, WebhookProgress(1, 0), HERE)
            assert renewed is not None
            await there.after(1)
            await there.after(CLAIM_SILENT_S - 1)
            assert server.requests == [], "it has written in the meantime"
            await there.after(1)
            assert subjects(server) == ["n2"]
            assert here.tables.write(renewed, WebhookProgress(5, 0), HERE) is None
            assert there.read().reached == 2

        self.run_with_second(place, story)

    def test_hub_that_starts_again_goes_on_at_once(self, place: Place, server: WebhookServer) -> None:
        async def story(here: World, _there: World) -> None:
            here.append(event(1))
            here.add(server.url)
            assert here.tables.claim(here.read(), HERE) is not None
            await here.look()
            assert subjects(server) == ["n1"]

        self.run_with_second(place, story)

    def test_hub_that_stops_leaves_it_to_the_other_one(self, place: Place, server: WebhookServer) -> None:
        async def story(here: World, there: World) -> None:
            here.append(event(1), event(2))
            here.add(server.url)
            server.held = threading.Event()
            looking = asyncio.create_task(here.look())
            while not server.requests:
                await asyncio.sleep(0.01)
            await here.webhooks.close()
            server.held.set()
            await looking
            await there.look()
            assert subjects(server) == ["n1", "n1", "n2"]

        self.run_with_second(place, story)

    def test_state_that_a_person_has_changed_is_kept(self, place: Place, server: WebhookServer) -> None:
        async def story(here: World, _there: World) -> None:
            made = here.add(server.url)
            claimed = here.tables.claim(made, HERE)
            assert claimed is not None
            here.tables.change("w1", lambda before: before._replace(state="paused", changed_at=2))
            written = here.tables.write(claimed, WebhookProgress(1, 0), None, WebhookState.FAILED, delivered=1)
            assert written is not None
            assert (written.state, written.reached) == ("paused", 1)
            assert here.tables.claim(written, HERE) is None, "a paused one is not sent"

        self.run_with_second(place, story)
