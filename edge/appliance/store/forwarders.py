"""Forwarders that are no longer configured, but have messages in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edge.broker.configuration import ConnectorType
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.router.commands.addresses import PLAIN, command_forwarders
from edge.configuration.effective import build_configuration
from edge.configuration.file import RepositoryError
from edge.configuration.repository import Repository
from edge.output.errors import CommandError

BY_OPTION: Final = "/forward:"
"""Part of the name of a forwarder from `waypost run --forward`, which may be given again at the next start."""


def is_left(data: Path, cursor: str) -> bool:
    """Return True when this consumer group belongs to a forwarder that is no longer configured. Raises CommandError."""
    if not cursor.startswith(FORWARDER_PREFIX) or BY_OPTION in cursor:
        return False
    try:
        configuration = build_configuration(Repository(data).load().resources)
    except RepositoryError as error:
        raise CommandError(str(error), error="configuration-not-readable") from None
    hubs = [one.name for one in configuration.connectors if one.type is ConnectorType.WAYPOST]
    carried = [each for hub in hubs for each in command_forwarders(hub, PLAIN)]
    configured = {f"{each.connector}/{each.name}" for each in (*configuration.forwarders, *carried)}
    return cursor.removeprefix(FORWARDER_PREFIX) not in configured
