"""`verify --drop` removes damaged files from landed tables without other loss, and reports the loss. No JVM."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cloud.lake import tables as landed
from cloud.place.faults import ObjectStoreError
from cloud.place.folder import Folder
from cloud.place.place import LakePlace, place_of
from spark import dropping, maintenance, schemas, verification
from spark.cli import analytics, report
from spark.data_files import DataFile, list_files
from spark.jobs import pass_lock
from spark.verification import DamagedFile
from tests.spark import lakes
from tests.spark.lakes import message
from tests.support.delta_commits import data_changes
from tests.support.s3 import BUCKET, ObjectStore

ROWS = 40
GATEWAYS = 5


class Killed(BaseException):
    """Simulates the end of the process."""


def invoke(*arguments: object) -> Result:
    words = [str(argument) for argument in arguments]
    command, rest = (report, words[1:]) if words[:1] == ["report"] else (analytics, words)
    return CliRunner().invoke(command, rest)


def drop(lake: LakePlace | Path, *names: str) -> Result:
    return invoke("verify", "--drop", "--lake", lake, *names)


def land(lake: Path, gateway: str, first: int = 0) -> None:
    """Land messages of one gateway in a commit, as the hub does."""
    columns = schemas.LANDED["telemetry"].arrow
    rows = [message(number, gateway=gateway) for number in range(first, first + ROWS)]
    data = [{name: row.get(name) for name in columns.names} for row in rows]
    landed.LakeTable.open(lake, "telemetry").append(pa.Table.from_pylist(data, schema=columns))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Lake with one landed file for each gateway."""
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(GATEWAYS):
        land(root, f"gw{number}")
    return root


def files(lake: Path | LakePlace, table: str = "telemetry") -> list[DataFile]:
    return list_files(place_of(lake).at(table).delta())


def paths(lake: Path, table: str = "telemetry") -> list[Path]:
    """Return data files in the order of the gateways."""
    return [lake / table / file.path for file in files(lake, table)]


def counted(lake: Path | LakePlace) -> dict[str, int]:
    """Count the readable rows of each gateway."""
    rows = place_of(lake).at("telemetry").delta().to_pyarrow_table(columns=["gateway"])
    counts = rows.group_by("gateway").aggregate([("gateway", "count")]).to_pylist()
    return {row["gateway"]: row["gateway_count"] for row in counts}


def noted(lake: Path | LakePlace) -> list[dict[str, Any]]:
    """Return the rows of table `set_aside`, by gateway."""
    rows = place_of(lake).at("set_aside").delta().to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: str(row["gateway_first"]))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)


def miscount(path: Path) -> None:
    """Make the log claim one more row than the file has."""
    log = path.parents[1] / "_delta_log"
    (entry,) = (entry for entry in log.glob("*.json") if path.name in entry.read_text())
    was, now = f'\\"numRecords\\": {ROWS},', f'\\"numRecords\\": {ROWS + 1},'
    text = entry.read_text()
    assert was in text or was.replace(" ", "") in text
    entry.write_text(text.replace(was, now).replace(was.replace(" ", ""), now.replace(" ", "")))


HARMS: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "truncated": truncate,
    "damaged": flip,
    "not what was written": miscount,
}


