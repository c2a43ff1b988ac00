"""Choice of devices of a device tenant: by patterns of ids, by labels, or by a group of acting devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from cloud.hub.labels import LabelSelector
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_tenants import UnknownDeviceTenant
from cloud.hub.registry.schema import device_tenants, devices

_READ_AT_ONCE: Final = 2_000
"""Devices of one transaction: 10 ms, so that changes of devices are not held up."""


class DeviceTarget(NamedTuple):
    """Condition for devices; all parts that are given have to hold."""

    patterns: Sequence[str] = ()
    """Patterns of ids, as ``pump-*``; empty: any."""
    selector: LabelSelector | None = None
    group: str | None = None
    """Group of acting devices (`memberOf`)."""

    def named(self) -> Callable[[str], object]:
        """Return a function of ids that is true for those that are chosen by the patterns: one search for all of
        them."""
        if not self.patterns:
            return lambda _: True
        return re.compile("|".join(translate(each) for each in self.patterns)).match

    def matches(self, labels: Mapping[str, str], groups: Sequence[str]) -> bool:
        """Return whether a device is chosen by labels and group."""
        chosen = self.selector is None or self.selector.matches(labels)
        return chosen and (self.group is None or self.group in groups)


class _LabelPart(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class _ExtensionPart(msgspec.Struct, frozen=True):
    waypost: _LabelPart = _LabelPart()


class _RegistrationPart(msgspec.Struct, frozen=True):
    ext: _ExtensionPart = _ExtensionPart()
    member_of: list[str] = msgspec.field(name="memberOf", default_factory=list)


def choose_devices(
    database: Database, tenant: str, devices_of: str, target: DeviceTarget, most: int
) -> dict[str, dict[str, str]]:
    """Return the labels of the chosen devices of a device tenant that `tenant` owns, by id: of one more than `most` if
    there are more. Some transactions; raises `RegistryError`, `UnknownDeviceTenant`."""
    owner = sa.select(device_tenants.c.owner).where(device_tenants.c.tenant == devices_of)
    if database.transaction(lambda tx: tx.execute(owner).scalar()) != tenant:
        raise UnknownDeviceTenant(devices_of)
    found: dict[str, dict[str, str]] = {}
    named = target.named()
    for device, document in _read(database, devices_of):
        if not named(device):
            continue
        try:
            known = msgspec.json.decode(document, type=_RegistrationPart)
        except msgspec.MsgspecError:  # gateways refuse it too
            continue
        if target.matches(known.ext.waypost.labels, known.member_of):
            found[device] = known.ext.waypost.labels
            if len(found) > most:
                break
    return found


def _read(database: Database, devices_of: str) -> Iterator[tuple[str, str]]:
    """Yield ids and registrations in the order of ids."""
    after = ""
    while True:
        mine = (devices.c.tenant == devices_of, devices.c.device > after)
        query = sa.select(devices.c.device, devices.c.document).where(*mine).order_by(devices.c.device)
        rows = database.transaction(lambda tx, query=query: tx.execute(query.limit(_READ_AT_ONCE)).all())  # type: ignore[misc]
        yield from ((row.device, row.document) for row in rows)
        if len(rows) < _READ_AT_ONCE:
            return
        after = rows[-1].device
