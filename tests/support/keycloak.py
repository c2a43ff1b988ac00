"""Keycloak for tests: a realm with one client, people, and groups. The roles of the groups are rights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pytest

from tests.support.processes import free_port, wait_until

VERSION: Final = "26.0.0"
ARTIFACT: Final = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
START_S: Final = 300.0
"""Longest start: it compiles its own configuration first."""
CLIENT: Final = "waypost-console"
AUDIENCE: Final = "waypost"
PASSWORD: Final = "correct horse"
GROUPS: Final = {"operators": ["view:#", "manage:#"], "viewers": ["view:#"]}
"""Rights by group."""
PEOPLE: Final = {"ann@default": "operators", "bob@default": "viewers", "eve@default": None}
"""Group by user."""
TOKEN_S: Final = 35
"""Life of an access token. Sessions are renewed 30 s before its end."""
ADMIN: Final = "admin"


def keycloak_archive() -> Path:
    """Return the distribution, fetched by Maven once; skip the test if that fails."""
    place = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waypost-tests"
    file = place / f"keycloak-quarkus-dist-{VERSION}.zip"
    if file.exists():
        return file
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        pytest.skip("needs Maven and Java: apt install maven openjdk-17-jre-headless")
    place.mkdir(parents=True, exist_ok=True)
    words = (maven, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={place}")
    if subprocess.run(words, check=False, timeout=600).returncode or not file.exists():
        pytest.skip(f"Maven cannot fetch {ARTIFACT}")
    return file


def realm(roots: Sequence[str]) -> dict[str, Any]:
    """Return the realm, as `docs/how-to/sign-in-with-keycloak.md` describes it. `roots`: addresses of the consoles."""
    in_access_token = {"access.token.claim": "true", "id.token.claim": "false"}
    audience = {"included.custom.audience": AUDIENCE, **in_access_token}
    rights = {
        "usermodel.clientRoleMapping.clientId": CLIENT,
        "claim.name": "rights",
        "jsonType.label": "String",
        "multivalued": "true",
        **in_access_token,
    }
    mappers = {"oidc-audience-mapper": audience, "oidc-usermodel-client-role-mapper": rights}
    client = {
        "clientId": CLIENT,
        "publicClient": True,
        "standardFlowEnabled": True,
        "directAccessGrantsEnabled": False,
        "redirectUris": [f"{root}api/v1/session/oidc/callback" for root in roots],
        "attributes": {"pkce.code.challenge.method": "S256", "post.logout.redirect.uris": "##".join(roots)},
        "protocolMappers": [
            {"name": kind, "protocol": "openid-connect", "protocolMapper": kind, "config": config}
            for kind, config in mappers.items()
        ],
    }
    names = sorted({right for rights_of in GROUPS.values() for right in rights_of})
    return {
        "realm": "plant",
        "enabled": True,
        "sslRequired": "none",
        "accessTokenLifespan": TOKEN_S,
        "clients": [client],
        "roles": {"client": {CLIENT: [{"name": name} for name in names]}},
        "groups": [{"name": group, "clientRoles": {CLIENT: found}} for group, found in GROUPS.items()],
        "users": [
            {
                "username": name,
                "enabled": True,
                "email": f"{name.partition('@')[0]}@plant.example",
                "emailVerified": True,
                "firstName": name.partition("@")[0],
                "lastName": "Person",
                "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
                "groups": [f"/{group}"] if group is not None else [],
            }
            for name, group in PEOPLE.items()
        ],
    }


class Keycloak:
    """Server process with the realm. Serves while it is entered."""

    def __init__(self, folder: Path, roots: Sequence[str]) -> None:
        """`roots`: addresses of the consoles that people sign in to."""
        with zipfile.ZipFile(keycloak_archive()) as archive:
            archive.extractall(folder)
        self._home = folder / f"keycloak-{VERSION}"
        self._log = folder / "keycloak.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/realms/plant"
        (self._home / "data" / "import").mkdir(parents=True)
        (self._home / "data" / "import" / "plant-realm.json").write_text(json.dumps(realm(roots)))

    def __enter__(self) -> Self:
        script = str(self._home / "bin" / "kc.sh")
        options = ("--import-realm", "--db=dev-mem", "--http-host=127.0.0.1", f"--http-port={self.port}")
        environment = {
            **os.environ,
            "KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN,
            "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD,
            "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
        }
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                ("/bin/bash", script, "start-dev", *options), stdout=out, stderr=out, env=environment
            )
        wait_until(self._serves, timeout_s=START_S, what="Keycloak serves its realm", every_s=1.0)
        return self

    def __exit__(self, *_: object) -> None:
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
        base = f"http://127.0.0.1:{self.port}"
        form = {"grant_type": "password", "client_id": "admin-cli", "username": ADMIN, "password": PASSWORD}
        token = httpx.post(f"{base}/realms/master/protocol/openid-connect/token", data=form).raise_for_status()
        headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
        users = f"{base}/admin/realms/plant/users"
        (found,) = httpx.get(users, params={"username": user, "exact": "true"}, headers=headers).json()
        httpx.put(f"{users}/{found['id']}", json={"enabled": False}, headers=headers).raise_for_status()
