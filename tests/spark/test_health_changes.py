"""Health of devices made of what has changed: the same as of all days, and only the last days are read for it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cloud.place.place import Place
from spark import columns, delta_log, schemas
from spark.here import device_days
from spark.here import device_health as here
from spark.jobs import changes
from spark.jobs import health as job
from spark.jobs.snapshot import Snapshot
from spark.provenance import Provenance
from spark.tables import Lake
from spark.transaction import Transaction
from spark.transforms import health
from tests.spark.lakes import START, Row
from tests.spark.test_device_health_here import by_key, day, near
from tests.support.seeds import chosen_seed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Frames = Mapping[str, "DataFrame"] | Mapping[str, pa.Table]
SEED = 20_261_129
DAYS = "device_days"
LONG_AGO = 100
"""Days: no gateway's health is of them any more."""


class Fleet:
    """A lake whose `device_days` rows are given, by how many days ago they are; counts what reads all of them."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.commits, self.whole = lake, 0, 0
        self._randoms = random.Random(chosen_seed(SEED))
        _, step = job.JOB.steps
        assert isinstance(step, Snapshot)
        self.frames = step.frames
        self.step = replace(step, frames=self._counted)
        lake.ensure("device_days")

    def _counted(self, lake: Lake) -> Frames:
        self.whole += 1
        return self.frames(lake)

    def day(self, ago: int, **override: Any) -> Row:
        return day(self._randoms, ago, **override)

    def heard(self, ago: int, **override: Any) -> None:
        """A day of a device, in one commit."""
        self.add([self.day(ago, **{"tenant": "t", "gateway": "g", "device": "d"} | override)])

    def add(self, rows: Sequence[Row]) -> None:
        self.commits += 1
        found = pa.Table.from_pylist(one_each(rows), schemas.DEVICE_DAYS.arrow)
        mark = Transaction("device_days", self.commits)
        assert self.lake.fold_here("device_days", found, device_days.combined, mark)

    def run(self) -> None:
        self.step.run(self.lake)

    def found(self) -> dict[tuple[Any, ...], Row]:
        return by_key(pa.concat_tables(self.lake.read_here("device_health", schemas.DEVICE_HEALTH.columns.names)))

    def expected(self) -> dict[tuple[Any, ...], Row]:
        """Sums of doubles depend on the order of the files, in the last digits."""
        return {key: near(row) for key, row in by_key(self.expected_table()).items()}

    def expected_table(self) -> pa.Table:
        """Of all days, in this process."""
        found = self.frames(self.lake)["device_health"]
        assert isinstance(found, pa.Table)
        return found

    def version(self) -> int:
        state = self.lake.state("device_days")
        assert state is not None
        return state.version


def one_each(rows: Sequence[Row]) -> list[Row]:
    return list({tuple(row[name] for name in schemas.DEVICE_DAYS.keys): row for row in rows}.values())


def dated(ago: int) -> date:
    return (START - timedelta(days=ago)).date()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(Lake(None, tmp_path / "lake", here=True))


class Reads:
    """What was read of tables: which files, for which columns."""

    def __init__(self) -> None:
        self._read: list[tuple[str, list[str], list[str]]] = []
        self._columns_read = columns.read

    def read(self, place: Place, files: Sequence[delta_log.File], schema: pa.Schema) -> Iterator[pa.Table]:
        self._read.append((place.name, [file.path for file in files], schema.names))
        return self._columns_read(place, files, schema)

    def of_days(self, names: Sequence[str]) -> list[date]:
        """The dates of the files of `device_days` of which these columns were read since the last question."""
        paths = [path for table, paths, read in self._read for path in paths if (table, read) == (DAYS, list(names))]
        return sorted(date.fromisoformat(path.partition("=")[2].partition("/")[0]) for path in paths)

    def clear(self) -> None:
        self._read = []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    monkeypatch.setattr(columns, "read", found.read)
    return found


def batch(fleet: Fleet, randoms: random.Random, since: int, until: int) -> list[Row]:
    """From so many days ago on: some gateways sleep for months, some send what is old, some devices are gone."""
    names = [(tenant, gateway) for tenant in "tu" for gateway in ("g", "h", "gé")]
    awake = randoms.sample(names, randoms.randrange(1, 5))
    rows = []
    for ago in range(since, until, -1):
        for tenant, gateway in awake:
            devices = randoms.sample(range(5), randoms.randrange(4))
            rows += [fleet.day(ago, tenant=tenant, gateway=gateway, device=f"d{number}") for number in devices]
    late = [fleet.day(randoms.randrange(until + 1, 200)) for _ in range(randoms.choice((0, 0, 1, 5)))]
    return rows + late


def compact(fleet: Fleet, randoms: random.Random) -> None:
    """Upkeep: small files put together, those that were replaced deleted at once."""
    for name in (DAYS, "device_health"):
        table = fleet.lake.at(name).delta()
        table.optimize.compact()
        table.update_incremental()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        if randoms.random() < 0.5:
            table.create_checkpoint()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(3))
def test_it_is_what_all_days_give_batch_by_batch(fleet: Fleet, number: int) -> None:
    randoms = random.Random(chosen_seed(SEED) + number)
    since, passes = 150, 0
    while since > 0:
        until = max(0, since - randoms.choice((1, 1, 2, 5, 12, 40)))
        if rows := batch(fleet, randoms, since, until):
            fleet.add(rows)
        since = until
        if randoms.random() < 0.15:
            compact(fleet, randoms)
        if fleet.commits and randoms.random() < 0.8:  # else it was stopped between the two steps
            fleet.run()
            passes += 1
            assert fleet.found() == fleet.expected()
    fleet.run()
    assert fleet.found() == fleet.expected()
    assert passes > 5
    assert fleet.whole == 1


def test_only_the_last_days_of_gateways_that_were_heard_are_read(fleet: Fleet, reads: Reads) -> None:
    for ago in range(LONG_AGO, 0, -1):
        fleet.heard(ago)
    for ago in range(90, 70, -1):
        fleet.heard(ago, gateway="asleep")
    fleet.run()
    assert {*reads.of_days(here.DAY)} == {dated(ago) for ago in range(LONG_AGO, 0, -1)}
    fleet.heard(0)
    reads.clear()
    fleet.run()
    assert reads.of_days(here.HEARD) == [dated(0)]
    assert reads.of_days(here.DAY) == [dated(ago) for ago in range(29, -1, -1)]
    reads.clear()
    fleet.run()
    assert reads.of_days(here.HEARD) == reads.of_days(here.DAY) == []
    assert fleet.found() == fleet.expected()
    assert fleet.whole == 1


def test_what_comes_too_late_for_its_gateway_changes_nothing(fleet: Fleet, reads: Reads) -> None:
    for ago in (LONG_AGO, 40, 20, 0):
        fleet.heard(ago)
    fleet.heard(LONG_AGO, gateway="asleep")
    fleet.run()
    before = fleet.found()
    reads.clear()
    fleet.heard(LONG_AGO, device="late")
    fleet.heard(30, device="late")
    fleet.run()
    assert reads.of_days(here.HEARD) == [dated(LONG_AGO), dated(30)]
    assert reads.of_days(here.DAY) == []
    assert fleet.found() == before == fleet.expected()
    fleet.heard(29, device="late")
    fleet.run()
    assert fleet.found().keys() == {("t", "g", "d"), ("t", "g", "late"), ("t", "asleep", "d")}
    assert fleet.found() == fleet.expected()
    assert fleet.whole == 1


def test_a_gateway_that_comes_back_forgets_what_it_had(fleet: Fleet, reads: Reads) -> None:
    for tenant in "tu":
        for device in ("old", "kept"):
            fleet.heard(LONG_AGO, tenant=tenant, device=device)
    fleet.run()
    reads.clear()
    fleet.heard(5, device="kept")
    fleet.run()
    assert reads.of_days(here.DAY) == [dated(5)]
    assert fleet.found().keys() == {("t", "g", "kept"), ("u", "g", "old"), ("u", "g", "kept")}
    assert fleet.found() == fleet.expected()
    assert fleet.whole == 1


def test_a_file_whose_path_has_no_date_is_read(fleet: Fleet, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    for ago in (LONG_AGO, 0):
        fleet.heard(ago)
    fleet.run()
    monkeypatch.setattr(job, "_date", lambda _: None)
    fleet.heard(0, device="new")
    reads.clear()
    fleet.run()
    assert dated(LONG_AGO) in reads.of_days(here.DAY)
    assert fleet.found() == fleet.expected()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("event_date=2026-03-14/part-0.parquet", date(2026, 3, 14)),
        ("event_date=__HIVE_DEFAULT_PARTITION__/part-0.parquet", None),
        ("part-0.parquet", None),
    ],
)
def test_a_path_says_of_which_date_its_rows_are(path: str, expected: date | None) -> None:
    assert job._date(delta_log.File(path, 1)) == expected


def _days_anew(fleet: Fleet) -> None:
    fleet.lake.recreate(DAYS)
    fleet.heard(0, device="other")


def _days_deleted(fleet: Fleet) -> None:
    """Some of a file, the rest of which is written anew."""
    fleet.lake.at(DAYS).delta().delete("device = 'gone'")


def _days_put_back(fleet: Fleet) -> None:
    """A copy from before the pass, to which others have added since."""
    table = Path(fleet.lake.at(DAYS).uri)
    version = fleet.version()
    shutil.rmtree(table)
    shutil.copytree(table.with_name("copy"), table)
    while fleet.version() < version:
        fleet.heard(0, device="since")


def _commit_gone(fleet: Fleet) -> None:
    fleet.heard(0, device="since")
    at = fleet.version()
    fleet.heard(0, device="and since")
    fleet.lake.at(DAYS).delta().create_checkpoint()
    (Path(fleet.lake.at(DAYS).uri) / "_delta_log" / f"{at:020}.json").unlink()


def _health_anew(fleet: Fleet) -> None:
    fleet.lake.recreate("device_health")


def _health_damaged(fleet: Fleet) -> None:
    place = fleet.lake.at("device_health")
    for file in delta_log.files(place.delta()):
        (Path(place.uri) / file.path).write_bytes(b"PAR1")


def _health_of_another(fleet: Fleet) -> None:
    """Of a program that computes otherwise, in between."""
    rows = fleet.expected_table().slice(0, 0)
    replace(fleet.step, revision=99, update=None, frames=lambda _: {"device_health": rows}).run(fleet.lake)


def _health_of_unknown(fleet: Fleet) -> None:
    rows = fleet.expected_table().slice(0, 0)
    fleet.lake.overwrite("device_health", rows, Transaction("unknown", 1), None)


def _health_says_too_much(fleet: Fleet) -> None:
    """As one may whose days another pass added to while it read them."""
    fleet.heard(0, device="seen")
    mark, rows = fleet.step._mark(fleet.step._states(fleet.lake)), fleet.expected_table()
    fleet.heard(0, device="unseen", gateway="unseen")
    state = fleet.lake.state(DAYS)
    assert state is not None
    assert fleet.lake.overwrite("device_health", rows, mark, Provenance({DAYS: state}))


@pytest.mark.parametrize(
    "disturb",
    [
        _days_anew,
        _days_deleted,
        _days_put_back,
        _commit_gone,
        _health_anew,
        _health_damaged,
        _health_of_another,
        _health_of_unknown,
        _health_says_too_much,
    ],
)
def test_all_days_are_read_where_it_is_not_told_what_has_changed(
    fleet: Fleet, disturb: Callable[[Fleet], None]
) -> None:
    fleet.add([fleet.day(3, tenant="t", gateway=name, device=name) for name in ("kept", "gone")])
    table = Path(fleet.lake.at(DAYS).uri)
    shutil.copytree(table, table.with_name("copy"))
    fleet.heard(1, gateway="lost", device="lost")
    fleet.run()
    fleet.heard(2)
    fleet.run()
    assert fleet.whole == 1
    disturb(fleet)
    fleet.heard(0, device="new")
    fleet.run()
    assert fleet.whole == 2
    assert fleet.found() == fleet.expected()
    fleet.heard(0, device="newer")
    fleet.run()
    assert fleet.whole == 2
    assert fleet.found() == fleet.expected()


@pytest.mark.parametrize(("limit", "value"), [("COMMITS_MAX", 2), ("DEVICES_MAX", 2), ("HERE_BYTES_MAX", 1)])
def test_what_is_too_much_is_made_of_all_days(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Each just within its limit, and beyond it."""
    for device in ("a", "b"):
        fleet.heard(1, device=device)
    fleet.run()
    monkeypatch.setattr({"COMMITS_MAX": changes, "DEVICES_MAX": job, "HERE_BYTES_MAX": here}[limit], limit, value)
    within = limit != "HERE_BYTES_MAX"
    if within:
        for _ in range(2):
            fleet.heard(0, device="b")
        fleet.run()
        assert fleet.whole == 1
        for _ in range(3):
            fleet.heard(0, device="c")
        fleet.run()
        if limit == "DEVICES_MAX":
            assert fleet.whole == 1  # two were there
            fleet.heard(0, device="c")
            fleet.run()
        assert fleet.whole == 2
        assert fleet.found() == fleet.expected()
    else:
        fleet.heard(0, device="b")
        assert fleet.step.update is not None
        state, made_of = fleet.lake.state("device_health"), fleet.lake.provenance("device_health")
        assert state is not None
        assert made_of is not None
        assert fleet.step.update(fleet.lake, state, made_of) is None


