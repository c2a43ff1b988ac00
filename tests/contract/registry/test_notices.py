"""Notices between hubs: they make changes visible at once, and nothing depends on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import pytest
import sqlalchemy as sa

from cloud.hub.commands.service import Draft
from cloud.hub.enrolment.limits import REVOCATIONS_CHECK_INTERVAL_S
from cloud.hub.groups import Presence
from cloud.hub.labels import parse_changes
from cloud.hub.limits import CONFIGURATIONS_CHECK_INTERVAL_S
from cloud.hub.registry import labels
from cloud.hub.registry.commands import CommandNews, Commands, CommandState
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import CertificateRecord, Enrolments
from cloud.hub.registry.location import parse
from cloud.hub.registry.notices import (
    CHANNEL,
    ChangedRow,
    ChangeHint,
    ChangeNotices,
    NoticedChanges,
    NoticeTopic,
    notify,
)
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import gateways, tenants
from cloud.hub.registry.users import RegistryUsers
from edge.broker.security.credentials import new_user
from tests.contract.registry.conftest import Place
from tests.support.loop_wait import until
from tests.support.postgres import Postgres

NEVER_S: Final = 60.0
"""Interval of polling in tests where only a notice wakes the task."""
DRAFT = Draft("acme", "hall", "pump7", "on", b"{}", None, 60.0)


@pytest.fixture
def server_url(postgres: Postgres) -> sa.URL:
    url = parse(postgres.url(postgres.schema()))
    open_registry(url).database.close()
    return url


async def woken(hint: ChangeHint) -> NoticedChanges:
    """Wait until a hint is given and return it, or fail."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    changes = await hint.wait(NEVER_S)
    assert loop.time() - began < NEVER_S
    return changes


async def in_registry(url: sa.URL, work: Callable[[sa.Connection], object]) -> None:
    """Run one transaction of another hub."""

    def run() -> None:
        with contextlib.closing(Database(url)) as database:
            database.transaction(work)

    await asyncio.to_thread(run)


def test_each_topic_wakes_those_who_follow_it(server_url: sa.URL) -> None:
    async def main() -> None:
        notices = ChangeNotices(server_url)
        hints = {topic: notices.follow(topic) for topic in NoticeTopic}
        every = notices.follow(*NoticeTopic)
        notices.start()
        try:
            for hint in (*hints.values(), every):
                await woken(hint)  # what was sent before it listened is lost
            for topic, hint in hints.items():
                await in_registry(server_url, lambda tx, topic=topic: notify(tx, topic))  # type: ignore[misc]
                await asyncio.gather(woken(hint), woken(every))
        finally:
            await notices.stop()

    asyncio.run(main())


def test_rolled_back_transaction_sends_no_notice(server_url: sa.URL) -> None:
    async def main() -> None:
        notices = ChangeNotices(server_url)
        hint, other = notices.follow(NoticeTopic.LABELS), notices.follow(NoticeTopic.USERS)
        notices.start()

        def fail(tx: sa.Connection) -> None:
            labels.put(tx, "acme", "hall", parse_changes(["site=lyon"]))
            raise ZeroDivisionError

        try:
            await asyncio.gather(woken(hint), woken(other))
            with pytest.raises(ZeroDivisionError):
                await in_registry(server_url, fail)
            await in_registry(server_url, lambda tx: notify(tx, NoticeTopic.USERS))
            await woken(other)  # a notice of the first transaction would have arrived before
            await hint.wait(0.0)
            assert not hint._given.is_set()
        finally:
            await notices.stop()

    asyncio.run(main())


def test_broken_connection_is_made_again_and_causes_a_look(server_url: sa.URL, postgres: Postgres) -> None:
    async def main() -> None:
        notices = ChangeNotices(server_url)
        hint = notices.follow(NoticeTopic.COMMANDS)
        notices.start()
        try:
            await woken(hint)
            ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s"
            await asyncio.to_thread(postgres.execute, ending, f"LISTEN {CHANNEL}")
            await until(lambda: notices.broken is not None)
            await woken(hint)
            assert notices.broken is None
            await in_registry(server_url, lambda tx: notify(tx, NoticeTopic.COMMANDS))
            await woken(hint)
        finally:
            await notices.stop()

    asyncio.run(main())


