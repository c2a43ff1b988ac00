"""Private PostgreSQL for tests: Debian's server as an ordinary process, in its own folder, on loopback.

The folder is in memory where there is one: the registry refuses a server without `fsync`, which takes most of the time
of a test on a disk. Tests end the process, and not the machine, so they find the same data.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import psycopg

from tests.support.medium import fast_folder

READY_S: Final = 60.0
STOP_S: Final = 30.0
PASSWORD: Final = "p@ss:word/Ж%41"
"""Password of the user `careful`."""

CAREFUL: Final = f"careful:{quote(PASSWORD, safe='')}"
"""User and password as in a URL."""

STANDBY: Final = "standby"
"""Name under which a standby connects, and which its primary waits for."""

SMALL: Final = ("shared_buffers=16MB", "max_wal_size=64MB")
"""Settings of a server that shares the memory with other ones."""

HBA: Final = """
host all careful 127.0.0.1/32 scram-sha-256
host all stranger 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
host replication waypost 127.0.0.1/32 trust
"""


def binaries() -> Path | None:
    """Return the newest server that Debian has installed, or None."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


class Postgres:
    """Server that can be stopped, killed and restarted. A context manager."""

    def __init__(self, *, elsewhere: str = "", standby_of: Postgres | None = None) -> None:
        """`elsewhere`: a network from which the user `careful` may connect, too. `standby_of`: a running primary."""
        found = binaries()
        assert found is not None
        self._binaries = found
        self._user = _ordinary_user()
        self.port = _port()
        self.folder = Path(tempfile.mkdtemp(prefix="waypost-postgres-", dir=fast_folder()))
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0
        if standby_of is not None:
            source = f"host=127.0.0.1 port={standby_of.port} user=waypost application_name={STANDBY}"
            self._run("pg_basebackup", "-D", str(self._data), "-d", source, "-R", "-X", "stream", "-c", "fast", "-N")
            return
        self._run("initdb", "-D", str(self._data), "-U", "waypost", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        more = f"host all careful {elsewhere} scram-sha-256\n" if elsewhere else ""
        (self._data / "pg_hba.conf").write_text(HBA + more)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            cwd=self.folder, user=self._user, capture_output=True, text=True, timeout=READY_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, *settings: str) -> Self:
        """Start it and wait until it answers. It ends with this process in any case."""
        common = ("listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=", *SMALL)
        options = [part for setting in (*common, *settings) for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "QUIT", self._binaries / "postgres", "-D", self._data, *options],
                cwd=self.folder, user=self._user, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                said = (self.folder / "log").read_text(errors="replace")
                assert self._process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
            else:
                return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: by SIGINT cleanly and at once, by SIGQUIT as in a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:  # the children of a killed server live on, and no other one starts
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(STOP_S)
            self._process = None

    def wait_for_standby(self) -> None:
        """Confirm commits only when the standby has them; return when it is connected."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        self.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + READY_S
        while self.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            assert time.monotonic() < deadline, (self.folder / "log").read_text(errors="replace")
            time.sleep(0.05)

    def promote(self) -> None:
        """Make a standby the primary; return when it takes changes."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self._data))

    def discard(self) -> None:
        """Stop it as in a crash, and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def schema(self) -> str:
        """Create an empty schema, which serves a registry like a database and is faster to create and drop; return its
        name.
        """
        self._schemas += 1
        name = f"test{self._schemas}"
        self.execute(f"CREATE SCHEMA {name} AUTHORIZATION careful")
        return name

    def url(self, schema: str, user: str = "waypost") -> str:
        """Return the URL of a registry in the schema."""
        return f"{self.address(user)}?options=-csearch_path%3D{schema}"

    def address(self, user: str = "waypost", database: str = "postgres") -> str:
        """Return the URL without options. `user`: may be ``name:password``, percent-encoded."""
        return f"postgresql+psycopg://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, text: str, *values: Any, schema: str = "public") -> list[Any]:
        """Execute and commit one statement; return its rows."""
        where = f"host=127.0.0.1 port={self.port} user=waypost dbname=postgres connect_timeout=5"
        with psycopg.connect(where, autocommit=True, options=f"-csearch_path={schema}") as connection:
            cursor = connection.execute(text, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description is not None else []

    def __enter__(self) -> Self:
        self.start()
        self.execute(f"CREATE ROLE careful LOGIN PASSWORD '{PASSWORD}'")
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def _port() -> int:
    """Return a free port below the kernel's ephemeral range, so that it stays free while the server is down."""
    chance = random.SystemRandom()  # tests seed the common generator, identically in each process
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _ordinary_user() -> str | None:
    """Return the user for the server, which refuses root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
