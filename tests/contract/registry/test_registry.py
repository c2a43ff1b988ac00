"""Contract of the registry, on SQLite and on PostgreSQL: directory, commits, lineages, and several hubs on one
database.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from cloud.hub.groups import GatewayLineage, Presence
from cloud.hub.registry.database import Database, WrongThread
from cloud.hub.registry.faults import GatewaysMoved, RegistryForeign, RegistryTooNew, WriterReplaced
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import SCHEMA_VERSION, NameType
from cloud.lake.commits import GatewayStore
from cloud.lake.faults import CommitSettled, RegistryError, StreamElsewhere
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.landings import land
from tests.support.memory_lake import MemoryLake

STREAM = SequenceStream("default", "gw", "e", "a")
KEY = ("default", "gw")


def connected(times: int = 1) -> Presence:
    return Presence("-", connected=True, at_us=1, connects=times)


def moved(first: int, last: int, stream: SequenceStream = STREAM) -> SequenceRange:
    return SequenceRange(*stream, first, last)


class TestDirectory:
    def test_generations_grow_over_connections_and_restarts(self, place: Place) -> None:
        registry = place.open()
        directory = registry.directory
        first, second = ("default", "gw1"), ("default", "gw2")
        directory.presence({first: Presence("10.0.0.1:1", True, 100, connects=1)})
        directory.presence({first: Presence("-", True, 200, connects=2), second: Presence("-", True, 200, connects=1)})
        assert [(g.name, g.connected, g.last_seen, g.generation) for g in directory.gateways()] == [
            ("gw1", True, 200, 3),
            ("gw2", True, 200, 1),
        ]
        directory.presence({first: Presence("-", False, 400)})
        assert [(g.connected, g.generation) for g in directory.gateways()] == [(False, 3), (True, 1)]
        registry.close()
        again = place.open().directory
        again.mark_all_disconnected()
        assert not any(g.connected for g in again.gateways())
        again.presence({first: Presence("10.0.0.1:3", True, 500, connects=1)})
        assert again.gateways()[0].generation == 4
        again.seen({second: 999})
        assert {g.name: g.last_seen for g in again.gateways()} == {"gw1": 500, "gw2": 999}

    def test_starting_hub_leaves_gateways_of_others_connected(self, place: Place) -> None:
        here, there = place.open(HERE), place.open(THERE)
        here.directory.presence({("default", "gw1"): connected()})
        there.directory.presence({("default", "gw2"): connected()})
        here.close()
        again = place.open(HERE).directory
        again.mark_all_disconnected()
        assert {g.name: g.connected for g in again.gateways()} == {"gw1": False, "gw2": True}

    def test_end_of_an_old_connection_leaves_the_new_one_at_another_hub(self, place: Place) -> None:
        here, there = place.open(HERE).directory, place.open(THERE).directory
        here.presence({KEY: connected()})
        there.presence({KEY: connected()})
        here.presence({KEY: Presence("-", connected=False, at_us=2)})
        assert [gateway.connected for gateway in there.gateways()] == [True]
        there.presence({KEY: Presence("-", connected=False, at_us=3)})
        assert [gateway.connected for gateway in there.gateways()] == [False]

    def test_gateway_at_another_hub_is_fenced_until_it_returns(self, place: Place) -> None:
        names = [("default", f"gw{i}") for i in range(1_000)]
        here, there = place.open(HERE).directory, place.open(THERE).directory
        here.presence({name: connected() for name in names})
        assert here.fenced(names) == set()
        there.presence({names[999]: connected(), ("default", "only there"): connected()})
        assert here.fenced([*names, ("default", "nobody"), ("default", "only there")]) == {names[999]}
        assert there.fenced([names[999]]) == set()
        here.presence({names[999]: connected()})
        assert here.fenced(names) == set()
        assert there.fenced(names) == {names[999]}


class TestCommits:
    def test_prepared_commit_moves_nothing_until_confirmed(self, place: Place) -> None:
        registry = place.open()
        commits = registry.commits
        registry.directory.presence({KEY: connected()})
        ranges = [moved(0, 9), moved(20, 29)]
        prepared = commits.prepare("telemetry", ranges, 20)
        assert commits.landed(STREAM).mark == -1
        assert commits.unresolved() == [prepared]
        commits.confirm(prepared, 7)
        assert commits.landed(STREAM).spans == [(0, 9), (20, 29)]
        assert commits.unresolved() == []
        assert commits.confirmed_version("telemetry") == 7
        assert registry.directory.gateways()[0].landed == 20
        registry.close()
        again = place.open().commits
        assert again.landed(STREAM).spans == [(0, 9), (20, 29)]
        assert again.prepare("telemetry", [], 0).commit == prepared.commit + 1

    def test_dropped_commit_leaves_no_trace(self, place: Place) -> None:
        commits = place.open().commits
        prepared = commits.prepare("telemetry", [moved(0, 9)], 10)
        commits.forget(prepared)
        assert commits.unresolved() == []
        assert commits.landed(STREAM).mark == -1
        later = commits.prepare("telemetry", [], 0)
        assert later.commit > prepared.commit, "an id is not given twice while the program runs"
        with pytest.raises(CommitSettled):
            commits.confirm(prepared, 1)
        commits.forget(later)
        assert place.open().commits.prepare("telemetry", [], 0).commit > later.commit, "nor after that"

    def test_ledger_range_is_known_once_confirmed(self, place: Place) -> None:
        registry = place.open()
        known = {moved(0, 9), moved(0, 8, STREAM._replace(address="\0"))}
        land(registry, *known, table="ledger")
        asked = [moved(at, at + 9, STREAM._replace(address=address)) for at in range(300) for address in ("a", "\\0")]
        assert registry.commits.ledgered([*asked, *known]) == known

    def test_two_registries_have_two_application_ids(self, make_place: Callable[[], Place]) -> None:
        """A lake with a new registry must not confuse a new commit with an old one of the same number."""
        first, second = make_place(), make_place()
        names = set()
        for place in (first, second, first):
            commits = place.open().commits
            prepared = commits.prepare("telemetry", [], 0)
            names.add(commits.application(prepared))
            commits.forget(prepared)
        assert len(names) == 2
        assert all(f"/{HERE}/telemetry" in name for name in names)

    def test_names_that_databases_cannot_store_are_handled(self, place: Place) -> None:
        registry = place.open()
        streams = [STREAM._replace(address=name) for name in ("\0", "\\0", "\\\0", "\\\\0", "ж\x01", "")]
        land(registry, *(moved(at, at, stream) for at, stream in enumerate(streams)))
        registry.close()
        found = place.open().commits.marks("default", "gw").landed
        assert {stream: landed.mark for stream, landed in found.items()} == {s: at for at, s in enumerate(streams)}

    def test_failed_transaction_leaves_no_cached_state(self, place: Place) -> None:
        registry = place.open()
        land(registry, moved(0, 9))
        prepared = registry.commits.prepare("telemetry", [moved(10, 19)], 10)
        registry.commits.confirm(prepared, 1)
        with pytest.raises(CommitSettled):
            registry.commits.confirm(prepared, 2)
        assert registry.commits.landed(STREAM).spans == [(0, 19)]


class TestSeveralHubs:
    """Each hub has its own data directory and its own writer."""

    def test_each_hub_numbers_and_settles_its_own_commits(self, place: Place) -> None:
        here, there = place.open(HERE).commits, place.open(THERE).commits
        mine, theirs = here.prepare("telemetry", [moved(0, 9)], 10), there.prepare("telemetry", [], 0)
        assert (mine.commit, theirs.commit) == (1, 1)
        assert here.application(mine) != there.application(theirs)
        assert here.unresolved() == [mine]
        assert there.unresolved() == [theirs]
        there.confirm(theirs, 99)
        assert here.confirmed_version("telemetry") == -1
        here.confirm(mine, 5)
        assert (here.confirmed_version("telemetry"), there.confirmed_version("telemetry")) == (5, 99)

    def test_open_commit_is_settled_by_the_hub_to_which_its_gateway_moves(self, place: Place) -> None:
        here, there = place.open(HERE), place.open(THERE)
        for hub in (here, there):
            hub.commits.write_to(MemoryLake("this"))
        here.directory.presence({KEY: connected()})
        prepared = here.commits.prepare("telemetry", [moved(0, 9)], 10)
        assert there.commits.unresolved() == []
        there.directory.presence({KEY: connected()})
        assert there.commits.take_over([("default", "another")]) == []
        assert there.commits.take_over([KEY]) == [prepared]
        assert there.commits.application(prepared) == here.commits.application(prepared)
        there.commits.confirm(prepared, 3)
        assert there.commits.take_over([KEY]) == []
        assert there.commits.landed(STREAM).spans == [(0, 9)]
        with pytest.raises(CommitSettled):
            here.commits.confirm(prepared, 3)
        here.commits.forget(prepared)
        assert here.commits.unresolved() == []
        assert there.commits.landed(STREAM).spans == [(0, 9)]
        land(there, moved(10, 19))
        here.directory.presence({KEY: connected()})
        assert here.commits.take_over([KEY]) == []
        assert here.commits.landed(STREAM).spans == [(0, 19)]

    def test_settling_uses_no_marks_from_before_a_gateway_moved(self, place: Place) -> None:
        """The commit names two gateways. One was here once and has landed more elsewhere since."""
        here, there = place.open(HERE), place.open(THERE)
        for hub in (here, there):
            hub.commits.write_to(MemoryLake("this"))
        other = STREAM._replace(gateway="other")
        elsewhere = ("default", "other")
        here.directory.presence({elsewhere: connected()})
        land(here, moved(0, 9, other))
        there.directory.presence({elsewhere: connected(), KEY: connected()})
        land(there, moved(10, 99, other))
        prepared = there.commits.prepare("telemetry", [moved(0, 9), moved(100, 109, other)], 20)
        here.directory.presence({KEY: connected()})
        assert here.commits.take_over([KEY]) == [prepared]
        here.commits.confirm(prepared, 3)
        with pytest.raises(CommitSettled):
            there.commits.confirm(prepared, 3)
        assert there.commits.landed(other).spans == [(0, 109)]
        assert place.open("c" * 32).commits.landed(other).spans == [(0, 109)]

    def test_open_commit_in_another_lake_is_awaited(self, place: Place) -> None:
        here, there = place.open(HERE), place.open(THERE)
        here.commits.write_to(MemoryLake("this"))
        there.commits.write_to(MemoryLake("that"))
        here.directory.presence({KEY: connected()})
        prepared = here.commits.prepare("telemetry", [moved(0, 9)], 10)
        there.directory.presence({KEY: connected()})
        assert there.commits.take_over([KEY]) == []
        with pytest.raises(StreamElsewhere, match=HERE):
            there.commits.landed(STREAM)
        here.commits.confirm(prepared, 1)
        assert there.commits.landed(STREAM).spans == [(0, 9)]

    def test_copy_of_a_data_directory_replaces_the_hub(self, place: Place) -> None:
        """Two hubs with one writer id would settle each other's commits, so the older one stops."""
        first = place.open(HERE).commits
        prepared = first.prepare("telemetry", [moved(0, 9)], 10)
        copy = place.open(HERE).commits
        actions: list[Callable[[], object]] = [
            first.unresolved,
            lambda: first.prepare("telemetry", [], 0),
            lambda: first.confirm(prepared, 1),
            lambda: first.forget(prepared),
            lambda: first.restore("default", "gw", {}),
        ]
        for action in actions:
            with pytest.raises(WriterReplaced, match="`writer`"):
                action()
        assert copy.unresolved() == [prepared]

    def test_fence_is_in_the_transaction_that_prepares(self, place: Place) -> None:
        """Independent of its earlier knowledge, a hub prepares nothing for a gateway that has moved to another hub."""
        here, there = place.open(HERE), place.open(THERE)
        here.directory.presence({KEY: connected()})
        land(here, moved(0, 9))
        assert here.directory.fenced([KEY]) == set()
        there.directory.presence({KEY: connected()})
        with pytest.raises(GatewaysMoved, match="gw"):
            here.commits.prepare("telemetry", [moved(10, 19)], 10)
        assert here.commits.unresolved() == []
        land(there, moved(10, 19))
        here.directory.presence({KEY: connected()})
        assert here.commits.landed(STREAM).spans == [(0, 19)], "what the other has landed is known to the first"

    def test_landing_at_another_hub_is_awaited(self, place: Place) -> None:
        """The first hub has prepared when the gateway moves to the second and sends the same: it lands once, after the
        first is done.
        """
        here, there = place.open(HERE), place.open(THERE)
        here.directory.presence({KEY: connected()})
        prepared = here.commits.prepare("telemetry", [moved(0, 9)], 10)
        there.directory.presence({KEY: connected()})
        with pytest.raises(StreamElsewhere, match=HERE):
            there.commits.landed(STREAM)
        with pytest.raises(RegistryError, match=HERE):
            there.commits.ledgered([moved(0, 9)])
        assert there.commits.landed(STREAM._replace(gateway="another")).mark == -1
        here.commits.confirm(prepared, 1)
        assert there.commits.landed(STREAM).spans == [(0, 9)]

    def test_conflicting_hubs_retry(self, place: Place) -> None:
        """Two threads, a hub each, use one gateway: every count is present at the end."""
        rounds = 10
        place.open(HERE).close()
        failed: list[BaseException] = []

        def work(writer: str) -> None:
            try:
                with contextlib.closing(Registry(place.url, writer)) as registry:
                    for _ in range(rounds):
                        registry.directory.presence({KEY: connected()})
                        registry.directory.seen({KEY: 1})
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(writer,)) for writer in (HERE, THERE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failed
        assert place.open().directory.gateways()[0].generation == 2 * rounds


class TestThreads:
    def test_other_threads_are_refused(self, place: Place) -> None:
        registry = place.open()
        prepared = registry.commits.prepare("telemetry", [moved(0, 9)], 10)
        actions: list[Callable[[], object]] = [
            registry.directory.gateways,
            registry.directory.mark_all_disconnected,
            lambda: registry.directory.presence({KEY: connected()}),
            lambda: registry.directory.seen({KEY: 1}),
            lambda: registry.directory.fenced([KEY]),
            lambda: registry.lineages.compare(GatewayStore("t", "gw", "e"), GatewayLineage("e", ["1"])),
            registry.commits.unresolved,
            lambda: registry.commits.take_over([KEY]),
            lambda: registry.commits.landed(STREAM),
            lambda: registry.commits.marks("default", "gw"),
            lambda: registry.commits.ledgered([]),
            lambda: registry.commits.restore("default", "gw", {}),
            lambda: registry.commits.prepare("telemetry", [], 0),
            lambda: registry.commits.confirm(prepared, 1),
            lambda: registry.commits.forget(prepared),
            lambda: registry.commits.confirmed_version("telemetry"),
            lambda: registry.commits.write_to(MemoryLake()),
            registry.close,
        ]
        outcomes: list[str] = []

        def elsewhere() -> None:
            for action in actions:
                try:
                    action()
                except WrongThread:
                    outcomes.append("turned away")
                else:
                    outcomes.append("let in")

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
        assert outcomes == ["turned away"] * len(actions)
        assert registry.commits.unresolved() == [prepared]

    def test_nested_transaction_raises(self, place: Place) -> None:
        database = Database(place.url)
        with pytest.raises(WrongThread, match="wait for itself"):
            database.transaction(lambda tx: database.transaction(lambda tx: None))
        database.close()


class TestOpening:
    def test_newer_registry_is_refused_in_one_line(self, place: Place) -> None:
        place.open().close()
        place.execute("UPDATE schema_version SET version = :version", version=SCHEMA_VERSION + 1)
        with pytest.raises(RegistryTooNew, match="newer version"):
            place.open()

    @pytest.mark.parametrize(
        "tables",
        [
            ["CREATE TABLE customers (id INTEGER)"],
            ["CREATE TABLE schema_version (version INTEGER)"],
            ["CREATE TABLE gateways (ip INTEGER)", "INSERT INTO gateways VALUES (1)"],
        ],
    )
    def test_foreign_database_is_unchanged(self, place: Place, tables: list[str]) -> None:
        for statement in tables:
            place.execute(statement)
        before = sorted(sa.inspect(sa.create_engine(place.url, poolclass=sa.NullPool)).get_table_names())
        with pytest.raises(RegistryForeign):
            place.open()
        assert sorted(sa.inspect(sa.create_engine(place.url, poolclass=sa.NullPool)).get_table_names()) == before

    def test_several_hubs_may_create_it_simultaneously(self, place: Place) -> None:
        found: list[str] = []

        def work(writer: str) -> None:
            with contextlib.closing(Registry(place.url, writer)) as registry:
                found.append(registry.registry_id)

        threads = [threading.Thread(target=work, args=(writer * 32,)) for writer in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 4
        assert len(set(found)) == 1


class TestLineages:
    STORE = GatewayStore("t", "gw", "e")

    def test_continued_openings_are_accepted(self, place: Place) -> None:
        compare = place.open().lineages.compare
        assert compare(self.STORE, GatewayLineage("e", ["1"])) is None
        assert compare(self.STORE, GatewayLineage("e", ["1"])) is None
        assert compare(self.STORE, GatewayLineage("e", ["1", "2", "3"])) is None
        assert compare(self.STORE._replace(epoch="other"), GatewayLineage("other", ["9"])) is None
        assert compare(self.STORE._replace(gateway="gw2"), GatewayLineage("e", ["8"])) is None

    def test_older_copy_gets_the_last_shared_opening(self, place: Place) -> None:
        compare = place.open().lineages.compare
        compare(self.STORE, GatewayLineage("e", ["1", "2", "3"]))
        assert compare(self.STORE, GatewayLineage("e", ["1", "2", "2b"])) == "2"
        assert compare(self.STORE, GatewayLineage("e", ["x", "y"])) == ""
        assert compare(self.STORE, GatewayLineage("e", ["2", "3", "4"])) is None, "what was rejected is not remembered"

    @pytest.mark.parametrize(
        ("ends", "copy"),
        [
            ([{7: 0}, {7: 50}, {7: 100, 8: 3}], False),  # as far as it was seen
            ([{7: 0}, {7: 50}, {7: 999, 8: 3, 9: 1}], False),  # reports only the newest openings
            ([{7: 0}, {7: 50}, {7: 99, 8: 3}], True),
            ([{7: 0}, {7: 50}, {7: 999}], True),  # it has no log 8
            ([{7: 50}, {7: 99, 8: 3}], True),  # only of the newest openings
            ([{7: 99, 8: 3}], True),
            ([None, None, None], False),  # the store has no ends
            ([], False),  # an older program
        ],
    )
    def test_copy_of_an_open_store_is_detected(
        self, place: Place, ends: list[dict[int, int] | None], copy: bool
    ) -> None:
        registry = place.open()
        registry.lineages.compare(self.STORE, GatewayLineage("e", ["1", "2"], [{7: 0}, {7: 50}]))
        registry.commits.prepare("telemetry", [], 0, {self.STORE: {7: 100, 8: 3}})
        registry.commits.prepare("telemetry", [], 0, {self.STORE: {7: 90}})
        for _ in range(2):  # and it stays the same
            found = registry.lineages.compare(self.STORE, GatewayLineage("e", ["1", "2", "3"], ends))
            assert found == ("2" if copy else None)
            if not copy:
                break

    def test_copy_that_advanced_before_the_report_is_detected(self, place: Place) -> None:
        registry = place.open()
        registry.lineages.compare(self.STORE, GatewayLineage("e", ["1"], [{7: 0}]))
        registry.commits.prepare("telemetry", [], 0, {self.STORE: {7: 100}})
        told = GatewayLineage("e", ["1", "2", "3"], [{7: 0}, {7: 60}, {7: 500}])
        assert registry.lineages.compare(self.STORE, told) == "1", "its first opening after the one both know tells"

    def test_end_of_a_store_survives_the_hub(self, place: Place) -> None:
        registry = place.open()
        registry.lineages.compare(self.STORE, GatewayLineage("e", ["1"]))
        registry.commits.prepare("telemetry", [], 0, {self.STORE: {7: 100}})
        registry.close()
        again = place.open()
        again.commits.prepare("telemetry", [], 0, {self.STORE: {8: 1}})
        assert again.lineages.compare(self.STORE, GatewayLineage("e", ["1", "2"], [{7: 99, 8: 1}])) == "1"

    def test_end_of_a_store_is_known_at_another_hub(self, place: Place) -> None:
        """The store was here, moved there and returned: the old state is not taken for the current one."""
        here, there = place.open(HERE), place.open(THERE)
        for registry, end in ((here, 10), (there, 100), (here, 20)):
            assert registry.lineages.compare(self.STORE, GatewayLineage("e", ["1"])) is None
            registry.commits.prepare("telemetry", [], 0, {self.STORE: {7: end}})
        assert here.lineages.compare(self.STORE, GatewayLineage("e", ["1", "2"], [{7: 99}, {7: 99}])) == "1"

    def test_stored_logs_are_bounded(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.registry.reached.LOGS_KEPT", 3)
        registry = place.open()
        registry.lineages.compare(self.STORE, GatewayLineage("e", ["1"]))
        for log in range(5):
            registry.commits.prepare("telemetry", [], 0, {self.STORE: {log: 10}})
        told = GatewayLineage("e", ["1", "2"], [{2: 10, 3: 10, 4: 10}])
        assert registry.lineages.compare(self.STORE, told) is None


@given(st.text())
def test_name_survives_encoding(text: str) -> None:
    name, dialect = NameType(), postgresql.dialect()  # type: ignore[no-untyped-call]
    written = name.process_bind_param(text, dialect)
    assert written is not None
    assert "\0" not in written
    assert name.process_result_value(written, dialect) == text