def test_commands_and_receipts_are_announced(server_url: sa.URL) -> None:
    async def main() -> None:
        notices = ChangeNotices(server_url)
        sent, received = notices.follow(NoticeTopic.COMMANDS), notices.follow(NoticeTopic.RECEIPTS)
        notices.start()

        def send() -> str:
            with contextlib.closing(Commands(server_url)) as commands:
                return commands.add(DRAFT.record(1), gateway_max=10, tenant_max=10, known=True).id

        def receive(identifier: str, state: CommandState) -> None:
            with contextlib.closing(Commands(server_url)) as commands:
                commands.keep([CommandNews(identifier, "acme", "hall", "pump7", 2, state)])

        def receive_both(identifier: str) -> None:
            receive(identifier, CommandState.QUEUED)  # which ends no request
            receive(identifier, CommandState.DELIVERED)

        try:
            await asyncio.gather(woken(sent), woken(received))
            identifier = await asyncio.to_thread(send)
            hall = ChangedRow(NoticeTopic.COMMANDS, ("acme", "hall"))
            assert await woken(sent) == (frozenset({hall}), False)
            await asyncio.to_thread(receive_both, identifier)
            ended = ChangedRow(NoticeTopic.RECEIPTS, (identifier,))
            assert await woken(received) == (frozenset({ended}), False)
        finally:
            await notices.stop()

    asyncio.run(main())


def present(tx: sa.Connection) -> None:
    """Add a tenant with a gateway."""
    tx.execute(tenants.insert().values(name="acme", created_at=1))
    times = {"first_seen": 1, "last_seen": 1}
    row = {"tenant": "acme", "name": "hall", **times, "connected": False, "remote": "-", "generation": 1, "landed": 0}
    tx.execute(gateways.insert().values(**row))


def revoke(url: sa.URL) -> None:
    with contextlib.closing(Enrolments(url)) as enrolments:
        seen = CertificateRecord("1f", "acme", "hall", b"", 0, 1 << 60, None, "")
        enrolments.add_certificates([seen])
        assert enrolments.revoke("acme", "hall", 5) == 1


def forget(url: sa.URL) -> None:
    with contextlib.closing(Enrolments(url)) as enrolments:
        enrolments.forget("acme", "hall", 5)


def configure(url: sa.URL) -> None:
    with contextlib.closing(open_registry(url).database) as database:
        wanted = WantedConfiguration("acme", "hall", [], confirm_s=60.0, restart=False, made_by="ann", note="")
        Configurations(database).set_wanted([wanted], 5, lambda _content: "signed")


def label(url: sa.URL) -> None:
    with contextlib.closing(Database(url)) as database:
        database.transaction(lambda tx: labels.put(tx, "acme", "hall", parse_changes(["site=lyon"])))


def connect(url: sa.URL) -> None:
    registry = Registry(url, "a" * 32)
    registry.directory.presence({("acme", "hall"): Presence("-", connected=True, at_us=5, connects=1)})
    registry.close()


def add_user(url: sa.URL) -> None:
    with contextlib.closing(RegistryUsers(url)) as users:
        users.put([new_user("ann@acme")], new=True)


ACTS: Final[dict[Callable[[sa.URL], None], NoticeTopic]] = {
    revoke: NoticeTopic.REVOCATIONS,
    forget: NoticeTopic.REVOCATIONS,
    configure: NoticeTopic.CONFIGURATIONS,
    label: NoticeTopic.LABELS,
    connect: NoticeTopic.CONNECTIONS,
    add_user: NoticeTopic.USERS,
}


@pytest.mark.parametrize("act", list(ACTS), ids=lambda act: act.__name__)
def test_act_of_another_hub_is_announced(server_url: sa.URL, act: Callable[[sa.URL], None]) -> None:
    async def main() -> None:
        await in_registry(server_url, present)
        notices = ChangeNotices(server_url)
        hint = notices.follow(ACTS[act])
        notices.start()
        try:
            await woken(hint)
            await asyncio.to_thread(act, server_url)
            await woken(hint)
        finally:
            await notices.stop()

    asyncio.run(main())


def test_registry_in_a_file_sends_none_and_is_polled(place: Place) -> None:
    if place.url.drivername != "sqlite":
        pytest.skip("a server sends notices")

    async def main() -> None:
        notices = ChangeNotices(place.url)
        hint = notices.follow(NoticeTopic.COMMANDS)
        notices.start()
        await hint.wait(0.01)
        await notices.stop()

    asyncio.run(main())


def test_lost_notice_costs_about_a_second() -> None:
    assert max(CONFIGURATIONS_CHECK_INTERVAL_S, REVOCATIONS_CHECK_INTERVAL_S) <= 1.0
