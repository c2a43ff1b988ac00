"""Reports of gateways about devices that they have let in by themselves: decided in the registry, one after the other.

Gateways take turns, so one with many reports, or with one that fails, delays the others by one report at most. A report
has its answer once the decision is on disk. If the hub or the registry ends before, the gateway sends it again, and the
decision is the same. Runs on the event loop; the registry work runs in a thread with a connection of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import sqlalchemy as sa

from bridge.device_reports import (
    REPORTS_MAX,
    DeviceReport,
    LocalDevicesCheck,
    LocalDevicesPart,
    ProvisionedReport,
    out_of_step,
)
from bridge.periodic_task import end_task
from cloud.hub.devices.provisioning import counts_now, describing
from cloud.hub.devices.service import devices_max
from cloud.hub.groups import Key
from cloud.hub.registry.certificate_registrations import CertificateRegistrations, ProvisionRefused
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_targets import SelectorsFull
from cloud.hub.registry.devices import DevicesFull
from cloud.hub.registry.faults import RowsRefused
from cloud.hub.registry.local_devices import GatewayForgotten, ListOutOfStep, LocalDevices, LocalDevicesFull
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.hub.tenants import Tenants
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""Seconds after which a report is tried again that the registry could not take."""

Answer = Callable[[str | None], None]
"""Takes why the registry refuses the device; None if it has it."""


class _WaitingReport(NamedTuple):
    report: DeviceReport
    answer: Answer


class GatewayDeviceReports:
    """Reports of all gateways of one hub. `open`, later `close`."""

    def __init__(self, registry: sa.URL, quotas: Tenants) -> None:
        self.trouble: str | None = None
        """Reason why reports cannot be stored now; None if they can."""
        self._thread = RegistryThread("device-reports", database_of(registry))
        self._quotas = quotas
        self._waiting: dict[Key, deque[_WaitingReport]] = {}
        """Reports of connected gateways, in the order of their turns."""
        self._arrived = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the registry, and start to decide. Raises `RegistryError`."""
        await self._thread.open()
        self._deciding = asyncio.get_running_loop().create_task(self._decide_all(), name="reports about devices")

    async def close(self) -> None:
        """Close the registry; reports without an answer come again. Idempotent."""
        deciding, self._deciding = self._deciding, None
        await end_task(deciding)
        await self._thread.close()

    def reported(self, gateway: Key, report: DeviceReport, answer: Answer) -> None:
        """Queue a report of a gateway; `answer` is called later, unless the gateway leaves before.

        A gateway that sends more than `REPORTS_MAX` without answers breaks the credit of its link: they get none.
        """
        own = self._waiting.setdefault(gateway, deque())
        if len(own) >= REPORTS_MAX:
            log.warning("gateway %s: a report about a device is ignored: %d wait already", gateway[1], len(own))
            return
        own.append(_WaitingReport(report, answer))
        self._arrived.set()

    def left(self, gateway: Key) -> None:
        """Drop the reports of a connection that has ended: the gateway sends them again."""
        self._waiting.pop(gateway, None)

    async def _decide_all(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                gateway, own = next(iter(self._waiting.items()))
                decided = await self._decide(gateway, own[0])
                if decided:
                    own.popleft()
                if self._waiting.get(gateway) is own:
                    del self._waiting[gateway]
                    if own:
                        self._waiting[gateway] = own  # after the others
                if not decided:
                    await asyncio.sleep(RETRY_S)

    async def _decide(self, gateway: Key, waiting: _WaitingReport) -> bool:
        """Decide about a report and answer it; return False if the registry cannot be used now."""
        why: str | None = None
        try:
            about = await self._thread.run(partial(self._settle, gateway, waiting.report))
        except RowsRefused as error:
            why = f"the registry of the hub cannot store it: {error}"
            log.warning("gateway %s: a report about a device is refused: %s", gateway[1], error)
        except RegistryError as error:
            if self.trouble is None:
                log.warning("reports of gateways about devices cannot be stored yet, retrying: %s", error)
            self.trouble = str(error)
            return False
        except (ProvisionRefused, DevicesFull, SelectorsFull, LocalDevicesFull) as error:
            why = str(error)
            log.info("gateway %s: a device is refused: %s", gateway[1], why)
        except ListOutOfStep as error:
            why = out_of_step(error.position)
        except GatewayForgotten:
            why = "the gateway was forgotten"
        except Exception:  # of one report: the others are decided
            log.exception("gateway %s: a report about a device cannot be decided: internal error", gateway[1])
            why = "internal error of the hub"
        else:
            log.info("gateway %s: %s", gateway[1], about)
        self.trouble = None
        try:
            waiting.answer(why)
        except Exception:  # of one gateway: the others get their answers
            log.exception("gateway %s: a report about a device cannot be answered", gateway[1])
        return True

    def _settle(self, gateway: Key, report: DeviceReport, database: Database) -> str:
        """Apply a report; return what it was about. Runs on the thread."""
        match report:
            case ProvisionedReport():
                return f"has device {self._register(gateway, report, database)} of tenant {report.devices_of}"
            case LocalDevicesCheck():
                LocalDevices(database).check(gateway, report)
                return "its own devices are known"
            case LocalDevicesPart():
                LocalDevices(database).replace(gateway, report)
                return f"{len(report.names)} of its own devices"

    def _register(self, gateway: Key, report: ProvisionedReport, database: Database) -> str:
        """Register a device; return its id."""
        registrations = CertificateRegistrations(database, partial(devices_max, self._quotas))
        now = datetime.datetime.fromtimestamp(database.transaction(database.now_us) / 1e6, datetime.UTC)
        is_valid = partial(counts_now, now=now)
        return registrations.settle(gateway, report.devices_of, describing(report.certificate), is_valid)
