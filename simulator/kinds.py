"""Description of a simulation: one resource of kind `Simulation`, in the language of all configuration.

Other programs than the simulator do not know this kind. `read_simulation` finds all errors of a file, with their lines.
"""

from __future__ import annotations

import enum
import string
from collections.abc import Callable, Sequence
from typing import Annotated, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from bridge.resources import parse as language
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from bridge.resources.fields import Count, Live, Positive, ResourcePart, Seconds, Text, read_by
from bridge.resources.resource import Errors, Resource, ResourceKind, ResourceKinds, error_at, of_kind
from simulator.limits import DEVICES_MAX

KIND: Final = "Simulation"
PLACES: Final = frozenset({"device", "group", "number"})
"""Names in braces in an address."""
_SCHEMES: Final = {"mqtt": ("mqtt", "mqtts"), "http": ("http", "https")}

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
GroupName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?$")]


def parse_place(text: str, protocol: str) -> SplitResult:
    """Return the URL of a listener for `mqtt` or `http`. Raises `ValueError`."""
    schemes = _SCHEMES[protocol]
    found = urlsplit(text)
    try:
        valid = found.scheme in schemes and bool(found.hostname) and found.port is not None
    except ValueError:
        valid = False
    if not valid or found.path.strip("/") or found.query or found.username is not None:
        example = "mqtt://192.168.1.20:1883" if protocol == "mqtt" else "https://192.168.1.20:8443"
        raise ValueError(f'"{text}" is not the address of a listener; write {" or ".join(schemes)}, such as {example}')
    return found


def _place_of(protocol: str) -> Callable[[str], str]:
    return lambda text: parse_place(text, protocol).geturl()


def _address(text: str) -> str:
    """Check an address with names in braces. Raises `ValueError`."""
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as why:
        raise ValueError(f'"{text}": {why}; a name in braces is one of {", ".join(sorted(PLACES))}') from None
    if not text or named - PLACES or any(each in text for each in "#+\0"):
        raise ValueError(f'"{text}" is not an address: no # or +, and in braces only {", ".join(sorted(PLACES))}')
    return text


class ReadingTimes(enum.Enum):
    """Times at which a device takes readings."""

    STEADY = "steady"
    """At its interval, with some jitter."""
    DIURNAL = "diurnal"
    """More often by day than at night."""
    BURSTY = "bursty"
    """Several at once, then a long pause."""


class SensorFault(enum.Enum):
    """Way in which a sensor fails."""

    STUCK = "stuck"
    """The last value, again and again."""
    SILENT = "silent"
    """The value null."""
    SPIKES = "spikes"
    """One value in twenty is ten times as far from the base."""
    DRIFTING = "drifting"
    """A value that moves away from its base by a tenth of it per hour."""


class UpdateWay(enum.Enum):
    """Protocol over which a device updates itself."""

    MQTT = "mqtt"
    HTTP = "http"


class SimulatedGateway(ResourcePart, frozen=True, kw_only=True):
    """Gateway to which devices connect."""

    mqtt: Live[Annotated[str, read_by(_place_of("mqtt"), str)]]
    """Its listener: mqtt://HOST:PORT, or mqtts for TLS."""
    http: Live[Annotated[str, read_by(_place_of("http"), str)] | None] = None
    """Its listener for devices that update over HTTP: http://HOST:PORT or https."""
    name: Live[str] = ""
    """Its name at the hub; `--register-hub` requires it."""
    ca_file: Live[str] = ""
    """File with the certificate of its authority, for TLS; by default those that the system trusts."""


class SimulatedSensor(ResourcePart, frozen=True, kw_only=True):
    """One value of each reading: base + swing by the time of day + drift + noise."""

    name: Live[Text]
    """Key of the value in the reading."""
    base: Live[float] = 0.0
    """Mean value."""
    noise: Live[Annotated[float, msgspec.Meta(ge=0)]] = 0.0
    """Standard deviation of the noise."""
    swing: Live[float] = 0.0
    """Amplitude over a day: highest in its middle."""
    drift_per_hour: Live[float] = 0.0
    """Growth of the value in an hour."""
    decimals: Live[Annotated[int, msgspec.Meta(ge=0, le=9)]] = 2
    """Decimal places."""


class SensorFailures(ResourcePart, frozen=True, kw_only=True):
    """Sensors that fail."""

    share: Live[Share]
    """Share of the devices with a sensor that fails: 0.02 is one in fifty."""
    kind: Live[SensorFault] = SensorFault.STUCK
    """Way in which it fails."""
    after: Live[Seconds] = 60.0
    """Mean time until it fails; it then stays so."""


class LinkBreaks(ResourcePart, frozen=True, kw_only=True):
    """Links that break again and again."""

    share: Live[Share]
    """Share of the devices with such a link."""
    up: Live[Seconds] = 60.0
    """Mean time for which a link holds."""
    down: Live[Seconds] = 5.0
    """Mean time until the device connects again."""


class FirmwareShare(ResourcePart, frozen=True, kw_only=True):
    """Firmware that a part of the devices runs at the start."""

    version: Live[Text]
    """Its version, which the device states when it looks for an update."""
    sequence: Live[Annotated[int, msgspec.Meta(ge=0)]] = 0
    """Its sequence: an artefact with a lower one is refused."""
    share: Live[Positive] = 1.0
    """Its part, relative to the other ones."""


