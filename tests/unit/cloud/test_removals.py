"""Removal of a tenant at hubs, with a registry in SQLite and a clock of the test: each order of events."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import pytest
import sqlalchemy as sa

from cloud.hub.groups import Presence
from cloud.hub.registry import tenant_removal
from cloud.hub.registry.audit import AuditEntry, AuditFilter, AuditReader
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import tenant_removals
from cloud.hub.registry.tenant_quotas import TenantQuotas
from cloud.hub.registry.tenant_removal import (
    LEASE_S,
    RemovalRefusal,
    RemovalStep,
    StepResult,
    TenantNotRemoved,
    TenantRemovals,
    removal_line,
)
from cloud.hub.removal_work import PAUSE_S_MAX, STUCK_S, TURN_S, RemovalParts
from cloud.hub.removals import AGAIN_S, ENDING_S, HubTenantRemovals
from cloud.hub.removed_folders import ASIDE, KEPT_S, RemovedFolders
from cloud.hub.spaces import FOLDER, Spaces, TenantSpace
from cloud.hub.tenants import Quota, TenantRemoved
from cloud.lake.faults import RegistryError
from edge.broker.http.refusal import RequestRefused
from edge.broker.model.authorization import Grant
from edge.broker.security.credentials import CredentialUser, new_user
from edge.broker.security.rights import parse_rights

NOW_US: Final = 10**15


class FakeAcceptor:
    """Connections of tenants."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.connected: list[str] = []
        self.unanswered = 0
        """Gateways with data that is not answered."""

    def end_removed(self, tenant: str, *, late: bool) -> int:
        if late:
            self.unanswered = 0
        if not self.unanswered:
            self.ended.append(tenant)
        return self.unanswered

    def applications(self, tenant: str) -> list[str]:
        return [each for each in self.connected if each == tenant]


class FakeArtefacts:
    async def finish_removals(self) -> None:
        """Do nothing: there are none."""


class FakeUsers:
    """Users of a file, which the registry does not know."""

    def __init__(self) -> None:
        self.users: dict[str, CredentialUser] = {}
        self.fails = False

    def add(self, name: str, *allowed: str) -> None:
        self.users[name] = new_user(name, parse_rights(allowed))

    async def change(self, change: Callable[[Any], Any]) -> None:
        if self.fails:
            raise OSError(30, "Read-only file system")
        change(self)

    def load(self) -> FakeUsers:
        return self

    def remove(self, names: list[str]) -> None:
        for name in names:
            del self.users[name]


class Hub:
    """One hub with its parts."""

    def __init__(self, world: World, name: str) -> None:
        self.acceptor, self.users = FakeAcceptor(), FakeUsers()
        self.folder = world.folder / name
        self.removals = HubTenantRemovals(world.url, name, ChangeHint(), lambda: world.now_us, lambda: world.now_s)
        self.spaces = Spaces(self.folder, lambda _tenant: (), is_removed=self.removals.is_removed)

    @contextlib.asynccontextmanager
    async def running(self, *, tasks: bool = False) -> AsyncIterator[HubTenantRemovals]:
        """Yield the removals; without `tasks` tests call `read` and `look` themselves."""
        await self.removals.open()
        users = self.users
        folders, acceptor = RemovedFolders(self.folder), cast(Any, self.acceptor)
        parts = RemovalParts(acceptor, self.spaces, folders, FakeArtefacts(), cast(Any, users), lambda: users.users)
        (self.removals.start if tasks else self.removals.use)(parts)
        await self.spaces.start()
        try:
            yield self.removals
        finally:
            await self.removals.close()
            await self.spaces.stop()

    async def serve(self, tenant: str) -> None:
        """Open the space of a tenant, with a connected application."""
        self.spaces.follow((tenant,))
        await self.spaces.wait_opened(tenant)
        self.acceptor.connected.append(tenant)

    async def end(self, *tenants: str) -> None:
        """Look until the removals of these tenants have ended, as applications do when their connections end."""
        for _ in range(200):
            await self.removals.read()
            self.acceptor.connected = [each for each in self.acceptor.connected if each not in self.acceptor.ended]
            await self.removals.look()
            if all(map(self.removals.has_ended, tenants)):
                return
        raise AssertionError("the removals do not end")

    @property
    def open_folders(self) -> list[str]:
        return sorted(each.name for each in (self.folder / FOLDER).iterdir() if each.name != ASIDE)

    @property
    def aside(self) -> list[str]:
        folder = self.folder / FOLDER / ASIDE
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


