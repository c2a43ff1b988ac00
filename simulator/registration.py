"""Registration of the devices of a simulation: as users of one gateway, or in the registry of a hub.

Their passwords are random and long, so they are stored as hashes that are quick to verify: argon2id would take a
gateway 30 ms for each of thousands of logins.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from bridge.hidden import hides
from edge.appliance.accounts.cli import with_users
from edge.appliance.accounts.profiles import PROFILES
from edge.broker.model.authorization import AccessRule
from edge.broker.security import rights
from edge.broker.security.credentials import CredentialFile, generated_password, new_user, with_hash
from edge.output.errors import CommandError, Exit
from edge.output.text import word
from simulator.credentials_file import DeviceCredentials
from simulator.device import FleetDevicePlan
from simulator.links import DeviceLinkFault, LinkLost, LinkPlace
from simulator.mqtt_link import MqttLink

if TYPE_CHECKING:
    from cloud.fleet.device_store import DeviceStore

PROFILE: Final = "sensor"
"""Rights of the devices: those of `waypost device add`, and of the hub's devices."""
ITERATIONS: Final = 101
"""Iterations of PBKDF2: Mosquitto's default."""
SALT_BYTES: Final = 12
FIRST_LOOK_S: Final = 1.0
"""Pause before the second attempt to log in as a new device; it doubles, as a gateway refuses addresses with many
failures."""
KNOWN_S: Final = 180.0
"""Time until a gateway has got new devices from its hub."""


@hides("password")
class UnregisteredDevice(NamedTuple):
    """Device to register."""

    name: str
    address: str
    """Address of its readings."""
    gateway: str
    """Name of its gateway at the hub."""
    password: str

    @property
    def is_below_profile(self) -> bool:
        """True if the rights of the profile cover its address."""
        return self.address.startswith(f"plant/{self.name}/")


class RegistrationPlace(Protocol):
    """Place where devices are registered. Methods raise CommandError."""

    def add(self, devices: Sequence[UnregisteredDevice], done: Callable[[UnregisteredDevice], None]) -> None:
        """Add devices; `done` is called with each one that is registered."""

    def remove(self, names: Sequence[str], done: Callable[[str], None]) -> None:
        """Remove devices; `done` is called with each one that is removed."""


