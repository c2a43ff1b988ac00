"""One of many simulated devices: it takes readings, keeps them until they are acknowledged, and connects again.

It takes readings also while its link is broken, and delivers them in their order. It answers commands and updates
itself if its group says so. All of its devices share one process, in tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from bridge.artefacts.keys import MakerPublicKey
from simulator.kinds import CommandAnswers, DeviceGroup, FirmwareShare, UpdateWay
from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace
from simulator.mqtt_link import MqttLink
from simulator.outbox import DeviceOutbox, SimulatedReading
from simulator.shapes import pauses
from simulator.signals import DeviceSensors
from simulator.tally import DeviceTally
from simulator.update_ways import UpdateExchange, UpdateOverHttp, UpdateOverMqtt
from simulator.updating import DeviceReset, DeviceUpdater

RETRY_S: Final = 2.0
"""Mean pause before the first attempt to connect again; it doubles up to `RETRY_S_MAX`."""
RETRY_S_MAX: Final = 30.0
COMMANDS_MAX: Final = 100
"""Commands that a device answers at a time; further ones are not answered."""


class FleetDevicePlan(NamedTuple):
    """One device."""

    group: DeviceGroup
    login: LinkLogin
    address: str
    """Address of its readings."""
    mqtt: LinkPlace
    seed: int
    """Seed of all that is by chance about it."""
    http: LinkPlace | None = None
    """Listener for updates over HTTP."""
    key: MakerPublicKey | None = None
    """Key of the maker of its updates."""
    firmware: FirmwareShare | None = None
    """Version that it runs at the start."""
    sensor_fails: bool = False
    link_breaks: bool = False
    starts_s: float = 0.0
    """Seconds from the start of the simulation until it connects."""


class SimulationPace(NamedTuple):
    """Time of a simulation."""

    day_s: float = 86_400.0
    rate: float = 1.0
    """Factor of the readings in a second."""


class FleetDevice:
    """Device with its flash. `run` ends when it is stopped and all readings are acknowledged."""

    def __init__(self, plan: FleetDevicePlan, tally: DeviceTally, pace: SimulationPace) -> None:
        self.plan: Final = plan
        self.tally: Final = tally
        self._pace: Final = pace
        self._random = random.Random(f"{plan.seed}-link")
        self._reading_chance = random.Random(f"{plan.seed}-readings")
        """Apart from the others, so that a seed gives the same readings whatever the link does."""
        self._outbox = DeviceOutbox(plan.group.buffer)
        self._number = 0
        self._ready = asyncio.Event()
        """Set when there is something to send, or the device is stopped."""
        self._stopped = asyncio.Event()
        self._started = 0.0
        self._cut = False
        """True when the simulation itself has broken the link."""
        self._reached = False
        """True once the device has been connected."""
        self._exchange: UpdateExchange | None = None
        """Requests for updates over the present connection."""
        self._commands: set[asyncio.Task[None]] = set()
        self._sensors = self._make_sensors()
        self.updater: Final = self._make_updater()

    @property
    def outbox(self) -> DeviceOutbox:
        """Readings that are not acknowledged."""
        return self._outbox

    def stop(self) -> None:
        """End the readings; those that wait are still delivered."""
        self._stopped.set()
        self._ready.set()

    async def run(self) -> None:
        """Take readings and deliver them. Faults of links are counted, not raised."""
        self._started = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.plan.starts_s):
                await self._stopped.wait()
        measuring = asyncio.create_task(self._measure())
        try:
            await self._stay_connected()
        finally:
            measuring.cancel()
            for each in self._commands:
                each.cancel()

    # --- readings ---------------------------------------------------------------------------------------------------

    async def _measure(self) -> None:
        """Take readings until the device is stopped."""
        group = self.plan.group
        mean_s = group.interval / self._pace.rate
        await asyncio.sleep(self._reading_chance.random() * mean_s)
        for pause_s in pauses(group, mean_s, self._pace.day_s, self._reading_chance, time.monotonic):
            if self._stopped.is_set():
                return
            self._take_reading()
            await asyncio.sleep(pause_s)

    def _take_reading(self) -> None:
        now, tally = time.monotonic(), self.tally
        record: dict[str, Any] = {"device": self.plan.login.device, "seq": self._number, "at": round(time.time(), 3)}
        record.update(self._sensors.read(now - self._started, now))
        reading = SimulatedReading(self._number, json.dumps(record, separators=(",", ":")).encode())
        self._number += 1
        tally.published += 1
        if self._outbox.add(reading) is not None:
            tally.dropped += 1
        self._ready.set()

    async def _send(self, link: MqttLink) -> None:
        """Deliver readings one after the other, which keeps their order; end when a stopped device has none left."""
        outbox, tally = self._outbox, self.tally
        while True:
            reading = outbox.send()
            if reading is None:
                if self._stopped.is_set():
                    return
                self._ready.clear()
                await self._ready.wait()
                continue
            started = time.monotonic()
            await link.publish(self.plan.address, reading.body)
            tally.record_wait(started, time.monotonic() - started)
            tally.acknowledged += 1
            if (outbox.acknowledge(reading.seq) or 1) > 1:
                tally.repeated += 1

    # --- the link ---------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        retry_s = RETRY_S
        while len(self._outbox) or not self._stopped.is_set():
            pause_s, acknowledged = 0.0, self._outbox.acknowledged
            try:
                await self._use_link()
            except LinkLost as lost:
                if self._cut:
                    self.tally.breaks += 1
                    pause_s = self._random.expovariate(1 / max(self._link_down_s(), 1e-3))
                else:
                    self.tally.errors[lost.fault.value] += 1
            except DeviceReset:
                self.tally.resets += 1
                pause_s = self.plan.group.updates.boot if self.plan.group.updates is not None else 0.0
            else:
                return
            finally:
                self._outbox.take_all_back()
            retry_s = RETRY_S if self._outbox.acknowledged > acknowledged else min(2 * retry_s, RETRY_S_MAX)
            await asyncio.sleep(pause_s or retry_s * (0.5 + self._random.random()))

    def _link_down_s(self) -> float:
        return self.plan.group.link.down if self.plan.group.link is not None else 0.0

    async def _use_link(self) -> None:
        """Use one connection until the device is done. Raises `LinkLost`, `DeviceReset`."""
        plan, self._cut = self.plan, False
        link = await MqttLink.open(plan.mqtt, plan.login, self._take_message)
        self._exchange = self._make_exchange(link)
        self.tally.connected += 1
        self.tally.known += not self._reached
        self._reached = True
        work: list[Coroutine[Any, Any, None]] = [self._send(link), self._watch(link)]
        if plan.group.commands is not None:
            work.append(self._listen(link))
        if self.updater is not None and self._exchange is not None:
            work.append(self.updater.run(self._exchange))
        if plan.link_breaks and plan.group.link is not None:
            work.append(self._break(link, plan.group.link.up))
        sending, *others = [asyncio.ensure_future(each) for each in work]
        try:
            while not sending.done():
                running = [each for each in others if not each.done()]
                await asyncio.wait((sending, *running), return_when=asyncio.FIRST_COMPLETED)
                for each in running:
                    if each.done():
                        each.result()
            sending.result()
            link.close()
        finally:
            self.tally.connected -= 1
            for each in (sending, *others):
                each.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
            link.cut()

    async def _watch(self, link: MqttLink) -> None:
        """Wait for the end of the connection. Raises `LinkLost`."""
        await link.ended
        raise LinkLost(DeviceLinkFault.CLOSED)

    async def _break(self, link: MqttLink, up_s: float) -> None:
        await asyncio.sleep(self._random.expovariate(1 / up_s))
        self._cut = True
        link.cut()

    # --- commands ---------------------------------------------------------------------------------------------------

    async def _listen(self, link: MqttLink) -> None:
        if not await link.subscribe(f"command/{self.plan.login.device}/#"):
            self.tally.errors[DeviceLinkFault.SUBSCRIPTION_REFUSED.value] += 1

    def _take_message(self, link: MqttLink, topic: str, payload: bytes) -> None:
        if isinstance(self._exchange, UpdateOverMqtt) and self._exchange.take(topic, payload):
            return
        if self.plan.group.commands is not None and len(self._commands) < COMMANDS_MAX:
            task = asyncio.get_running_loop().create_task(self._answer(link, payload))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _answer(self, link: MqttLink, payload: bytes) -> None:
        """Answer a command, as `firmware_examples/README.md` says."""
        settings = self.plan.group.commands or CommandAnswers()
        await asyncio.sleep(settings.delay * (0.5 + self._random.random()))
        answer: dict[str, Any] = {"status": 500 if self._random.random() < settings.failing else 200}
        try:
            command = json.loads(payload)
        except ValueError:
            command = None
        if not isinstance(command, dict):
            answer = {"status": 400, "error": "not a JSON object"}
        elif "id" in command:
            answer["id"] = command["id"]
        with contextlib.suppress(LinkLost):
            await link.publish(f"command-response/{self.plan.login.device}", json.dumps(answer).encode())
            self.tally.commands += 1

    # --- parts ------------------------------------------------------------------------------------------------------

    def _make_sensors(self) -> DeviceSensors:
        plan, failures, chance = self.plan, self.plan.group.failures, self._reading_chance
        if failures is None or not plan.sensor_fails:
            return DeviceSensors(plan.group.sensors, chance, self._pace.day_s)
        fails_at_s = plan.starts_s + chance.expovariate(1 / max(failures.after, 1e-3))
        return DeviceSensors(plan.group.sensors, chance, self._pace.day_s, failures.kind, fails_at_s)

    def _make_updater(self) -> DeviceUpdater | None:
        plan = self.plan
        if plan.group.updates is None or plan.key is None or plan.firmware is None:
            return None
        installed = (plan.firmware.version, plan.firmware.sequence)
        return DeviceUpdater(plan.group.updates, plan.key, installed, random.Random(f"{plan.seed}-update"), self.tally)

    def _make_exchange(self, link: MqttLink) -> UpdateExchange | None:
        plan, settings = self.plan, self.plan.group.updates
        if settings is None or self.updater is None:
            return None
        if settings.over is UpdateWay.HTTP and plan.http is not None:
            return UpdateOverHttp(settings.artefact, settings.board, plan.http, plan.login)
        return UpdateOverMqtt(plan.login.device, settings.artefact, settings.board, link)
