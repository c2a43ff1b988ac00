"""Removal of a tenant at one hub, with a registry in SQLite and a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry.tenant_removal import REMOVAL_S_MIN, RemovalRefusal, TenantNotRemoved
from cloud.hub.removals import FRESH_S, HubTenantRemovals, RemovalParts
from cloud.hub.spaces import FOLDER, Spaces
from cloud.hub.tenants import Quota

NOW_US: Final = 10**15


class FakeAcceptor:
    """Connections of tenants."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.connected: list[str] = []

    def end_connections(self, tenant: str, _words: str) -> None:
        self.ended.append(tenant)

    def applications(self, tenant: str) -> list[str]:
        return [each for each in self.connected if each == tenant]


class FakeArtefacts:
    async def finish_removals(self) -> None:
        """Do nothing: there are none."""


class FakeUsers:
    """Users of a file, which the registry does not know."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}

    async def change(self, change: Callable[[Any], Any]) -> None:
        change(self)

    def load(self) -> Mapping[str, object]:
        return self.names

    def remove(self, names: list[str]) -> None:
        for name in names:
            del self.names[name]


class World:
    """One hub with its parts."""

    def __init__(self, folder: Path) -> None:
        self.url = sqlite_url(folder / "registry.db")
        self.now_s = 1_000.0
        self.acceptor, self.users = FakeAcceptor(), FakeUsers()
        open_registry(self.url).database.close()
        with contextlib.closing(TenantQuotas(self.url)) as quotas:
            quotas.change("acme", Quota(), lambda _before: None)
        self.removals = HubTenantRemovals(self.url, ChangeHint(), lambda: NOW_US, lambda: self.now_s)
        self.spaces = Spaces(folder, lambda _tenant: (), folder_of=self.removals.folder_of)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[HubTenantRemovals]:
        """Yield the removals; tests call `look` themselves."""
        await self.removals.open()
        parts: Any = (self.acceptor, self.spaces, FakeArtefacts(), self.users, lambda: self.users.names, self.follow)
        self.removals._parts = RemovalParts(*parts)
        await self.spaces.start()
        try:
            yield self.removals
        finally:
            await self.removals.close()
            await self.spaces.stop()

    def follow(self, tenant: str) -> None:
        if any(name.endswith(f"@{tenant}") for name in self.users.names):
            self.spaces.follow((tenant,))

    async def remove(self, tenant: str, *, forced: bool = True) -> None:
        """Remove a tenant, with the time that it needs."""
        await self.removals.begin(tenant, "ops", forced=forced)
        await self.removals.look()
        self.now_s += REMOVAL_S_MIN
        await self.removals.look()


def folders(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / FOLDER).iterdir())


def run(test: Callable[[World], Any], folder: Path) -> None:
    async def main() -> None:
        await test(World(folder))

    asyncio.run(main())


def test_tenant_leaves_for_a_time_and_is_removed_then(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.running() as removals:
            begun = await removals.begin("acme", "ops", forced=False)
            assert (begun.number, removals.is_leaving("acme"), removals.folder_of("acme")) == (1, True, None)
            world.now_s += REMOVAL_S_MIN - 1
            await removals.look()
            assert removals.is_leaving("acme")
            assert world.acceptor.ended == ["acme"]
            world.now_s += 1
            await removals.look()
            assert (removals.is_leaving("acme"), removals.is_removed("acme")) == (False, True)
            assert removals.folder_of("acme") == "acme.1"
            assert (removals.folder_of("mega"), removals.is_leaving("mega")) == ("mega", False)

    run(test, tmp_path)


def test_users_of_a_file_keep_a_tenant_and_end_with_force(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.users.names = {"ann@acme": 1, "bob@mega": 1}
        async with world.running() as removals:
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("acme", "ops", forced=False)
            assert (refused.value.why, refused.value.contents) == (RemovalRefusal.IN_USE, {"users": 1})
            await world.remove("acme")
            assert removals.is_removed("acme")
            assert set(world.users.names) == {"bob@mega"}

    run(test, tmp_path)


def test_space_ends_after_its_connections_and_the_next_one_is_new(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.users.names = {"ann@acme": 1, "bob@mega": 1}
        async with world.running() as removals:
            world.spaces.follow(("acme", "mega"))
            await world.spaces.start()
            world.acceptor.connected = ["acme"]
            await world.remove("acme")
            assert removals.is_removed("acme")
            assert folders(tmp_path) == ["acme", "mega"]  # a session still uses it
            assert world.spaces.get("acme") is None
            world.acceptor.connected = []
            world.users.names["eve@acme"] = 1
            await removals.look()
            await world.spaces.start()
            assert folders(tmp_path) == ["acme.1", "mega"]
            assert world.spaces.get("acme") is not None

    run(test, tmp_path)


def test_hub_that_was_away_deletes_its_folder_at_its_start(tmp_path: Path) -> None:
    for name in ("acme", "acme.1", "acme.x", "mega"):
        (tmp_path / FOLDER / name).mkdir(parents=True)

    async def test(world: World) -> None:
        async with world.running():
            await world.remove("acme")
            assert folders(tmp_path) == ["acme.1", "acme.x", "mega"]

    run(test, tmp_path)


def test_changed_users_wait_for_a_look_after_a_long_time_without_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.running() as removals:
            found = []
            for pause_s in (FRESH_S, 1.0):
                world.now_s += pause_s
                removals.users_changed()
                found.append(removals.is_current)
            await removals.look()
            assert [*found, removals.is_current] == [True, False, True]

    assert FRESH_S < REMOVAL_S_MIN
    run(test, tmp_path)
