"""Notices between the hubs of a registry: a hint that rows of a topic may have changed.

A notice carries no data, and nothing depends on it. Whoever follows a topic reads the registry at its own interval, and
a notice only makes the next look come earlier. So a lost notice costs one interval, and a doubled or late one costs a
look. On PostgreSQL the transaction that changes rows sends the notice, with ``NOTIFY``, and it arrives after the
commit. A registry in SQLite has one hub, and sends none.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import Any, Final

import sqlalchemy as sa

from bridge.periodic_task import end_task
from cloud.hub.limits import NOTICES_GATHER_S, NOTICES_RETRY_S
from cloud.hub.registry.dialects import connection_limits
from cloud.hub.registry.location import POSTGRESQL, redact_url
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

CHANNEL: Final = "waypost_registry"
"""Channel of the database. Registries in several schemas of one database share it, which costs them some looks."""


class NoticeTopic(enum.Enum):
    """Rows that have changed."""

    COMMANDS = "commands"
    RECEIPTS = "receipts"
    """Results of commands."""
    CONFIGURATIONS = "configurations"
    ROLLOUTS = "rollouts"
    LABELS = "labels"
    REVOCATIONS = "revocations"
    """Revoked certificates, and forgotten gateways."""
    CONNECTIONS = "connections"
    """Connects and disconnects of gateways."""
    USERS = "users"
    SIGN_OUTS = "sign-outs"
    """Logouts of people at the issuer."""
    ALERTS = "alerts"
    QUOTAS = "quotas"
    """Limits of tenants."""
    TENANTS = "tenants"
    """Removals of tenants."""
    EVENTS = "events"
    SIGNATURES = "signatures"
    """Requests for signatures, and configurations without one."""
    SIGNED = "signed"
    """Answers of the authority's process."""


def notify(tx: sa.Connection, topic: NoticeTopic) -> None:
    """Send a notice when this transaction commits. Several of one topic are sent once."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_notify(CHANNEL, topic.value)))


class ChangeHint:
    """Wakes one task that follows some topics, or is asked by it."""

    def __init__(self) -> None:
        self._given = asyncio.Event()

    def give(self) -> None:
        """Wake the task, now or at its next `wait`."""
        self._given.set()

    def take(self) -> bool:
        """Return whether a hint was given since the last look."""
        given = self._given.is_set()
        self._given.clear()
        return given

    async def wait(self, interval_s: float) -> None:
        """Wait for a hint, at most for an interval. Hints of the following `NOTICES_GATHER_S` are one with it."""
        try:
            async with asyncio.timeout(interval_s):
                await self._given.wait()
                await asyncio.sleep(NOTICES_GATHER_S)
        except TimeoutError:
            pass
        self._given.clear()


class ChangeNotices:
    """Notices that a hub receives. `start`, later `stop`, inside a running loop."""

    def __init__(self, registry: sa.URL) -> None:
        self._url = registry
        self._hints: list[tuple[frozenset[str], ChangeHint]] = []
        self._task: asyncio.Task[None] | None = None
        self.broken: str | None = None
        """Reason why no notices arrive; None if they do, and where there are none."""

    def follow(self, *topics: NoticeTopic) -> ChangeHint:
        """Return a hint that is given for each notice of these topics."""
        hint = ChangeHint()
        self._hints.append((frozenset(topic.value for topic in topics), hint))
        return hint

    def start(self) -> None:
        """Start to listen, where the registry sends notices."""
        if self._url.drivername == POSTGRESQL:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="notices of the registry")

    async def stop(self) -> None:
        """Stop listening. Idempotent."""
        task, self._task = self._task, None
        await end_task(task)

    def pass_on(self, topic: str) -> None:
        """Give the hints of a topic; unknown ones are those of a newer program."""
        for topics, hint in self._hints:
            if topic in topics:
                hint.give()

    async def _listen(self) -> None:
        """Listen over a connection of its own, and connect again when it breaks."""
        driver: Any = self._url.get_dialect().import_dbapi()  # psycopg is an extra of the package
        while True:
            try:
                await self._receive(driver)
            except (driver.Error, OSError, TimeoutError) as error:
                why = describe_error(error)
            except Exception as error:  # an internal error must not end the task silently
                log.exception("notices of the registry failed with an internal error")
                why = f"internal error: {type(error).__name__}"
            else:
                why = "the server has closed the connection"
            if self.broken is None:
                where = redact_url(self._url)
                log.warning("%s sends no notices, changes of other hubs are seen later: %s", where, why)
            self.broken = why
            await asyncio.sleep(NOTICES_RETRY_S)

    async def _receive(self, driver: Any) -> None:
        """Pass notices on until the connection ends. Raises `psycopg.Error`."""
        _, arguments = self._url.get_dialect()().create_connect_args(self._url)
        limits = connection_limits(self._url)
        async with await driver.AsyncConnection.connect(**{**limits, **arguments}, autocommit=True) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            if self.broken is not None:
                log.info("notices of the registry arrive again")
            self.broken = None
            for _, hint in self._hints:  # what was sent before is lost
                hint.give()
            async for notice in connection.notifies():
                self.pass_on(notice.payload)
