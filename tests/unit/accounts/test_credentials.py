"""The commands `waypost user add | list | allow | rotate | remove`, and users that resources describe."""

from __future__ import annotations

import asyncio
import logging
import runpy
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge.appliance.accounts.cli import user
from edge.appliance.accounts.users import apply_resources
from edge.broker.configuration import ConfiguredUser
from edge.broker.model.authorization import AccessRule, Grant, Operation
from edge.broker.security.credentials import CredentialFile, CredentialSnapshot, CredentialUser, new_user, verify
from edge.broker.security.followed_users import FollowedUsers
from tests.support.command import item_in, items_in
from tests.support.mosquitto_passwords import mosquitto_hash

ROOT = Path(__file__).parents[3]
RULE = AccessRule(("plant/#",), frozenset({Operation.SEND}))


def run(data: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(user, [*arguments, "--data", str(data)], input=stdin)


def users(data: Path) -> dict[str, CredentialUser]:
    with CredentialFile.open(data) as file:
        return dict(file.load().users)


def opens(data: Path, name: str, password: str) -> bool:
    return verify(users(data)[name], password.encode(), 1e12) is not None


class TestCommands:
    def test_missing_data_directory_is_not_created(self, tmp_path: Path) -> None:
        for arguments in (("list",), ("add", "pump7"), ("remove", "pump7")):
            done = run(tmp_path / "typo", *arguments)
            assert done.exit_code == 2
            assert "not found" in done.output
        assert list(tmp_path.iterdir()) == []

    def test_profile_of_a_sensor_grants_what_the_firmware_needs(self, tmp_path: Path) -> None:
        done = run(tmp_path, "add", "pico-1", "--profile", "sensor", "--allow", "send:alarm/%u")
        assert done.exit_code == 0, done.output
        grant = Grant("pico-1", "pico-1", users(tmp_path)["pico-1"].rules)
        firmware = runpy.run_path(str(ROOT / "firmware_examples/raspberry_pi_pico_w_mqtt/config.py"))
        assert grant.may_send(firmware["ADDRESS"])
        assert grant.may_send(firmware["STATUS_ADDRESS"])
        assert grant.may_receive(firmware["COMMAND_ADDRESS"])
        assert grant.may_send("alarm/pico-1")
        assert not grant.may_send("plant/pico-2/board")

    def test_add_generates_a_password_and_shows_it_once(self, tmp_path: Path) -> None:
        done = run(tmp_path, "add", "pump7", "--allow", "send:plant/%u/#", "--allow", "recv, view:a/+")
        assert done.exit_code == 0
        first, second = done.stdout.splitlines()
        assert first == "pump7: added"
        assert opens(tmp_path, "pump7", second.removeprefix("password: "))
        assert users(tmp_path)["pump7"].rules == (
            AccessRule(("plant/%u/#",), frozenset({Operation.SEND})),
            AccessRule(("a/+",), frozenset({Operation.RECV, Operation.VIEW})),
        )
        listed = run(tmp_path, "list").stdout
        assert listed.startswith("pump7  (device; secret ")
        assert listed.endswith("  send:plant/%u/#\n  recv,view:a/+\n")

    def test_given_password_is_not_shown(self, tmp_path: Path) -> None:
        done = run(tmp_path, "add", "pump7", "--password-stdin", "--json", stdin="my own\n")
        assert item_in(done.stdout) == {"name": "pump7", "allow": []}
        assert "has no rights yet" in done.stderr
        assert opens(tmp_path, "pump7", "my own")

    def test_next_step_can_be_pasted_for_any_name(self, tmp_path: Path) -> None:
        data = tmp_path / "my gateway"
        data.mkdir(mode=0o700)
        said = run(data, "add", "pump 7;x").stderr + run(data, "add", "pump 7;x").stderr
        quoted = f"'pump 7;x' --data '{data}'"
        assert f"user allow {quoted} --allow 'send:plant/pump 7;x/#'" in said
        assert f"user allow {quoted}\n" in said
        assert f"user rotate {quoted}\n" in said

    @pytest.mark.parametrize(
        ("arguments", "stdin", "said"),
        [
            (["add", "x", "--allow", "send"], None, "no filter after the colon"),
            (["add", "x", "--allow", "fly:a/#"], None, "'fly' is not one of send, recv, view, manage"),
            (["add", "x", "--allow", "send:a/#/b"], None, "# must be alone in the last level"),
            (["add", "x", "--password-stdin", "--generate"], "y\n", "exclude each other"),
            (["add", "x", "--password-stdin"], "", "no password on standard input"),
            (["add", "x", "--password-stdin"], "\x07\n", "this password cannot be used"),
            (["add", "a\nb"], None, "printable characters"),
            (["add", "there"], None, "user there exists already"),
            (["remove", "nobody"], None, "user nobody not found"),
            (["allow", "nobody"], None, "user nobody not found"),
            (["rotate", "nobody"], None, "user nobody not found"),
            (["rotate", "there", "--overlap", "soon"], None, '"soon" is not a duration'),
            (["remove", "alice"], None, "comes from a MessagingUser resource"),
        ],
    )
    def test_invalid_arguments_are_reported(
        self, tmp_path: Path, arguments: list[str], stdin: str | None, said: str
    ) -> None:
        with CredentialFile.open(tmp_path) as file:
            file.put([new_user("there"), new_user("alice", origin="resource")])
        before = users(tmp_path)
        done = run(tmp_path, *arguments, stdin=stdin)
        assert done.exit_code != 0
        assert said in done.output
        assert "Traceback" not in done.output
        assert users(tmp_path) == before

    def test_rotated_passwords_overlap(self, tmp_path: Path) -> None:
        run(tmp_path, "add", "p", "--password-stdin", stdin="one\n")
        done = run(tmp_path, "rotate", "p", "--password-stdin", "--overlap", "1h", stdin="two\n")
        assert "the old ones end 20" in done.stdout
        old, new = users(tmp_path)["p"].secrets
        assert old.not_after is not None
        assert (old.not_before, new.not_before, new.not_after) == (0.0, 0.0, None)
        run(tmp_path, "rotate", "p", "--password-stdin", "--overlap", "0s", stdin="three\n")
        assert len(users(tmp_path)["p"].secrets) == 1
        run(tmp_path, "rotate", "p", "--password-stdin", "--start-in", "1h", stdin="four\n")
        assert users(tmp_path)["p"].secrets[1].not_before > 0
        assert " from 20" in run(tmp_path, "list").stdout

    def test_allow_replaces_and_remove_removes(self, tmp_path: Path) -> None:
        run(tmp_path, "add", "p", "--allow", "send:a")
        assert run(tmp_path, "allow", "p", "--allow", "recv:b").exit_code == 0
        assert [rule.addresses for rule in users(tmp_path)["p"].rules] == [("b",)]
        assert run(tmp_path, "remove", "p").stdout == "p: removed\n"
        assert items_in(run(tmp_path, "list", "--json").stdout) == []


class TestResources:
    def test_users_follow_their_resources(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with CredentialFile.open(tmp_path) as file:
            file.put([new_user("hand")])
            wanted = [
                ConfiguredUser("alice", "one", (RULE,)),
                ConfiguredUser("cert", None, (RULE,)),
                ConfiguredUser("hand", "one"),
            ]
            first = apply_resources(file, wanted).users
            assert {name: user.origin for name, user in first.items()} == {
                "alice": "resource",
                "cert": "resource",
                "hand": "device",
            }
            assert first["hand"].secrets == first["cert"].secrets == ()
            assert ["hand" in record.getMessage() for record in caplog.records] == [True]
            assert verify(first["alice"], b"one", 0.0)
            again = apply_resources(file, wanted).users
            assert again == first  # nothing is hashed or written again
            changed = apply_resources(file, [ConfiguredUser("alice", "two")]).users
            assert set(changed) == {"alice", "hand"}
            assert changed["alice"].rules == ()
            assert not verify(changed["alice"], b"one", 0.0)
            assert verify(changed["alice"], b"two", 0.0)

    def test_user_of_another_broker_keeps_its_password(self, tmp_path: Path) -> None:
        wanted = [ConfiguredUser("pump7", None, (RULE,), mosquitto_hash("s3cret"))]
        with CredentialFile.open(tmp_path) as file:
            found = apply_resources(file, wanted).users
            assert verify(found["pump7"], b"s3cret", 0.0)
            assert not verify(found["pump7"], b"secret", 0.0)
            assert apply_resources(file, wanted).users == found, "nothing is written again"
            changed = apply_resources(file, [ConfiguredUser("pump7", "new", (RULE,))]).users
            assert verify(changed["pump7"], b"new", 0.0)
            assert not verify(changed["pump7"], b"s3cret", 0.0)

    def test_running_gateway_follows_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("edge.broker.security.followed_users.WATCH_S", 0.01)
        seen: asyncio.Queue[CredentialSnapshot] = asyncio.Queue()

        async def main() -> None:
            live = FollowedUsers(tmp_path, seen.put_nowait)
            await live.start(partial(apply_resources, configured=[ConfiguredUser("alice", None)]))
            assert list((await seen.get()).users) == ["alice"]
            with CredentialFile.open(tmp_path) as file:
                file.put([new_user("pump7")])
            async with asyncio.timeout(10):
                while "pump7" not in (await seen.get()).users:
                    pass
            await live.stop()

        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
        assert not caplog.records

    def test_password_is_not_shown(self) -> None:
        assert "hunter2" not in repr(ConfiguredUser("alice", "hunter2"))
        assert "hunter2" not in repr(ConfiguredUser("alice", None, (), "hunter2"))
