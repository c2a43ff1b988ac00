"""Peers with several programs and files: RabbitMQ from Debian, ActiveMQ Artemis from Maven Central, skupper-router from
any build.

They run as private nodes with their own folder, ports and process group; installed services are not touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final, Self

from tests.bench.brokers import listens
from tests.bench.load import LoadFailed
from tests.bench.packages import BrokerMissing, program
from tests.bench.scratch import scratch_folder
from tests.support.processes import free_port, resident_mib, wait_until

START_S: Final = 300.0
"""Longest start of a JVM or an Erlang machine on a busy small computer: RabbitMQ took 90 s after a kill."""
QUEUES: Final = 16
"""Queues created before the first round, one a round; further rounds reuse them in turn."""
_RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The server itself: Debian's wrapper in /usr/sbin switches to a user without write access to our folder."""
ARTEMIS: Final = "org.apache.activemq:apache-artemis:2.44.0:tar.gz:bin"


class _Node:
    """Process group in its own folder."""

    name = ""

    def __init__(self, parent: Path | None = None) -> None:
        """Keep data in a new folder inside `parent`."""
        self._folder = scratch_folder(parent, ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: set[int] = set()

    def spawn(self, command: list[str], environment: dict[str, str]) -> None:
        """Start a program in its own group, with its output in ``log`` in the folder."""
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def wait_for(self, *ports: int) -> None:
        """Wait until it listens; on failure stop it and raise LoadFailed with its log. An installed peer is never
        skipped.
        """
        self._ports.update(ports)

        def ready() -> bool:
            process = self._processes[-1]
            said = (self.folder / "log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"{self.name} ended with {process.returncode}:\n{said}"
            return all(listens(port) for port in ports)

        try:
            wait_until(ready, timeout_s=START_S, what=f"{self.name} listens", every_s=0.2)
        except AssertionError as error:
            self.__exit__()
            raise LoadFailed(str(error)) from error

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def stop(self) -> None:
        """Send SIGTERM to each group, the last one first, and wait."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(30)
        self._wait_for_silence()

    def kill(self) -> None:
        """Send SIGKILL to each group: a power cut except for the page cache. Entering it again starts it on the same
        data.
        """
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
        self._wait_for_silence()

    def _wait_for_silence(self) -> None:
        """Wait until the ports no longer answer: a group's first process ends before the others do."""
        wait_until(
            lambda: not any(map(listens, self._ports)), timeout_s=START_S, what=f"{self.name} is gone", every_s=0.02
        )

    @property
    def resident_mib(self) -> float:
        """Return the resident memory of the broker's whole group."""
        group = os.getpgid(self._processes[-1].pid)
        total = 0.0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(entry.name)) == group:
                    total += resident_mib(int(entry.name))
            except ProcessLookupError:
                continue
        return total


class RabbitMQ(_Node):
    """Debian's RabbitMQ 3.10 with its plugins for MQTT and AMQP 1.0; classic durable queues."""

    name = "rabbitmq"

    def __init__(self, parent: Path | None = None) -> None:
        program("rabbitmq-server", "rabbitmq-server")
        self._epmd_program = program("epmd", "erlang-base")
        super().__init__(parent)
        self._amqp, self._mqtt, self._epmd, self._distribution = (free_port() for _ in range(4))
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._amqp}\nmqtt.listeners.tcp.1 = 127.0.0.1:{self._mqtt}\n"
            "mqtt.allow_anonymous = true\namqp1_0.default_user = guest\n"
        )
        (self.folder / "enabled_plugins").write_text("[rabbitmq_mqtt,rabbitmq_amqp1_0].\n")

    def __enter__(self) -> Self:
        self.spawn([str(self._epmd_program), "-port", str(self._epmd)], self._environment)
        self.wait_for(self._epmd)
        self.spawn([str(_RABBITMQ)], self._environment)
        self.wait_for(self._amqp, self._mqtt)
        return self

    def counters(self) -> str:
        """Return its own counts of queues, channels and consumers, for people."""
        asked = (
            "list_queues name messages_ready messages_unacknowledged consumers",
            "list_channels messages_unacknowledged messages_unconfirmed consumer_count",
            "list_consumers",
        )
        command = [str(_RABBITMQ.with_name("rabbitmqctl")), "-n", self._environment["RABBITMQ_NODENAME"]]
        environment = {**os.environ, **self._environment}
        answers = [
            subprocess.run([*command, *each.split()], env=environment, capture_output=True, check=False, timeout=60)
            for each in asked
        ]
        return b"".join(answer.stdout + answer.stderr for answer in answers).decode(errors="replace")

    @property
    def _environment(self) -> dict[str, str]:
        folder = str(self.folder)
        return {
            "HOME": folder,
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self._amqp}@localhost",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/no-environment-file",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_DIST_PORT": str(self._distribution),
        }

    def port(self, protocol: str) -> int:
        return self._mqtt if protocol == "mqtt" else self._amqp

    def queue(self, number: int) -> str:
        return f"/queue/bench{number % QUEUES}"


