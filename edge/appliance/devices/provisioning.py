"""Let devices in by certificates before the hub knows them, and tell it.

A device is on disk before it is let in, and works without the hub. The hub decides when it can: it registers the
device, which then comes with a page as all others, or refuses it with a reason. A refused one is disconnected, and the
hub is asked about it again when it tries later. What a page says about a device or a subject counts at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bridge.device_pages import DevicePage
from bridge.device_reports import ProvisionedReport
from edge.broker.security.credentials import CredentialsError
from edge.broker.security.hub_devices import DeviceNames, HubDevices
from edge.broker.security.limits import HUB_DEVICES_MAX, PROVISIONINGS_WAITING_MAX, REFUSED_AGAIN_S
from edge.broker.security.provisioned_devices import ProvisionedDevices
from edge.broker.security.provisioned_file import FILE, ProvisionedDevice, ProvisionedFile
from edge.output.text import line

if TYPE_CHECKING:
    from bridge.reports import Reports
    from edge.broker.security.certified_devices import Decided, DeviceCandidate

log = logging.getLogger(__name__)

_Key = tuple[str, str]
"""Tenant, and identifier in the certificate."""


class DeviceProvisioner:
    """Devices of one gateway that the hub does not know yet. `stop` ends it. For the loop's thread."""

    def __init__(
        self,
        data: Path,
        devices: HubDevices,
        provisioned: ProvisionedDevices,
        changed: Callable[[DeviceNames], None],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`provisioned`: those of the file, which `devices` uses too. `changed` gets the names of devices that are
        not let in any more, or by their registration only; `now_s` returns UTC seconds."""
        self.trouble: str | None = None
        """Reason why the file could not be written the last time; None if it could."""
        self._logged = ""
        """Last reason in the log for which a device was not let in."""
        self._data = data
        self._devices = devices
        self._provisioned = provisioned
        self._changed = changed
        self._now_s = now_s
        self._file: ProvisionedFile | None = None
        self._reports: Reports | None = None
        self._due: dict[_Key, None] = {}
        """Devices that the hub is to be told, in order."""
        self._told: set[_Key] = set()
        """Devices with a report on the way."""
        self._asked_at: dict[_Key, float] = {}
        """UTC seconds of the last report about refused devices."""
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._letting_in: dict[_Key, list[Decided]] = {}
        """Connections that wait for their device to be on disk."""

    def tell(self, reports: Reports) -> None:
        """Tell the hub behind these reports."""
        self._reports = reports
        reports.begin_devices(self._tell_all)

    async def finish(self) -> None:
        """Finish what is being written."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Finish what is being written, and close the file."""
        await self.finish()
        if self._file is not None:
            self._file.close()

    def provision(self, candidate: DeviceCandidate, decided: Decided) -> None:
        """Let a device in; `decided` is called once it is on disk, or at once if it is refused."""
        device = candidate.device
        key = _key(device)
        known = self._provisioned.find(*key)
        if known is not None and known.refused:
            self._ask_again(known, device)
            decided(False)
            return
        waiting = self._letting_in.get(key)
        if waiting is not None:
            if len(waiting) < PROVISIONINGS_WAITING_MAX:
                waiting.append(decided)
            else:
                decided(False)
            return
        why = self._objection(device)
        if why is not None:
            self._log(device, why)
            decided(False)
            return
        self._letting_in[key] = [decided]
        self._start(self._let_in(device))

    def follow(self, page: DevicePage) -> None:
        """Drop the devices that a page decides about. Called after it was applied."""
        covered = page.range
        entries = {entry.device for entry in page.entries}
        over = []
        for each in self._provisioned:
            if each.tenant != page.devices_of:
                continue
            gone = each.device in page.removed or (
                covered is not None and covered.covers(each.device) and each.device not in entries
            )
            if self._is_known(each) or (each.told and gone):
                over.append(each)
        if page.anchors is not None:
            self._asked_at = {key: at for key, at in self._asked_at.items() if key[0] != page.devices_of}
        self._drop(over)

    def follow_all(self) -> None:
        """Drop the devices that the hub knows."""
        self._drop([each for each in self._provisioned if self._is_known(each)])

    # --- inside -----------------------------------------------------------------------------------------------------

    def _is_known(self, device: ProvisionedDevice) -> bool:
        return self._devices.has_names(device.tenant, device.device, device.auth_id)

    def _objection(self, device: ProvisionedDevice) -> str | None:
        """Return why a new device is not let in; None if it is."""
        if len(self._letting_in) >= PROVISIONINGS_WAITING_MAX:
            return f"{PROVISIONINGS_WAITING_MAX} devices are being let in"
        if self._devices.count + len(self._provisioned) >= HUB_DEVICES_MAX:
            return f"the gateway has {HUB_DEVICES_MAX} devices, the most that it holds"
        taken = self._taken(device)
        if taken is not None:
            return taken
        rate = self._provisioned.rate_with(device.tenant, device.authority, self._now_s())
        return self._provisioned.objection(rate)

    def _taken(self, device: ProvisionedDevice) -> str | None:
        """Return why a new device cannot have its names; None if it can."""
        if self._is_known(device):
            return "the hub has sent a device with its names"
        named = self._provisioned.named(device.tenant, device.device)
        return None if named is None else f"another certificate has its id: {line(named.auth_id)}"

    async def _let_in(self, device: ProvisionedDevice) -> None:
        key, why = _key(device), None
        async with self._one_at_a_time:
            rate = self._provisioned.rate_with(device.tenant, device.authority, self._now_s())
            why = self._provisioned.objection(rate)
            why = why or self._taken(device)
            if why is None:
                try:
                    await asyncio.to_thread(lambda: self._opened().put(device, rate))
                    self.trouble = None
                    why = self._taken(device)  # a page may have come meanwhile
                    if why is not None:
                        await asyncio.to_thread(lambda: self._opened().remove([device]))
                except CredentialsError as error:
                    why = self.trouble = str(error)
            if why is None:
                self._provisioned.put(device)
                self._provisioned.count(device.tenant, device.authority, rate)
        if why is None:
            name = f"device {line(device.device)} of tenant {device.tenant}"
            log.info("%s is let in by its certificate, before the hub knows it", name)
            self._due[key] = None
            self._feed()
        else:
            self._log(device, why)
        for decided in self._letting_in.pop(key):
            decided(why is None)

    def _tell_all(self) -> None:
        """Tell the hub all devices, also those that it has taken: their page may have been lost with the registry."""
        self._due |= dict.fromkeys(_key(each) for each in self._provisioned if not each.refused)
        self._feed()

    def _ask_again(self, known: ProvisionedDevice, shown: ProvisionedDevice) -> None:
        key, now_s = _key(known), self._now_s()
        if 0.0 <= now_s - self._asked_at.get(key, float("-inf")) < REFUSED_AGAIN_S or key in self._told:
            return
        self._asked_at[key] = now_s
        self._provisioned.put(msgspec.structs.replace(known, certificate=shown.certificate))
        self._due[key] = None
        self._feed()

    def _feed(self) -> None:
        """Send reports within the credit of the link."""
        reports = self._reports
        while reports is not None and self._due and reports.devices.credit > 1:  # one is for the list of local devices
            key = next(iter(self._due))
            del self._due[key]
            device = self._provisioned.find(*key)
            if device is None or key in self._told:
                continue
            self._told.add(key)
            report = ProvisionedReport(devices_of=device.tenant, certificate=device.certificate)
            reports.report_device(report, partial(self._decided, key))

    def _decided(self, key: _Key, why: str | None) -> None:
        self._start(self._settle(key, why))

    async def _settle(self, key: _Key, why: str | None) -> None:
        """Apply the decision of the hub about a device."""
        async with self._one_at_a_time:
            self._told.discard(key)
            device = self._provisioned.find(*key)
            if device is not None:
                await self._apply(msgspec.structs.replace(device, told=why is None, refused=why or ""))
        self._feed()

    async def _apply(self, device: ProvisionedDevice) -> None:
        self._provisioned.put(device)
        if device.refused:
            log.warning(
                "device %s of tenant %s is refused by the hub: %s",
                line(device.device),
                device.tenant,
                line(device.refused),
            )
            self._asked_at[_key(device)] = self._now_s()
            self._changed(self._names(device))
        try:
            await asyncio.to_thread(lambda: self._opened().put(device))
        except CredentialsError as error:  # after a restart the hub is told again
            self._note(str(error))

    def _drop(self, devices: Iterable[ProvisionedDevice]) -> None:
        over = list(devices)
        if not over:
            return
        for each in over:
            self._provisioned.remove(each)
            self._asked_at.pop(_key(each), None)
            self._changed(self._names(each))
        self._start(self._forget(over))

    async def _forget(self, devices: list[ProvisionedDevice]) -> None:
        async with self._one_at_a_time:
            again = [each for each in devices if self._provisioned.find(*_key(each)) is None]
            try:
                await asyncio.to_thread(lambda: self._opened().remove(again))
            except CredentialsError as error:  # what the hub knows is dropped after a restart too
                self._note(str(error))

    def _names(self, device: ProvisionedDevice) -> DeviceNames:
        return DeviceNames({self._devices.identity_of(device.tenant, device.device)}, set())

    def _opened(self) -> ProvisionedFile:
        if self._file is None:
            self._file = ProvisionedFile.open(self._data)
        return self._file

    def _note(self, why: str) -> None:
        if self.trouble != why:
            log.warning("%s", why)
        self.trouble = why

    def _log(self, device: ProvisionedDevice, why: str) -> None:
        """Log why a device is not let in; a reason is not repeated for each of many."""
        if why != self._logged:
            log.warning("device %s of tenant %s is not let in: %s", line(device.device), device.tenant, why)
        self._logged = why

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def load_provisioned(data: Path) -> ProvisionedDevices:
    """Return the devices of the file in a data directory. Raises CredentialsError."""
    if not (data / FILE).exists():
        return ProvisionedDevices()
    with ProvisionedFile.open(data) as file:
        return ProvisionedDevices(file.devices(), file.rates())


def _key(device: ProvisionedDevice) -> _Key:
    return device.tenant, device.auth_id
