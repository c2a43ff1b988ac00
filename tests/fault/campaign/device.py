"""A simulated device: it publishes readings, and updates itself over MQTT or HTTP with a way back.

What is on its flash outlasts a reset: the version that it runs, the bytes of an image, the states that it has still to
report, and the readings that are not acknowledged.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import time
from typing import Any, Final, NamedTuple

from bridge.artefacts.keys import MakerPublicKey
from bridge.artefacts.manifest import ArtefactManifest
from bridge.artefacts.verification import check_board, check_sequence, verify_image, verify_manifest
from tests.fault.campaign.http_link import HttpLink
from tests.support.mqtt_link import LinkLost, MqttLink

BOARD: Final = "pico-w"
CHUNK_BYTES: Final = 32 << 10
ANSWER_S: Final = 10.0
"""Time after which a device repeats a request over MQTT, as the documentation says."""
POLL_S: Final = 20.0
"""Mean time between two questions for an offer."""
BOOT_S: Final = 2.0
RETRY_S: Final = 3.0


class FleetDevicePlan(NamedTuple):
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


class DeviceRecord:
    """Counts and times of one device, for the test."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []
        """Monotonic time of each reading, and seconds until its PUBACK, on one connection."""
        self.acked = 0
        """Readings with numbers below this one are acknowledged."""
        self.resets = self.verified = self.lost = self.repeated = 0
        self.states: list[str] = []
        """States with acknowledged reports."""


