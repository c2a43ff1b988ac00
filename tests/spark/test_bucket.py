"""A lake on an object store, through Spark: one of several concurrent commits wins, and no row is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from cloud.place.bucket import Bucket
from cloud.place.options import from_environment
from spark import object_store, schemas
from spark.conflict import ConcurrentWrite
from spark.lake import SparkLake
from spark.sink import BatchTransaction, Sink
from tests.spark.conftest import Make, forget_clients
from tests.support.put_gate import PutGate
from tests.support.s3 import BUCKET, KEYS, ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

AT = datetime(2026, 3, 14, 9, 26, tzinfo=UTC)
CONDITIONAL = "waypost.ConditionalLogStore"
OF_DELTA = "io.delta.storage.S3SingleDriverLogStore"


@pytest.fixture(scope="module")
def gate(spark: SparkSession, store: ObjectStore) -> Iterator[PutGate]:
    """Proxy between the session and the store."""
    with PutGate(store.port) as gate:
        forget_clients(spark)
        object_store.configure_bucket(spark, Bucket(BUCKET, "", from_environment(store.environment(gate.port))))
        yield gate


@pytest.fixture
def lake(spark: SparkSession, store: ObjectStore, gate: PutGate, request: pytest.FixtureRequest) -> SparkLake:
    """Empty lake in the bucket; delta-rs does not use the proxy."""
    return SparkLake(spark, Bucket(BUCKET, request.node.originalname, from_environment(store.environment())))


def row(sequence: int) -> dict[str, Any]:
    words = ("tenant", "gateway", "epoch", "address", "device", "metric", "reason", "content_type")
    times = {"event_time": AT, "ingested_at": AT, "ingest_date": AT.date()}
    return {**dict.fromkeys(words, "x"), **times, "sequence": sequence, "body": b""}


def entry(version: int) -> str:
    return f"/_delta_log/{version:020}.json"


def by_delta_rs(lake: SparkLake, sequence: int) -> None:
    place = lake.at("reject")
    columns = schemas.DERIVED["reject"].arrow
    rows = pa.Table.from_pylist([row(sequence)], schema=columns)
    deltalake.write_deltalake(place.uri, rows, mode="append", storage_options=place.storage_options)


def write_job(lake: SparkLake, rows: DataFrame, version: int) -> None:
    Sink(lake, BatchTransaction("job", version), None).append("reject", rows)


def held(lake: SparkLake) -> list[int]:
    """Return the rows that delta-rs and Spark both find."""
    found = sorted(lake.at("reject").delta().to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())
    assert sorted(each["sequence"] for each in lake.read("reject").collect()) == found
    return found


class TestTwoWriters:
    def test_delta_rs_commits_before_spark(self, lake: SparkLake, gate: PutGate, frame: Make) -> None:
        """Spark deletes only the files that it read, so rows committed in between survive."""
        lake.ensure("reject")
        write_job(lake, frame("reject", row(1), row(2)), 1)
        gate.before_put_of(entry(2), lambda: by_delta_rs(lake, 7))
        remove = partial(Sink(lake, None, None).remove, "reject", frame("reject", row(1)), ("sequence", "ingest_date"))
        with pytest.raises(ConcurrentWrite, match="reject"):
            remove("true")
        assert held(lake) == [1, 2, 7]
        remove("true")
        assert held(lake) == [2, 7]

    @pytest.mark.parametrize(("log_store", "wins"), [(CONDITIONAL, b"theirs\n"), (OF_DELTA, b"ours\n")])
    def test_which_entry_stays(
        self, spark: SparkSession, lake: SparkLake, gate: PutGate, log_store: str, wins: bytes
    ) -> None:
        """With Delta's own store both writers see a successful commit, and one commit is lost."""
        place, name = lake.at(log_store), entry(1).removeprefix("/")
        gate.before_put_of(entry(1), lambda: place.put_new(name, b"theirs\n"))
        if log_store == CONDITIONAL:
            with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
                write(spark, log_store, f"{place.spark_uri}/{name}", "ours")
        else:
            write(spark, log_store, f"{place.spark_uri}/{name}", "ours")
        assert place.read(name) == wins


def write(spark: SparkSession, log_store: str, path: str, *actions: str) -> None:
    """Write an entry of a log as Delta's connector does."""
    context = spark.sparkContext
    java, hadoop = context._jvm, context._jsc.hadoopConfiguration()
    assert java is not None
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    found = java.java.lang.Class.forName(log_store, True, loader)
    made = found.getConstructors()[0].newInstance(java.PythonUtils.toArray([hadoop]))
    entries = java.java.util.ArrayList()
    for action in actions:
        entries.add(action)
    made.write(java.org.apache.hadoop.fs.Path(path), entries.iterator(), False, hadoop)


def test_an_answer_that_is_lost_is_no_conflict(spark: SparkSession, lake: SparkLake, gate: PutGate) -> None:
    """The client retries and is refused; the existing entry is its own."""
    place, name = lake.at("lost"), entry(1).removeprefix("/")
    gate.lose_answer_to_put_of(entry(1))
    write(spark, CONDITIONAL, f"{place.spark_uri}/{name}", "ours")
    assert place.read(name) == b"ours\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_read_and_folded_and_looked_after(lake: SparkLake, frame: Make) -> None:
    """Both clients append, merge, compact and rebuild the same tables in turn."""
    for version in range(1, 4):
        lake.ensure("reject")
        write_job(lake, frame("reject", row(version)), version)
    write_job(lake, frame("reject", row(3)), 3)
    lake.at("reject").delta().optimize.compact()
    assert held(lake) == [1, 2, 3]
    Sink(lake, None, None).remove("reject", frame("reject", row(2)), ("sequence", "ingest_date"), "old.metric = 'x'")
    assert held(lake) == [1, 3]
    files = lake.at("reject").delta().file_uris()
    assert len(files) == 1
    lake.recreate("reject")
    assert held(lake) == []


@pytest.mark.usefixtures("gate")
def test_nothing_secret_is_in_a_command_line() -> None:
    lines = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    assert b"java" in lines
    assert KEYS["AWS_SECRET_ACCESS_KEY"].encode() not in lines
