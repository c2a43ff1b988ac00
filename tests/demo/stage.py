"""Parts of the scenario: the hub, the gateways behind their relays, the devices, and their start."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.client import MQTTClient
from amqtt.errors import AMQTTError
from amqtt.mqtt.constants import QOS_1

import cloud
from tests.demo.board import Board, DeviceBoard, GatewayBoard
from tests.demo.errors import DemoError
from tests.demo.journals import Journal
from tests.demo.plan import FIRMWARE, FORWARD, DevicePlan
from tests.demo.ports import free_ports
from tests.demo.processes import Child, Children, last_lines, waypost
from tests.demo.relay import Relay

READY_S = 180.0
"""Longest start of a gateway or hub, with a cold disk and a tenth of a processor: 40 s were too short there. One that
ends before is reported at once.
"""
DEVICE_WINDOW = 16
DEVICE_BUFFER = 20_000
DRAIN_S = 120.0
"""Longest wait of a device for its last acknowledgements, under the same conditions."""
PYTHONPATH = str(Path(cloud.__file__).resolve().parents[1])
"""Folder of the program's own packages, so that children find them from any folder."""


@dataclass(slots=True)
class Gateway:
    """One gateway: its ports (the same for every start), its relay to the hub, and its current process."""

    name: str
    data: Path
    mqtt: int
    amqp: int
    http: int
    relay: Relay
    child: Child | None = None

    def url(self, protocol: str) -> str:
        return f"{protocol}://127.0.0.1:{self.mqtt if protocol == 'mqtt' else self.amqp}"


