"""Jobs on a cluster: a master and two workers of Spark's own kind, lake and progress on an object store."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

from cloud.place.place import parse
from spark import java, submit
from spark.connector.jar_set import S3
from tests.spark import lakes
from tests.spark.lakes import message
from tests.support.s3 import BUCKET, KEYS, ObjectStore
from tests.support.standalone_cluster import HOME, SECRET, StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LAKE = f"s3://{BUCKET}/lake"
RUN_S = 900
"""A pass on a busy machine of two cores, with five JVMs."""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """An archive with a Python that has other people's packages, and none of ours."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, arcname=".")
    return archive


class Seen:
    """Every command line of this machine while something runs."""

    def __init__(self) -> None:
        self.lines: set[bytes] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,))
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.lines.add(path.read_bytes())
                except OSError:
                    continue


def land(first: int, last: int) -> None:
    lakes.write(LAKE, "telemetry", [message(number, body=b"%d.5" % number) for number in range(first, last + 1)])


def read() -> list[tuple[int, float]]:
    rows: list[dict[str, Any]] = (
        parse(LAKE).at("readings").delta().to_pyarrow_table(columns=["sequence", "value"]).to_pylist()
    )
    return sorted((row["sequence"], row["value"]) for row in rows)


@pytest.mark.timeout(2 * RUN_S + 300)
def test_by_its_address_and_by_spark_submit(store: ObjectStore, packed: Path, tmp_path: Path) -> None:
    seen = Seen()
    with StandaloneCluster(tmp_path / "cluster") as cluster, seen.watching():
        environment = {
            **store.environment(),
            "SPARK_CONF_DIR": str(cluster.configuration),
            "JAVA_HOME": str(java.find().home),
            "SPARK_HOME": str(HOME),
            "PYTHONPATH": str(ROOT),
            "HOME": os.fspath(tmp_path),
        }
        settings = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
        settings += ["--conf", f"spark.archives={packed}#environment"]
        settings += ["--conf", "spark.pyspark.python=./environment/bin/python"]
        job = ["run", "--lake", LAKE, "--job", "readings"]

        land(0, 9)
        run([sys.executable, "-m", "spark.cli", *job, "--master", cluster.master, *settings], environment)
        assert read() == [(number, number + 0.5) for number in range(10)]

        land(10, 14)
        submit_program = str(HOME / "bin" / "spark-submit")
        jars = ["--jars", ",".join(map(str, S3.with_beside()))]
        python = ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
        command = [submit_program, "--master", cluster.master, *jars, *settings, *python, str(submit.__file__), *job]
        run(command, environment)
        assert read() == [(number, number + 0.5) for number in range(15)]
        shown = cluster.pages()
    assert shown.count("FINISHED") >= 2
    everywhere = b"".join(seen.lines).decode(errors="replace") + shown + cluster.logs()
    assert "CoarseGrainedExecutorBackend" in everywhere
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in everywhere
    assert SECRET not in everywhere


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(RUN_S)
def test_submitted_without_its_jars_it_says_so(store: ObjectStore) -> None:
    land(0, 0)
    environment = {**store.environment(), "JAVA_HOME": str(java.find().home), "PYTHONPATH": str(ROOT)}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[1]", str(submit.__file__), "run", "--lake", LAKE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 2
    assert "spark.setup jars s3` prints" in done.stderr
