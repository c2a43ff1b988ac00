"""The credential file: its content, its permissions, and its bounds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edge.broker.model.authorization import AccessRule, Operation
from edge.broker.security import credentials
from edge.broker.security.credentials import (
    FILE,
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    CredentialUser,
    end_secrets,
    new_user,
    with_rules,
    with_secret,
)
from edge.broker.security.limits import (
    PASSWORD_BYTES_MAX,
    RULES_PER_USER_MAX,
    SECRETS_PER_USER_MAX,
    USERNAME_CHARACTERS_MAX,
)

RULE = AccessRule(("a/#", "b/%u"), frozenset({Operation.SEND, Operation.VIEW}))


@pytest.fixture(scope="module")
def joe() -> CredentialUser:
    return with_secret(new_user("joe", [RULE]), "s3cret", at_s=0.0, not_after=9.5)


def load(data: Path) -> CredentialSnapshot:
    with CredentialFile.open(data) as file:
        return file.load()


class TestFile:
    def test_stored_user_is_found(self, tmp_path: Path, joe: CredentialUser) -> None:
        jane = new_user("jane")
        with CredentialFile.open(tmp_path) as file:
            file.put([joe, jane])
        found = load(tmp_path)
        assert found.users == {"jane": jane, "joe": joe}
        assert len(found.decoy_key) == 32
        assert load(tmp_path) == found

    def test_only_the_owner_can_read_it_and_it_has_no_password(self, tmp_path: Path, joe: CredentialUser) -> None:
        data = tmp_path / "data"
        with CredentialFile.open(data) as file:
            file.put([joe])
        assert data.stat().st_mode & 0o077 == 0
        assert (data / FILE).stat().st_mode & 0o077 == 0
        assert b"s3cret" not in (data / FILE).read_bytes()

    def test_change_of_another_process_is_seen(self, tmp_path: Path, joe: CredentialUser) -> None:
        with CredentialFile.open(tmp_path) as mine, CredentialFile.open(tmp_path) as other:
            assert mine.changed()  # never loaded
            mine.load()
            assert not mine.changed()
            other.put([joe])
            assert mine.changed()
            assert mine.load().users == {"joe": joe}
            assert not mine.changed()
            assert other.remove(["joe", "nobody"]) == ["joe"]
            assert mine.changed()
            assert mine.load().users == {}

    def test_creation_refuses_existing_users_and_stores_all_or_nothing(
        self, tmp_path: Path, joe: CredentialUser
    ) -> None:
        with CredentialFile.open(tmp_path) as file:
            file.put([joe], new=True)
            with pytest.raises(CredentialsError, match="joe"):
                file.put([new_user("jane"), joe], new=True)
            assert list(file.load().users) == ["joe"]

    def test_users_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(credentials, "USERS_MAX", 2)
        with CredentialFile.open(tmp_path) as file:
            file.put([new_user("a"), new_user("b")])
            with pytest.raises(CredentialsError, match="at most 2 users"):
                file.put([new_user("c")])
            assert sorted(file.load().users) == ["a", "b"]

    def test_unusable_file_raises(self, tmp_path: Path) -> None:
        (tmp_path / "newer").mkdir()
        with sqlite3.connect(tmp_path / "newer" / FILE) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
        with pytest.raises(CredentialsError, match="newer version"):
            CredentialFile.open(tmp_path / "newer")
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / FILE).write_bytes(b"no database at all" * 100)
        with pytest.raises(CredentialsError, match="not a database"):
            CredentialFile.open(tmp_path / "bad")
        (tmp_path / "file").write_text("")
        with pytest.raises(CredentialsError, match="cannot open"):
            CredentialFile.open(tmp_path / "file")


class TestUsers:
    @pytest.mark.parametrize("name", ["", "x" * (USERNAME_CHARACTERS_MAX + 1), "a\nb", "a\x00"])
    def test_invalid_names_are_refused(self, name: str) -> None:
        with pytest.raises(CredentialsError):
            new_user(name)

    @pytest.mark.parametrize("password", ["", "x" * (PASSWORD_BYTES_MAX + 1), "bell\x07", "\ud800"])
    def test_invalid_passwords_are_refused(self, password: str) -> None:
        with pytest.raises(CredentialsError):
            with_secret(new_user("joe"), password, at_s=0.0)

    def test_rules_are_bounded(self) -> None:
        with_rules(new_user("joe"), [RULE] * RULES_PER_USER_MAX)
        with pytest.raises(CredentialsError):
            with_rules(new_user("joe"), [RULE] * (RULES_PER_USER_MAX + 1))
        with pytest.raises(CredentialsError):
            new_user("joe", [AccessRule(("a",) * (RULES_PER_USER_MAX + 1), RULE.operations)])

    def test_secrets_are_bounded_and_expired_ones_make_room(self) -> None:
        user = new_user("joe")
        for i in range(SECRETS_PER_USER_MAX):
            user = with_secret(user, f"p{i}", at_s=0.0)
        with pytest.raises(CredentialsError, match="has 4 secrets"):
            with_secret(user, "more", at_s=0.0)
        user = with_secret(end_secrets(user, 10.0), "more", at_s=10.0)
        assert len(user.secrets) == 1
