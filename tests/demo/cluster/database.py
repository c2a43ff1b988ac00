"""PostgreSQL for the registry: a primary, and a standby that has every commit before it is acknowledged."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.demo.cluster.launching import Launcher, until
from tests.demo.cluster.programs import server_user
from tests.demo.ports import free_ports
from tests.demo.processes import Child

STANDBY: Final = "standby"
"""Name under which the standby connects, and which the primary waits for."""
STOP_S: Final = 20.0
"""Longest end of a server after SIGINT, which ends its sessions."""
IMMEDIATELY: Final = "QUIT"
"""Signal that ends a server and its sessions at once; after SIGKILL its shared memory would stay."""
SMALL: Final = ("shared_buffers=32MB", "unix_socket_directories=", "listen_addresses=127.0.0.1")


class Database:
    """Two servers in a folder."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self._folder = folder
        self._launcher = launcher
        self._user = server_user()
        self.port, self.standby_port = free_ports(2)
        self._servers: list[Child] = []

    @property
    def url(self) -> str:
        """URL of the registry."""
        return f"postgresql://waypost@127.0.0.1:{self.port}/postgres"

    async def start(self) -> None:
        """Create and start both servers; return when commits are synchronous. Raises DemoError."""
        self._folder.mkdir()
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        primary, standby = str(self._folder / "primary"), str(self._folder / STANDBY)
        await self._run("initdb", "-D", primary, "-U", "waypost", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        first = await self._serve("postgresql", primary, self.port)
        source = f"host=127.0.0.1 port={self.port} user=waypost application_name={STANDBY}"
        await self._run("pg_basebackup", "-D", standby, "-d", source, "-R", "-X", "stream", "-c", "fast", "-N")
        await self._serve("postgresql-standby", standby, self.standby_port)
        await self._ask(self.port, f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        await self._ask(self.port, "SELECT pg_reload_conf()")
        await until(first, self._is_synchronous)

    async def stop(self) -> None:
        """End the primary, then the standby. Raises DemoError when one does not end."""
        for server in self._servers:
            await self._launcher.end(server, signal.SIGINT, STOP_S)

    @property
    def servers(self) -> tuple[Child, ...]:
        """Processes of the servers."""
        return tuple(self._servers)

    async def _serve(self, name: str, data: str, port: int) -> Child:
        options = [word for setting in (*SMALL, f"port={port}") for word in ("-c", setting)]
        command = [str(self._launcher.programs.postgresql / "postgres"), "-D", data, *options]
        server = await self._launcher.start(
            name, command, user=self._user, folder=self._folder, last_signal=IMMEDIATELY
        )
        self._servers.append(server)

        async def answers() -> bool:
            return bool(await self._ask(port, "SELECT 1"))

        await until(server, answers)
        return server

    async def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._launcher.programs.postgresql / program), *arguments]
        await self._launcher.run(program, command, user=self._user, folder=self._folder)

    async def _is_synchronous(self) -> bool:
        return await self._ask(self.port, "SELECT sync_state FROM pg_stat_replication") == [("sync",)]

    @staticmethod
    async def _ask(port: int, text: str) -> list[Any]:
        """Execute a statement; return its rows, none while the server does not answer."""
        where = f"host=127.0.0.1 port={port} user=waypost dbname=postgres connect_timeout=5"
        try:
            connection = await psycopg.AsyncConnection.connect(where, autocommit=True)
        except psycopg.OperationalError:
            return []
        async with connection:
            cursor = await connection.execute(text)
            return await cursor.fetchall() if cursor.description is not None else []
