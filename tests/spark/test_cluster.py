"""Jobs on a Spark standalone cluster: a master, two workers, with lake and progress on an object store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy
import pytest

from cloud.place.place import parse
from spark import java, submit
from spark.lake import SparkLake
from tests.spark import lakes, mixed, oracle
from tests.spark.lakes import message
from tests.support.processes import wait_until
from tests.support.s3 import BUCKET, KEYS, ObjectStore
from tests.support.seeds import chosen_seed
from tests.support.standalone_cluster import HOME, SECRET, StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20_261_129
LAKE = f"s3://{BUCKET}/lake"
RUN_S = 900
"""Longest pass on a busy machine of two cores, with five JVMs."""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Build an archive with a Python that has third-party packages but none of ours."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(numpy.__file__).parents[1]}\n")
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, arcname=".")
    return archive


class Seen:
    """Every command line of this machine during a run."""

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
        while not over.wait(0.5):
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


def lines() -> list[str]:
    """Return the commands of the README's section, one on each line."""
    section = (ROOT / "docs" / "how-to" / "run-analytics.md").read_text().partition("## On a cluster")[2]
    (block, *_) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block).replace("\\\n", " ").splitlines()


@pytest.mark.timeout(2 * RUN_S + 300)
def test_the_readmes_lines_by_its_address_and_by_spark_submit(store: ObjectStore, packed: Path, tmp_path: Path) -> None:
    by_address, by_submit, *_ = lines()
    assert by_address.startswith("waypost ")
    assert by_submit.startswith("spark-submit ")
    seen = Seen()
    with StandaloneCluster(tmp_path / "cluster") as cluster, seen.watching():
        environment = {
            **store.environment(),
            "SPARK_CONF_DIR": str(cluster.configuration),
            "JAVA_HOME": str(java.find().home),
            "PATH": f"{Path(sys.executable).parent}:{HOME / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
        }
        settings = [
            "spark.driver.host=127.0.0.1",
            "spark.executor.memory=512m",
            f"spark.archives={packed}#environment",
            "spark.pyspark.python=./environment/bin/python",
            f"spark.pyspark.driver.python={sys.executable}",
        ]
        options = " ".join(f"--conf '{setting}'" for setting in settings)

        def run(line: str) -> None:
            """Run the command of the README, except for the cluster's address and only one job."""
            here = line.replace("spark://HOST:7077", cluster.master).replace(" run ", " run --job readings ")
            program = 'waypost() { python -m edge.appliance.main "$@"; }\n'
            done = subprocess.run(
                ["bash", "-euc", program + here],
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr

        land(0, 9)
        run(f"{by_address.partition('#')[0]} {options}")
        assert read() == [(number, number + 0.5) for number in range(10)]
        land(10, 14)
        run(by_submit.replace("spark-submit ", f"spark-submit {options} ", 1))
        assert read() == [(number, number + 0.5) for number in range(15)]
        shown = cluster.pages()
    assert shown.count("FINISHED") >= 2
    everywhere = b"".join(seen.lines).decode(errors="replace") + shown + cluster.logs()
    assert "CoarseGrainedExecutorBackend" in everywhere
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in everywhere
    assert SECRET not in everywhere


_KEEPS: Final = """
import sys, time
from spark import session
master, python = sys.argv[1:]
settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.pyspark.python": python}
started = session.start("keeps", session.SessionOptions(master, settings=settings))
until = time.monotonic() + 120
while started.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver's own is one
    assert time.monotonic() < until, "no two executors have come"
    time.sleep(0.1)
kept = session.checkpoint(started.range(0, 1000, 1, 8))
print("kept", flush=True)
sys.stdin.readline()
print(kept.count(), flush=True)
session.stop(started)
"""


def executors(cluster: Path) -> list[int]:
    """Return the processes of a cluster's executors, each worker's in its own folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            where = (path / "cwd").readlink()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and where.is_relative_to(cluster):
            found.append(int(path.name))
    return found


@pytest.mark.timeout(RUN_S)
def test_what_was_kept_outlives_an_executor(tmp_path: Path) -> None:
    """A pass survives the loss of an executor with cached rows."""
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        environment = {
            "SPARK_CONF_DIR": str(cluster.configuration),
            "JAVA_HOME": str(java.find().home),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
        }
        command = [sys.executable, "-c", _KEEPS, cluster.master, sys.executable]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            assert driver.stdout.readline() == "kept\n"
            lost, *others = executors(tmp_path / "cluster")
            assert others
            os.kill(lost, signal.SIGKILL)
            driver.stdin.write("\n")
            driver.stdin.flush()
            assert driver.stdout.readline() == "1000\n"
        assert driver.returncode == 0


@pytest.mark.timeout(2 * RUN_S)
@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_every_value_is_that_of_the_oracle_after_a_pass_that_lost_half_of_the_cluster(
    tmp_path: Path, victim: str
) -> None:
    """An executor or a worker is killed while jobs compute with what the readings have just committed."""
    lake, folder, log = tmp_path / "lake", tmp_path / "cluster", tmp_path / "pass.log"
    landings = mixed.landings(chosen_seed(SEED), 1, scale=0.3)
    landings[0].write(lake)
    settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m")
    options = [word for setting in settings for word in ("--conf", setting)]
    with StandaloneCluster(folder) as cluster, log.open("w") as said:
        environment = {
            "SPARK_CONF_DIR": str(cluster.configuration),
            "JAVA_HOME": str(java.find().home),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
        }
        command = [sys.executable, "-P", "-m", "spark.cli", "run", "--lake", str(lake), "--master", cluster.master]
        with subprocess.Popen([*command, *options], env=environment, stdout=said, stderr=said) as driver:
            try:
                progress = SparkLake(None, lake)
                committed = "the first readings are committed"
                wait_until(lambda: (progress.version("readings") or 0) > 0, timeout_s=RUN_S, what=committed)
                lost, *others = executors(folder)
                assert others, "the pass has both executors"
                if victim == "executor":
                    os.kill(lost, signal.SIGKILL)
                else:
                    cluster.kill_worker()
                assert driver.poll() is None, "the pass is still running"
                assert driver.wait(RUN_S) == 0, log.read_text()
            finally:
                driver.kill()
    assert oracle.differences(lake, landings) == []


@pytest.mark.timeout(RUN_S)
def test_submitted_without_its_jars_it_says_so(store: ObjectStore) -> None:
    land(0, 0)
    environment = {**store.environment(), "JAVA_HOME": str(java.find().home), "PYTHONPATH": str(ROOT)}
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[1]", str(submit.__file__), "run", "--lake", LAKE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 2
    # spark-submit prints its program's output on its own standard output
    assert "spark.setup jars s3` prints" in done.stdout
