"""A pass of every job on Kubernetes gives the tables of a pass on this machine, also if an executor is killed.

The driver is a command on this machine and executors are pods, as in the documentation. The lake is in an object store
on this machine. Pods must reach both, and the image must have the minor version of Python of the tests:
``KUBECONFIG=FILE WAYPOST_IMAGE=REGISTRY/waypost-analytics:1 ./waypost test tests/spark/test_kubernetes.py -m slow``
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from cloud.place.place import LakeLocation, place_of
from spark import java, schemas
from spark.connector.jar_set import S3
from spark.connector.repository import ConnectorMissing
from tests.spark import mixed, oracle
from tests.spark.comparison import Table, compared
from tests.spark.mixed import Landing
from tests.support import kubernetes_cluster
from tests.support.kubernetes_cluster import KubernetesCluster
from tests.support.processes import standing_still, wait_until
from tests.support.s3 import BUCKET, ObjectStore
from tests.support.seeds import chosen_seed

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT: Final = Path(__file__).parents[2]
SEED: Final = 20_261_129
PASS_S_MAX: Final = 1_200.0
"""Longest pass of every job on a busy machine of two cores."""
POD_S_MAX: Final = 300.0
"""Longest start of an executor, with the download of its image."""
ESTIMATED: Final = frozenset(("p50", "p95", "p50_s", "p95_s", "p99_s", "lag_p50_s", "lag_p95_s"))
"""Quantiles out of sketches, which choose at random: of two passes each is within the bounds of the oracle."""
TEST_S_MAX: Final = 2 * PASS_S_MAX + POD_S_MAX


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """Yield the cluster of KUBECONFIG; skip without one, without Java or without Spark's client of stores."""
    reason = kubernetes_cluster.missing()
    if reason is not None:
        pytest.skip(reason)
    try:
        S3.paths()
        java.find()
    except (ConnectorMissing, java.JavaMissing) as missing:
        pytest.skip(str(missing))
    with KubernetesCluster(tmp_path_factory.mktemp("kubernetes") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def store(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Yield an object store that pods reach and the environment names."""
    log = tmp_path_factory.mktemp("store") / "store.log"
    with ObjectStore(log, cluster.address) as running, pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment().items():
            environment.setenv(name, value)
        yield running


@pytest.fixture(scope="module")
def landed() -> Sequence[Landing]:
    """Return what lands in each lake, in several commits: each task reads some of their files."""
    (landing,) = mixed.landings(chosen_seed(SEED), 1, scale=0.6)
    return landing.parts(8)


@pytest.fixture(scope="module")
def expected(landed: Sequence[Landing], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake after a pass on this machine."""
    folder = tmp_path_factory.mktemp("here")
    land(folder / "lake", landed)
    with running_pass(folder, folder / "lake", ["--master", "local[2]"]) as one:
        end(one, folder)
    return folder / "lake"


def land(lake: LakeLocation, landed: Sequence[Landing]) -> None:
    for landing in landed:
        landing.write(lake)


def documented() -> tuple[list[str], dict[str, str]]:
    """Return the options and the settings of a pass in the documentation."""
    section = (ROOT / "docs" / "how-to" / "run-analytics.md").read_text().partition("## On Kubernetes")[2]
    # The last block of each kind.
    blocks = dict(re.findall(r"^```(sh|properties)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    (line,) = re.findall("^waypost lake run (.*)$", blocks["sh"].replace("\\\n", " "), re.MULTILINE)
    settings = re.findall(r"^(spark\.\S+) +(\S+)$", blocks["properties"], re.MULTILINE)
    return shlex.split(line), dict(settings)


@contextmanager
def running_pass(
    folder: Path, lake: LakeLocation, options: Sequence[str], **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a pass of every job, and kill it at the end of the block if it still runs."""
    command = [sys.executable, "-P", "-m", "edge.appliance.main", "lake", "run", "--lake", str(lake), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder), **environment}
    with (folder / "pass.log").open("ab") as log:
        started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def pass_on(cluster: KubernetesCluster, folder: Path, lake: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the pass of the documentation with the names of this cluster; pods request half a core."""
    options, settings = documented()
    settings |= {
        "spark.driver.host": cluster.address,
        "spark.kubernetes.container.image": cluster.image,
        "spark.kubernetes.namespace": cluster.namespace,
        "spark.kubernetes.executor.request.cores": "500m",
        "spark.authenticate.secret.driver.file": str(cluster.secret),
    }
    configuration = folder / "conf"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    options = options[2:]  # without the lake
    options[options.index("--master") + 1] = cluster.master
    places = {"SPARK_CONF_DIR": str(configuration), "KUBECONFIG": str(cluster.configuration)}
    with running_pass(folder, lake, options, **places) as one:
        yield one


def end(one: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a pass that has to succeed."""
    code = one.wait(PASS_S_MAX)
    assert code == 0, describe(folder)


def describe(folder: Path) -> str:
    """Return the end of the output of a pass and of Spark's log."""
    logs = [folder / "pass.log", *sorted((folder / ".cache").rglob("*.log"))]
    return "\n".join(log.read_text(errors="replace")[-4_000:] for log in logs)


def differences(lake: LakeLocation, expected: Path, landed: Sequence[Landing]) -> list[str]:
    """Return the differences of a lake's derived tables to the oracle, and to those of a pass on this machine."""
    names = [sorted(set(place_of(place).tables()) & set(schemas.DERIVED)) for place in (lake, expected)]
    assert names[0] == names[1]
    known = {table.name: table for table in oracle.TABLES}
    found = oracle.differences(lake, landed)
    for name in names[0]:
        rows, wanted = (place_of(place).at(name).delta().to_pyarrow_table() for place in (lake, expected))
        table = known.get(name, Table(name, wanted.column_names[:4], ""))
        unseen = table.unseen | ESTIMATED.intersection(wanted.column_names)
        found += compared(replace(table, unseen=unseen), wanted, rows)
    return found


@pytest.mark.timeout(TEST_S_MAX)
def test_every_table_is_that_of_one_machine(
    cluster: KubernetesCluster, store: ObjectStore, landed: Sequence[Landing], expected: Path, tmp_path: Path
) -> None:
    lake = f"s3://{BUCKET}/undisturbed"
    land(lake, landed)
    with pass_on(cluster, tmp_path, lake) as one:
        end(one, tmp_path)
    assert differences(lake, expected, landed) == []


@pytest.mark.timeout(TEST_S_MAX)
def test_every_table_is_the_same_with_an_executor_killed(
    cluster: KubernetesCluster, store: ObjectStore, landed: Sequence[Landing], expected: Path, tmp_path: Path
) -> None:
    """The executor is killed when the first data files of `readings` are written, before their commit."""
    lake = f"s3://{BUCKET}/killed"
    land(lake, landed)
    with pass_on(cluster, tmp_path, lake) as one:

        def writes_files() -> bool:
            assert one.poll() is None, describe(tmp_path)
            keys = store.keys("killed/readings/")
            # Version 0 has no rows.
            assert not any(key.endswith("_delta_log/00000000000000000001.json") for key in keys), "committed before"
            return any(key.endswith(".parquet") for key in keys)

        wait_until(writes_files, timeout_s=PASS_S_MAX, what="an executor writes a data file", every_s=0.2)
        with standing_still(store.pid):  # no file and no commit can be written
            running = [name for name, phase in cluster.executors().items() if phase == "Running"]
            assert len(running) == int(documented()[1]["spark.executor.instances"]), cluster.describe()
            cluster.kill(running[0])
        wait_until(lambda: bool(cluster.executors().keys() - running), timeout_s=POD_S_MAX, what="a new executor")
        end(one, tmp_path)
    assert differences(lake, expected, landed) == []
