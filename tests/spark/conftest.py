"""Fixtures: one session and one JVM for all tests that need Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloud.place.bucket import Bucket
from cloud.place.options import BucketOptions as PlaceOptions
from spark import java, schemas, session
from spark.connector.jar_set import DELTA, S3
from spark.connector.repository import ConnectorMissing
from spark.lake import SparkLake
from tests.support.s3 import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., "DataFrame"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a small local session; skip if the connector or Java is not set up."""
    try:
        DELTA.paths()
        java.find()
    except (ConnectorMissing, java.JavaMissing) as missing:
        pytest.skip(str(missing))
    log = tmp_path_factory.mktemp("log") / "spark.log"
    options = session.SessionOptions(master="local[2]", load="tiny", log=log, bucket=_bucket())
    started = session.start("tests", options)
    yield started
    session.stop(started)


def _bucket() -> Bucket | None:
    """Return a bucket, so that the session can reach buckets; tests name their own later."""
    try:
        S3.paths()
    except ConnectorMissing:
        return None
    return Bucket("none", "", PlaceOptions())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SparkLake:
    """An empty lake."""
    return SparkLake(spark, tmp_path / "lake")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Yield an object store that the environment names; skip if its client is not set up."""
    try:
        S3.paths()
    except ConnectorMissing as missing:
        pytest.skip(str(missing))
    log = tmp_path_factory.mktemp("store") / "store.log"
    with ObjectStore(log) as running, pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment().items():
            environment.setenv(name, value)
        yield running


@pytest.fixture
def frame(spark: SparkSession) -> Make:
    """Return a function that builds a frame from dictionaries with a table's schema; missing columns are null."""

    def make(table: str, *rows: Mapping[str, Any]) -> DataFrame:
        columns = (schemas.LANDED.get(table) or schemas.DERIVED[table]).columns
        tuples = [tuple(row.get(name) for name in columns.names) for row in rows]
        return spark.createDataFrame(tuples, columns)

    return make


def forget_clients(spark: SparkSession) -> None:
    """Close Hadoop's clients of stores from other tests; Hadoop keeps one for each bucket name."""
    java: Any = spark.sparkContext._jvm
    java.org.apache.hadoop.fs.FileSystem.closeAll()
