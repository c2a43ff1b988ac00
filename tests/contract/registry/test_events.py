"""Events of the fleet in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
import sqlalchemy as sa

from bridge.desired import ApplyFailure, ApplyOutcome, DesiredReport
from cloud.hub.groups import Presence
from cloud.hub.limits import EVENT_CHARACTERS_MAX, EVENTS_JUMP
from cloud.hub.registry import event_reader as events_module
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import Enrolments
from cloud.hub.registry.event_reader import EventFilter, EventLog, EventReader
from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event, skip_numbers
from cloud.hub.registry.hubs import Hubs
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import HERE, Place
from tests.contract.registry.enrolling import claim, enrol, token
from tests.contract.registry.wanted import document, sign

ALL = EventFilter()


def event(at: int, tenant: str = "acme", gateway: str = "hall") -> FleetEvent:
    return make_event(at, EventType.GATEWAY_CONNECTED, tenant, gateway)


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    with closing(open_registry(place.url).database) as opened:
        yield opened


@pytest.fixture
def reader(place: Place, database: Database) -> Iterator[EventReader]:
    with closing(EventReader(place.url)) as opened:
        yield opened


def append(database: Database, *made: FleetEvent) -> None:
    database.transaction(lambda tx: append_events(tx, made))


def types(reader: EventReader, wanted: EventFilter = ALL) -> list[str]:
    return [each.event.type for each in reader.page(0, wanted, 500).events]


def data(event: FleetEvent) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(event.data)
    return found


class TestPages:
    def test_pages_follow_each_other(self, database: Database, reader: EventReader) -> None:
        append(database, *(event(at) for at in range(5)))
        first = reader.page(0, ALL, 3)
        assert ([each.event.at for each in first.events], first.more, first.missed) == ([0, 1, 2], True, None)
        second = reader.page(first.reached, ALL, 3)
        assert ([each.event.at for each in second.events], second.more) == ([3, 4], False)
        assert reader.page(second.reached, ALL, 3).reached == second.reached
        assert reader.latest(ALL, 2) == second.events[0].number - 1

    def test_filters_match_the_same_in_memory(self, database: Database, reader: EventReader) -> None:
        append(database, event(1), event(2, "other"), event(3, gateway="door"))
        append(database, make_event(4, EventType.ALERT_FIRED, "acme", "hall", "a1", what="nul \0 and \\"))
        everything = reader.page(0, ALL, 9).events
        assert data(everything[-1].event) == {"what": "nul \0 and \\"}
        for wanted, ats in (
            (EventFilter("acme"), [1, 3, 4]),
            (EventFilter(types=frozenset(("alert",))), [4]),
            (EventFilter(types=frozenset(("gateway.connected",)), gateways=frozenset(("hall",))), [1, 2]),
            (EventFilter("other", gateways=frozenset(("door",))), []),
        ):
            assert [each.event.at for each in reader.page(0, wanted, 9).events] == ats
            assert [each.event.at for each in everything if wanted.matches(each.event)] == ats

    def test_page_says_how_far_it_has_read(
        self, database: Database, reader: EventReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events_module, "EVENTS_SEARCHED_MAX", 3)
        append(database, *(event(at) for at in range(4)), event(9, "rare"))
        first = reader.page(0, EventFilter("rare"), 9)
        assert ([*first.events], first.more) == ([], True)
        assert [each.event.at for each in reader.page(first.reached, EventFilter("rare"), 9).events] == [9]

    def test_long_text_is_shortened(self) -> None:
        made = make_event(1, EventType.ALERT_FIRED, "", what="x" * (EVENT_CHARACTERS_MAX + 1), none=None)
        assert data(made) == {"what": "x" * EVENT_CHARACTERS_MAX + " …"}

    def test_numbers_appear_in_their_order(self, place: Place, database: Database, reader: EventReader) -> None:
        """A transaction that ends late does not slip a number in below one that a reader has seen."""
        if database.dialect.__class__.__name__ == "Sqlite":
            pytest.skip("SQLite has one writer at a time")
        began, go_on = threading.Event(), threading.Event()

        def append_slowly() -> None:
            with closing(open_registry(place.url).database) as other:

                def work(tx: sa.Connection) -> None:
                    tx.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                    append_events(tx, [event(1)])
                    began.set()
                    assert go_on.wait(20)

                other.transaction(work)

        def append_second() -> None:
            with closing(open_registry(place.url).database) as other:
                append(other, event(2))

        slow, second = threading.Thread(target=append_slowly), threading.Thread(target=append_second)
        slow.start()
        assert began.wait(20)
        second.start()
        second.join(0.3)
        assert second.is_alive(), "it waits for the one that has the lower number"
        assert reader.page(0, ALL, 9).events == []
        go_on.set()
        slow.join(20)
        second.join(20)
        assert [each.event.at for each in reader.page(0, ALL, 9).events] == [1, 2]


class TestRetention:
    @pytest.fixture
    def kept(self, place: Place, database: Database) -> Iterator[EventLog]:
        with closing(EventLog(place.url)) as opened:
            yield opened

    def test_reader_learns_that_it_has_missed_events(
        self, database: Database, reader: EventReader, kept: EventLog
    ) -> None:
        append(database, event(1, "quiet"), *(event(at) for at in range(2, 9)))
        first = reader.page(0, ALL, 1).reached
        assert kept.clean_up(0, 3, 100) == 4
        for tenant, missed in (("quiet", None), ("acme", first + 4), (None, first + 4)):
            assert reader.page(first, EventFilter(tenant), 9).missed == missed, tenant
        assert [each.event.at for each in reader.page(0, EventFilter("acme"), 9).events] == [6, 7, 8]
        assert reader.page(first + 4, ALL, 9).missed is None

    def test_latest_event_stays_and_numbers_are_not_used_again(
        self, database: Database, reader: EventReader, kept: EventLog
    ) -> None:
        append(database, event(1), event(2))
        newest = reader.newest()
        assert kept.clean_up(1_000, 10, 10) == 1
        append(database, event(3))
        assert reader.newest() == newest + 1

    def test_number_of_another_registry_is_a_gap(self, database: Database, reader: EventReader) -> None:
        append(database, event(1))
        page = reader.page(10_000, ALL, 9)
        assert page.missed == 10_000
        assert ([*page.events], page.reached) == ([], reader.newest()), "what was seen does not come again"

    def test_copied_registry_uses_no_number_of_the_original(self, database: Database, reader: EventReader) -> None:
        append(database, event(1))
        seen_by_clients = reader.newest() + 500
        database.transaction(skip_numbers)
        page = reader.page(seen_by_clients, ALL, 9)
        assert [each.event.type for each in page.events] == ["registry.copied"]
        assert (page.missed, reader.newest() > EVENTS_JUMP) == (None, True)
        append(database, event(2))
        assert reader.newest() > page.reached, "the next number follows"


class TestSources:
    """Changes append their events in their transaction."""

    def test_connects_and_disconnects(self, place: Place, reader: EventReader) -> None:
        registry, key = place.open(), ("acme", "hall")
        registry.directory.presence({key: Presence("there", True, 5, 1)})
        registry.directory.presence({key: Presence("there", False, 6)})
        registry.directory.presence({key: Presence("there", False, 7, 1)})
        assert types(reader) == ["gateway.connected", "gateway.disconnected"] * 2
        first = reader.page(0, ALL, 1).events[0].event
        assert (first.at, first.tenant, first.gateway, data(first)) == (5, *key, {"hub": HERE, "remote": "there"})

    def test_gateways_of_a_stopped_hub_are_disconnected(self, place: Place, reader: EventReader) -> None:
        registry = place.open()
        registry.directory.presence({("acme", name): Presence("there", True, 5, 1) for name in ("hall", "door")})
        with closing(Hubs(place.url, HERE)) as hubs:
            hubs.stop()
            hubs.stop()
        found = reader.page(0, EventFilter(types=frozenset(("gateway.disconnected",))), 9).events
        assert sorted((each.event.gateway, data(each.event)["why"]) for each in found) == [
            ("door", "its hub has stopped"),
            ("hall", "its hub has stopped"),
        ]
        registry.directory.mark_all_disconnected()
        assert len(types(reader)) == 4

    def test_enrolments_and_revocations(self, place: Place, reader: EventReader) -> None:
        with closing(Enrolments(place.url)) as enrolments:
            enrolments.add([token()])
            enrol(enrolments, claim(b"key"))
            enrol(enrolments, claim(b"key"))
            assert enrolments.revoke("acme", "hall", 2) == 1
            assert enrolments.revoke("acme", "hall", 3) == 0
            enrolments.forget("acme", "hall", 4)
        assert types(reader) == ["gateway.enrolled", "gateway.revoked", "gateway.forgotten"]

    def test_receipts_and_responses(self, place: Place, reader: EventReader) -> None:
        place.open().directory.presence({("acme", "hall"): Presence("there", False, 1, 1)})
        command = CommandRecord(
            0, "c1", "acme", "hall", "pump", "stop", None, b"", None, None, True, "ann", 1, 9, "waiting", "", 1
        )
        news = CommandNews("c1", "acme", "hall", "pump", 5)
        with closing(Commands(place.url)) as commands:
            commands.add(command, gateway_max=9, tenant_max=9)
            receipt = news._replace(state=CommandState.DELIVERED)
            commands.keep([receipt])
            commands.keep([receipt, news._replace(response=b"ok", status=200)])
        found = [each.event for each in reader.page(0, EventFilter(types=frozenset(("command",))), 9).events]
        assert [(each.type, each.subject, each.gateway) for each in found] == [
            ("command.receipt", "c1", "hall"),
            ("command.response", "c1", "hall"),
        ]
        assert data(found[0]) == {"device": "pump", "name": "stop", "state": "delivered"}

    def test_outcomes_of_configurations(self, place: Place, database: Database, reader: EventReader) -> None:
        place.open().directory.presence({("acme", "hall"): Presence("there", False, 1, 1)})
        known, key = Configurations(database), ("acme", "hall")
        for _ in range(2):
            known.set_wanted([WantedConfiguration(*key, [document("a")], 60.0, False, "ann", "")], 2, sign)
        failed = ApplyFailure(2, ApplyOutcome.ROLLED_BACK, "no uplink")
        for _ in range(2):
            known.reported([(key, DesiredReport(newest=1, version=1))], 3)
            known.reported([(key, DesiredReport(newest=2, version=1, failure=failed))], 4)
        found = [each.event for each in reader.page(0, EventFilter(types=frozenset(("configuration",))), 9).events]
        assert [(each.type, each.subject) for each in found] == [
            ("configuration.confirmed", "1"),
            ("configuration.rolled-back", "2"),
        ], "each is told once"
