"""A gateway as people look at it: its condition, why, and the next step. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.hub.fleet import GatewayState
from cloud.hub.fleet_condition import BEHIND_S, FleetCondition
from cloud.hub.groups import Key
from cloud.hub.labels import Labels


@dataclass(frozen=True, slots=True)
class SeenGateway:
    """A gateway with its condition. `since_us`: begin of the trouble, UTC microseconds; 0: not known."""

    gateway: GatewayState
    condition: FleetCondition
    why: str
    next_step: str
    since_us: int
    room_hours: float | None
    """Hours until its card is full, from its last report and the time since then; None: not reported."""
    labels: Labels

    @property
    def key(self) -> Key:
        """Tenant and name."""
        return self.gateway.tenant, self.gateway.name


def classify(gateway: GatewayState, labels: Labels, now_us: int) -> SeenGateway:
    """Return a gateway with its condition at this time."""
    status = gateway.status or {}
    room, reported_us = status.get("room_hours"), (status.get("reported_at") or 0) * 1_000
    if room is not None and not gateway.connected:
        room = max(0.0, room - max(0, now_us - reported_us) / 3.6e9)
    oldest_us = (status.get("backlog_oldest_at") or 0) * 1_000
    condition, why, next_step, since_us = FleetCondition.WELL, "", "", 0
    if not gateway.connected:
        condition, since_us = FleetCondition.OFFLINE, gateway.last_seen
        why = "it is not connected" if gateway.status is not None else "it has not connected since the hub started"
        next_step = "check power and network at the gateway; `waypost doctor` on it tries each step"
    elif status.get("room_hours") == 0:
        condition, since_us = FleetCondition.REFUSING, reported_us
        why = "its card is full: new messages are refused, or old ones dropped"
        next_step = "raise its quotas or remove a backlog: `waypost store info` on it shows what takes the room"
    elif oldest_us and now_us - oldest_us > BEHIND_S * 1e6:
        condition, since_us = FleetCondition.BEHIND, oldest_us
        why = "messages arrive at it faster than they leave"
        next_step = "look at its bridge: rate, data budget and quiet hours (`waypost bridge status` on it)"
    return SeenGateway(gateway, condition, why, next_step, since_us, room, labels)


def waiting_gateway(key: Key, enrolled_us: int, labels: Labels) -> SeenGateway:
    """Return a gateway that has enrolled and never connected."""
    why = "it has enrolled, and never connected"
    step = "start it (`waypost run` on it); then `waypost doctor` on it tries each step to the hub. Or revoke it here"
    gateway = GatewayState(*key, enrolled_us, 0)
    return SeenGateway(gateway, FleetCondition.NEVER, why, step, enrolled_us, None, labels)
