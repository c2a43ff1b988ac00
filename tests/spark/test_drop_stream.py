"""A stream with a checkpoint continues after `verify --drop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cloud.place.bucket import Bucket
from cloud.place.folder import Folder
from cloud.place.options import from_environment
from cloud.place.place import LakePlace
from spark import dropping, object_store, verification
from spark.data_files import list_files
from tests.spark import lakes
from tests.spark.conftest import forget_clients
from tests.spark.lakes import message
from tests.support.s3 import BUCKET, ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> LakePlace:
    """Empty lake that the session can reach."""
    if request.param == "folder":
        return Folder(tmp_path / "lake")
    store: ObjectStore = request.getfixturevalue("store")
    bucket = Bucket(BUCKET, "stream/lake", from_environment(store.environment()))
    forget_clients(spark)
    object_store.configure_bucket(spark, bucket)
    return bucket


def land(lake: LakePlace, *gateways: str) -> None:
    """Write one commit for each gateway. Its file is larger than an empty one."""
    for gateway in gateways:
        rows = [message(number, gateway=gateway, body=b"%d" % number * 99) for number in range(300)]
        lakes.write(lake, "telemetry", rows)


def streamed(spark: SparkSession, lake: LakePlace, checkpoint: Path) -> dict[str, int]:
    """Return the rows by gateway that a stream reads when it resumes from a checkpoint."""
    found: dict[str, int] = {}

    def take(rows: DataFrame, _: int) -> None:
        found.update({row.gateway: row["count"] for row in rows.groupBy("gateway").count().collect()})

    source = spark.readStream.format("delta").option("skipChangeCommits", "true")
    sink = source.load(lake.at("telemetry").spark_uri).writeStream.foreachBatch(take)
    sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return found


def test_it_goes_on(spark: SparkSession, lake: LakePlace, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    land(lake, "gw0", "gw1")
    assert streamed(spark, lake, checkpoint) == {"gw0": 300, "gw1": 300}
    land(lake, "gw2", "gw3", "gw4", "gw5")
    missing, truncated = list_files(lake.at("telemetry").delta())[2:4]
    table = lake.at("telemetry")
    content = table.read(truncated.path)
    assert content is not None
    for file in (missing, truncated):
        table.delete(file.path)
    table.put_new(truncated.path, content[:-20])
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        streamed(spark, lake, checkpoint)
    (found,) = verification.verify(lake, ["telemetry"])
    assert len(dropping.drop(lake, "telemetry", found.damaged)) == 2
    assert streamed(spark, lake, checkpoint) == {"gw4": 300, "gw5": 300}
    land(lake, "gw6")
    assert streamed(spark, lake, checkpoint) == {"gw6": 300}