def test_a_description_never_says_more_than_was_read(fleet: Fleet) -> None:
    """Another pass adds days while this one reads them."""
    fleet.heard(1)
    version = fleet.version()

    def overtaken(lake: Lake) -> Frames:
        found = fleet.frames(lake)
        fleet.heard(0, gateway="meanwhile")
        return found

    replace(fleet.step, frames=overtaken).run(fleet.lake)
    made_of = fleet.lake.provenance("device_health")
    assert made_of is not None
    assert made_of.sources[DAYS].version == version
    fleet.run()
    assert fleet.found() == fleet.expected()
    assert ("t", "meanwhile", "d") in fleet.found()
    assert fleet.whole == 0


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_it_goes_on_from_what_spark_has_made(larger: Lake) -> None:
    ours = Fleet(Lake(None, larger.place, here=True))
    for ago in (LONG_AGO, 20, 0):
        ours.heard(ago)
    ours.heard(50, gateway="other")
    ours.step.run(larger)
    assert ours.whole == 1
    row = ours.day(0, tenant="t", gateway="g", device="by spark")
    frame = larger.frame(DAYS, pa.Table.from_pylist([row], schemas.DEVICE_DAYS.arrow))
    larger.fold(DAYS, frame, health.FOLD, Transaction("theirs", 1))
    ours.run()
    assert ours.whole == 1
    assert ("t", "g", "by spark") in ours.found()
    assert ours.found() == ours.expected()
