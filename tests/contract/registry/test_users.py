"""Users in the registry: what a credential file does, for several hubs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.hub.limits import USERS_CHECK_INTERVAL_S
from cloud.hub.registry.database import Database
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangeHint, ChangeNotices, NoticeTopic
from cloud.hub.registry.users import RegistryUsers
from cloud.hub.shared_users import MOVED, SharedUsers
from edge.broker.security import limits
from edge.broker.security.credentials import (
    FILE,
    CredentialFile,
    CredentialsError,
    CredentialSnapshot,
    CredentialUser,
    UserChanged,
    new_user,
    verify,
    with_rules,
    with_secret,
)
from edge.broker.security.rights import format_rights, parse_rights
from edge.broker.security.user_changes import UserNotFound, remove_user, replace_rights
from tests.contract.registry.conftest import Place
from tests.support.loop_wait import until

ANN = with_secret(new_user("ann@acme", parse_rights(["recv:plant/#", "view:#"])), "s3cret", at_s=0.0)
BOB = new_user("bob@acme")


@pytest.fixture
def stores(place: Place) -> Iterator[list[RegistryUsers]]:
    with contextlib.closing(RegistryUsers(place.url)) as here, contextlib.closing(RegistryUsers(place.url)) as there:
        yield [here, there]


def test_user_is_read_as_it_was_written(stores: list[RegistryUsers]) -> None:
    here, there = stores
    here.put([ANN, BOB], new=True)
    found = there.load()
    assert found.users == {"ann@acme": ANN, "bob@acme": BOB}
    assert verify(found.users["ann@acme"], b"s3cret", time.time()) is not None
    assert found.decoy_key == here.load().decoy_key != b""
    assert "s3cret" not in repr(found)


def test_changes_raise_the_revision(stores: list[RegistryUsers]) -> None:
    here, there = stores
    seen = [there.revision()]
    here.put([BOB], new=True)
    seen.append(there.revision())
    assert here.remove(["bob@acme", "nobody@acme"]) == ["bob@acme"]
    seen.append(there.revision())
    assert here.remove(["bob@acme"]) == []
    assert seen == sorted(set(seen))
    assert there.revision() == seen[-1]
    with pytest.raises(UserNotFound):
        remove_user(there, "bob@acme")


def test_look_for_changes_waits_for_no_landing(stores: list[RegistryUsers], place: Place) -> None:
    here, there = stores
    here.put([BOB], new=True)
    with contextlib.closing(Database(place.url)) as landing:
        assert landing.transaction(lambda _: there.revision()) == here.revision() > 0


def test_strangers_cause_one_look_in_an_interval(tmp_path: Path) -> None:
    now_s, hint = [100.0], ChangeHint()
    users = SharedUsers(sqlite_url(tmp_path / "registry.db"), tmp_path, lambda _: None, hint, lambda: now_s[0])
    looks = 0
    for _ in range(100):
        users.reload_if_changed()
        looks += hint.take()
        now_s[0] += USERS_CHECK_INTERVAL_S / 100
    assert looks == 1
    now_s[0] += USERS_CHECK_INTERVAL_S
    users.reload_if_changed()
    assert hint.take()
    asyncio.run(users.stop())


def test_user_exists_once(stores: list[RegistryUsers]) -> None:
    here, there = stores
    here.put([BOB], new=True)
    with pytest.raises(UserChanged):
        there.put([ANN, BOB], new=True)
    assert list(there.load().users) == ["bob@acme"], "all or none"


def test_user_that_changes_at_the_same_time_is_not_overwritten(stores: list[RegistryUsers]) -> None:
    here, there = stores
    here.put([ANN, BOB], new=True)
    read = there.load().users
    replace_rights(here, "ann@acme", parse_rights(["view:#"]))
    here.remove(["bob@acme"])
    for user in (read["ann@acme"], read["bob@acme"]):
        with pytest.raises(UserChanged):
            there.put([with_rules(user, ())])
    found = there.load().users
    assert {name: format_rights(user.rules) for name, user in found.items()} == {"ann@acme": ["view:#"]}


def test_user_that_changes_at_the_same_time_is_not_removed(stores: list[RegistryUsers]) -> None:
    here, there = stores
    here.put([ANN, BOB], new=True)
    there.load()
    replace_rights(here, "ann@acme", parse_rights(["manage:#"]))
    with pytest.raises(UserChanged, match="same time"):
        there.remove(["bob@acme", "ann@acme"])
    assert sorted(there.load().users) == ["ann@acme", "bob@acme"], "all or none"
    assert there.remove(["ann@acme"]) == ["ann@acme"]


def test_number_of_users_is_limited(stores: list[RegistryUsers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.users.USERS_MAX", 1)
    assert limits.USERS_MAX > 1
    here, _ = stores
    here.put([ANN], new=True)
    with pytest.raises(CredentialsError, match="at most 1"):
        here.put([BOB], new=True)
    assert list(here.load().users) == ["ann@acme"]


class Follower:
    """Users as one hub has them."""

    def __init__(self, place: Place, data: Path, hint: ChangeHint | None = None) -> None:
        data.mkdir(exist_ok=True)
        self.users: dict[str, CredentialUser] = {}
        self.shared = SharedUsers(place.url, data, self._take, hint or ChangeHint())

    def _take(self, snapshot: CredentialSnapshot) -> None:
        self.users = dict(snapshot.users)


def test_change_at_one_hub_takes_effect_at_the_other(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        notices = ChangeNotices(place.url)
        here, there = (
            Follower(place, tmp_path / "a"),
            Follower(place, tmp_path / "b", notices.follow(NoticeTopic.USERS)),
        )
        for each in (here, there):
            await each.shared.start()
        notices.start()
        try:
            await here.shared.change(lambda store: store.put([ANN, BOB], new=True) or store.load())
            assert sorted(here.users) == ["ann@acme", "bob@acme"]
            await until(lambda: sorted(there.users) == ["ann@acme", "bob@acme"])
            await there.shared.change(lambda store: remove_user(store, "bob@acme") or store.load())
            await until(lambda: sorted(here.users) == ["ann@acme"])
        finally:
            await notices.stop()
            for each in (here, there):
                await each.shared.stop()

    asyncio.run(main())


def write_file(data: Path, *users: CredentialUser) -> None:
    data.mkdir()
    with CredentialFile.open(data) as file:
        file.put(users)


def test_users_of_a_data_directory_are_moved(place: Place, tmp_path: Path) -> None:
    write_file(tmp_path / "a", ANN)

    async def main() -> None:
        follower = Follower(place, tmp_path / "a")
        await follower.shared.start()
        await follower.shared.stop()
        assert follower.users == {"ann@acme": ANN}

    asyncio.run(main())
    assert (tmp_path / "a" / MOVED).is_file()
    assert not (tmp_path / "a" / FILE).exists()


def test_removed_user_does_not_come_back_from_the_file_of_another_hub(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_file(tmp_path / "a", ANN, BOB)
    write_file(tmp_path / "b", ANN, BOB)

    async def main() -> None:
        here, there = Follower(place, tmp_path / "a"), Follower(place, tmp_path / "b")
        await here.shared.start()
        await here.shared.change(lambda store: store.remove(["ann@acme", "bob@acme"]) and store.load())
        await there.shared.start()
        assert there.users == {}
        for each in (here, there):
            await each.shared.stop()

    with caplog.at_level("WARNING"):
        asyncio.run(main())
    assert "ann@acme, bob@acme" in caplog.text
    assert (tmp_path / "b" / MOVED).is_file()


def test_data_directory_without_users_is_marked(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        follower = Follower(place, tmp_path / "a")
        await follower.shared.start()
        await follower.shared.stop()

    asyncio.run(main())
    assert (tmp_path / "a" / MOVED).is_file(), "commands without --config then say where the users are"


def test_registry_that_fails_is_reported_and_users_stay(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        here = Follower(place, tmp_path / "a")
        await here.shared.start()
        try:
            await here.shared.change(lambda store: store.put([ANN], new=True) or store.load())
            place.execute("UPDATE users SET document = '{'")
            place.execute("UPDATE user_revisions SET number = 99")
            here.shared.reload_if_changed()
            await until(lambda: here.shared.trouble is not None)
            assert "cannot be read" in str(here.shared.trouble)
            assert here.users == {"ann@acme": ANN}
        finally:
            await here.shared.stop()

    asyncio.run(main())


def test_registry_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        users = SharedUsers(sqlite_url(tmp_path / "none" / "registry.db"), tmp_path, lambda _: None, ChangeHint())
        with pytest.raises(CredentialsError, match="cannot be opened"):
            await users.start()
        await users.stop()

    asyncio.run(main())