class TestDamages:
    @pytest.mark.parametrize("reason", HARMS)
    def test_each_is_taken_out_and_reported(self, lake: Path, reason: str) -> None:
        path = paths(lake)[1]
        HARMS[reason](path)
        content = path.read_bytes() if path.exists() else None
        done = drop(lake)
        assert done.exit_code == 0, done.output
        assert f"dropped {path} ({reason}" in done.stdout
        rows = ROWS + (reason == "not what was written")
        assert f"{rows} rows, of gateway gw1, sequences 0 to {ROWS - 1}" in done.stdout
        assert "table gaps" in done.stderr
        assert "restore the files and the table from copies, then run `waypost lake rebuild`" in done.stderr
        assert counted(lake) == {f"gw{number}": ROWS for number in range(GATEWAYS) if number != 1}

        (row,) = noted(lake)
        assert row.pop("reason").startswith(reason)
        assert row.pop("found_at") is not None
        assert row == {
            "source": "telemetry",
            "path": str(path.relative_to(lake / "telemetry")),
            "job": "verify",
            "rows": rows,
            "gateway_first": "gw1",
            "gateway_last": "gw1",
            "sequence_first": 0,
            "sequence_last": ROWS - 1,
        }
        assert pq.read_table(path, partitioning=None).num_rows == 0
        kept = lake / "_damaged" / "telemetry" / path.relative_to(lake / "telemetry")
        assert (kept.read_bytes() if kept.exists() else None) == content
        assert invoke("verify", "--lake", lake).exit_code == 0

    def test_several_at_once_and_twice(self, lake: Path) -> None:
        for path, harm in zip(paths(lake), HARMS.values(), strict=False):
            harm(path)
        before = deltalake.DeltaTable(lake / "telemetry").version()
        assert drop(lake, "telemetry").exit_code == 0
        assert counted(lake) == {"gw4": ROWS}
        assert [row["gateway_first"] for row in noted(lake)] == ["gw0", "gw1", "gw2", "gw3"]
        assert deltalake.DeltaTable(lake / "telemetry").version() == before + 1
        again = drop(lake)
        assert (again.exit_code, "dropped" in again.output) == (0, False)
        assert (len(noted(lake)), deltalake.DeltaTable(lake / "telemetry").version()) == (4, before + 1)

    def test_a_sound_lake_stays_as_it_is(self, lake: Path) -> None:
        before = sorted(path for path in lake.rglob("*") if "_logs" not in path.parts)
        done = drop(lake)
        assert (done.exit_code, "dropped" in done.output) == (0, False)
        assert sorted(path for path in lake.rglob("*") if "_logs" not in path.parts) == before

    def test_a_table_without_gateways_sequences_or_statistics(self, lake: Path) -> None:
        lakes.write(lake, "clock_offsets", [lakes.clock_offset(gateway="gw9")])
        (path,) = paths(lake, "clock_offsets")
        path.unlink()
        done = drop(lake)
        assert (done.exit_code, "1 row, of gateway gw9\n" in done.stdout) == (0, True)
        (row,) = noted(lake)
        assert (row["source"], row["sequence_first"], row["gateway_first"]) == ("clock_offsets", None, "gw9")
        unknown = DamagedFile(DataFile("x", 1), "missing")
        assert dropping.record_losses(place_of(lake), "ledger", [unknown])["x"] == "missing"

    def test_two_damaged_files_of_one_name_are_both_kept(self, lake: Path) -> None:
        path = paths(lake)[0]
        kept = lake / "_damaged" / "telemetry" / path.parent.name
        name = str(path.relative_to(lake / "telemetry"))
        for content in (b"one", b"two", b"two"):
            path.write_bytes(content)
            dropping.move_away(place_of(lake), "telemetry", name)
            assert not path.exists()
        assert {each.name: each.read_bytes() for each in kept.iterdir()} == {
            path.name: b"one",
            f"{path.name}.2": b"two",
        }

    def test_what_the_log_says_of_partitions_with_special_characters(self, tmp_path: Path) -> None:
        """Only the damaged file is dropped, although the log escapes the names of all files."""
        names = ["a b", "ü/x%", "p=1:2", "plain"]
        for name in names:
            data = pa.table({"place": [name], "n": [1]})
            deltalake.write_deltalake(tmp_path / "ledger", data, mode="append", partition_by=["place"])
        assert [verified.problems for verified in verification.verify(tmp_path, ["ledger"])] == [()]
        for number, gone in enumerate(names):
            (path,) = (file.path for file in files(tmp_path, "ledger")[:1])
            (tmp_path / "ledger" / path).write_bytes(b"?")
            (found,) = verification.verify(tmp_path, ["ledger"])
            (out,) = dropping.drop(place_of(tmp_path), "ledger", found.damaged)
            assert (out.file.path, len(files(tmp_path, "ledger"))) == (path, 3 - number), gone

    def test_its_commit_says_that_rows_are_gone(self, lake: Path) -> None:
        """Readers that follow the commits of a table have to skip this commit."""
        path = paths(lake)[0]
        path.unlink()
        drop(lake)
        table = deltalake.DeltaTable(lake / "telemetry")
        assert table.history(1)[0]["operation"] == "FSCK"
        (removed,) = data_changes(lake / "telemetry", table.version())
        assert (Path(removed["path"]).name, removed["dataChange"]) == (path.name, True)