class GatewayUsers:
    """Users of one gateway, in its data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def add(self, devices: Sequence[UnregisteredDevice], done: Callable[[UnregisteredDevice], None]) -> None:
        with_users(self._data, lambda file: self._add(file, devices))
        for each in devices:
            done(each)

    def remove(self, names: Sequence[str], done: Callable[[str], None]) -> None:
        with_users(self._data, lambda file: file.remove(names))
        for each in names:
            done(each)

    def _add(self, file: CredentialFile, devices: Sequence[UnregisteredDevice]) -> None:
        known = file.load().users
        taken = [each.name for each in devices if each.name in known]
        if taken:
            of = f"{word(taken[0])} --data {word(self._data)}"
            step = f"remove it: waypost device remove {of}\nor give the group another name"
            raise CommandError(f"user {taken[0]} exists already", step, error="user-exists")
        users = (new_user(each.name, _rules(each)) for each in devices)
        file.put([with_hash(user, _hash(each.password)) for user, each in zip(users, devices, strict=True)], new=True)


class HubRegistry:
    """Registry of a hub."""

    def __init__(self, store: DeviceStore) -> None:
        self._store = store

    def add(self, devices: Sequence[UnregisteredDevice], done: Callable[[UnregisteredDevice], None]) -> None:
        for each in devices:
            self._check(each)
        for each in devices:
            tag = self._store.add(each.name, {"ext": {"waypost": {"gateways": [each.gateway]}}})
            salt = secrets.token_bytes(SALT_BYTES)
            secret = {
                "hash-function": "sha-256",
                "salt": base64.b64encode(salt).decode(),
                "pwd-hash": base64.b64encode(hashlib.sha256(salt + each.password.encode()).digest()).decode(),
            }
            wanted = {"type": "hashed-password", "auth-id": each.name, "secrets": [secret]}
            self._store.set_credentials(each.name, [wanted], tag)
            done(each)

    def remove(self, names: Sequence[str], done: Callable[[str], None]) -> None:
        for each in names:
            try:
                self._store.remove(each)
            except CommandError as error:
                if error.error != "not-found":
                    raise
            done(each)

    @staticmethod
    def _check(device: UnregisteredDevice) -> None:
        """Raise CommandError if the hub cannot have this device."""
        if not device.gateway:
            step = "add the gateway's `name` to the file, as the hub knows it"
            raise CommandError("a gateway of the file has no name", step, error="invalid-value", code=Exit.USAGE)
        if not device.is_below_profile:
            step = "begin the address of its group with plant/{device}/, or use --register-gateway"
            words = f"{device.address}: devices of a hub send below plant/DEVICE/ only"
            raise CommandError(words, step, error="invalid-value", code=Exit.USAGE)


@contextlib.contextmanager
def open_hub_registry(hub: str, tenant: str) -> Iterator[HubRegistry]:
    """Open the registry of a hub: a data directory on this machine, or a URL or context of `waypost login`. Raises
    CommandError."""
    from cloud.fleet.device_store import open_devices  # noqa: PLC0415 - only a simulation at a hub needs its packages
    from cloud.fleet.place import DEFAULT_TENANT, HubPlace  # noqa: PLC0415 - as above
    from edge.remote.session import client_of, parse_url  # noqa: PLC0415 - as above

    if Path(hub).is_dir():
        with open_devices(HubPlace(Path(hub)), tenant or DEFAULT_TENANT) as store:
            yield HubRegistry(store)
        return
    remote = client_of(parse_url(hub, "--register-hub"))
    with remote.keeping() as client, open_devices(HubPlace(None, client=client), tenant) as store:
        yield HubRegistry(store)


def make_devices(plans: Sequence[FleetDevicePlan], gateways: Mapping[str, str]) -> list[UnregisteredDevice]:
    """Return devices to register, with new passwords. `gateways`: name of the gateway of each device."""
    return [
        UnregisteredDevice(plan.login.device, plan.address, gateways[plan.login.device], generated_password())
        for plan in plans
    ]


def credentials_of(device: UnregisteredDevice) -> DeviceCredentials:
    """Return the credentials of a registered device."""
    return DeviceCredentials(device.name, device.name, device.password)


async def wait_until_known(plans: Sequence[FleetDevicePlan]) -> None:
    """Wait until each gateway lets in its last device: a hub gives them new ones in order. Raises TimeoutError."""
    last: dict[LinkPlace, FleetDevicePlan] = {plan.mqtt: plan for plan in plans}
    async with asyncio.timeout(KNOWN_S):
        await asyncio.gather(*map(_log_in, last.values()))


async def _log_in(plan: FleetDevicePlan) -> None:
    pause_s = FIRST_LOOK_S
    while True:
        try:
            link = await MqttLink.open(plan.mqtt, plan.login._replace(keeps_session=False), lambda *_: None)
        except LinkLost as lost:
            if lost.fault not in (DeviceLinkFault.LOGIN_REFUSED, DeviceLinkFault.BUSY):
                return  # the run itself reports it
        else:
            link.close()
            return
        await asyncio.sleep(pause_s)
        pause_s *= 2


def _rules(device: UnregisteredDevice) -> tuple[AccessRule, ...]:
    further = () if device.is_below_profile else (f"send:{device.address}",)
    return rights.parse_rights((*PROFILES[PROFILE], *further))


def _hash(password: str) -> str:
    """Return a hash of Mosquitto's form."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, ITERATIONS)
    return "$7$" + "$".join((str(ITERATIONS), *(base64.b64encode(each).decode() for each in (salt, digest))))
