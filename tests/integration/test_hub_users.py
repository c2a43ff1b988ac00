"""`waypost hub user` adds, lists and removes users of a hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloud.fleet.users import user
from edge.broker.security.credentials import CredentialFile, verify
from tests.support.command import item_in, items_in


def run(data: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(user, [*arguments, "--data", str(data)], input=stdin)


def opens(data: Path, name: str, password: str) -> bool:
    with CredentialFile.open(data) as file:
        return verify(file.load().users[name], password.encode(), 1e12) is not None


def test_a_password_is_shown_once(tmp_path: Path) -> None:
    added = run(tmp_path, "add", "reader@acme", "--allow", "recv:plant/#", "--json")
    made = item_in(added.stdout)
    assert opens(tmp_path, "reader@acme", made["password"])
    listed = run(tmp_path, "list", "--json")
    assert items_in(listed.stdout) == [{"name": "reader@acme", "role": None, "allow": ["recv:plant/#"]}]
    assert made["password"] not in listed.output
    assert run(tmp_path, "add", "reader@acme").exit_code == 1
    assert opens(tmp_path, "reader@acme", made["password"]), "the one there is stays"


def test_password_read_from_stdin_is_not_shown(tmp_path: Path) -> None:
    added = run(tmp_path, "add", "reader@acme", "--password-stdin", stdin="opensesame\n")
    assert "opensesame" not in added.output
    assert "no rights" in added.stderr
    assert opens(tmp_path, "reader@acme", "opensesame")


def test_removed_user_is_gone(tmp_path: Path) -> None:
    run(tmp_path, "add", "reader@acme")
    assert run(tmp_path, "remove", "reader@acme").stdout == "reader@acme: removed\n"
    assert run(tmp_path, "remove", "reader@acme").exit_code == 1
    assert run(tmp_path, "list").stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "reader"),
        ("add", "reader@Acme"),
        ("add", "a/b@acme"),
        ("add", "reader@acme", "--allow", "read:#"),
        ("add", "reader@acme", "--allow", "recv:a#"),
        ("add", "reader@acme", "--allow", "recv"),
        ("add", "reader@acme", "--password-stdin"),
    ],
)
def test_wrong_usage_adds_no_user(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = run(tmp_path, *arguments, stdin="")
    assert refused.exit_code == 2
    assert refused.stderr
    assert run(tmp_path, "list").stdout == ""


def test_missing_data_directory_is_refused(tmp_path: Path) -> None:
    refused = run(tmp_path / "none", "list")
    assert refused.exit_code == 2
    assert not (tmp_path / "none").exists()
