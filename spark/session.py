"""Start Spark: one builder for the command, the jobs and the tests; local by default, a cluster by configuration.

Every start works offline: jars are local files (`spark.connector`), the interface is the loopback, the web UI is off.
Nothing here reads or writes a table.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spark import class_archive, cluster, java, object_store
from spark.connector.jar_set import DELTA, S3

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import DataFrame, SparkSession

    from cloud.place.bucket import Bucket

LOGGING = Path(__file__).parent / "log4j2.properties"
POOLS = Path(__file__).parent / "pools.xml"
DRIVER_MEMORY = "896m"
"""Heap of the one local process. A first pass over 2.4 million messages takes 2.4 GB in all."""
STOP_SECONDS_MAX = 120.0
"""Timeout for the JVM's exit; writing a class archive on exit takes 5 to 20 s."""


def hadoop_url(path: Path) -> str:
    """Return the URL of a local file for Hadoop, which takes ``%20`` literally, so nothing is escaped."""
    return f"file://{path}"


_QUIET_JVM = ("-Xlog:disable", "-Xlog:all=off")
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "waypost-spark-warehouse"),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The default of 50 tasks to read a table's log costs seconds on a table of a few hundred files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A page of a data file that is not what was written is an error, and not another number.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    # Tasks of jobs that run side by side take turns: else many tasks of one hold all cores until they are over.
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": hadoop_url(POOLS),
    # Size of a batch for a Python worker: a number of rows is not a bound, because a body may have 256 KiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # A pass of all jobs needs several times the default of 100: each pass compiled all its code again, and
    # the JVM did with it what it does with new code. Half of the processor time of a pass of 50 000 readings was that.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # With more groups than this a task sorts in place of hashing. A sketch takes some 2 KB: 60 MB a task.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "30000",
}
"""Settings for every place of execution."""
Load = Literal["rounds", "large", "small", "tiny"]
"""Workload of a session: endless passes; minutes; seconds; or a few rows, which are interpreted faster than compiled.
"""

_QUICK: tuple[Load, ...] = ("small", "tiny")
_QUICK_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:MetaspaceSize=256m",
)
"""Options for runs of seconds: no second compiler, one collector thread, no collection because of loaded classes.

They cost throughput once a run takes minutes.
"""
_LONG_JVM = ("-XX:+UseParallelGC",)
"""The default collector treats Spark's pages of some megabytes as huge objects, and starts a cycle for each."""
_QUICK_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings for small lakes: each stage costs 20 ms or more of planning.

Replanning after each stage takes longer than a stage of some thousand rows; without it a quarter of the processor time
was saved.
"""
_FOLDER_SETTINGS = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "1000"}
"""Files up to which one thread lists all: a task for each takes 7 ms, a local listing next to nothing."""
_BACKGROUND_TASKS = "spark.waypost.background.tasks"
"""Setting of endless passes: concurrent tasks of the jobs that are not `values`."""
_POOL = "spark.scheduler.pool"
_BATCH_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")
"""Settings that a streaming query would take from its checkpoint, or change: a batch uses the session's."""
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Plans are not compiled: that took half of the processor time of a pass of some thousand rows.

