"""Plans of the devices of a run, as they go to another process."""

from __future__ import annotations

from typing import Final, NamedTuple

from bridge.artefacts.keys import MakerPublicKey
from simulator.device import FleetDevicePlan
from simulator.kinds import DeviceGroup, FirmwareShare, SimulatedSensor, SoftwareUpdates, UpdateWay
from simulator.links import LinkLogin, LinkPlace

HOST: Final = "127.0.0.1"
OLD: Final = FirmwareShare(version="1.1.0", sequence=11)
POLL_S: Final = 20.0
CONNECT_S: Final = 5.0


class CampaignPlan(NamedTuple):
    """One device, for another process."""

    name: str
    password: str
    mqtt: int
    http: int
    """Ports of its gateway; 0: it updates over MQTT."""
    key: str
    """Public key of the maker, in PEM."""
    seed: int
    bad: bool
    """The new version does not run on it."""
    interval_s: float
    """Mean time between two readings."""
    resets_s: float
    """Mean time between two resets while an update is in progress."""


def device_plan(plan: CampaignPlan) -> FleetDevicePlan:
    """Return the plan of a simulated device."""
    updates = SoftwareUpdates(
        artefact="blinker",
        board="pico-w",
        key_file="maker.pub",
        over=UpdateWay.HTTP if plan.http else UpdateWay.MQTT,
        failing=1.0 if plan.bad else 0.0,
        poll=POLL_S,
        resets=plan.resets_s,
    )
    group = DeviceGroup(
        name="d",
        count=1,
        interval=plan.interval_s,
        sensors=(SimulatedSensor(name="temperature", base=21.0, noise=2.0, decimals=1),),
        firmware=(OLD,),
        updates=updates,
    )
    return FleetDevicePlan(
        group=group,
        login=LinkLogin(plan.name, plan.name, plan.password),
        address=f"plant/{plan.name}/t",
        mqtt=LinkPlace(HOST, plan.mqtt),
        seed=plan.seed,
        http=LinkPlace(HOST, plan.http) if plan.http else None,
        key=MakerPublicKey.parse(plan.key),
        firmware=OLD,
        starts_s=CONNECT_S * (plan.seed % 100) / 100,
    )
