"""Check of a hub's configuration: certificates, registry and lake are read, nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import sqlalchemy as sa

from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.resource import Resource, error_at
from cloud.hub.configuration import HubSettings
from cloud.hub.enrolment.est import EstClient, EstError
from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RegistryUnreachable
from cloud.hub.registry.location import SQLITE, redact_url
from cloud.hub.registry.schema import SCHEMA_VERSION, version_of
from cloud.lake.faults import RegistryError
from cloud.place.place import parse
from edge.broker.configuration import TlsListener
from edge.broker.listeners.tls import Certificates, TlsError
from edge.output.amounts import counted

IN_THE_DATA_DIRECTORY = "registry.db of the data directory"


def check(resource: Resource) -> list[str]:
    """Check a configuration; return one line for each part that is fine. Blocks.

    Raises `ConfigurationRejected`, and `RegistryUnreachable` when the server of the registry does not answer.
    """
    settings = resource.spec
    if not isinstance(settings, HubSettings):
        raise TypeError(resource.kind)
    lines: list[str] = []
    errors: list[ConfigurationError] = []
    registry, lake = _registry(resource, settings.registry), _lake(resource, settings)
    kafka = _kafka(resource, settings)
    for found in chain(_certificates(resource, settings.tls), _est(resource, settings), registry, lake, kafka):
        if isinstance(found, ConfigurationError):
            errors.append(found)
        else:
            lines.append(found)
    if errors:
        raise ConfigurationRejected(sorted(errors))
    return lines


def _certificates(resource: Resource, files: TlsListener | None) -> Iterator[str | ConfigurationError]:
    if files is None:
        return
    try:
        Certificates(files)
    except TlsError as why:
        yield error_at(resource, ("spec", "tls"), str(why))
    else:
        yield f"tls: {files.certificate} matches its key"


def _est(resource: Resource, settings: HubSettings) -> Iterator[str | ConfigurationError]:
    try:
        server = settings.est_server
        authorities = EstClient(server).authorities() if server is not None else []
    except (EstError, OSError) as why:
        yield error_at(resource, ("spec", "est"), str(why))
    else:
        if server is not None:
            yield f"est: {server.url} answers, with {counted(len(authorities), 'authority certificate')}"


def _registry(resource: Resource, url: sa.URL | None) -> Iterator[str | ConfigurationError]:
    if url is None:
        yield f"registry: {IN_THE_DATA_DIRECTORY}"
        return
    file = Path((url.database or "").removeprefix("file:")) if url.drivername == SQLITE else None
    if file is not None and not file.exists():
        if file.parent.is_dir():
            yield f"registry: {file} will be created at the first start"
        else:
            yield error_at(resource, ("spec", "registry"), f"folder {file.parent} is missing: create it")
        return
    try:
        yield f"registry: {redact_url(url)}, {_describe_database(url)}"
    except RegistryUnreachable:
        raise
    except RegistryError as why:
        yield error_at(resource, ("spec", "registry"), str(why))


def _lake(resource: Resource, settings: HubSettings) -> Iterator[str | ConfigurationError]:
    if settings.lake is None:
        yield "lake: lake of the data directory"
        return
    try:
        place = parse(settings.lake)
        place.check()
        tables = place.tables()
    except (OSError, ValueError) as why:
        yield error_at(resource, ("spec", "lake"), str(why))
    else:
        there = counted(len(tables), "table") if tables else "empty: its tables will be created at the first start"
        yield f"lake: {place.uri}, {there}"


def _kafka(resource: Resource, settings: HubSettings) -> Iterator[str | ConfigurationError]:
    if settings.kafka is None:
        return
    from cloud.hub.tap.topic import TopicFault, count_partitions  # noqa: PLC0415 - most hubs need no Kafka client

    try:
        count = asyncio.run(count_partitions(settings.kafka.settings()))
    except (TopicFault, OSError) as why:
        yield error_at(resource, ("spec", "kafka"), str(why))
    else:
        yield f"kafka: topic {settings.kafka.topic} has {counted(count, 'partition')}"


def _describe_database(url: sa.URL) -> str:
    database = Database(url)
    try:
        version = database.transaction(version_of)
    finally:
        database.close()
    if version is None:
        return "empty: its tables will be created at the first start"
    return f"schema {version}" + (
        "" if version == SCHEMA_VERSION else f", will be upgraded to {SCHEMA_VERSION} at the next start"
    )
