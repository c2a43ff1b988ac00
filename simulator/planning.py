"""Plans of all devices of a simulation: their logins, gateways, and what is by chance about each."""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bridge.artefacts.keys import InvalidKey, MakerPublicKey
from edge.output.errors import CommandError, Exit
from edge.output.text import word
from simulator.credentials_file import DeviceCredentials
from simulator.device import FleetDevicePlan
from simulator.kinds import DeviceGroup, FirmwareShare, SimulatedGateway, SimulationSpec
from simulator.links import LinkLogin, LinkPlace

NAMED_MAX = 3
"""Devices that one error names."""


def device_names(group: DeviceGroup) -> list[str]:
    """Return the names of the devices of a group."""
    return [f"{group.name}-{number:05}" for number in range(1, group.count + 1)]


def all_names(spec: SimulationSpec) -> list[str]:
    """Return the names of all devices."""
    return [name for group in spec.devices for name in device_names(group)]


def with_urls(spec: SimulationSpec, urls: Sequence[str]) -> SimulationSpec:
    """Return a simulation with these listeners for MQTT instead of its gateways; other settings of the same gateway
    stay."""
    if not urls:
        return spec
    given = [spec.gateways[number] if number < len(spec.gateways) else None for number in range(len(urls))]
    gateways = tuple(
        SimulatedGateway(mqtt=url) if old is None else msgspec.structs.replace(old, mqtt=url)
        for url, old in zip(urls, given, strict=True)
    )
    return msgspec.structs.replace(spec, gateways=gateways)


def gateway_of(spec: SimulationSpec, number: int) -> SimulatedGateway:
    """Return the gateway of a device by its number in the simulation."""
    return spec.gateways[number % len(spec.gateways)]


def plan_devices(
    spec: SimulationSpec, seed: int, credentials: Mapping[str, DeviceCredentials], folder: Path
) -> list[FleetDevicePlan]:
    """Return the plan of each device.

    Parameters: `credentials`: by device; none: devices log in without. `folder`: place of the files that the simulation
    names. Without gateways the plans have no place to connect to. Raises CommandError.
    """
    missing = [name for name in all_names(spec) if name not in credentials] if credentials else []
    if missing:
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        step = "add them to the file, or let --register-gateway or --register-hub add them"
        words = f"no credentials for {', '.join(missing[:NAMED_MAX])}{more}"
        raise CommandError(words, step, error="invalid-value", code=Exit.USAGE)
    places = [_places(gateway, folder) for gateway in spec.gateways] or [(LinkPlace("", 0), None)]
    plans: list[FleetDevicePlan] = []
    for group in spec.devices:
        key = _key(group, folder)
        for number, name in enumerate(device_names(group), 1):
            chance = random.Random(f"{seed}-{name}")
            mqtt, http = places[len(plans) % len(places)]
            found = credentials.get(name)
            login = LinkLogin(name, keeps_session=group.commands is not None)
            if found is not None:
                login = login._replace(user=found.user, password=found.password)
            plans.append(
                FleetDevicePlan(
                    group=group,
                    login=login,
                    address=group.address.format(device=name, group=group.name, number=number),
                    mqtt=mqtt,
                    http=http,
                    seed=chance.getrandbits(64),
                    key=key,
                    firmware=_firmware(group, chance),
                    sensor_fails=group.failures is not None and chance.random() < group.failures.share,
                    link_breaks=group.link is not None and chance.random() < group.link.share,
                    starts_s=chance.random() * spec.connect,
                )
            )
    return plans


def _firmware(group: DeviceGroup, chance: random.Random) -> FirmwareShare | None:
    if not group.firmware:
        return None
    return chance.choices(group.firmware, [each.share for each in group.firmware])[0]


def _key(group: DeviceGroup, folder: Path) -> MakerPublicKey | None:
    """Return the key of the maker. Raises CommandError."""
    if group.updates is None:
        return None
    path = folder / group.updates.key_file
    try:
        return MakerPublicKey.parse(path.read_text())
    except (OSError, UnicodeDecodeError, InvalidKey) as why:
        words = why.strerror if isinstance(why, OSError) else str(why)
        step = "`keyFile` names the public key of the maker, which `waypost artefact key` writes"
        message = f"{path}: {words} (updates of group {group.name})"
        raise CommandError(message, step, error="invalid-value", code=Exit.USAGE) from None


def _places(gateway: SimulatedGateway, folder: Path) -> tuple[LinkPlace, LinkPlace | None]:
    """Return the listeners of a gateway. Raises CommandError."""
    context = None
    if any(url is not None and urlsplit(url).scheme in ("mqtts", "https") for url in (gateway.mqtt, gateway.http)):
        path = folder / gateway.ca_file if gateway.ca_file else None
        try:
            context = ssl.create_default_context(cafile=path)
        except (OSError, ssl.SSLError) as why:
            step = f"`caFile` of {word(gateway.mqtt)} names the certificate of its authority (PEM)"
            message = f"{path}: {why.strerror or why}"
            raise CommandError(message, step, error="invalid-value", code=Exit.USAGE) from None
    mqtt = _place(gateway.mqtt, context)
    return mqtt, None if gateway.http is None else _place(gateway.http, context)


def _place(url: str, context: ssl.SSLContext | None) -> LinkPlace:
    found = urlsplit(url)
    tls = context if found.scheme in ("mqtts", "https") else None
    return LinkPlace(found.hostname or "", found.port or 0, tls)