class TestInterrupted:
    """The command is killed between any two steps and run again."""

    STEPS = ("record_losses", "move_away", "remove_missing", "add_empty_files")

    @pytest.fixture
    def damaged(self, lake: Path) -> Path:
        """Lake with one missing file and two damaged ones."""
        for path, reason in zip(paths(lake), ("missing", "truncated", "damaged"), strict=False):
            HARMS[reason](path)
        return lake

    def finished(self, lake: Path) -> None:
        done = drop(lake)
        assert done.exit_code == 0, done.output
        for row in noted(lake):
            assert pq.read_table(lake / "telemetry" / row["path"], partitioning=None).num_rows == 0
        assert counted(lake) == {"gw3": ROWS, "gw4": ROWS}
        assert [(row["gateway_first"], row["reason"].split()[0]) for row in noted(lake)] == [
            ("gw0", "missing"),
            ("gw1", "truncated"),
            ("gw2", "damaged"),
        ]
        kept = [path for path in (lake / "_damaged").rglob("*.parquet*") if path.is_file()]
        assert len(kept) == 2

    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("done", [False, True])
    def test_between_the_steps(self, damaged: Path, monkeypatch: pytest.MonkeyPatch, step: str, done: bool) -> None:
        real = getattr(dropping, step)

        def killed(*arguments: Any) -> None:
            if done:
                real(*arguments)
            raise Killed

        (found,) = verification.verify(damaged, ["telemetry"])
        with monkeypatch.context() as patch:
            patch.setattr(dropping, step, killed)
            with pytest.raises(Killed):
                dropping.drop(place_of(damaged), "telemetry", found.damaged)
        self.finished(damaged)

    @pytest.mark.parametrize(
        ("operation", "after"),
        [*((name, number) for name in ("put_new", "delete") for number in (0, 1)), ("create", 0)]
        + [("make", number) for number in (0, 1, 2)],
    )
    def test_within_a_step(self, damaged: Path, monkeypatch: pytest.MonkeyPatch, operation: str, after: int) -> None:
        real, calls = getattr(Folder, operation), iter(range(after))

        def killed(*arguments: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return real(*arguments)

        (found,) = verification.verify(damaged, ["telemetry"])
        with monkeypatch.context() as patch:
            patch.setattr(Folder, operation, killed)
            with pytest.raises(Killed):
                dropping.drop(place_of(damaged), "telemetry", found.damaged)
        self.finished(damaged)

    def test_a_torn_copy_that_a_killed_process_left(self, damaged: Path) -> None:
        path = paths(damaged)[1]
        kept = damaged / "_damaged" / "telemetry" / path.parent.name
        kept.mkdir(parents=True)
        (kept / ".half.tmp").write_bytes(path.read_bytes()[:10])
        self.finished(damaged)

    def test_a_file_that_was_put_back_before_the_second_run_stays(self, damaged: Path, tmp_path: Path) -> None:
        path = paths(damaged)[3]
        copy = shutil.copy(path, tmp_path / "copy")
        truncate(path)
        (found,) = verification.verify(damaged, ["telemetry"])
        dropping.record_losses(place_of(damaged), "telemetry", found.damaged)
        shutil.copy(copy, path)
        assert drop(damaged).exit_code == 0
        assert counted(damaged) == {"gw3": ROWS, "gw4": ROWS}
        dropping.forget_restored(place_of(damaged))
        assert [row["gateway_first"] for row in noted(damaged)] == ["gw0", "gw1", "gw2"]


class TestTheWayBack:
    def test_a_copy_of_file_and_table_and_the_note_is_forgotten(self, lake: Path, tmp_path: Path) -> None:
        copy = shutil.copytree(lake / "telemetry", tmp_path / "copy")
        for path in paths(lake)[:2]:
            path.unlink()
        drop(lake)
        dropping.forget_restored(place_of(lake))
        assert len(noted(lake)) == 2, "nothing is back"
        shutil.rmtree(lake / "telemetry")
        shutil.copytree(copy, lake / "telemetry")
        assert sum(counted(lake).values()) == GATEWAYS * ROWS
        dropping.forget_restored(place_of(lake))
        assert noted(lake) == []

    def test_notes_of_jobs_and_of_tables_that_cannot_be_read_stay(self, lake: Path) -> None:
        place, path = place_of(lake), files(lake)[0]
        dropping.forget_restored(place)
        assert not (lake / "set_aside").exists()
        dropping.record_losses(place, "telemetry", [DamagedFile(path, "damaged")])
        dropping.record_losses(place, "ledger", [DamagedFile(path, "damaged")])
        row = noted(lake)[0] | {"job": "readings", "source": "telemetry"}
        table = place.at("set_aside").delta()
        rows = pa.Table.from_pylist([row], schema=pa.schema(table.schema().to_arrow()))
        deltalake.write_deltalake(table, rows, mode="append")
        dropping.forget_restored(place)
        assert {(row["source"], row["job"]) for row in noted(lake)} == {("ledger", "verify"), ("telemetry", "readings")}


class TestRefused:
    def test_a_derived_table_that_is_named(self, lake: Path) -> None:
        deltalake.write_deltalake(lake / "gaps", pa.table({"n": [1]}))
        paths(lake, "gaps")[0].unlink()
        done = drop(lake, "telemetry", "gaps")
        assert (done.exit_code, "`waypost lake rebuild`" in done.stderr) == (2, True)

    def test_a_table_that_nobody_makes_anew(self, lake: Path) -> None:
        assert invoke("schema", "add", "a/+", "--format", "json", "--lake", lake).exit_code == 0
        assert drop(lake, "payload_schemas").exit_code == 2
        paths(lake, "payload_schemas")[0].unlink()
        done = drop(lake)
        assert (done.exit_code, len(paths(lake, "payload_schemas"))) == (4, 1)
        assert "nothing was removed from payload_schemas: restore its files from copies" in done.stderr

    def test_an_unknown_table(self, lake: Path) -> None:
        done = drop(lake, "dreams")
        assert (done.exit_code, "no table named 'dreams'" in done.stderr) == (2, True)

    def test_derived_tables_are_left_and_the_hint_is_given(self, lake: Path) -> None:
        deltalake.write_deltalake(lake / "gaps", pa.table({"n": [1]}))
        for path in (paths(lake, "gaps")[0], paths(lake)[0]):
            path.unlink()
        done = drop(lake)
        assert done.exit_code == 4
        assert "nothing was removed from gaps: repair it with `waypost lake rebuild`" in done.stderr
        assert (len(files(lake, "gaps")), len(counted(lake))) == (1, GATEWAYS - 1)

    @pytest.mark.parametrize("content", [b"", b'{"add":{"pa'])
    def test_a_table_with_a_damaged_log(self, lake: Path, content: bytes) -> None:
        """A damaged log has no list of files, so the command drops none."""
        path = paths(lake)[0]
        path.unlink()
        entry = lake / "telemetry" / "_delta_log" / f"{2:020}.json"
        entry.write_bytes(content)
        done = drop(lake)
        assert done.exit_code == 4
        assert "table telemetry cannot be read" in done.stderr
        assert "nothing was removed from telemetry" in done.stderr
        assert not (lake / "set_aside").exists()

    def test_while_a_pass_runs(self, lake: Path) -> None:
        paths(lake)[0].unlink()
        with pass_lock.hold(lake):
            done = drop(lake)
        assert (done.exit_code, "another pass" in done.stderr, (lake / "set_aside").exists()) == (1, True, False)

    def test_notes_that_cannot_be_written(self, lake: Path) -> None:
        """No file is dropped before it is recorded."""
        paths(lake)[0].unlink()
        (lake / "set_aside" / "_delta_log").mkdir(parents=True)
        (lake / "set_aside" / "_delta_log" / f"{0:020}.json").write_text("half")
        done = drop(lake, "telemetry")
        assert (done.exit_code, len(files(lake))) == (4, GATEWAYS)
        assert "not all damaged files were removed from telemetry: table set_aside cannot be read" in done.stderr

    @pytest.mark.parametrize(
        "refusal",
        [ObjectStoreError("the store does not answer"), PermissionError(errno.EACCES, "no"), MemoryError("full")],
    )
    def test_files_that_cannot_be_read_now_are_not_damaged(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
    ) -> None:
        def refused(*_: object) -> Path:
            raise refusal

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "source", refused)
            done = drop(lake)
        assert (done.exit_code, "could not be checked" in done.stderr, "dropped" in done.output) == (4, True, False)
        assert sum(counted(lake).values()) == GATEWAYS * ROWS

    def test_a_medium_that_has_lost_a_file(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lost file counts as damaged, and stays in the table until it can be moved."""

        def lost(*_: object) -> Path:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(Folder, "source", lost)
        (found,) = verification.verify(lake, ["telemetry"])
        assert [each.reason for each in found.damaged] == ["damaged"] * GATEWAYS


class TestBeside:
    """Concurrent hub, maintenance and readers."""

    def test_the_hub_goes_on(self, lake: Path) -> None:
        hub = landed.LakeTable.open(lake, "telemetry")
        paths(lake)[0].unlink()
        assert drop(lake).exit_code == 0
        columns = schemas.LANDED["telemetry"].arrow
        data = [{name: message(0, gateway="gw9").get(name) for name in columns.names}]
        hub.append(pa.Table.from_pylist(data, schema=columns))
        assert counted(lake)["gw9"] == 1

    def test_a_commit_of_the_hub_between_check_and_repair(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        paths(lake)[0].unlink()
        real = dropping.move_away

        def meanwhile(*arguments: Any) -> None:
            real(*arguments)
            land(lake, "gw9")

        monkeypatch.setattr(dropping, "move_away", meanwhile)
        assert drop(lake).exit_code == 0
        assert counted(lake) == {f"gw{number}": ROWS for number in (1, 2, 3, 4, 9)}

    def test_files_that_go_missing_meanwhile_are_recorded_too(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """delta-rs drops every missing file, including ones deleted during the run."""
        first, second, third = paths(lake)[:3]
        truncate(first)
        (found,) = verification.verify(lake, ["telemetry"])
        second.unlink()
        real = dropping.remove_missing

        def meanwhile(place: LakePlace) -> list[str]:
            third.unlink()
            return real(place)

        monkeypatch.setattr(dropping, "remove_missing", meanwhile)
        out = dropping.drop(place_of(lake), "telemetry", found.damaged)
        assert [each.reason.split()[0] for each in out] == ["truncated", "missing", "missing"]
        assert [row["gateway_first"] for row in noted(lake)] == ["gw0", "gw1", "gw2"]
        assert counted(lake) == {"gw3": ROWS, "gw4": ROWS}

    def test_a_commit_that_takes_files_away_at_the_same_moment(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """delta-rs refuses to commit the repair; no row is lost, and the next run repairs the table."""
        paths(lake)[0].unlink()
        second = paths(lake)[1]
        real = deltalake.DeltaTable.repair

        def overtaken(table: deltalake.DeltaTable, dry_run: bool = False) -> dict[str, Any]:
            if not dry_run:
                second.unlink()
                real(deltalake.DeltaTable(table.table_uri))
            return real(table, dry_run)

        with monkeypatch.context() as patch:
            patch.setattr(deltalake.DeltaTable, "repair", overtaken)
            done = drop(lake)
        assert done.exit_code == 4
        assert "another program changed the table at the same time. Run the command again" in done.stderr
        assert drop(lake).exit_code == 0

    def test_what_is_kept_is_no_table_and_upkeep_leaves_it(self, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        truncate(paths(lake)[0])
        assert drop(lake).exit_code == 0
        (kept,) = (path for path in (lake / "_damaged").rglob("*") if path.is_file())
        assert place_of(lake).tables() == ["set_aside", "telemetry"]
        monkeypatch.setattr(maintenance, "FOLLOWED_KEPT_HOURS", 0)
        monkeypatch.setattr(maintenance, "KEPT_HOURS", 0)
        monkeypatch.setattr(maintenance, "UNNAMED_KEPT_HOURS", 0)
        (row,) = noted(lake)
        assert (lake / "telemetry" / row["path"]).exists()
        done = invoke("maintain", "--lake", lake)
        assert (done.exit_code, "_damaged" in done.output, kept.exists()) == (0, False, True)
        assert not (lake / "telemetry" / row["path"]).exists(), "no stream that old goes on"
        monkeypatch.setattr(dropping, "FOLLOWED_KEPT_HOURS", 0)
        assert drop(lake).exit_code == 0
        assert not (lake / "telemetry" / row["path"]).exists()
        listed = invoke("query", "--lake", lake, "--json", "tables")
        assert (listed.exit_code, "set_aside" in listed.stdout, "_damaged" in listed.stdout) == (0, True, False)
        assert invoke("query", "--lake", lake, "SELECT * FROM _damaged").exit_code != 0
        drawn = invoke("report", "--lake", lake, "--json")
        assert (drawn.exit_code, "_damaged" in drawn.stdout) == (0, False)
        assert '"job":"verify"' in drawn.stdout.replace(" ", "")


class TestBucket:
    @pytest.fixture
    def bucket(self, store: ObjectStore, request: pytest.FixtureRequest) -> Iterator[LakePlace]:
        place = place_of(f"s3://{BUCKET}/{request.node.name}/lake")
        for number in range(GATEWAYS):
            lakes.write(place, "telemetry", [message(n, gateway=f"gw{number}") for n in range(ROWS)])
        yield place
        place.clear()

    def spoil(self, bucket: LakePlace, spoilt: Sequence[Callable[[bytes], bytes] | None]) -> None:
        table = bucket.at("telemetry")
        for file, how in zip(files(bucket), spoilt, strict=False):
            content = table.read(file.path)
            assert content is not None
            table.delete(file.path)
            if how is not None:
                table.put_new(file.path, how(content))

    def test_taken_out_and_kept(self, bucket: LakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
        names = [file.path for file in files(bucket)]
        self.spoil(bucket, [None, lambda content: content[:-9], lambda content: bytes(len(content))])
        with monkeypatch.context() as patch:
            patch.setattr(dropping, "remove_missing", lambda _: (_ for _ in ()).throw(ObjectStoreError("it is late")))
            late = drop(bucket)
            assert (late.exit_code, "it is late. Run the command again" in late.stderr) == (4, True)
        done = drop(bucket)
        assert done.exit_code == 0, done.output
        assert counted(bucket) == {"gw3": ROWS, "gw4": ROWS}
        assert [row["reason"].split()[0] for row in noted(bucket)] == ["missing", "truncated", "damaged"]
        kept = bucket.at("_damaged/telemetry")
        assert [kept.size(name) is not None for name in names] == [False, True, True, False, False]
        assert bucket.tables() == ["set_aside", "telemetry"]
        assert invoke("verify", "--lake", bucket).exit_code == 0


def test_an_old_table_is_checked_without_the_entries_that_a_checkpoint_has(lake: Path) -> None:
    log = lake / "telemetry" / "_delta_log"
    deltalake.DeltaTable(lake / "telemetry").create_checkpoint()
    land(lake, "gw9")
    for version in range(3):
        (log / f"{version:020}.json").unlink()
    assert [verified.problems for verified in verification.verify(lake, ["telemetry"])] == [()]
    entry = sorted(log.glob("*.json"))[-1]
    entry.write_bytes(b"")
    (verified,) = verification.verify(lake, ["telemetry"])
    assert str(entry) in str(verified.failure)


def test_entries_beyond_the_newest_are_not_read(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with a commit each second has 600 000 entries."""
    monkeypatch.setattr(verification, "LOG_ENTRIES_MAX", 3)
    read: list[str] = []
    real = Folder.read

    def noticed(folder: Folder, path: str) -> bytes | None:
        read.append(path)
        return real(folder, path)

    monkeypatch.setattr(Folder, "read", noticed)
    assert [verified.problems for verified in verification.verify(lake, ["telemetry"])] == [()]
    assert len(read) == 3
