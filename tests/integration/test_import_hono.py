"""A registry of Hono moves into that of a running hub: once, completely, and without a secret in any output."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edge.output.errors import Exit
from tests.support.command import PROGRAM, run_waypost
from tests.support.enrolled import EnrolledFleet
from tests.support.hono_registry import PASSWORD, SECRETS, hashed, password_of, write, write_registry
from tests.support.operator import HubOperator
from tests.support.processes import free_port, wait_until

MANY = 300


class Importer(NamedTuple):
    """A person at another machine who has signed in at the hub."""

    hub: HubOperator
    environment: dict[str, str]

    def run(self, *words: object, code: int = 0) -> str:
        done = run_waypost("hub", "device", "import", *map(str, words), environment=self.environment, timeout_s=180)
        assert done.returncode == code, done.stdout + done.stderr
        assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
        return done.stderr if code == Exit.USAGE else done.stdout

    def report(self, *words: object, code: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(*words, "--json", code=code))
        return document

    def count(self, tenant: str) -> int:
        """Return the number of devices of a tenant at the hub."""
        answer = self.hub.ask("GET", f"/v1/devices/{tenant}?pageSize=1")
        return int(answer.document["total"]) if answer.status == 200 else 0

    def get(self, path: str) -> Any:
        answer = self.hub.ask("GET", f"/v1/{path}")
        assert answer.status == 200, answer
        return answer.document


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Importer]:
    folder = tmp_path_factory.mktemp("hono")
    with EnrolledFleet(folder, f"--http=127.0.0.1:{free_port()}") as fleet:
        rights = ("--allow", "view:$fleet", "--allow", "manage:$fleet")
        added = run_waypost("hub", "user", "add", "ops@default", "--data", str(fleet.hub.data), *rights)
        password = re.findall(r"^password: (\S+)", added.stdout, re.MULTILINE)[0]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
        authority = str(fleet.hub.data / "authority" / "ca.pem")
        url = f"https://localhost:{fleet.hub.port('https')}"
        words = ("login", url, "--user", "ops@default", "--ca", authority)

        def signed_in() -> bool:
            return run_waypost(*words, stdin=f"{password}\n", environment=environment).returncode == 0

        wait_until(signed_in, timeout_s=60, what="the hub has read its new user", every_s=0.3)
        yield Importer(HubOperator(fleet.hub), environment)


def rows_of(report: dict[str, Any], outcome: str) -> list[tuple[str, str, str]]:
    return [(each["tenant"], each["device"], each["setting"]) for each in report["items"] if each["outcome"] == outcome]


def test_the_files_of_a_registry(person: Importer, tmp_path: Path) -> None:
    files = write_registry(tmp_path)
    planned = person.report(*files, "--gateway", "plant-1", "--dry-run", code=Exit.FAILED)
    assert planned["dry_run"] is True
    assert person.hub.ask("GET", "/v1/tenants/DEFAULT_TENANT").status == 404, "a dry run changes nothing"
    done = person.report(*files, "--gateway", "plant-1", code=Exit.FAILED)
    assert done["counts"] == planned["counts"], "a dry run reports what the run does"
    assert {name: {key: value for key, value in each.items() if value} for name, each in done["counts"].items()} == {
        "tenants": {"added": 2},
        "devices": {"refused": 2, "added": 4},
        "credentials": {"refused": 1, "left out": 1, "added": 1},
    }
    assert rows_of(done, "refused") == [
        ("DEFAULT_TENANT", "4711", "hashed-password sensor1 secret 2"),
        ("DEFAULT_TENANT", "gw-1", "hashed-password gw-1"),
        ("DEFAULT_TENANT", "has space", "registration"),
        ("NO_TENANT", "", "tenant"),
        ("NO_TENANT", "lost", "registration"),
    ]
    assert rows_of(done, "left out") == [
        ("DEFAULT_TENANT", "", "custom"),
        ("DEFAULT_TENANT", "4711", "comment"),
        ("DEFAULT_TENANT", "unknown-device", "credentials"),
    ]
    assert person.get("tenants/OFF_TENANT")["enabled"] is False
    found = person.get("devices/DEFAULT_TENANT/4711")
    assert found["ext"] == {"brand": "ACME", "waypost": {"gateways": ["plant-1"]}}
    assert person.get("devices/DEFAULT_TENANT/4712")["enabled"] is False
    kinds = [(each["type"], len(each["secrets"])) for each in person.get("credentials/DEFAULT_TENANT/4711")]
    assert kinds == [("hashed-password", 1), ("psk", 1), ("x509-cert", 1)]
    before = [person.get(f"devices/DEFAULT_TENANT/{name}")["status"] for name in ("4711", "4712", "4713", "gw-1")]
    again = person.report(*files, "--gateway", "plant-1", code=Exit.FAILED)
    assert {name: {key: value for key, value in each.items() if value} for name, each in again["counts"].items()} == {
        "tenants": {"unchanged": 2},
        "devices": {"refused": 2, "unchanged": 4},
        "credentials": {"refused": 1, "left out": 1, "unchanged": 1},
    }
    after = [person.get(f"devices/DEFAULT_TENANT/{name}")["status"] for name in ("4711", "4712", "4713", "gw-1")]
    assert after == before, "the second run changes nothing"
    assert "dry run" in person.run(*files, "--dry-run", code=Exit.FAILED)


def test_an_export_of_mongodb_keeps_what_the_hub_has(person: Importer, tmp_path: Path) -> None:
    """One object a line, with a password in plain text; what differs is reported and stays."""
    rows = [
        {"_id": {"$oid": "5f"}, "tenant-id": "MONGO", "tenant": {"enabled": True}, "version": "1"},
        {"tenant-id": "MONGO", "device-id": "a", "device": {"ext": {"n": {"$numberInt": "7"}}}, "version": "1"},
        {"tenant-id": "MONGO", "device-id": "b", "device": {}, "version": "1"},
        {
            "tenant-id": "MONGO",
            "device-id": "a",
            "credentials": [
                {"type": "hashed-password", "auth-id": "a", "secrets": [{"pwd-plain": PASSWORD}]},
            ],
        },
        {
            "tenant-id": "MONGO",
            "device-id": "b",
            "credentials": [
                {"type": "hashed-password", "auth-id": "a", "secrets": [hashed()]},
            ],
        },
    ]
    path = tmp_path / "export.json"
    path.write_text("\n".join(json.dumps(each) for each in rows))
    done = person.report(path, "--owner", "acme", code=Exit.FAILED)
    assert done["counts"]["devices"]["added"] == 2
    assert rows_of(done, "refused") == [("MONGO", "b", "credentials")], "another device has this auth-id"
    assert person.get("tenants/MONGO")["ext"] == {"waypost": {"tenant": "acme"}}
    assert person.get("devices/MONGO/a")["ext"] == {"n": 7}
    changed = person.hub.ask("PUT", "/v1/devices/MONGO/a", {"ext": {"n": 8}})
    assert changed.status == 204
    again = person.report(path, "--owner", "acme", code=Exit.FAILED)
    assert rows_of(again, "differs") == [("MONGO", "a", "registration")]
    assert person.get("devices/MONGO/a")["ext"] == {"n": 8}


def test_pages_of_the_management_api(person: Importer, tmp_path: Path) -> None:
    devices = {"total": 1, "result": [{"id": "p1", "enabled": True, "status": {"created": "2020-01-01T00:00:00Z"}}]}
    tenants = write(tmp_path, "tenants.json", {"total": 1, "result": [{"id": "PAGES", "enabled": True}]})
    pages = write(tmp_path, "devices.json", devices)
    assert "--tenant" in person.run(tenants, pages, code=Exit.USAGE)
    assert person.report(tenants, pages, "--tenant", "PAGES")["counts"]["devices"]["added"] == 1
    assert person.get("devices/PAGES/p1")["enabled"] is True


def write_many(folder: Path, tenant: str) -> list[Path]:
    """Write a registry of `MANY` devices with passwords."""
    names = [f"d{i}" for i in range(MANY)]
    return [
        write(folder, "tenants.json", [{"tenant-id": tenant}]),
        write(folder, "d.json", [{"tenant": tenant, "devices": [{"device-id": each} for each in names]}]),
        write(folder, "c.json", [{"tenant": tenant, "credentials": [password_of(each) for each in names]}]),
    ]


@pytest.mark.timeout(400)  # four runs over all devices, on a machine that may be busy
def test_a_killed_run_is_completed_by_the_next(person: Importer, tmp_path: Path) -> None:
    """A process is killed while it imports; devices are then there at most once, each with its credentials."""
    files = write_many(tmp_path, "KILLED")
    command = [*PROGRAM, "hub", "device", "import", *map(str, files)]

    def count() -> int:
        return person.count("KILLED")

    with subprocess.Popen(command, env=person.environment, stdout=subprocess.DEVNULL) as running:
        wait_until(lambda: count() > 10, timeout_s=120, what="some devices are in", every_s=0.02)
        assert running.poll() is None, "it is killed in the middle"
        running.kill()
    killed_at = count()
    withheld = person.report(*files, "--dry-run")["counts"]
    assert 0 < withheld["devices"]["withheld"] <= MANY - killed_at, "what is missing may have been removed"
    report = person.report(*files, "--add-missing")["counts"]
    assert report["devices"]["added"] + report["devices"]["unchanged"] == MANY
    assert report["devices"]["unchanged"] >= 10
    assert killed_at <= report["devices"]["unchanged"] + 1, "the hub may finish the last request after its client"
    assert report["credentials"]["added"] + report["credentials"]["unchanged"] == MANY
    assert count() == MANY
    assert person.report(*files)["counts"]["credentials"]["unchanged"] == MANY


@pytest.mark.slow
def test_a_killed_hub_is_waited_for(person: Importer, tmp_path: Path) -> None:
    """The hub is killed while a run goes on, and starts again: that run still imports everything, once."""
    files = write_many(tmp_path, "RESTARTED")
    command = [*PROGRAM, "hub", "device", "import", *map(str, files), "--json"]
    with subprocess.Popen(command, env=person.environment, stdout=subprocess.PIPE) as running:
        wait_until(lambda: person.count("RESTARTED") > 10, timeout_s=120, what="some devices are in", every_s=0.02)
        assert running.poll() is None, "the hub is killed in the middle"
        person.hub.hub.kill()
        person.hub.hub.start()
        output, _ = running.communicate(timeout=180)
    assert running.returncode == 0
    counts = json.loads(output)["counts"]
    assert counts["devices"]["added"] == counts["credentials"]["added"] == MANY
    again = person.report(*files)["counts"]
    assert again["devices"]["unchanged"] == again["credentials"]["unchanged"] == MANY


def test_what_was_revoked_stays_revoked(person: Importer, tmp_path: Path) -> None:
    """An operator takes the password of one device and removes another one; a later run gives nothing back."""
    names = ["stolen", "removed", "kept", "moved"]
    files = [
        write(tmp_path, "tenants.json", [{"tenant-id": "REVOKED"}]),
        write(tmp_path, "d.json", [{"tenant": "REVOKED", "devices": [{"device-id": each} for each in names]}]),
        write(tmp_path, "c.json", [{"tenant": "REVOKED", "credentials": [password_of(each) for each in names]}]),
    ]
    assert person.report(*files[:2])["counts"]["devices"]["added"] == 4
    assert person.report(*files)["counts"]["credentials"]["added"] == 4, "they never had some"
    assert person.hub.ask("PUT", "/v1/credentials/REVOKED/stolen", []).status == 204
    assert person.hub.ask("DELETE", "/v1/devices/REVOKED/removed").status == 204
    assert person.hub.ask("PUT", "/v1/credentials/REVOKED/moved", []).status == 204
    assert person.hub.ask("PUT", "/v1/devices/REVOKED/moved", {}).status == 204
    done = person.report(*files)
    assert rows_of(done, "withheld") == [
        ("REVOKED", "stolen", "credentials"),
        ("REVOKED", "removed", "registration"),
        ("REVOKED", "moved", "credentials"),
    ]
    assert person.get("credentials/REVOKED/stolen") == person.get("credentials/REVOKED/moved") == []
    assert person.hub.ask("GET", "/v1/devices/REVOKED/removed").status == 404
    assert person.report(*files, "--add-missing")["counts"]["devices"]["added"] == 1
    assert person.get("credentials/REVOKED/stolen") == []


def test_mistakes_change_nothing(person: Importer, tmp_path: Path) -> None:
    files = write_registry(tmp_path)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(files[2].read_text()[:-100])
    for words in (
        [files[0], damaged],
        [*files, "--gateway", ""],
        [*files, "--selector", "no selector!"],
        [*files, "--owner", "No Tenant"],
        [tmp_path / "missing.json"],
    ):
        person.run(*words, code=Exit.USAGE)
    gone = {**person.environment, "XDG_CONFIG_HOME": str(tmp_path)}
    away = run_waypost("hub", "device", "import", str(files[0]), environment=gone)
    assert (away.returncode, "no-context" in away.stderr) == (Exit.USAGE, True)
