"""Keycloak in the cluster: fetched when it was never fetched, started with its realm, ended with the demo."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from tests.demo.cluster.keycloak_distribution import (
    ARCHIVE_MB,
    VERSION,
    archive_file,
    fetch_command,
    home_of,
    issuer_of,
    keep_archive,
    prepare,
    serve_command,
    serve_environment,
    unpack_command,
)
from tests.demo.cluster.launching import Launcher, until
from tests.demo.errors import DemoError
from tests.demo.ports import free_ports
from tests.demo.processes import Child

FETCH_S: Final = 900.0
"""Longest download."""
START_S: Final = 300.0
"""Longest start on a busy machine: it compiles its own configuration first."""
STOP_S: Final = 60.0
TOKEN_S: Final = 300
"""Life of an access token."""


class KeycloakServer:
    """One server in a folder."""

    def __init__(self, folder: Path, launcher: Launcher) -> None:
        self._folder = folder
        self._launcher = launcher
        [self._port] = free_ports(1)
        self.process: Child | None = None

    @property
    def issuer(self) -> str:
        """Issuer of tokens."""
        return issuer_of(self._port)

    async def start(self, roots: Sequence[str], say: Callable[[str], None]) -> None:
        """Fetch it if it was never fetched, and start it; return when it serves. `roots`: addresses of the consoles.

        Raises DemoError.
        """
        self._folder.mkdir()
        if not archive_file().exists():
            say(f"Keycloak {VERSION} is fetched with Maven: {ARCHIVE_MB} MB, kept as {archive_file()}")
            await self._fetch()
        say(f"Keycloak {VERSION}; its first start takes half a minute")
        await self._launcher.run("unpack-keycloak", unpack_command(self._folder))
        home = home_of(self._folder)
        prepare(home, roots, TOKEN_S)
        command = ["/bin/bash", "-c", 'exec "$@" >&2', "keycloak", *serve_command(home, self._port)]
        self.process = await self._launcher.start(
            "keycloak", command, environment=serve_environment(home), last_signal="TERM"
        )
        await until(self.process, self._serves, START_S)

    async def stop(self) -> None:
        """End it. Raises DemoError when it does not end in time."""
        if self.process is not None:
            await self._launcher.end(self.process, signal.SIGTERM, STOP_S)

    async def _fetch(self) -> None:
        maven = self._launcher.programs.maven
        if maven is None:
            raise DemoError("Keycloak is fetched with Maven; install it as root: apt-get install -y maven")
        await self._launcher.run("maven", fetch_command(maven, self._folder), within_s=FETCH_S)
        keep_archive(self._folder)

    async def _serves(self) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                found = await client.get(f"{self.issuer}/.well-known/openid-configuration")
            except httpx.HTTPError:
                return False
            return found.status_code == httpx.codes.OK
