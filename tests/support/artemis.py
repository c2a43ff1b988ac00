"""Private ActiveMQ Artemis broker, its messages kept over restarts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.processes import free_port, wait_until

VERSION = "2.42.0"
POM = f"""<project>
<modelVersion>4.0.0</modelVersion><groupId>waypost</groupId><artifactId>artemis</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.activemq</groupId><artifactId>artemis-server</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.activemq</groupId><artifactId>artemis-amqp-protocol</artifactId>
<version>{VERSION}</version></dependency>
</dependencies></project>
"""
BROKER = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<security-enabled>false</security-enabled>
<persistence-enabled>true</persistence-enabled>
<journal-type>NIO</journal-type>
<bindings-directory>{data}/bindings</bindings-directory>
<journal-directory>{data}/journal</journal-directory>
<large-messages-directory>{data}/large</large-messages-directory>
<paging-directory>{data}/paging</paging-directory>
<acceptors><acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP</acceptor></acceptors>
<address-settings><address-setting match="#">
<auto-create-queues>false</auto-create-queues><auto-create-addresses>false</auto-create-addresses>
<dead-letter-address>dead</dead-letter-address><max-delivery-attempts>3</max-delivery-attempts>
</address-setting></address-settings>
<addresses>{addresses}</addresses>
</core></configuration>
"""
ADDRESS = '<address name="{name}"><anycast><queue name="{name}"/></anycast></address>'
START_S = 120


def artemis_jars() -> Path:
    """Return the folder of Artemis and its dependencies, fetched by Maven once; skip the test if that fails."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven and Java are not installed (Debian: maven, default-jre-headless)")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waypost-tests"
    jars = cache / f"artemis-{VERSION}"
    if not jars.exists():
        making = cache / f"artemis-{VERSION}.{os.getpid()}"
        making.mkdir(parents=True)
        (making / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={making}/lib"]
        done = subprocess.run(command, cwd=making, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            pytest.skip(f"Maven cannot fetch Artemis: {done.stdout[-200:]}")
        (making / "lib").rename(jars)
    return jars


class Artemis:
    """Starts in seconds; SIGTERM and a new process are a restart."""

    def __init__(self, folder: Path, jars: Path, queues: Iterable[str]) -> None:
        self.port = free_port()
        self._jars = jars
        self._folder = folder
        (folder / "etc").mkdir(parents=True)
        addresses = "".join(ADDRESS.format(name=name) for name in (*queues, "dead"))
        text = BROKER.format(data=folder / "data", port=self.port, addresses=addresses)
        (folder / "etc" / "broker.xml").write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        main = "org.apache.activemq.artemis.core.server.embedded.Main"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx256m", "-cp", f"{self._jars}/*", main, str(self._folder)], stdout=log, stderr=log
            )
        wait_until(self._listens, timeout_s=START_S, what="Artemis listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Artemis]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
