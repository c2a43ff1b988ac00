"""MQTT connections of a broker with several address spaces: CONNECT chooses the space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, MemoryMeter
from edge.broker.listeners.tcp import Gone
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import ConnectEvent
from edge.broker.served_space import ServedSpace
from edge.broker.spaces.closed_space import ClosedSpace
from edge.broker.spaces.virtual_hosts import VirtualHosts


class MqttArrival:
    """Owner of a connection until its first event, which it passes to the handler of the chosen space."""

    def __init__(self, hosts: VirtualHosts, driver: ConnectionDriver, connection: MqttConnection) -> None:
        self._hosts = hosts
        self._driver = driver
        self._connection = connection

    def handle(self, events: Sequence[Any]) -> None:
        space: ServedSpace | ClosedSpace
        space, first = self._hosts.own, events[0]
        if isinstance(first, ConnectEvent):
            space, user = self._hosts.choose(self._driver, "", first.username)
            events = [msgspec.structs.replace(first, username=user), *events[1:]]
        self._hosts.enter(self._driver, space)
        handler = space.mqtt.handler(self._driver, self._connection)
        self._driver.hand_over(handler)
        handler.handle(events)

    def writable(self) -> None:
        """Do nothing: no data is pending."""


class MqttSpaceDrivers:
    """Creates the drivers of MQTT connections (`edge.broker.listeners.listeners.Drivers`)."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts

    def serve(
        self,
        gone: Gone,
        identity: str | None,
        around: Callable[[ConnectionMachine], ConnectionMachine],
        meter: MemoryMeter,
    ) -> ConnectionDriver:
        """Create the driver of an accepted connection."""
        if not self._hosts.shared:
            return self._hosts.own.mqtt.serve(gone, identity, around, meter)
        return self._hosts.own.mqtt.drive(self._arrive, gone, identity, around, meter)

    def refuse(self, gone: Gone, around: Callable[[ConnectionMachine], ConnectionMachine]) -> ConnectionDriver:
        """Create the driver of a connection that is refused at the limit."""
        return self._hosts.own.mqtt.refuse(gone, around)

    def _arrive(self, driver: ConnectionDriver, connection: MqttConnection) -> MqttArrival:
        return MqttArrival(self._hosts, driver, connection)
