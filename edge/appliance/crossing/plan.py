"""Preview of the changes that a configuration makes to the bridge."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bridge.resources.parse import read
from edge.broker.configuration import BrokerConfiguration, Connector, Direction, Forwarder
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.store.sqlite import FILE_NAME
from edge.configuration.effective import build_configuration
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from edge.output.amounts import counted
from edge.output.errors import CommandError
from edge.output.text import word


class PlannedChange(msgspec.Struct, frozen=True):
    """Change of one connector or forwarder."""

    kind: str
    name: str
    change: str
    """``added``, ``changed`` or ``removed``."""
    waiting: int
    """Stored messages that wait for it: they are sent when it is added, and kept when it is removed."""
    sentence: str


def planned(data: Path, names: Sequence[str]) -> list[PlannedChange]:
    """Return the changes that applying these files would make.

    Raises ConfigurationRejected, RepositoryError, CommandError.
    """
    repository = Repository(data)
    resources = read(KINDS, names)
    repository.plan(resources)
    applied = repository.load().resources
    after = list({(one.kind, one.name): one for one in (*applied, *resources)}.values())
    return list(changes(build_configuration(applied), build_configuration(after), waiting_in(data)))


def waiting_in(data: Path) -> Mapping[str, int]:
    """Return the messages that wait for each forwarder, by ``CONNECTOR/NAME``; empty without a store.

    Raises CommandError.
    """
    path = data / FILE_NAME
    if not path.exists():
        return {}
    query = "SELECT substr(cursor, ?), sum(behind) FROM backlog WHERE substr(cursor, 1, ?) = ? GROUP BY cursor"
    length = len(FORWARDER_PREFIX)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return dict(connection.execute(query, (length + 1, length, FORWARDER_PREFIX)).fetchall())
    except sqlite3.Error as error:
        raise CommandError(f"{path}: {error}", hint="see `waypost store verify`", error="store-not-readable") from None


def changes(
    before: BrokerConfiguration, after: BrokerConfiguration, waiting: Mapping[str, int]
) -> Iterator[PlannedChange]:
    """Yield the changes: of connectors, then of forwarders. `waiting`: see `waiting_in`."""
    yield from _connectors(before, after)
    yield from _forwarders(before, after, waiting)


def _connectors(before: BrokerConfiguration, after: BrokerConfiguration) -> Iterator[PlannedChange]:
    old = {one.name: one for one in before.connectors}
    new = {one.name: one for one in after.connectors}
    for name in (*new, *(name for name in old if name not in new)):
        if name not in old:
            yield _connector(name, "added", f"dials {_places(new[name])}")
        elif name not in new:
            yield _connector(name, "removed", "its connection ends")
        elif old[name] != new[name]:
            yield _connector(name, "changed", f"its connection ends, and it dials {_places(new[name])}")


def _connector(name: str, change: str, what: str) -> PlannedChange:
    return PlannedChange("connector", name, change, 0, f"connector {name} {change}: {what}")


def _places(connector: Connector) -> str:
    places = ", then ".join(f"{one.host}:{one.port}" for one in connector.endpoints)
    return places if connector.proxy is None else f"{places} through the proxy {connector.proxy.place}"


def _forwarders(
    before: BrokerConfiguration, after: BrokerConfiguration, waiting: Mapping[str, int]
) -> Iterator[PlannedChange]:
    old = {f"{one.connector}/{one.name}": one for one in before.forwarders}
    new = {f"{one.connector}/{one.name}": one for one in after.forwarders}
    for name in (*new, *(name for name in old if name not in new)):
        count = waiting.get(name, 0)
        if name not in new:
            what = (
                f"{_messages(count)} that wait for it stay stored, and new ones wait too, until it is applied again or "
                f"`waypost store purge --cursor {word(FORWARDER_PREFIX + name)}` drops them"
            )
            yield _forwarder(name, "removed", count, what)
        elif name not in old:
            yield _forwarder(name, "added", count, f"{_way(new[name])}; {_begins(new[name], name in waiting, count)}")
        elif old[name] != new[name]:
            what = f"{_way(old[name])} becomes {_way(new[name])}; {_begins(new[name], name in waiting, count)}"
            yield _forwarder(name, "changed", count, what)


def _begins(forwarder: Forwarder, known: bool, count: int) -> str:
    if forwarder.direction is Direction.IN:
        return "messages are received from the peer"
    if known:
        return f"it continues at its cursor, with {_messages(count)} that wait for it"
    return "it starts with messages that arrive from then on; stored ones are not sent"


def _forwarder(name: str, change: str, waiting: int, what: str) -> PlannedChange:
    return PlannedChange("forwarder", name, change, waiting, f"forwarder {name} {change}: {what}")


def _way(one: Forwarder) -> str:
    return f"{one.filter} {'->' if one.direction is Direction.OUT else '<-'} {one.remote_address}"


def _messages(count: int) -> str:
    return counted(count, "message")
