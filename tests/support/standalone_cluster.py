"""Spark standalone cluster on this machine: a master and two workers, started from the wheel, with a secret."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Final, Self

import pyspark

from spark import java
from tests.support.processes import free_port, wait_until

WORKERS: Final = 2
SECRET: Final = "what-the-cluster-shares"
READY_S: Final = 120
"""Seconds for the start of two JVMs on a busy machine."""
HOME: Final = Path(pyspark.__file__).parent


class StandaloneCluster:
    """A context manager. Its processes get only Spark from this environment: no PATH, no PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._web_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.configuration = folder / "conf"
        """Folder of settings for the cluster and its drivers (`SPARK_CONF_DIR`)."""
        self.configuration.mkdir(parents=True)
        (self.configuration / "spark-defaults.conf").write_text(
            f"spark.authenticate true\nspark.authenticate.secret {SECRET}\nspark.network.crypto.enabled true\n"
        )

    @property
    def master(self) -> str:
        """Return the URL of its master."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        ports = ("--port", str(self._port), "--webui-port", str(self._web_port))
        self._start("master", "org.apache.spark.deploy.master.Master", *ports)
        wait_until(lambda: "ALIVE" in self.pages(), timeout_s=READY_S, what="the master serves")
        for number in range(WORKERS):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work{number}"))
            worker = "org.apache.spark.deploy.worker.Worker"
            self._start(f"worker{number}", worker, *size, "--webui-port", "0", self.master)
        wait_until(lambda: self.pages().count("worker-") >= WORKERS, timeout_s=READY_S, what="its workers have come")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(READY_S)

    def kill_worker(self) -> None:
        """Kill one of its workers; the executor of the worker ends as well."""
        self._processes[1].kill()

    def pages(self) -> str:
        """Return the pages of its master, for people and for programs; empty before it serves."""
        found = ""
        for path in ("/", "/json/"):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}{path}", timeout=10) as answer:
                    found += answer.read().decode()
            except OSError:
                return ""
        return found

    def logs(self) -> str:
        """Return the logs of its processes, including executors."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.rglob("*")) if _is_log(path))

    def _start(self, name: str, *arguments: str) -> None:
        environment = {
            "PATH": "/usr/bin:/bin",
            "JAVA_HOME": str(java.find().home),
            "SPARK_HOME": str(HOME),
            "SPARK_CONF_DIR": str(self.configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "HOME": os.fspath(self._folder),
        }
        command = [str(HOME / "bin" / "spark-class"), *arguments[:1], "--host", "127.0.0.1", *arguments[1:]]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


def _is_log(path: Path) -> bool:
    return path.is_file() and (path.suffix == ".log" or path.name in ("stdout", "stderr"))
