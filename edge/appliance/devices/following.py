"""Follow the devices that the hub gives to this gateway: verify each page, store it, and use it.

A page is answered once it is on disk. One that does not continue the stored cursor is refused with that cursor, and the
hub continues from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bridge.device_pages import CURSOR, RESTART, DevicePage, DevicePageError, SignedDevicePage, out_of_step, read_signed
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import DEVICES
from edge.appliance.accounts.profiles import PROFILES
from edge.appliance.devices.listed import is_device
from edge.appliance.devices.provisioning import DeviceProvisioner, load_provisioned
from edge.appliance.devices.telling import LocalDeviceTeller
from edge.appliance.identity.location import identity_file
from edge.broker.security.certified_devices import CertifiedDevices
from edge.broker.security.credentials import CredentialsError
from edge.broker.security.hub_device_file import PageOutOfStep
from edge.broker.security.hub_devices import DeviceNames, HubDevices
from edge.broker.security.rights import parse_rights
from edge.configuration.document_inbox import Answer, DocumentInbox

if TYPE_CHECKING:
    from edge.broker.configuration import DeviceApiConfiguration
    from edge.broker.router.commands.returns import CommandReturns
    from edge.broker.router.connector_uplink import ConnectorUplink
    from edge.broker.security.authenticator import Authenticator

log = logging.getLogger(__name__)

MakeReturns: TypeAlias = "Callable[[Callable[[Collection[str]], None]], CommandReturns]"


class HubDeviceFollower:
    """Follows the devices of one hub. Created inside a running loop; `stop` ends it."""

    def __init__(
        self,
        devices: HubDevices,
        *,
        certificate: Path,
        verify: Callable[[SignedDevicePage], DevicePage],
        changed: Callable[[DeviceNames], None],
        certified: CertifiedDevices,
        provisioner: DeviceProvisioner,
        teller: LocalDeviceTeller,
    ) -> None:
        """`certificate`: that of the connector to the hub of the enrolment. `verify` runs in a thread and raises
        `DevicePageError`; `changed` gets the names of changed devices; `certified` follows their authorities, and
        `provisioner` what pages decide, and `teller` tells the hub the devices of this gateway."""
        self.trouble: str | None = devices.shortage
        """Reason why the last page was not used, or not all of it; None if it was."""
        self.devices = devices
        self.certified = certified
        self.provisioner = provisioner
        self.teller = teller
        self._certificate = str(certificate)
        self._verify = verify
        self._changed = changed
        self._make_returns: MakeReturns | None = None
        self._returns: CommandReturns | None = None
        """Returns commands of departed devices; None: no device has departed."""
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self, uplink: ConnectorUplink) -> None:
        """Receive pages over this connector, if it leads to the hub of the enrolment."""
        tls, name = uplink.connector.tls, f"devices of {uplink.connector.name}"
        if tls is not None and tls.certificate == self._certificate:
            uplink.inboxes.append(DocumentInbox(name, DEVICES, self._offered, self._link_properties))
            self.provisioner.tell(uplink.reports)
            self.teller.tell(uplink.reports)

    def return_commands(self, make: MakeReturns) -> None:
        """Return the commands of departed devices to the hub. `make` makes what does it; its argument is called with
        devices that have nothing to return any more."""
        self._make_returns = make
        self._follow_departed()

    async def stop(self) -> None:
        """Finish the page that is being stored, and close the file."""
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.provisioner.stop()
        self.devices.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _link_properties(self) -> dict[str, str]:
        cursor = {CURSOR: self.devices.cursor} if self.devices.cursor else {}
        return {**cursor, RESTART: "1"} if self.devices.wants_all else cursor

    def _offered(self, body: bytes, answer: Answer) -> None:
        self._start(self._take(body, answer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, body: bytes, answer: Answer) -> None:
        async with self._one_at_a_time:
            try:
                names = await self._use(body)
            except PageOutOfStep as why:
                log.info("devices of the hub: %s", why)
                await self._catch_up(why.cursor)
                answer(ForwardOutcome.REJECTED, out_of_step(why.cursor))
                return
            except DevicePageError as why:
                self._note(f"a page is refused: {why}")
                answer(ForwardOutcome.REJECTED, str(why))
                return
            except CredentialsError as why:
                self._note(str(why))
                answer(ForwardOutcome.RELEASED, str(why))
                return
            self._note(self.devices.shortage)
            self._apply(names)
            answer(ForwardOutcome.ACCEPTED, "")

    async def _use(self, body: bytes) -> DeviceNames:
        """Store a page and use it. Raises DevicePageError, PageOutOfStep, CredentialsError."""
        fitted = self.devices.fit(await asyncio.to_thread(self._read, body))
        applied = await asyncio.to_thread(self.devices.store, fitted)
        names = self.devices.take(fitted, applied)
        self.provisioner.follow(fitted.page)
        return names

    async def _catch_up(self, cursor: str) -> None:
        """Read the file again if it is ahead of the memory: a commit may take effect and still report an error."""
        if cursor == self.devices.cursor:
            return
        try:
            index = await asyncio.to_thread(self.devices.read)
        except CredentialsError as why:
            self._note(str(why))
        else:
            self._apply(self.devices.replace(index))
            self.provisioner.follow_all()

    def _apply(self, names: DeviceNames) -> None:
        """Use changed devices."""
        self._changed(names)
        self.certified.follow()
        self._follow_departed()

    def _follow_departed(self) -> None:
        departed = self.devices.departed
        if self._returns is None and departed and self._make_returns is not None:
            self._returns = self._make_returns(self._completed)
        if self._returns is not None:
            self._returns.follow(departed)

    def _completed(self, names: Collection[str]) -> None:
        self._start(self._forget(names))

    async def _forget(self, names: Collection[str]) -> None:
        """Forget departed devices, unless they are back. A failed write is repeated by the next look."""
        async with self._one_at_a_time:
            departed = self.devices.departed
            gone = [departed[name] for name in names if name in departed]
            try:
                await asyncio.to_thread(self.devices.forget_departed, gone)
            except CredentialsError as why:
                log.warning("devices of the hub: %s", why)
                return
            self.devices.note_forgotten(gone)
            self._follow_departed()

    def _read(self, body: bytes) -> DevicePage:
        return self._verify(read_signed(body))

    def _note(self, why: str | None) -> None:
        if why is not None and self.trouble != why:
            log.warning("devices of the hub: %s", why)
        self.trouble = why


def follow_hub_devices(data: Path, gate: Authenticator, api: DeviceApiConfiguration | None) -> HubDeviceFollower:
    """Let the stored devices of the hub in, and return what follows their changes. Raises CredentialsError."""
    provisioned = load_provisioned(data)
    devices = HubDevices(data, parse_rights(PROFILES["sensor"]), api.tenant if api is not None else None, provisioned)
    gate.look_up_devices(devices)

    def changed(names: DeviceNames) -> None:
        gate.update_devices(names.identities, names.users)

    def decided(names: DeviceNames) -> None:
        changed(names)
        certified.review(names.identities)

    provisioner = DeviceProvisioner(data, devices, provisioned, decided)
    certified = CertifiedDevices(devices, lambda: gate.users, provision=provisioner.provision)
    provisioner.follow_all()
    return HubDeviceFollower(
        devices,
        certificate=identity_file(data),
        verify=partial(_verify, data),
        changed=changed,
        certified=certified,
        provisioner=provisioner,
        teller=LocalDeviceTeller(lambda: [user.name for user in gate.users.values() if is_device(user)]),
    )


def _verify(data: Path, signed: SignedDevicePage) -> DevicePage:
    """Verify a page of devices from the hub. Raises `DevicePageError`."""
    from edge.appliance.identity.signature import verify_devices  # noqa: PLC0415 - cryptography takes 10 MiB

    return verify_devices(signed, data)
