"""Notices between the hubs of a registry: a hint that rows of a topic may have changed.

Nothing depends on a notice. Each task that follows a topic reads the registry at its own interval, and a notice only
makes the next look come earlier. So a lost notice costs one interval, and a doubled or late one costs a look. A notice
may name the rows that have changed. A task that is concerned by few rows reads only those then, or nothing. On
PostgreSQL the transaction that changes rows sends the notice, with ``NOTIFY``, and it arrives after the commit. A
registry in SQLite has one hub, and sends none.

A notice is the value of its topic, or a JSON array of that and the keys of the rows. A hub of an older version does not
know arrays, and sees such a change at its interval.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from bridge.periodic_task import end_task
from cloud.hub.limits import NOTICE_BYTES_MAX, NOTICES_GATHER_S, NOTICES_RETRY_S, NOTICES_ROWS_MAX
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


RowKey = tuple[str, ...]


class ChangedRow(NamedTuple):
    """Row that a notice names."""

    topic: NoticeTopic
    key: RowKey
    """``commands``: tenant and gateway that has commands to get; ``receipts``: id of a completed command."""


class NoticedChanges(NamedTuple):
    """Changes since the last look."""

    rows: frozenset[ChangedRow]
    others: bool
    """There may be changes of rows that are not known: each has to be read."""


def notify(tx: sa.Connection, topic: NoticeTopic, rows: Collection[RowKey] = ()) -> None:
    """Send a notice when this transaction commits. Several equal ones are sent once. `rows`: keys of those that have
    changed; none: it is not said which."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_notify(CHANNEL, _payload(topic, rows))))


def _payload(topic: NoticeTopic, rows: Collection[RowKey]) -> str:
    if not rows:
        return topic.value
    named = msgspec.json.encode([topic.value, *sorted(set(rows))])
    return named.decode() if len(named) <= NOTICE_BYTES_MAX else topic.value


def _read_payload(payload: str) -> tuple[str, tuple[RowKey, ...]]:
    """Return the topic of a notice and the keys of its rows; an unknown notice is a topic that no task follows."""
    if not payload.startswith("["):
        return payload, ()
    try:
        topic, *rows = msgspec.json.decode(payload, type=list[str | tuple[str, ...]])
    except (msgspec.MsgspecError, ValueError):
        return payload, ()
    keys = tuple(row for row in rows if isinstance(row, tuple))
    return (topic, keys) if isinstance(topic, str) else (payload, ())


class ChangeHint:
    """Wakes one task that follows some topics, or is asked by it."""

    def __init__(self) -> None:
        self._given = asyncio.Event()
        self._rows: set[ChangedRow] = set()
        self._others = False

    def give(self, rows: Collection[ChangedRow] = ()) -> None:
        """Wake the task, now or at its next `wait`. `rows`: those that have changed; none: it is not known which."""
        if rows and len(self._rows) < NOTICES_ROWS_MAX:
            self._rows.update(rows)
        else:
            self._others = True
        self._given.set()

    def take(self) -> bool:
        """Return whether a hint was given since the last look."""
        given = self._given.is_set()
        self._clear()
        return given

    async def wait(self, interval_s: float) -> NoticedChanges:
        """Wait for a hint, at most for an interval, and return what has changed as far as hints say. Hints of the
        following `NOTICES_GATHER_S` are one with it."""
        try:
            async with asyncio.timeout(interval_s):
                await self._given.wait()
                await asyncio.sleep(NOTICES_GATHER_S)
        except TimeoutError:
            pass
        return self._clear()

    def _clear(self) -> NoticedChanges:
        changes = NoticedChanges(frozenset(self._rows), self._others)
        self._rows.clear()
        self._others = False
        self._given.clear()
        return changes


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

    def pass_on(self, payload: str) -> None:
        """Give the hints of the topic of a notice; unknown ones are those of a newer program."""
        topic, keys = _read_payload(payload)
        for topics, hint in self._hints:
            if topic in topics:
                hint.give([ChangedRow(NoticeTopic(topic), key) for key in keys])

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