class FleetDevice:
    """Device with two slots. `run` ends when it is cancelled."""

    def __init__(self, plan: FleetDevicePlan) -> None:
        self.plan: Final = plan
        self.record: Final = DeviceRecord()
        self.runs = "1.1.0"
        self.ended = False
        self._random = random.Random(plan.seed)
        self._key = MakerPublicKey.parse(plan.key)
        self._unacked: list[bytes] = []
        self._number = 0
        self._slot = bytearray()
        self._slot_of = ""
        """SHA-256 of the image in the second slot."""
        self._pending: list[tuple[str, str]] = []
        self._tried = False
        self._offered: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def run(self) -> None:
        """Live until it is cancelled."""
        await asyncio.sleep(self._random.random() * 5.0)
        while True:
            try:
                await self._connected()
            except (LinkLost, PermissionError):
                self.record.lost += 1
            except DeviceReset:
                self.record.resets += 1
                await asyncio.sleep(BOOT_S)
            await asyncio.sleep(RETRY_S * (0.5 + self._random.random()))

    async def _connected(self) -> None:
        """Publish and update over one connection, until it ends."""
        self._offered = asyncio.Queue()
        plan = self.plan
        link = await MqttLink.open(
            plan.mqtt, plan.name, plan.password, lambda *message: self._offered.put_nowait(message)
        )
        tasks: list[asyncio.Future[Any]] = []
        try:
            tasks = [asyncio.ensure_future(each) for each in (link.ended, self._publish(link), self._update(link))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            link.cut()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- readings ---------------------------------------------------------------------------------------------------

    async def _publish(self, link: MqttLink) -> None:
        topic, mean = f"plant/{self.plan.name}/t", self.plan.interval_s
        again = list(self._unacked)
        for body in again:  # in their order, before new ones
            self.record.repeated += 1
            await link.publish(topic, body)
            self._acknowledge()
        await asyncio.sleep(self._random.random() * mean)
        while True:
            body = json.dumps({"n": self._number, "temperature": round(self._random.gauss(21, 2), 1)}).encode()
            self._number += 1
            self._unacked.append(body)
            begun = time.monotonic()
            await link.publish(topic, body)
            self.record.waits.append((begun, time.monotonic() - begun))
            self._acknowledge()
            await asyncio.sleep(mean * (0.5 + self._random.random()))

    def _acknowledge(self) -> None:
        del self._unacked[0]
        self.record.acked = self._number - len(self._unacked)

    # --- updates ----------------------------------------------------------------------------------------------------

    async def _update(self, link: MqttLink) -> None:
        plan = self.plan
        self._way: OverMqtt | OverHttp
        if plan.http:
            self._way = OverHttp(plan)
        else:
            self._way = OverMqtt(plan.name, link, self._offered)
        await self._way.begin()
        try:
            while True:
                await self._report_pending()
                if not self.ended and not self._tried:
                    await self._try_update()
                    if self._pending:
                        continue
                await asyncio.sleep(POLL_S * (0.5 + self._random.random()))
        finally:
            self._way.close()

    async def _report_pending(self) -> None:
        while self._pending:
            state, reason = self._pending[0]
            await self._way.report(state, reason)
            self._pending.pop(0)
            self.record.states.append(state)
            if state in ("healthy", "rolled-back"):
                self.ended = True

    async def _try_update(self) -> None:
        """Fetch, verify and install what is offered."""
        envelope = await self._way.offered(self.runs)
        if envelope is None:
            return
        manifest = verify_manifest(envelope, (self._key,), time.time())
        check_board(manifest, BOARD)
        check_sequence(manifest, 11)
        if self._slot_of != manifest.digest:
            self._slot, self._slot_of = bytearray(), manifest.digest
            await self._way.report("downloading", "")
            self.record.states.append("downloading")
        await self._download(manifest)
        verify_image(manifest, _File(self._slot))  # type: ignore[arg-type]
        self.record.verified += 1
        await self._way.report("verified", "")
        self.record.states.append("verified")
        self._tried = True
        self.runs = "1.1.0" if self.plan.bad else manifest.version
        self._pending = [("installed", ""), ("rolled-back", "no boot") if self.plan.bad else ("healthy", "")]
        self._slot, self._slot_of = bytearray(), ""
        raise DeviceReset  # it boots the new version

    async def _download(self, manifest: ArtefactManifest) -> None:
        resets_at = time.monotonic() + self._random.expovariate(1 / self.plan.resets_s)
        while len(self._slot) < manifest.size:
            self._slot += await self._way.content(manifest, len(self._slot))
            if time.monotonic() > resets_at:
                raise DeviceReset


class DeviceReset(Exception):
    """The device starts again; what is not on its flash is lost."""


class _File:
    """Bytes of a slot, for reading once."""

    def __init__(self, content: bytearray) -> None:
        self._left = memoryview(content)

    def read(self, size: int) -> bytes:
        found, self._left = self._left[:size], self._left[size:]
        return bytes(found)


class OverMqtt:
    """Update over the connection of the readings, as `docs/how-to/update-devices-over-mqtt.md` says."""

    def __init__(self, name: str, link: MqttLink, messages: asyncio.Queue[tuple[str, bytes]]) -> None:
        self._root = f"$artefacts/{name}"
        self._link = link
        self._messages = messages
        self._artefact: dict[str, Any] = {}

    async def begin(self) -> None:
        while not await self._link.subscribe(f"{self._root}/answer/#"):
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        """Nothing: the connection is that of the readings."""

    async def offered(self, runs: str) -> bytes | None:
        """Return the signed manifest of what is offered."""
        question = json.dumps({"board": BOARD, "version": runs}).encode()
        found = await self._ask("offer", "offer", question)
        if found is None or (artefact := json.loads(found)["artefact"]) is None:
            return None
        self._artefact = artefact
        return base64.b64decode(artefact["manifest"])

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        """Return the next bytes of the image; none when they are refused for now."""
        path = f"chunk/{manifest.digest}/{start}"
        found = await self._ask(f"{path}/{CHUNK_BYTES}", path)
        if found is None:
            await asyncio.sleep(ANSWER_S)
        return found or b""

    async def report(self, state: str, reason: str) -> None:
        body = {"artefact": "blinker", "version": "1.2.0", "state": state, "reason": reason}
        await self._link.publish(f"{self._root}/report", json.dumps(body).encode())

    async def _ask(self, path: str, answer: str, body: bytes = b"") -> bytes | None:
        """Return the answer to a request; None if it is refused."""
        wanted, refused = f"{self._root}/answer/{answer}", f"{self._root}/answer/refused/{answer}"
        while True:
            self._link.send(f"{self._root}/get/{path}", body)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    while True:
                        topic, found = await self._messages.get()
                        if topic == wanted:
                            return found
                        if topic == refused:
                            return None


class OverHttp:
    """Update over HTTP with ranges."""

    def __init__(self, plan: FleetDevicePlan) -> None:
        self._http = HttpLink(plan.http, plan.name, plan.password)

    async def begin(self) -> None:
        """Nothing: each request has what it needs."""

    def close(self) -> None:
        self._http.close()

    async def offered(self, _runs: str) -> bytes | None:
        found = await self._ask("GET", "/artefacts")
        if found is None:
            return None
        if not any(each["version"] == "1.2.0" for each in json.loads(found)["artefacts"]):
            return None
        return await self._ask("GET", f"/artefacts/blinker/1.2.0/manifest?board={BOARD}")

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        stop = min(start + 8 * CHUNK_BYTES, manifest.size) - 1
        wanted = {"Range": f"bytes={start}-{stop}"}
        found = await self._ask("GET", f"/artefacts/blinker/1.2.0/image?board={BOARD}", fields=wanted)
        if found is None:
            await asyncio.sleep(ANSWER_S)
        return found or b""

    async def report(self, state: str, reason: str) -> None:
        body = json.dumps({"state": state, "reason": reason}).encode()
        while await self._ask("POST", "/artefacts/blinker/1.2.0/report", body) is None:
            await asyncio.sleep(ANSWER_S)

    async def _ask(
        self, method: str, path: str, body: bytes = b"", fields: dict[str, str] | None = None
    ) -> bytes | None:
        status, content = await self._http.ask(method, path, body, fields or {})
        return content if status < 300 else None