class World:
    """A registry with hubs, and their clocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = sqlite_url(folder / "registry.db")
        self.now_s, self.now_us = 1_000.0, NOW_US
        self.hub = Hub(self, "here")

    def line(self, tenant: str, *, forced: bool = True) -> AuditEntry:
        return removal_line(tenant, "ops@other", "command line", self.now_us, {}, forced=forced)

    def begin(self, tenant: str, *, forced: bool = True) -> None:
        """Begin a removal as a command or another hub does."""
        with contextlib.closing(open_registry(self.url).database) as database:
            TenantRemovals(database).begin(tenant, self.line(tenant, forced=forced), forced=forced)

    def presence(self, *, connected: bool, connects: int = 0) -> None:
        """Report gateway g1 of acme."""
        with contextlib.closing(Registry(self.url, "there")) as registry:
            registry.directory.presence({("acme", "g1"): Presence("there", connected, self.now_us, connects)})

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_us += int(seconds * 1_000_000)


def set_quota(url: sa.URL, tenant: str) -> None:
    """Make something in a tenant; it needs no force to be removed. Raises `TenantRemoved`."""
    with contextlib.closing(TenantQuotas(url)) as quotas:
        quotas.change(tenant, Quota(), lambda _before: None)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a registry in which acme and mega exist: tables take a third of a second to make."""
    folder = tmp_path_factory.mktemp("registry")
    for tenant in ("acme", "mega"):
        set_quota(sqlite_url(folder / "registry.db"), tenant)
    return folder


@pytest.fixture(autouse=True)
def copied(registry: Path, tmp_path: Path) -> None:
    """Give each test a registry of its own."""
    shutil.copytree(registry, tmp_path, dirs_exist_ok=True)


