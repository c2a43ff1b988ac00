"""The hub's own process over HTTP.

``GET /api/v1/system``  version, memory, open files, data directory, registry, certificates, hubs of the registry

Needs the right to view the whole fleet (``$fleet``).
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from starlette.requests import Request
from starlette.responses import Response

from bridge.version import VERSION
from cloud.hub.committer import Committer
from cloud.hub.fleet import FleetState
from cloud.hub.json_http import answering, json_response
from cloud.hub.limits import CONNECTIONS_MAX, MEMORY_BYTES_MAX
from cloud.hub.registry.hubs import HubState
from cloud.hub.replicas import KnownHub
from cloud.hub.scope import require_fleet
from cloud.hub.tap.service import HubTap, TapFigures
from edge.broker.http.access import HttpAccess
from edge.broker.http.route import PURE, HttpRoute
from edge.broker.listeners.resident_memory import resident_bytes
from edge.health.process import count_open_files

answered: Final = answering({})
_CGROUP_MEMORY: Final = Path("/sys/fs/cgroup/memory.max")
"""Limit of the container or unit, in bytes or ``max`` (Linux, cgroup v2)."""
_DAY_S: Final = 86_400.0


class CertificateEnd(msgspec.Struct, kw_only=True):
    """End of a certificate of the hub."""

    certificate: str
    """``authority``: signs the gateways' certificates, and these end with it. ``server``: of the hub's listeners."""
    ends_at: int | None
    """Null if it cannot be read."""
    days: int | None
    """Whole days until then; negative after its end."""


class HubOfRegistry(msgspec.Struct, kw_only=True):
    """Hub that shares the registry."""

    id: str
    """Writer id."""
    name: str
    """Machine, and port of its listener for gateways."""
    version: str
    state: str
    """``serving``, ``draining``, ``stopped``, or ``gone``: it has been silent for a minute."""
    started_at: int
    seen_at: int
    """Time at which it wrote last that it is there, by its own clock."""
    connections: int
    gateways: int
    """Gateways connected to it."""


class KafkaTapDocument(msgspec.Struct, kw_only=True):
    """Landed messages on their way to Kafka."""

    topic: str
    hub: str | None
    """Writer id of the hub that passes them on; null if no hub does."""
    version: int
    """Last version of the table `telemetry` that was passed on."""
    commits_behind: int
    messages: int
    """Messages passed on since the topic was configured."""
    lag_s: float
    """Age of the first landed message that was not passed on."""
    trouble: str
    """Why nothing is passed on; empty if nothing hinders it."""


class HubSystemDocument(msgspec.Struct, kw_only=True):
    """Process of a hub. Sizes are bytes."""

    version: str
    python: str
    pid: int
    machine: str
    started_at: int
    threads: int
    memory: int
    """Resident memory of the process."""
    memory_most: int
    """Limit of the hub: above it, new connections are refused."""
    memory_allowed: int | None
    """Limit of the container or unit, above which the system ends the process; null without one."""
    open_files: int
    open_files_most: int | None
    """Null without a limit."""
    connections: int
    connections_most: int
    data: str
    """Data directory."""
    data_free: int
    """Free space of its file system."""
    registry: str
    """Place of the registry."""
    registry_size: int
    certificates: list[CertificateEnd]
    hubs: list[HubOfRegistry]
    """This hub and the others of its registry; those that stopped in the last day too."""
    kafka: KafkaTapDocument | None
    """Null without `kafka` in the configuration."""


class HubSystem:
    """Reads the figures of the process."""

    def __init__(
        self,
        committer: Committer,
        data: Path,
        *,
        certificates: Mapping[str, Callable[[], float | None]],
        count_connections: Callable[[], int],
        started_at: float,
        hubs: Callable[[], Sequence[KnownHub]],
        fleet: FleetState,
        tap: HubTap | None = None,
    ) -> None:
        """`certificates`: functions that return the end of each, in UTC seconds. `started_at`: UTC seconds. `hubs`
        returns those of the registry; `tap`: None for a hub that is not a process of its own."""
        self._committer = committer
        self._data = data
        self._certificates = certificates
        self._count_connections = count_connections
        self._started_at = started_at
        self._hubs = hubs
        self._fleet = fleet
        self._tap = tap

    async def read(self) -> HubSystemDocument:
        """Return the figures now. Raises `RegistryError`."""
        where, size = await self._committer.read(lambda registry: (registry.where, registry.size_bytes()))
        gateways = {**self._fleet.counted.hubs, self._fleet.hub: self._fleet.connected_here}
        hubs = [_hub_document(each, gateways.get(each.record.id, 0)) for each in self._hubs()]
        return await asyncio.to_thread(self._document, where, size, hubs)

    def _document(self, registry: str, registry_size: int, hubs: list[HubOfRegistry]) -> HubSystemDocument:
        files_most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return HubSystemDocument(
            version=VERSION,
            python=platform.python_version(),
            pid=os.getpid(),
            machine=platform.node(),
            started_at=int(self._started_at * 1_000),
            threads=threading.active_count(),
            memory=resident_bytes(),
            memory_most=MEMORY_BYTES_MAX,
            memory_allowed=_memory_allowed(),
            open_files=count_open_files(),
            open_files_most=None if files_most == resource.RLIM_INFINITY else files_most,
            connections=self._count_connections(),
            connections_most=CONNECTIONS_MAX,
            data=str(self._data),
            data_free=shutil.disk_usage(self._data).free,
            registry=registry,
            registry_size=registry_size,
            certificates=[_end(name, read()) for name, read in self._certificates.items()],
            hubs=hubs,
            kafka=_tap_document(self._tap.figures if self._tap is not None else None),
        )


def system_routes(system: HubSystem, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of this module."""

    async def show(request: Request) -> Response:
        await require_fleet(access, request)
        return json_response(await system.read())

    return [HttpRoute("/api/v1/system", answered(show), methods=PURE)]