class SoftwareUpdates(ResourcePart, frozen=True, kw_only=True):
    """Updates of the devices themselves, from a campaign of the hub or an `Artefacts` resource of the gateway."""

    artefact: Live[Text]
    """Name of the artefact that they take."""
    board: Live[Text]
    """Their board."""
    key_file: Live[Text]
    """File with the public key of its maker (PEM); its path is relative to this file."""
    over: Live[UpdateWay] = UpdateWay.MQTT
    """Protocol: mqtt in chunks, or http with ranges."""
    failing: Live[Share] = 0.0
    """Share of the devices on which a new version does not start: they go back to their version."""
    poll: Live[Seconds] = 60.0
    """Mean time between two looks for an update."""
    boot: Live[Seconds] = 2.0
    """Time of a restart."""
    resets: Live[Seconds] = 0.0
    """Mean time between two resets while a device downloads; 0: none."""


class CommandAnswers(ResourcePart, frozen=True, kw_only=True):
    """Answers to commands at `command/DEVICE/#`; they go to `command-response/DEVICE`."""

    delay: Live[Seconds] = 0.2
    """Mean time until the answer."""
    failing: Live[Share] = 0.0
    """Share of the commands that are answered with status 500."""


class DeviceGroup(ResourcePart, frozen=True, kw_only=True):
    """Devices of one kind."""

    name: Live[GroupName]
    """Name of the group. Its devices are NAME-00001 and so on."""
    count: Live[Count]
    """Number of devices."""
    address: Live[Annotated[str, read_by(_address, str)]] = "plant/{device}/measurement"
    """Address of the readings, with {device}, {group} or {number}."""
    interval: Live[Seconds] = 10.0
    """Mean time between two readings of a device."""
    times: Live[ReadingTimes] = ReadingTimes.STEADY
    """Times of the readings: steady, diurnal or bursty."""
    burst: Live[Count] = 10
    """Readings of a burst."""
    buffer: Live[Count] = 1_000
    """Readings that a device keeps until they are acknowledged; then it drops the oldest."""
    sensors: Live[tuple[SimulatedSensor, ...]] = ()
    """Values of a reading; without any it has only number and time."""
    failures: Live[SensorFailures | None] = None
    """Sensors that fail, if any."""
    link: Live[LinkBreaks | None] = None
    """Links that break, if any."""
    firmware: Live[tuple[FirmwareShare, ...]] = ()
    """Versions that the devices run at the start."""
    updates: Live[SoftwareUpdates | None] = None
    """Updates of the devices, if any."""
    commands: Live[CommandAnswers | None] = None
    """Answers to commands; without it the devices take none."""


class SimulationSpec(ResourcePart, frozen=True, kw_only=True):
    """Simulated devices, and the gateways that they connect to."""

    gateways: Live[tuple[SimulatedGateway, ...]] = ()
    """Gateways; each device has one, in turn. `--url` replaces them."""
    day: Live[Seconds] = 86_400.0
    """Length of a day for devices that follow the time of day: 10m lets a day pass in ten minutes."""
    connect: Live[Seconds] = 30.0
    """Time at the start over which the devices connect."""
    duration: Live[Seconds | None] = None
    """Length of the run, from the start; without it until Ctrl-C. `--duration` replaces it."""
    devices: Live[Annotated[tuple[DeviceGroup, ...], msgspec.Meta(min_length=1)]]
    """Groups of devices."""


def _check(resources: Sequence[Resource]) -> Errors:
    """Yield the errors between the fields of a simulation."""
    for resource, spec in of_kind(resources, SimulationSpec):
        total, names = 0, dict[str, int]()
        for number, group in enumerate(spec.devices):
            path = ("spec", "devices", number)
            total += group.count
            if group.name in names:
                yield error_at(resource, (*path, "name"), f'"{group.name}" is the name of another group too')
            names[group.name] = number
            if group.interval <= 0:
                yield error_at(resource, (*path, "interval"), "expected a time above 0")
            if group.link is not None and group.link.up <= 0:
                yield error_at(resource, (*path, "link", "up"), "expected a time above 0")
            if group.updates is not None and not group.firmware:
                words = "devices that update need a version at the start: add `firmware` to this group"
                yield error_at(resource, (*path, "updates"), words)
            if group.updates is not None and group.updates.over is UpdateWay.HTTP:
                for place, gateway in enumerate(spec.gateways):
                    if gateway.http is None:
                        words = f'devices of "{group.name}" update over HTTP: add the gateway\'s `http`'
                        yield error_at(resource, ("spec", "gateways", place), words)
        if total > DEVICES_MAX:
            words = f"{total} devices; one simulation has at most {DEVICES_MAX}: use several files"
            yield error_at(resource, ("spec", "devices"), words)
        if spec.day <= 0:
            yield error_at(resource, ("spec", "day"), "expected a time above 0")


KINDS: Final = ResourceKinds((ResourceKind(KIND, SimulationSpec, (KIND.lower(),), single=True),), (_check,))


def read_simulation(name: str) -> SimulationSpec:
    """Return the simulation in a file. Raises `ConfigurationRejected` with all its errors."""
    found = language.read_whole(KINDS, [name])
    if len(found) != 1:
        raise ConfigurationRejected([ConfigurationError(name, 0, "", f"there is no resource of kind {KIND} in it")])
    return next(spec for _, spec in of_kind(found, SimulationSpec))
