"""Participants of the demo and its timeline. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

CUT_GATEWAY = "gw1"
"""Gateway with the cut uplink."""
KILLED_GATEWAY = "gw2"
"""Gateway that is killed with SIGKILL and restarted."""
GATEWAYS = (CUT_GATEWAY, KILLED_GATEWAY)
FORWARD = "plant/#"
"""Addresses that the gateways forward to the hub."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One simulated device: its measurement, protocol and interval in seconds."""

    gateway: str
    kind: str
    protocol: str
    interval_s: float

    @property
    def name(self) -> str:
        return f"{self.gateway}-{self.kind}"

    @property
    def address(self) -> str:
        return f"plant/{self.gateway}/{self.name}/{self.kind}"


@dataclass(frozen=True, slots=True)
class FirmwarePlan:
    """The MicroPython program of `firmware_examples/` as a further device."""

    gateway: str = CUT_GATEWAY
    name: str = "pico-1"
    folder: str = "raspberry_pi_pico_w_mqtt"
    interval_ms: int = 100

    @property
    def address(self) -> str:
        return f"plant/{self.gateway}/{self.name}/board"

    @property
    def command_address(self) -> str:
        return f"command/{self.name}"


FIRMWARE = FirmwarePlan()

ALWAYS = (
    DevicePlan("gw1", "cpu", "mqtt", 0.04),
    DevicePlan("gw1", "memory", "amqp", 0.04),
    DevicePlan("gw1", "disk", "mqtt", 0.05),
    DevicePlan("gw1", "network", "amqp", 0.04),
    DevicePlan("gw2", "cpu", "amqp", 0.04),
    DevicePlan("gw2", "memory", "mqtt", 0.04),
    DevicePlan("gw2", "load", "mqtt", 0.05),
    DevicePlan("gw2", "network", "amqp", 0.04),
)
"""Five kinds over two protocols on two gateways, about 190 readings a second."""

WHERE_SENSORS = DevicePlan("gw2", "temperature", "mqtt", 0.2)
"""Device for a machine with temperature sensors only."""


def devices(*, sensors: bool) -> tuple[DevicePlan, ...]:
    """Return the simulated devices of a machine with or without temperature sensors."""
    return (*ALWAYS, WHERE_SENSORS) if sensors else ALWAYS


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds after the start of the devices, in this order."""

    cut: float
    kill: float
    restart: float
    restore: float
    stop: float

    @classmethod
    def of(cls, seconds: float) -> Timeline:
        """Scale the timeline to this many seconds of traffic; 60 gives 20 s of outage, from second 12 to 32."""
        unit = seconds / 60
        return cls(cut=12 * unit, kill=25 * unit, restart=28 * unit, restore=32 * unit, stop=seconds)