def run(test: Callable[[World], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        await test(World(folder))

    asyncio.run(main())


def test_mark_refuses_at_once_and_the_rest_follows(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme", forced=False), forced=False)
            assert (removals.is_removed("acme"), removals.has_ended("acme")) == (True, False)
            assert world.hub.acceptor.ended == ["acme"]
            await world.hub.end("acme")
            assert (removals.is_removed("acme"), removals.is_removed("mega")) == (True, False)
            assert world.hub.acceptor.ended == ["acme"]  # once: the acceptor refuses later ones

    run(test, tmp_path)


def test_name_is_not_given_out_again(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            for ended in (False, True):
                if not ended:
                    await removals.begin("acme", world.line("acme"), forced=True)
                else:
                    await world.hub.end("acme")
                with pytest.raises(TenantRemoved):
                    set_quota(world.url, "acme")
                world.hub.spaces.follow(("acme",))
                assert len(world.hub.spaces) == 0
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("acme", world.line("acme"), forced=True)
            assert refused.value.why is RemovalRefusal.UNKNOWN

    run(test, tmp_path)


def test_users_of_a_file_keep_a_tenant_and_end_with_force(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        users = world.hub.users
        users.add("ann@acme", "recv:#")
        users.add("bob@mega", "recv:#")
        async with world.hub.running() as removals:
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("acme", world.line("acme"), forced=False)
            assert (refused.value.why, refused.value.contents) == (RemovalRefusal.IN_USE, {"users": 1})
            await removals.begin("acme", world.line("acme"), forced=True)
            users.add("eve@acme")  # by a command that has not seen the mark
            await world.hub.end("acme")
            assert set(users.users) == {"bob@mega"}

    run(test, tmp_path)


def test_user_of_an_issuer_is_refused_over_http_unless_it_may_manage_the_fleet(tmp_path: Path) -> None:
    def grant(user: str, *rights: str) -> Grant:
        return Grant(user, "request", parse_rights(rights))

    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            removals.check_grant(grant("ann@acme", "view:#"))
            await removals.begin("acme", world.line("acme"), forced=True)
            for _ in range(2):
                with pytest.raises(RequestRefused) as refused:
                    removals.check_grant(grant("ann@acme", "view:#"))
                assert refused.value.status == HTTPStatus.FORBIDDEN
                removals.check_grant(grant("root@acme", "manage:$fleet"))
                removals.check_grant(grant("ann@mega", "view:#"))
                removals.check_grant(grant("operator", "manage:$fleet"))
                await world.hub.end("acme")

    run(test, tmp_path)


@pytest.mark.parametrize("right", ["manage:$fleet", "view:$fleet"])
def test_person_with_rights_on_the_fleet_is_never_removed(tmp_path: Path, right: str) -> None:
    async def test(world: World) -> None:
        users = world.hub.users
        users.add("root@acme", right)
        async with world.hub.running() as removals:
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("acme", world.line("acme"), forced=True)
            assert refused.value.contents == {"users": 1, "fleet-users": 1}
            del users.users["root@acme"]
            await removals.begin("acme", world.line("acme"), forced=True)
            users.add("root@acme", right)  # gets the right during the removal
            await removals.look()
            assert set(users.users) == {"root@acme"}
            assert not removals.has_ended("acme")
            del users.users["root@acme"]
            world.pass_s(PAUSE_S_MAX)
            await world.hub.end("acme")

    run(test, tmp_path)


def test_stored_messages_of_applications_keep_a_tenant_without_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            await world.hub.serve("acme")
            monkeypatch.setattr(TenantSpace, "stored_bytes", 17)
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("acme", world.line("acme"), forced=False)
            assert refused.value.contents == {"stored-bytes-of-applications": 17}

    run(test, tmp_path)


def test_folder_is_put_aside_when_its_applications_have_left(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        hub = world.hub
        async with hub.running() as removals:
            await hub.serve("acme")
            await hub.serve("mega")
            await removals.begin("acme", world.line("acme"), forced=True)
            assert hub.spaces.get("acme") is None  # nothing new is stored from the mark on
            await removals.look()
            assert hub.open_folders == ["acme", "mega"]  # a session still uses it
            hub.acceptor.connected = ["mega"]
            await removals.look()
            assert (hub.open_folders, hub.aside) == (["mega"], [f"acme.{NOW_US}"])
            assert hub.spaces.get("mega") is not None
            world.pass_s(KEPT_S - 1)
            await removals.look()
            assert hub.aside == [f"acme.{NOW_US}"]
            world.pass_s(max(1, AGAIN_S))
            await removals.look()
            assert hub.aside == []

    run(test, tmp_path)


def test_applications_that_do_not_leave_hold_up_no_other_tenant(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        hub = world.hub
        async with hub.running() as removals:
            await hub.serve("acme")
            await hub.serve("mega")
            await removals.begin("acme", world.line("acme"), forced=True)
            await removals.begin("mega", world.line("mega"), forced=True)
            hub.acceptor.connected = ["acme"]
            await removals.look()
            assert hub.open_folders == ["acme"]

    run(test, tmp_path)


def test_space_that_is_being_opened_is_closed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            world.hub.spaces.follow(("acme",))
            await removals.begin("acme", world.line("acme"), forced=True)
            await removals.look()
            assert (len(world.hub.spaces), world.hub.open_folders) == (0, [])
            assert world.hub.aside == [f"acme.{NOW_US}"]

    run(test, tmp_path)


def test_hub_that_cannot_read_the_registry_loses_nothing_that_it_stores(tmp_path: Path) -> None:
    """The hub goes on with what it knows. What it stores for a removed tenant is put aside when it reads again."""

    async def test(world: World) -> None:
        blind = Hub(world, "blind")
        async with blind.running() as removals, world.hub.running():
            await blind.serve("acme")
            world.begin("acme")
            await world.hub.end("acme")
            assert blind.spaces.get("acme") is not None
            (blind.folder / FOLDER / "acme" / "acknowledged").write_text("a message")
            world.pass_s(86_400)
            await removals.read()
            assert blind.acceptor.ended == ["acme"]
            blind.acceptor.connected = []
            await removals.look()
            [place] = (blind.folder / FOLDER / ASIDE).iterdir()
            assert (place / "acknowledged").read_text() == "a message"

    run(test, tmp_path)


def test_hub_that_was_away_puts_its_folder_aside_at_its_start(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.begin("acme")
        for name in ("acme", "acme-2", "mega"):
            (world.hub.folder / FOLDER / name).mkdir(parents=True)
        async with world.hub.running() as removals:
            world.hub.spaces.follow(("acme",))
            await removals.look()
            assert (world.hub.open_folders, world.hub.aside) == (["acme-2", "mega"], [f"acme.{NOW_US}"])

    run(test, tmp_path)


def test_folder_of_an_older_copy_never_meets_another_one(tmp_path: Path) -> None:
    """A registry from before the removal is restored, and the tenant is removed once more: both folders stay."""

    async def test(world: World) -> None:
        folders = RemovedFolders(world.hub.folder)
        for moment in (NOW_US, NOW_US + 1):
            (world.hub.folder / FOLDER / "acme").mkdir(parents=True)
            folders.put_aside("acme", moment)
        assert world.hub.aside == [f"acme.{NOW_US}", f"acme.{NOW_US + 1}"]
        (world.hub.folder / FOLDER / ASIDE / "note.²").mkdir()
        late_us = NOW_US + KEPT_S * 1_000_000
        assert folders.delete_old(late_us, lambda _tenant: False) == 0  # the tenant is there again, by an older copy
        assert folders.delete_old(late_us, lambda _tenant: True) == 1
        assert world.hub.aside == [f"acme.{NOW_US + 1}", "note.²"]

    run(test, tmp_path)


def test_gateway_that_a_blind_hub_has_served_is_removed_later(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.presence(connected=True, connects=1)
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            await removals.look()
            assert not removals.has_ended("acme")  # its hub has not seen the removal
            world.presence(connected=False)  # by another hub, as that one is silent for long
            world.pass_s(PAUSE_S_MAX)
            await world.hub.end("acme")
            world.presence(connected=True, connects=1)  # the silent one is back
            world.pass_s(AGAIN_S)
            await removals.look()
            await removals.read()
            assert not removals.has_ended("acme")
            world.presence(connected=False)
            world.pass_s(PAUSE_S_MAX)
            await world.hub.end("acme")

    run(test, tmp_path)


def test_long_removal_holds_up_neither_looks_nor_other_removals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes a second of the clock. A removal that begins elsewhere then is seen, and gets its turn."""

    async def test(world: World) -> None:
        steps: list[str] = []
        take = TenantRemovals.step

        def slow(found: TenantRemovals, tenant: str, hub: str, now_us: int, more: Mapping[str, int]) -> StepResult:
            steps.append(tenant)
            world.now_s += 1
            return StepResult(RemovalStep.MORE, {}) if tenant == "acme" else take(found, tenant, hub, now_us, more)

        async def no_pause(_seconds: float) -> None:
            await real_sleep(0)

        real_sleep = asyncio.sleep
        monkeypatch.setattr(TenantRemovals, "step", slow)
        monkeypatch.setattr(asyncio, "sleep", no_pause)
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            look = asyncio.ensure_future(removals.look())
            world.begin("mega")
            await removals.read()
            assert (removals.is_removed("mega"), world.hub.acceptor.ended) == (True, ["acme", "mega"])
            assert await look
            assert steps.count("acme") <= TURN_S + 1
            await world.hub.end("mega")
            assert not removals.has_ended("acme")

    run(test, tmp_path)


def test_tenant_that_fails_holds_up_no_other_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        users = world.hub.users
        users.add("ann@acme")
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            await removals.begin("mega", world.line("mega"), forced=True)
            users.fails = True
            await world.hub.end("mega")
            assert "Read-only" in (removals.trouble or "")
            users.fails = False
            world.pass_s(PAUSE_S_MAX)
            await world.hub.end("acme")
            assert removals.trouble is None

    run(test, tmp_path)


def test_folder_that_cannot_be_moved_holds_up_no_step(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        hub = world.hub
        async with hub.running() as removals:
            await hub.serve("acme")
            (hub.folder / FOLDER / ASIDE).touch()  # so its folder cannot be made
            await removals.begin("acme", world.line("acme"), forced=True)
            await hub.end("acme")
            assert "File exists" in (removals.trouble or "")
            assert hub.open_folders == ["acme"]
            (hub.folder / FOLDER / ASIDE).unlink()
            await removals.look()
            assert (hub.open_folders, removals.trouble) == ([], None)

    run(test, tmp_path)


def test_certificates_are_revoked_when_what_gateways_have_sent_is_answered(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        hub = world.hub
        async with hub.running() as removals:
            hub.acceptor.unanswered = 1
            await removals.begin("acme", world.line("acme"), forced=True)
            for pause_s in (0, ENDING_S - 1):
                world.pass_s(pause_s)
                await removals.read()
                await removals.look()
                assert (hub.acceptor.ended, removals.has_ended("acme")) == ([], False)
            world.pass_s(1)  # it is not answered: the registry or the lake fails
            await hub.end("acme")
            assert hub.acceptor.ended == ["acme"]

    run(test, tmp_path)


def delete_row(world: World, tenant: str) -> None:
    """Take a removal out of the registry, as the restore of an older copy does."""
    table = tenant_removals
    with contextlib.closing(open_registry(world.url).database) as database:
        database.transaction(lambda tx: tx.execute(table.delete().where(table.c.tenant == tenant)))


def test_older_copy_under_a_running_hub_hides_no_later_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            await world.hub.end("acme")
            world.begin("mega")
            await removals.read()
            for tenant in ("acme", "mega"):
                delete_row(world, tenant)
            await removals.read()
            assert "acme, mega" in caplog.text
            assert removals.is_removed("acme")  # refused until the hub restarts, or they are removed again
            with monkeypatch.context() as patch:
                patch.delattr(TenantRemovals, "step")  # nothing is done
                assert not await removals.look()
            assert removals.trouble is None
            world.begin("beta")
            await removals.read()
            assert removals.is_removed("beta")
            world.begin("mega")
            await world.hub.end("beta", "mega")

    run(test, tmp_path)


def test_removal_that_is_not_there_costs_no_second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        steps: list[RemovalStep] = []
        take = TenantRemovals.step

        def count(*given: Any) -> StepResult:
            steps.append(take(*given).step)
            return StepResult(steps[-1], {})

        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            delete_row(world, "acme")  # and no read sees it
            monkeypatch.setattr(TenantRemovals, "step", count)
            for _ in range(5):
                assert not await removals.look()
            assert steps == [RemovalStep.NONE]

    run(test, tmp_path)


def test_tenant_with_users_of_an_issuer_only_can_be_removed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            with pytest.raises(TenantNotRemoved) as refused:
                await removals.begin("token", world.line("token"), forced=False)
            assert refused.value.why is RemovalRefusal.UNKNOWN
            await world.hub.serve("token")
            await removals.begin("token", world.line("token"), forced=False)
            await removals.begin("other", world.line("other"), forced=True)  # its users are at another hub
            await world.hub.end("token", "other")

    run(test, tmp_path)


def test_removal_that_waits_for_an_hour_is_a_problem(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.presence(connected=True, connects=1)
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            while await removals.look():
                pass
            assert removals.trouble is None
            world.pass_s(STUCK_S)
            await removals.look()
            assert "1 connected-gateways" in (removals.trouble or "")

    run(test, tmp_path)


def test_one_hub_works_and_another_one_goes_on_after_its_lease(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.presence(connected=True, connects=1)
        other = Hub(world, "there")
        async with world.hub.running() as removals, other.running() as others:
            await removals.begin("acme", world.line("acme"), forced=True)
            while await removals.look():
                pass
            world.presence(connected=False)
            await others.read()
            assert not await others.look()
            assert not others.has_ended("acme")  # held by the first one
            world.pass_s(LEASE_S)
            await other.end("acme")

    run(test, tmp_path)


def test_begin_writes_its_line_of_the_audit_in_its_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(world: World) -> list[str]:
        with contextlib.closing(AuditReader(world.url)) as reader:
            return [each.entry.action for each in reader.page(AuditFilter(), 10).entries]

    async def test(world: World) -> None:
        def fail(*_given: object) -> None:
            raise RegistryError("killed before the commit")

        with monkeypatch.context() as patch:
            patch.setattr(tenant_removal, "notify", fail)
            with pytest.raises(RegistryError):
                world.begin("acme")
        assert lines(world) == []
        world.begin("acme")
        world.begin("acme")  # it goes on already
        assert lines(world) == ["tenant.remove"]

    run(test, tmp_path)


def test_tasks_do_all_of_it(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        async with world.hub.running(tasks=True) as removals:
            await removals.begin("acme", world.line("acme"), forced=True)
            async with asyncio.timeout(60):
                while not removals.has_ended("acme"):
                    await asyncio.sleep(0.01)

    run(test, tmp_path)


def test_registry_that_fails_leaves_the_known_removals_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        async with world.hub.running() as removals:
            await removals.begin("acme", world.line("acme"), forced=True)

            def fail(*_given: object) -> None:
                raise RegistryError("the registry is away")

            monkeypatch.setattr(TenantRemovals, "changes", fail)
            monkeypatch.setattr(TenantRemovals, "step", fail)
            with pytest.raises(RegistryError):
                await removals.read()
            await removals.look()
            assert removals.trouble == "tenant acme: the registry is away"
            assert (removals.is_removed("acme"), removals.is_removed("mega")) == (True, False)

    run(test, tmp_path)
