"""Private Kafka broker: one node, KRaft, its state kept over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support.certificates import Issued
from tests.support.issuer import AUDIENCE, SigningKey
from tests.support.processes import free_port, wait_until

VERSION = "4.1.0"
POM = f"""<project>
<modelVersion>4.0.0</modelVersion><groupId>waypost</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency></dependencies></project>
"""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{secure_listener}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{secure_listener}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
"""
USER, PASSWORD = "gateway", "correct horse"
SECURE = """
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
"""Listener with TLS, and `USER` with `PASSWORD` for each mechanism."""
BEARER = """
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class=\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.jwks.endpoint.url={keys}
sasl.oauthbearer.expected.audience={audience}
"""
"""Tokens that are signed with one of the keys."""


def kafka_jars() -> Path:
    """Return the folder of Kafka and its dependencies, fetched by Maven once; skip the test if that fails."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven and Java are not installed (Debian: maven, default-jre-headless)")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waypost-tests"
    jars = cache / f"kafka-{VERSION}"
    if not jars.exists():
        making = cache / f"kafka-{VERSION}.{os.getpid()}"
        making.mkdir(parents=True)
        (making / "pom.xml").write_text(POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={making}/lib"]
        done = subprocess.run(command, cwd=making, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            pytest.skip(f"Maven cannot fetch Kafka: {done.stdout[-200:]}")
        (making / "lib").rename(jars)
    return jars


class Kafka:
    """Starts in seconds; SIGTERM and a new process are a restart."""

    def __init__(self, folder: Path, jars: Path, server: Issued | None = None, key: SigningKey | None = None) -> None:
        """`server`: certificate for a second listener with TLS and SASL; `key` signs tokens for it."""
        self.port = free_port()
        self.secure_port = free_port() if server is not None else 0
        self._jars = jars
        self._options: list[str] = []
        folder.mkdir()
        self._properties = folder / "server.properties"
        secure_listener = f",SASL_SSL://127.0.0.1:{self.secure_port}" if server is not None else ""
        properties = PROPERTIES.format(
            port=self.port, controller=free_port(), folder=folder, secure_listener=secure_listener
        )
        scram: list[str] = []
        if server is not None:
            keystore = folder / "keystore.pem"
            keystore.write_text(Path(server.key).read_text() + Path(server.certificate).read_text())
            properties += SECURE.format(keystore=keystore, user=USER, password=PASSWORD)
            if key is not None:
                keys = folder / "keys.json"
                keys.write_text(json.dumps({"keys": [key.published]}))
                properties = properties.replace("=PLAIN,SCRAM", "=OAUTHBEARER,PLAIN,SCRAM")
                properties += BEARER.format(keys=keys.as_uri(), audience=AUDIENCE)
                self._options.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}")
            for bits in ("256", "512"):
                scram += ["--add-scram", f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]"]
        self._properties.write_text(properties)
        self._process: subprocess.Popen[bytes] | None = None
        self._topic = ""
        format_it = self._java("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, *scram, "-c")
        subprocess.run(format_it, check=True, capture_output=True, timeout=120)

    def _java(self, program: str, *arguments: str) -> list[str]:
        return [
            "java",
            "-Xmx384m",
            *self._options,
            "-cp",
            f"{self._jars}/*",
            program,
            *arguments,
            str(self._properties),
        ]

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._java("kafka.Kafka"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._listens, timeout_s=120, what="Kafka listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextlib.contextmanager
    def running(self) -> Iterator[Kafka]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def create(self, topic: str, partitions: int = 2) -> None:
        """Create a topic, which is then the one to be read."""

        async def make() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=f"127.0.0.1:{self.port}")
            await admin.start()
            try:
                await admin.create_topics([NewTopic(topic, partitions, 1)])
            finally:
                await admin.close()

        asyncio.run(make())
        self._topic = topic

    def send(self, values: Iterable[bytes], *, keyed: bool = False) -> None:
        """Send records of another producer, acknowledged by the broker; `keyed`: by their first byte."""

        async def produce() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{self.port}", acks="all", enable_idempotence=True)
            await producer.start()
            try:
                for value in values:
                    await producer.send(self._topic, value, key=value[:1] if keyed else None)
                await producer.flush()
            finally:
                await producer.stop()

        asyncio.run(produce())

    def got(self) -> list[bytes]:
        """Return the values of all records."""
        return [record.value for record in self.records()]

    def names(self) -> Counter[tuple[bytes, ...]]:
        """Count the records by message name, read from the headers."""
        wanted = ("waypost-gateway", "waypost-epoch", "waypost-address", "waypost-sequence")
        return Counter(tuple(dict(record.headers)[name] for name in wanted) for record in self.records())

    def order(self) -> dict[bytes, list[int]]:
        """Return the sequences of each address in the order of its partition."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for record in self.records():
            headers = dict(record.headers)
            found[headers["waypost-address"]].append(int(headers["waypost-sequence"]))
        return found

    def records(self, *, committed: bool = False) -> list[Any]:
        """Return every record of the topic, by partition and in order. `committed`: not those of open or aborted
        transactions."""

        async def read() -> list[Any]:
            consumer = AIOKafkaConsumer(
                self._topic,
                bootstrap_servers=f"127.0.0.1:{self.port}",
                auto_offset_reset="earliest",
                group_id=None,
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            await consumer.start()
            try:
                ends = await consumer.end_offsets(consumer.assignment())
                found: list[Any] = []
                async with asyncio.timeout(120):
                    while any([await consumer.position(part) < end for part, end in ends.items()]):
                        for records in (await consumer.getmany(timeout_ms=500)).values():
                            found += records
                return found
            finally:
                await consumer.stop()

        return asyncio.run(read())

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