class Artemis(_Node):
    """ActiveMQ Artemis with durable anycast queues; its journal is synced before every answer, as by default."""

    name = "artemis"

    def __init__(self) -> None:
        home = _artemis_home()
        super().__init__()
        self._port = free_port()
        self._instance = self.folder / "instance"
        queues = ",".join(f"bench{i}:anycast" for i in range(QUEUES))
        left_out = ("amqp-acceptor", "mqtt-acceptor", "stomp-acceptor", "hornetq-acceptor", "web")
        command = [
            str(home / "bin" / "artemis"), "create", str(self._instance), "--silent", "--allow-anonymous",
            "--user=bench", "--password=bench", "--host=127.0.0.1", f"--default-port={self._port}",
            f"--queues={queues}", *(f"--no-{each}" for each in left_out),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self._folder.cleanup()
            raise BrokerMissing(f"artemis cannot be set up: {(done.stderr or done.stdout)[-500:]}")

    def __enter__(self) -> Self:
        self.spawn([str(self._instance / "bin" / "artemis"), "run"], {})
        self.wait_for(self._port)
        return self

    def port(self, protocol: str) -> int:
        return self._port

    def queue(self, number: int) -> str:
        return f"bench{number % QUEUES}"


class SkupperRouter(_Node):
    """skupper-router with its default worker threads; messages to anycast/# go to one of the receivers."""

    name = "skrouterd"

    def __init__(self) -> None:
        program = os.environ.get("SKROUTERD") or shutil.which("skrouterd", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None or not Path(program).exists():
            raise BrokerMissing(
                "skrouterd is not installed, and no Debian release has it: build it from its source as "
                "tests/bench/README.md says (two minutes), and put it on PATH or name the program in SKROUTERD"
            )
        super().__init__()
        self._program = program
        self._port = free_port()
        (self.folder / "skrouterd.conf").write_text(
            "router {\n mode: standalone\n id: bench\n}\n"
            f"listener {{\n host: 127.0.0.1\n port: {self._port}\n"
            " authenticatePeer: no\n saslMechanisms: ANONYMOUS\n}\n"
            "address {\n prefix: anycast\n distribution: balanced\n}\n"
            "log {\n module: DEFAULT\n enable: warn+\n}\n"
        )

    def __enter__(self) -> Self:
        self.spawn([self._program, "-c", str(self.folder / "skrouterd.conf")], {})
        self.wait_for(self._port)
        return self

    def port(self, protocol: str) -> int:
        return self._port

    def queue(self, number: int) -> str:
        raise LookupError("skupper-router keeps no messages")


def _artemis_home() -> Path:
    """Return the unpacked distribution under ``build``; Maven fetches it if missing. Raises BrokerMissing."""
    named = os.environ.get("ARTEMIS_HOME")
    if named is not None and (Path(named) / "bin" / "artemis").exists():
        return Path(named)
    folder = Path.cwd() / "build" / "artemis"
    homes = sorted(folder.glob("apache-artemis-*/bin/artemis"))
    if homes:
        return homes[-1].parents[1]
    maven = program("mvn", "maven")  # installs a Java as well
    command = [str(maven), "-q", "-B", "dependency:copy", f"-Dartifact={ARTEMIS}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = sorted(folder.glob("apache-artemis-*.tar.gz"))
    if done.returncode or not archives:
        raise BrokerMissing(f"artemis cannot be fetched ({' '.join(command)}): {done.stdout[-500:]}")
    # `tarfile` of Debian 12's Python has no filters.
    subprocess.run(["tar", "--extract", "--directory", folder, "--file", archives[-1]], check=True)
    return _artemis_home()
