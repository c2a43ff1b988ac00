"""A registry that cannot be opened: one clear line with the next step and without a password."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud.hub.registry.faults import RegistryRefused, RegistryUnreachable
from cloud.hub.registry.location import parse
from cloud.hub.registry.registry import Registry
from cloud.lake.faults import RegistryError
from tests.support.postgres import CAREFUL, PASSWORD, Postgres
from tests.support.processes import free_port, wait_until

WRONG = "Wr0ng"


def refused(url: str) -> RegistryError:
    with pytest.raises(RegistryError) as caught:
        Registry(parse(url), "a" * 32)
    words = str(caught.value)
    assert "\n" not in words
    assert WRONG not in words
    assert PASSWORD not in words
    return caught.value


CASES: dict[str, tuple[Callable[[Postgres], str], str]] = {
    "password": (lambda at: at.address(f"careful:{WRONG}"), "correct the user or the password"),
    "no password": (lambda at: at.address("careful"), "correct the user or the password"),
    "user": (lambda at: at.address("nobody_there"), "createuser USER"),
    "database": (lambda at: at.address(database="fleet"), "createdb -O USER DATABASE"),
    "not let in": (lambda at: at.address("stranger"), "pg_hba.conf"),
    "no rights": (lambda at: at.url("public", CAREFUL), "GRANT CREATE, USAGE"),
    "read-only": (lambda at: at.address() + "?options=-cdefault_transaction_read_only%3Don", "use the primary"),
}


@pytest.mark.parametrize("case", CASES)
def test_refusal_of_the_server_is_reported(postgres: Postgres, case: str) -> None:
    url, step = CASES[case]
    error = refused(url(postgres))
    assert isinstance(error, RegistryRefused), error
    assert step in str(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_unreachable_server_is_reported(host: str) -> None:
    error = refused(f"postgresql://hub:{WRONG}@{host}:{free_port()}/fleet")
    assert isinstance(error, RegistryUnreachable)
    assert "start the server, or correct its address" in str(error)


def test_server_without_durability_is_refused(postgres: Postgres) -> None:
    def set_fsync(value: str, shown: str) -> None:
        """Set it without a restart, which would sync the files of all tests before this one."""
        postgres.execute(f"ALTER SYSTEM SET fsync = {value}")
        postgres.execute("SELECT pg_reload_conf()")
        wait_until(lambda: postgres.execute("SHOW fsync") == [(shown,)], timeout_s=60, what=f"fsync is {shown}")

    set_fsync("off", "off")
    try:
        assert "fsync = off" in str(refused(postgres.url("public")))
    finally:
        set_fsync("DEFAULT", "on")


def test_invalid_files_are_reported(tmp_path: Path) -> None:
    """The error has SQLite's own text and the next step."""
    (tmp_path / "garbage").write_bytes(b"\x00 this is not a database" * 100)
    Registry(parse(f"sqlite:///{tmp_path}/registry.db"), "a" * 32).close()
    cases = {
        f"sqlite:///{tmp_path}/garbage": "not a database",
        f"sqlite:///{tmp_path}/no/such/folder/registry.db": "create its folder",
        f"sqlite:///file:{tmp_path}/registry.db?mode=ro&uri=true": "write access to the file",
    }
    for url, words in cases.items():
        error = refused(url)
        assert isinstance(error, RegistryRefused)
        assert words in str(error)


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", 3), ("mysql", 2)])
def test_program_ends_with_one_line(tmp_path: Path, host: str, code: int) -> None:
    scheme = "mysql" if host == "mysql" else "postgresql"
    config = tmp_path / "hub.yaml"
    url = f"{scheme}://hub:{WRONG}@{host}:{free_port()}/fleet"
    config.write_text(f"apiVersion: waypost/v1\nkind: Hub\nspec:\n  registry: {url}\n")
    program = [sys.executable, "-m", "edge.appliance.main", "hub", "run", "--data", str(tmp_path / "data"), "--dev"]
    done = subprocess.run(
        [*program, "--config", str(config), "--amqp=127.0.0.1:0", "--http=127.0.0.1:0"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert WRONG not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error[")]
    assert len(errors) == 1
    assert re.search(r"start the server|unknown kind of registry", errors[0])