A pass of 57 600 messages takes a quarter more this way.
"""


_OF_A_LOG_LINE = re.compile(r'^(\S+Z ERROR \w+: |Exception in thread "main" [\w.]+: )')
_NO_REASON = ("WARNING: ", "Warning: ", "Setting default log level", "To adjust logging level", "Picked up ", "\t")
"""Beginnings of lines that a JVM always writes, and of its stack traces."""
_REASON_CHARACTERS_MAX = 400


class SparkNotStarted(RuntimeError):
    """Spark did not start; the message has its reason, and the path of its log."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of the start.

    `master`    Spark's master URL; None: that of `spark-submit`, or WAYPOST_SPARK_MASTER, or this machine.
    `load`      workload that it is tuned for.
    `settings`  further `spark.*` settings; they override those set here.
    `jvm`       further options of the driver's JVM.
    `log`       file for standard error of the JVM and its workers; None: this process's own.
    `bucket`    bucket to access.
    """

    master: str | None = None
    load: Load = "large"
    settings: Mapping[str, str] = field(default_factory=dict)
    jvm: tuple[str, ...] = ()
    log: Path | None = None
    bucket: Bucket | None = None


def start(name: str, options: SessionOptions = SessionOptions()) -> SparkSession:
    """Start a session named `name`.

    Raises `ConnectorMissing` or `java.JavaMissing`, with messages that say what to install, and `SparkNotStarted` if
    the master, a setting or the cluster is to blame.
    """
    settings = _submit_settings(options) if cluster.is_submitted() else _launch_settings(options)
    from pyspark import SparkConf  # noqa: PLC0415 - half a second that `--help` must not pay
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if options.load in _QUICK:
        settings |= _QUICK_SETTINGS
    if options.load == "rounds" and can_start_later(options):
        settings[_BACKGROUND_TASKS] = str(max(1, (os.cpu_count() or 1) - 1))
    if options.load == "tiny":
        settings |= _INTERPRETED
    if options.bucket is not None:
        settings |= object_store.COMMITS
    conf = SparkConf().setAppName(name).setAll(list({**settings, **options.settings}.items()))
    # The caller reports errors of a job; the bridge to the JVM would print them a second time.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    written = options.log.stat().st_size if options.log is not None and options.log.exists() else 0
    try:
        _start_jvm(conf, options.log)
        session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        why = _explain(error, options.log, written)  # an error of Java's asks Java for its words
        _stop_jvm()
        raise SparkNotStarted(why) from None
    if cluster.is_submitted():
        cluster.require_jars(session, DELTA if options.bucket is None else S3)
    if not is_local(session):
        cluster.send_code(session)
    if options.bucket is not None:
        object_store.configure_bucket(session, options.bucket, options.settings)
    return session


def can_start_later(options: SessionOptions) -> bool:
    """Return whether Spark runs on this machine and can be started when it is first needed.

    A cluster, or a JVM from `spark-submit`, exists from the beginning.
    """
    return not cluster.is_submitted() and _master(options).startswith("local")


def is_local(session: SparkSession) -> bool:
    """Return whether everything runs on this machine."""
    return session.sparkContext.getConf().get("spark.master", "local").startswith("local")


def _launch_settings(options: SessionOptions) -> dict[str, str]:
    """Return the settings of a session with a JVM that is started here, and set its environment."""
    client = S3.paths() if options.bucket is not None else []
    connector = DELTA.paths()
    home = java.find()
    master = _master(options)
    os.environ["JAVA_HOME"] = str(home.home)
    settings = {
        "spark.master": master,
        "spark.driver.extraJavaOptions": _jvm_options(home, options),
        "spark.driver.extraClassPath": os.pathsep.join(map(str, connector)),
    }
    if not master.startswith("local"):
        _choose_python(cluster.executor_python(options.settings))
        # A cluster's JVMs are of one time zone as well.
        zone = {"spark.executor.extraJavaOptions": "-Duser.timezone=UTC"}
        return {**settings, **zone, "spark.jars": ",".join(map(str, (*connector, *client))), **_SETTINGS}
    _choose_python(sys.executable)
    _prepare_local_workers()
    # Not on the class path: a class archive fits one only.
    local = _local_settings() | (_FOLDER_SETTINGS if options.bucket is None else {})
    return {**settings, **local, "spark.jars": ",".join(map(str, client)), **_SETTINGS}


def _master(options: SessionOptions) -> str:
    chosen = options.settings.get("spark.master") or options.master or os.environ.get("WAYPOST_SPARK_MASTER")
    return chosen or _local_master(options)


def _local_master(options: SessionOptions) -> str:
    """Return the master of this machine.

    Endless passes get twice as many concurrent tasks as cores: a task keeps its slot to its end, and those that have
    one share the cores as the kernel decides.
    """
    return f"local[{2 * (os.cpu_count() or 1)}]" if options.load == "rounds" else "local[*]"


def _submit_settings(options: SessionOptions) -> dict[str, str]:
    """Return the settings of a session in a JVM of `spark-submit`; its own settings stay."""
    _choose_python(cluster.executor_python(options.settings))
    master = {"spark.master": options.master} if options.master is not None else {}
    return {**master, **_SETTINGS}


def fit_batch(batch: SparkSession) -> None:
    """Give the session of a streaming query the settings of the session that started it."""
    chosen = dict(batch.sparkContext.getConf().getAll())
    for key in _BATCH_SETTINGS:
        if key in chosen:
            batch.conf.set(key, chosen[key])
    tasks = background_tasks(batch)
    if tasks is not None:
        batch.conf.set("spark.sql.shuffle.partitions", str(tasks))


def background_tasks(batch: SparkSession) -> int | None:
    """Return the number of concurrent tasks that a job of this thread may have; None for as many as there are.

    In endless passes on one machine a core is left to the `values`, which people wait for: Spark's pools have a
    guaranteed share, but no limit, and a task is never interrupted.
    """
    tasks = batch.sparkContext.getConf().get(_BACKGROUND_TASKS)
    if tasks is None or batch.sparkContext.getLocalProperty(_POOL) == "values":
        return None
    return int(tasks)


def checkpoint(rows: DataFrame, *, at_once: bool = True) -> DataFrame:
    """Return these rows, computed once, now or when they are first read.

    On a cluster two executors keep each part: a part that only one has is lost with it, and readers fail.
    """
    if is_local(rows.sparkSession):
        return rows.localCheckpoint(at_once)
    from pyspark import StorageLevel  # noqa: PLC0415 - half a second that `--help` must not pay

    return rows.localCheckpoint(at_once, StorageLevel.MEMORY_AND_DISK_2)


def stop(session: SparkSession) -> None:
    """Stop the session and wait for the end of its JVM, so that nothing outlives the command."""
    try:
        session.stop()
    finally:
        _stop_jvm()


def _explain(error: Exception, log: Path | None, written: int) -> str:
    """Return the message for a failed start: the first lines of the log after `written` bytes, or of the error."""
    text = str(error)
    if log is not None:
        with log.open("rb") as file:
            file.seek(written)
            text = file.read(64 * 1024).decode(errors="replace") or text
    lines = (line.rstrip() for line in text.splitlines())
    reasons = [_OF_A_LOG_LINE.sub("", line) for line in lines if line and not line.startswith(_NO_REASON)]
    where = f" (Spark's log: {log})" if log is not None else ""
    return f"Spark did not start: {' '.join(reasons[:3])[:_REASON_CHARACTERS_MAX]}{where}"


def _stop_jvm() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    gateway = SparkContext._gateway
    if gateway is None or cluster.is_submitted():
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_jvm(conf: SparkConf, log: Path | None) -> None:
    """Start the JVM with `log` as its standard error: other threads write to that of this process."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    if SparkContext._gateway is not None:
        return
    begin: Callable[..., Any] = launch_gateway
    if log is None:
        SparkContext._ensure_initialized(gateway=begin(conf), conf=conf)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        SparkContext._ensure_initialized(gateway=begin(conf, {"stderr": file}), conf=conf)


def _choose_python(program: str) -> None:
    """Set the Python of the workers: this one, or the cluster's, not the one on PATH."""
    os.environ["PYSPARK_PYTHON"] = program
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def _prepare_local_workers() -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers import the decoder from here even when the program is run from a checkout.
    folder = str(Path(__file__).parent.parent)
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])


def _jvm_options(home: java.Java, options: SessionOptions) -> str:
    # An option, not a folder on the class path: with a class archive, only jars are allowed there.
    flags = [*_QUIET_JVM, "-Duser.timezone=UTC", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    flags += _QUICK_JVM if options.load in _QUICK else _LONG_JVM
    flags += options.jvm or class_archive.jvm_options(home)
    # Spark takes the line apart as a shell would: a checkout may lie in a folder with a space in its name.
    return " ".join(f'"{flag}"' if " " in flag else flag for flag in flags)


def _local_settings() -> dict[str, str]:
    partitions = 2 * (os.cpu_count() or 1)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        # Adaptive execution only ever merges partitions; 200 empty ones cost seconds on a small lake.
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.enabled": "true",
    }