class Stage:
    """Starts and stops everything inside one folder."""

    def __init__(self, folder: Path, board: Board, children: Children) -> None:
        self.folder = folder
        self.board = board
        self._children = children
        self.gateways: dict[str, Gateway] = {}
        self.devices: list[Child] = []
        self.firmware: Child | None = None
        self.hub: Child | None = None

    @property
    def lake(self) -> Path:
        return self.folder / "hub" / "lake"

    # --- starting ---------------------------------------------------------------------------------------------

    async def start_hub(self, gateways: tuple[str, ...]) -> None:
        """Start the hub, and a relay in front of it for each gateway."""
        amqp, http, *ports = free_ports(2 + 4 * len(gateways))
        command = ["hub", "run", "--data", str(self.folder / "hub"), "--dev"]
        command += ["--amqp", f"127.0.0.1:{amqp}", "--http", f"127.0.0.1:{http}"]
        self.hub = await self._start("hub", waypost(*command))
        await self.hub.ready(READY_S)
        self.board.hub_console = f"http://127.0.0.1:{http}/"
        for index, name in enumerate(gateways):
            mqtt, own_amqp, own_http, relay = ports[4 * index : 4 * index + 4]
            gateway = Gateway(name, self.folder / name, mqtt, own_amqp, own_http, Relay(relay, amqp))
            await gateway.relay.open()
            self.gateways[name] = gateway
            self.board.gateways[name] = GatewayBoard(name, console=f"http://127.0.0.1:{gateway.http}/")

    async def start_gateway(self, name: str) -> None:
        """Start a gateway, for the first time or again."""
        gateway = self.gateways[name]
        command = ["run", "--data", str(gateway.data), "--dev"]
        for listener in ("mqtt", "amqp", "http"):
            command += [f"--{listener}", f"127.0.0.1:{getattr(gateway, listener)}"]
        command += ["--hub", f"amqp://127.0.0.1:{gateway.relay.port}", "--gateway", name, "--forward", FORWARD]
        gateway.child = await self._start(name, waypost(*command))
        await gateway.child.ready(READY_S)

    async def start_device(self, plan: DevicePlan) -> None:
        """Start one simulated device."""
        journal = self._journal(plan.name, plan.gateway)
        command = ["simulate", "--protocol", plan.protocol, "--kind", plan.kind, "--name", plan.name]
        command += ["--url", self.gateways[plan.gateway].url(plan.protocol), "--address", plan.address]
        command += ["--interval", str(plan.interval_s), "--journal", str(journal.path)]
        command += ["--window", str(DEVICE_WINDOW), "--buffer", str(DEVICE_BUFFER), "--drain", str(DRAIN_S)]
        self.devices.append(await self._start(plan.name, waypost(*command)))
        program = "amqtt" if plan.protocol == "mqtt" else "Proton"
        self.board.devices.append(
            DeviceBoard(plan.name, plan.gateway, plan.protocol.upper(), plan.kind, program, journal)
        )

    async def start_firmware(self) -> str:
        """Start the firmware example; return a note about it. Runs on CPython without MicroPython."""
        source = Path(PYTHONPATH) / "firmware_examples" / FIRMWARE.folder
        if not (source / "main.py").is_file():
            return "Firmware example: not part of an installed Waypost, left out."
        micropython = shutil.which("micropython")
        gateway, journal = self.gateways[FIRMWARE.gateway], self._journal(FIRMWARE.name, FIRMWARE.gateway)
        settings = {
            "GATEWAY": "127.0.0.1",
            "PORT": gateway.mqtt,
            "DEVICE": FIRMWARE.name,
            "ADDRESS": FIRMWARE.address,
            "COMMAND_ADDRESS": FIRMWARE.command_address,
            "INTERVAL_MS": FIRMWARE.interval_ms,
            "RING": DEVICE_BUFFER,
            "SPOOL": "",
            "JOURNAL": journal.path,
        }
        command = [micropython or sys.executable, "main.py", *(f"{name}={value}" for name, value in settings.items())]
        self.firmware = await self._start(
            FIRMWARE.name, command, folder=source, environment={"PYTHONDONTWRITEBYTECODE": "1"}
        )
        program = "MicroPython" if micropython else "CPython"
        self.board.devices.append(DeviceBoard(FIRMWARE.name, FIRMWARE.gateway, "MQTT", "board", program, journal))
        if micropython:
            return f"{FIRMWARE.name} is the program of firmware_examples/{FIRMWARE.folder} on MicroPython."
        return (
            f"{FIRMWARE.name} is the program of firmware_examples/{FIRMWARE.folder} under CPython: "
            "MicroPython is not installed (Debian 12 has no package of it)."
        )

    # --- faults and stops ----------------------------------------------------------------------------------------

    def kill_gateway(self, name: str) -> None:
        """Send SIGKILL: no farewell, nothing flushed."""
        child = self.gateways[name].child
        if child is not None:
            child.signal(signal.SIGKILL)

    async def stop_devices(self) -> None:
        """Stop every device's measurements and wait until it has delivered the rest. Raises DemoError."""
        for child in self.devices:
            child.signal(signal.SIGTERM)
        if self.firmware is not None:
            await self._command_firmware({"stop": True})
        running = [*self.devices, *([self.firmware] if self.firmware is not None else [])]
        await asyncio.gather(*(child.exit_code(DRAIN_S + 10) for child in running))
        for device in self.board.devices:
            device.journal.follow()
            if device.journal.end is None:
                raise next(child for child in running if child.name == device.name).failure("did not end in order")

    async def stop(self) -> None:
        """Stop the gateways, then the hub."""
        gateways = [one.child for one in self.gateways.values() if one.child is not None]
        await self._children.end(gateways)
        for gateway in self.gateways.values():
            await gateway.relay.close()
        if self.hub is not None:
            await self._children.end([self.hub])

    def check(self) -> None:
        """Raises DemoError when a process has ended that should be running."""
        serving = [one.child for one in self.gateways.values()]
        for child in (self.hub, self.firmware, *serving, *self.devices):
            if child is not None and not child.alive and child.process.returncode != -signal.SIGKILL:
                raise child.failure("ended unexpectedly")

    def last_lines(self, name: str) -> list[str]:
        """Return the last log lines of a process."""
        return last_lines(self.folder / "logs" / f"{name}.log")

    async def run_waypost(self, name: str, *arguments: str, within_s: float) -> Child:
        """Run another product command to its end. Raises DemoError when it fails."""
        child = await self._start(name, waypost(*arguments))
        if await child.exit_code(within_s) != 0:
            raise child.failure("failed")
        return child

    # --- inside -----------------------------------------------------------------------------------------------

    async def _start(
        self, name: str, command: list[str], *, folder: Path | None = None, environment: dict[str, str] | None = None
    ) -> Child:
        path = os.pathsep.join(filter(None, [PYTHONPATH, os.environ.get("PYTHONPATH", "")]))
        return await self._children.start(
            name, command, folder=folder, environment={"PYTHONPATH": path, **(environment or {})}
        )

    def _journal(self, device: str, gateway: str) -> Journal:
        path = self.folder / "journals" / f"{device}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return Journal(path, device, gateway)

    async def _command_firmware(self, command: dict[str, Any]) -> None:
        """Send the device a command over its gateway, as an operator would. Raises DemoError."""
        client = MQTTClient(f"demo-{time.time_ns()}", config={"auto_reconnect": False, "plugins": {}})
        try:
            await client.connect(self.gateways[FIRMWARE.gateway].url("mqtt"), cleansession=True)
            await client.publish(FIRMWARE.command_address, json.dumps(command).encode(), qos=QOS_1)
            await client.disconnect()
        except (AMQTTError, OSError, TimeoutError) as why:
            raise DemoError(f"could not send {FIRMWARE.name} a command: {why!r}") from why
