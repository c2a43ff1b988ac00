"""Keycloak for tests, with the realm of the cluster demo: a client, people, and groups with roles that are rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import httpx
import pytest

from tests.demo.cluster.keycloak_distribution import (
    ADMIN,
    ARTIFACT,
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
from tests.demo.cluster.realm import PASSWORD, SECRETS
from tests.support.processes import free_port, wait_until

START_S: Final = 900.0
"""Longest start: it compiles its own configuration first, and takes 30 s on two idle cores, ten times as long when
twenty others want them."""
FETCH_S: Final = 600.0
ANSWER_S: Final = 120.0
"""Longest answer of Keycloak."""
TIMEOUT_S: Final = int(FETCH_S + START_S) + 120
"""Time limit of a test that starts Keycloak: pytest's own is shorter than a start on a busy machine."""
TOKEN_S: Final = 35
"""Life of an access token. Sessions are renewed 30 s before its end."""


def need_keycloak() -> None:
    """Fetch the distribution with Maven once; skip the test if that fails."""
    if shutil.which("java") is None:
        pytest.skip("needs Java: apt install default-jre-headless")
    if archive_file().exists():
        return
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("needs Maven: apt install maven")
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(fetch_command(Path(maven), Path(folder)), check=False, timeout=FETCH_S)
        if fetched.returncode:
            pytest.skip(f"Maven cannot fetch {ARTIFACT}")
        keep_archive(Path(folder))


class Keycloak:
    """Server process with the realm. Serves while it is entered."""

    def __init__(self, folder: Path, roots: Sequence[str]) -> None:
        """`roots`: addresses of the consoles that people sign in to."""
        need_keycloak()
        subprocess.run(unpack_command(folder), check=True)
        self._home = home_of(folder)
        self._log = folder / "keycloak.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = issuer_of(self.port)
        prepare(self._home, roots, TOKEN_S)

    def __enter__(self) -> Self:
        environment = {**os.environ, **serve_environment(self._home)}
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                serve_command(self._home, self.port), stdout=out, stderr=out, env=environment
            )
        try:
            wait_until(self._serves, timeout_s=START_S, what="Keycloak serves its realm", every_s=1.0)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/.well-known/openid-configuration", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def disable(self, user: str) -> None:
        """Disable a person, as an administrator does."""
        address, headers = self._user(user)
        httpx.put(address, json={"enabled": False}, headers=headers, timeout=ANSWER_S).raise_for_status()

    def sign_out(self, user: str) -> None:
        """End the sessions of a person, as an administrator does."""
        address, headers = self._user(user)
        httpx.post(f"{address}/logout", headers=headers, timeout=ANSWER_S).raise_for_status()

    def device_token(self, client: str) -> str:
        """Return a token for which a device shows its own secret (RFC 6749 section 4.4)."""
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": SECRETS[client]}
        answer = httpx.post(f"{self.url}/protocol/openid-connect/token", data=form, timeout=ANSWER_S).raise_for_status()
        token: str = answer.json()["access_token"]
        return token

    def revoke(self, client: str, token: str) -> None:
        """End a token of a device (RFC 7009)."""
        form = {"token": token, "client_id": client, "client_secret": SECRETS[client]}
        httpx.post(f"{self.url}/protocol/openid-connect/revoke", data=form, timeout=ANSWER_S).raise_for_status()

    def disable_client(self, client: str) -> None:
        """Disable a client, as an administrator does."""
        clients, headers = self._administration("clients")
        [found] = httpx.get(clients, params={"clientId": client}, headers=headers, timeout=ANSWER_S).json()
        address = f"{clients}/{found['id']}"
        httpx.put(address, json={**found, "enabled": False}, headers=headers, timeout=ANSWER_S).raise_for_status()

    def _user(self, user: str) -> tuple[str, dict[str, str]]:
        """Return the address of a person in the API of administrators, and the header that admits to it."""
        users, headers = self._administration("users")
        (found,) = httpx.get(
            users, params={"username": user, "exact": "true"}, headers=headers, timeout=ANSWER_S
        ).json()
        return f"{users}/{found['id']}", headers

    def _administration(self, kind: str) -> tuple[str, dict[str, str]]:
        """Return the address of a kind of the realm in the API of administrators, and the header that admits to it."""
        base = f"http://127.0.0.1:{self.port}"
        form = {"grant_type": "password", "client_id": "admin-cli", "username": ADMIN, "password": PASSWORD}
        token = httpx.post(
            f"{base}/realms/master/protocol/openid-connect/token", data=form, timeout=ANSWER_S
        ).raise_for_status()
        headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
        return f"{base}/admin/realms/plant/{kind}", headers
