"""The commands `waypost store import | purge | migrate | new-epoch` on stopped stores: exact, recorded, safe to
repeat."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import sqlite_utils

from bridge.message import Run
from edge.appliance.main import run
from edge.appliance.store import restore
from edge.appliance.store.offline import OfflineStore, offline
from edge.appliance.store.recovery.verification import verify
from edge.appliance.store.restore import import_messages
from edge.broker.configuration import AddressConfiguration
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.store import schema
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.sqlite import FILE_NAME, SqliteStore, open_store
from edge.broker.store.sqlite_medium import SqliteMedium
from edge.configuration.effective import development_preset
from edge.output.errors import Exit
from tests.contract.store.rig import sqlite_rig
from tests.support.command import item_in
from tests.support.stores import AT, FORWARDER, Made, change, make
from tests.support.writer_thread import execute_on


def ledger(data: Path) -> list[dict[str, object]]:
    database = sqlite_utils.Database(data / FILE_NAME)
    try:
        return list(database["ledger"].rows)
    finally:
        database.close()


def backlog(data: Path) -> dict[str, int]:
    store = open_store(data, post=lambda _: None)
    found = {cursor.name: cursor.backlog for cursor in store.info().cursors}
    store.close()
    return found


def store_put(store: SqliteStore) -> tuple[str, str]:
    """Make the next commit need more pages than the file has free; return the key to delete again."""
    store.state.put("test", "large", bytes(1 << 20))
    return "test", "large"


def command(name: str, data: Path, *options: str) -> int:
    return run(["store", name, "--data", str(data), *options])


@contextlib.contextmanager
def open_store_at(data: Path) -> Iterator[SqliteStore]:
    with offline(data) as opened:
        yield opened.store
        opened.settle()


CONFIGURED = """
{apiVersion: waypost/v1, kind: Gateway, metadata: {name: gw1}, spec: {hub: {url: "amqp://one:5672"}}}
---
{apiVersion: enmasse.io/v1beta1, kind: Address, metadata: {name: default.plant},
  spec: {address: plant/#, type: topic, forwarders: [{name: up, remoteAddress: hub}]}}
"""


class TestPurge:
    def test_one_address_is_purged(self, made: Made) -> None:
        data = made.path.parent
        assert command("purge", data, "--address", "plant/3/temp", "--yes") == 0
        # sensor 3 sent positions 33-43 first, and the forwarder has 30-40 already
        assert backlog(data) == {"queue": 145, FORWARDER: 209 - 33 + 8}
        entries = ledger(data)
        assert {(e["subscription"], e["address"], e["reason"]) for e in entries} == {
            (FORWARDER, "plant/3/temp", "purged")
        }
        assert sum(int(str(e["messages"])) for e in entries) == 33 - 8
        assert min(int(str(e["first"])) for e in entries) == 8
        assert max(int(str(e["last"])) for e in entries) == 32
        assert verify(made.path).findings == []

    def test_purged_group_leaves_others(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        data = made.path.parent
        assert command("purge", data, "--cursor", "queue", "--yes", "--json") == 0
        assert item_in(capsys.readouterr().out)["groups"] == {"queue": 145}
        assert backlog(data) == {"queue": 0, FORWARDER: 209}
        [entry] = ledger(data)
        assert (entry["first"], entry["last"], entry["messages"]) == (55, 199, 145)
        assert verify(made.path).findings == []

    def test_removed_forwarder_is_purged(self, made: Made) -> None:
        data = made.path.parent
        with open_store_at(data) as store:
            store.state.put("subscription", FORWARDER, b"what it is")
        assert command("purge", data, "--cursor", FORWARDER, "--since", "7d", "--yes") == 0
        assert backlog(data) == {"queue": 145, FORWARDER: 209}, "a part of it was asked for"
        assert command("purge", data, "--cursor", FORWARDER, "--yes") == 0
        assert backlog(data) == {"queue": 145}
        assert sum(int(str(entry["messages"])) for entry in ledger(data)) == 209
        with open_store_at(data) as store:
            assert list(store.state.items("subscription")) == []
        assert verify(made.path).findings == []

    def test_configured_forwarder_continues(self, made: Made, tmp_path: Path) -> None:
        data, file = made.path.parent, tmp_path / "gateway.yaml"
        file.write_text(CONFIGURED)
        assert run(["apply", "--data", str(data), "-f", str(file)]) == 0
        name = "forwarder/hub/default.plant/up"
        assert change(made.path, "UPDATE cursor SET name = ? WHERE name = ?", name, FORWARDER)
        assert command("purge", data, "--cursor", name, "--yes") == 0
        assert backlog(data) == {"queue": 145, name: 0}

    def test_purging_everything_frees_the_file(self, made: Made) -> None:
        data = made.path.parent
        assert command("purge", data, "--all", "--yes") == 0
        assert backlog(data) == {"queue": 0, FORWARDER: 0}
        connection = sqlite3.connect(made.path)
        assert connection.execute("SELECT count(*) FROM segment").fetchone() == (0,)
        connection.close()
        assert sum(int(str(e["messages"])) for e in ledger(data)) == 145 + 209

    def test_purge_by_age_is_exact(self, made: Made) -> None:
        assert command("purge", made.path.parent, "--until", "2026-09-21T14:13:30Z", "--yes") == 0
        assert backlog(made.path.parent) == {"queue": 100, FORWARDER: 110}

    def test_message_of_two_groups_counts_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made = make(tmp_path / "data")
        rig = sqlite_rig(tmp_path / "data")
        rig.store.cursors.open("second", 1, 0)
        rig.commit()
        rig.store.close()
        assert command("purge", made.path.parent, "--log", "queue jobs", "--yes", "--json") == 0
        document = item_in(capsys.readouterr().out)
        assert (document["messages"], document["groups"]) == (150, {"queue": 145, "second": 150})

    def test_purge_asks_for_confirmation(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = made.path.read_bytes()
        monkeypatch.setattr("click.confirm", lambda *_args, **_options: (_ for _ in ()).throw(KeyboardInterrupt))
        assert command("purge", made.path.parent, "--all") == 130
        assert "145 for queue" in capsys.readouterr().out
        assert made.path.read_bytes() == before

    def test_declined_purge_changes_nothing(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = made.path.read_bytes()
        monkeypatch.setattr("click.confirm", lambda *_args, **_options: False)
        assert command("purge", made.path.parent, "--all") == Exit.FAILED
        assert "nothing was changed" in capsys.readouterr().err
        assert made.path.read_bytes() == before

    @pytest.mark.parametrize("options", [[], ["--json", "--all"], ["--since", "never"]])
    def test_usage_errors_are_reported(self, made: Made, options: list[str]) -> None:
        assert command("purge", made.path.parent, *options) == Exit.USAGE

    @pytest.mark.parametrize("options", [["--all"], ["--all", "--yes"]])
    def test_running_gateway_is_refused_without_a_question(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        options: list[str],
    ) -> None:
        made = make(tmp_path / "data")
        monkeypatch.setattr("click.confirm", lambda *_args, **_options: pytest.fail("asked in vain"))
        rig = sqlite_rig(tmp_path / "data")
        assert command("purge", made.path.parent, *options) == Exit.FAILED
        shown = capsys.readouterr()
        assert "stop the gateway" in shown.err
        assert shown.out == ""
        rig.store.close()


class TestImport:
    def export(self, made: Made, tmp_path: Path) -> Path:
        out = tmp_path / "out.ndjson"
        assert command("export", made.path.parent, "--out", str(out), "--address", "jobs") == 0
        return out

    def new(self, tmp_path: Path) -> Path:
        data = tmp_path / "new"
        assert run(["init", "--data", str(data)]) == 0
        return data

    def lines(self, tmp_path: Path, count: int, address: str = "queue/a") -> Path:
        source = tmp_path / "in.ndjson"
        made = [
            {"address": address, "text": f"{i}", "device": "d", "received_ns": 5_000 + i // 7} for i in range(count)
        ]
        source.write_text("".join(json.dumps(line) + "\n" for line in made))
        return source

    def bodies(self, data: Path) -> list[bytes]:
        rig = sqlite_rig(data)
        try:
            return [body for log in rig.store.info().logs for _, _, _, body in rig.read_all(log.log)]
        finally:
            rig.store.close()

    def test_exported_messages_are_restored(
        self, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = self.export(made, tmp_path)
        resources = tmp_path / "r.yaml"
        resources.write_text(
            "apiVersion: waypost/v1\nkind: Gateway\nmetadata: {name: n}\n"
            "spec: {listeners: {mqtt: '127.0.0.1:0'}}\n---\n"
            "apiVersion: enmasse.io/v1beta1\nkind: Address\nmetadata: {name: default.jobs}\n"
            "spec: {address: jobs, type: queue}\n"
        )
        data = self.new(tmp_path)
        capsys.readouterr()
        assert command("import", data, str(source), "--config", str(resources), "--json") == 0
        assert item_in(capsys.readouterr().out) == {"messages": 150, "unwanted": 0, "skipped": 0}
        assert self.bodies(data) == [b'{"n": %d}' % n for n in range(50, 200)]
        out = tmp_path / "again.ndjson"
        assert command("export", data, "--out", str(out)) == 0
        was, now = ([json.loads(line) for line in path.read_text().splitlines()] for path in (source, out))
        same = ("address", "device", "flags", "received_ns", "json")
        assert [[line[key] for key in same] for line in now] == [[line[key] for key in same] for line in was]
        assert [line["sequence"] for line in now] == list(range(150))
        assert verify(data / FILE_NAME).findings == []

    def test_second_import_does_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data, source = self.new(tmp_path), self.lines(tmp_path, 50)
        for _ in range(3):
            assert command("import", data, str(source), "--dev") == 0
        assert "50 lines imported before" in capsys.readouterr().out
        assert len(self.bodies(data)) == 50
        assert command("import", data, str(source), "--dev", "--again") == 0
        assert len(self.bodies(data)) == 100

    def test_interrupted_import_stores_each_message_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(restore, "COMMIT_MESSAGES_MAX", 10)
        data, source = self.new(tmp_path), self.lines(tmp_path, 95)
        for attempt in range(12):
            told: list[int] = []

            def interrupt(done: int, _: int, told: list[int] = told, attempt: int = attempt) -> None:
                told.append(done)
                if attempt < 9 and len(told) == 1 + attempt % 2:
                    raise KeyboardInterrupt

            try:
                import_messages(data, source, development_preset(), interrupt)
            except KeyboardInterrupt:
                continue
            break
        assert self.bodies(data) == [b"%d" % i for i in range(95)]

    def test_invalid_line_is_named_and_earlier_ones_are_kept(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data, source = self.new(tmp_path), self.lines(tmp_path, 20)
        source.write_text(source.read_text() + "{}\n")
        assert command("import", data, str(source), "--dev") == Exit.FAILED
        assert "line 21: " in capsys.readouterr().err
        assert len(self.bodies(data)) == 20

    def test_lines_without_room_are_imported_by_the_next_run(self, tmp_path: Path) -> None:
        data, source = self.new(tmp_path), self.lines(tmp_path, 50)
        rule = AddressRule("queue/#", AddressType.QUEUE)
        for quota in (30, 40, 41, 60):
            full = AddressConfiguration(rule, AddressPolicy(quota_bytes=quota, when_full=WhenFull.REJECT))
            configuration = msgspec.structs.replace(development_preset(), addresses=(full,))
            with pytest.raises(StoreFull) as refused:
                import_messages(data, source, configuration, lambda _done, _all: None)
            assert f"line {len(self.bodies(data)) + 1} and the following do not fit" in str(refused.value)
        import_messages(data, source, development_preset(), lambda _done, _all: None)
        assert self.bodies(data) == [b"%d" % i for i in range(50)]

    @pytest.mark.parametrize("failing", [1, 2, 3])
    def test_lines_of_a_failed_commit_are_imported_by_the_next_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
    ) -> None:
        monkeypatch.setattr(restore, "COMMIT_MESSAGES_MAX", 10)
        data, source = self.new(tmp_path), self.lines(tmp_path, 50)
        settle, told = OfflineStore.settle_urgent, itertools.count(1)

        def settle_or_fail(opened: OfflineStore, flush: Callable[[], object]) -> None:
            if next(told) != failing:
                settle(opened, flush)
                return
            medium = opened.store.medium
            assert isinstance(medium, SqliteMedium)
            execute_on(medium.writer, "PRAGMA max_page_count = 1")  # SQLite limits the file to its present pages
            large = store_put(opened.store)
            try:
                settle(opened, flush)
            finally:
                execute_on(medium.writer, "PRAGMA max_page_count = 1000000")
                opened.store.state.delete(*large)

        with monkeypatch.context() as patch:
            patch.setattr(OfflineStore, "settle_urgent", settle_or_fail)
            with pytest.raises(StoreFull):
                import_messages(data, source, development_preset(), lambda _done, _all: None)
        assert len(self.bodies(data)) == 10 * (failing - 1)
        import_messages(data, source, development_preset(), lambda _done, _all: None)
        assert self.bodies(data) == [b"%d" % i for i in range(50)]

    def test_lines_without_an_address_are_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data, source = self.new(tmp_path), self.lines(tmp_path, 5, "topic/nobody")
        capsys.readouterr()
        assert command("import", data, str(source), "--dev", "--json") == 0
        assert item_in(capsys.readouterr().out) == {"messages": 0, "unwanted": 5, "skipped": 0}

    def test_missing_store_is_reported(self, tmp_path: Path) -> None:
        assert command("import", tmp_path / "none", str(self.lines(tmp_path, 1)), "--dev") == Exit.USAGE
        assert not (tmp_path / "none").exists()


class TestMigrate:
    def old(self, data: Path) -> Path:
        """Return a store of schema 1, with its tables filled."""
        made = make(data)
        change(made.path, "DROP VIEW losses")
        change(made.path, "DROP TABLE ledger")
        change(made.path, "DROP TABLE thinned")
        for table in ("wear", "opening", "epoch", "epoch_start"):
            change(made.path, f"DROP TABLE {table}")
        change(made.path, "UPDATE meta SET value = '1:1' WHERE key = 'compatible'")
        change(made.path, "PRAGMA user_version = 1")
        return made.path

    def test_migration_makes_a_copy(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = self.old(tmp_path / "data")
        assert command("migrate", path.parent) == 0
        assert "--yes" in capsys.readouterr().out
        assert verify(path).schema == 1
        assert command("migrate", path.parent, "--yes", "--json") == 0
        document = item_in(capsys.readouterr().out)
        assert (document["before"], document["after"]) == (1, len(schema.MIGRATIONS))
        report, copy = verify(path), verify(Path(document["copy"]))
        assert (report.findings, copy.findings) == ([], [])
        assert (report.messages, report.epoch) == (copy.messages, copy.epoch)
        assert copy.schema == 1
        assert Path(document["copy"]).stat().st_mode & 0o077 == 0

    def test_current_store_needs_no_migration(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert command("migrate", made.path.parent, "--yes") == 0
        assert "nothing to do" in capsys.readouterr().out
        assert len(list(made.path.parent.glob("store.sqlite*schema*"))) == 0

    def test_newer_store_is_refused(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        change(made.path, "PRAGMA user_version = 99")
        assert command("migrate", made.path.parent, "--yes") == Exit.FAILED
        assert "newer program" in capsys.readouterr().err


class TestNewEpoch:
    def test_message_names_are_not_reused(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        data = made.path.parent
        assert command("new-epoch", data, "--yes", "--json") == 0
        document = item_in(capsys.readouterr().out)
        assert document["before"] == made.epoch
        assert document["after"] != made.epoch
        rig = sqlite_rig(data)
        log = rig.store.logs.open("queue jobs")
        for address in ("jobs", "first/seen"):
            rig.store.logs.append(log, Run(address, "d", 1, b"", [b"new"], AT))
        rig.commit()
        assert {("jobs", 201), ("first/seen", 1)} <= set(rig.store.lineage.sequences())
        assert rig.store.lineage.epochs.current == document["after"]
        assert list(rig.store.lineage.epochs.parts("jobs", 199, 200)) == [
            (made.epoch, 199, 199),
            (document["after"], 200, 200),
        ]
        assert rig.store.lineage.epochs.of("first/seen", 0) == document["after"]
        rig.store.close()
        assert verify(made.path).findings == []

    def test_new_epoch_may_be_repeated(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        assert command("new-epoch", made.path.parent, "--yes", "--json") == 0
        first = item_in(capsys.readouterr().out)["after"]
        assert command("new-epoch", made.path.parent, "--yes") == 0
        out = capsys.readouterr().out
        assert f"epoch {first}: stored messages keep it" in out
        assert verify(made.path).findings == []
        with contextlib.closing(open_store(made.path.parent, post=lambda _: None)) as store:
            assert [part[0] for part in store.lineage.epochs.parts("jobs", 199, 200)] == [
                made.epoch,
                store.lineage.epochs.current,
            ]

    def test_new_epoch_asks_for_confirmation(
        self, made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = made.path.read_bytes()
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert command("new-epoch", made.path.parent) != 0
        assert "a hub would drop new messages" in capsys.readouterr().out
        assert command("new-epoch", made.path.parent, "--json") == Exit.USAGE
        assert made.path.read_bytes() == before

    def test_running_gateway_is_refused(self, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
        rig = sqlite_rig(made.path.parent)
        assert command("new-epoch", made.path.parent, "--yes") == Exit.FAILED
        assert "stop the gateway" in capsys.readouterr().err
        assert rig.store.lineage.epochs.current == made.epoch
        rig.store.close()

    def test_missing_store_is_reported(self, tmp_path: Path) -> None:
        assert command("new-epoch", tmp_path / "none", "--yes") == Exit.USAGE
        assert not (tmp_path / "none").exists()


def test_line_without_an_address_raises() -> None:
    with pytest.raises(StoreError, match=r"line 4: .*address"):
        restore.parse(b'{"text": "x"}', 4)