def ends_at_of(certificate: x509.Certificate) -> float:
    """Return the end of a certificate, in UTC seconds."""
    return certificate.not_valid_after_utc.timestamp()


def ends_at_in(file: Path) -> float | None:
    """Return the end of the first certificate of a PEM file, in UTC seconds; None if it cannot be read."""
    try:
        return ends_at_of(x509.load_pem_x509_certificates(file.read_bytes())[0])
    except (OSError, ValueError, x509.InvalidVersion):
        return None


def _hub_document(hub: KnownHub, gateways: int) -> HubOfRegistry:
    record = hub.record
    silent = record.state in (HubState.SERVING.value, HubState.DRAINING.value) and not hub.there
    return HubOfRegistry(
        id=record.id,
        name=record.name,
        version=record.version,
        state=HubState.GONE.value if silent else record.state,
        started_at=record.started_at // 1_000,
        seen_at=record.seen_at // 1_000,
        connections=record.connections if hub.there else 0,
        gateways=gateways,
    )


def _tap_document(figures: TapFigures | None) -> KafkaTapDocument | None:
    if figures is None:
        return None
    return KafkaTapDocument(
        topic=figures.topic,
        hub=figures.hub,
        version=figures.version,
        commits_behind=figures.versions_behind,
        messages=figures.records,
        lag_s=round(figures.lag_s, 1),
        trouble=figures.trouble,
    )


def _end(name: str, ends_at: float | None) -> CertificateEnd:
    if ends_at is None:
        return CertificateEnd(certificate=name, ends_at=None, days=None)
    days = int((ends_at - time.time()) // _DAY_S)
    return CertificateEnd(certificate=name, ends_at=int(ends_at * 1_000), days=days)


def _memory_allowed() -> int | None:
    try:
        text = _CGROUP_MEMORY.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None
