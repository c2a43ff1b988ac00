"""Requests of a device that updates itself, over MQTT in chunks or over HTTP with ranges.

`docs/how-to/update-devices-over-mqtt.md` and `docs/how-to/write-a-device-that-updates.md` describe the exchange.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any, Final, Protocol

from bridge.artefacts.manifest import ArtefactManifest
from simulator.http_link import HttpLink
from simulator.limits import CHUNK_BYTES, RANGE_BYTES
from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace
from simulator.mqtt_link import MqttLink

ANSWER_S: Final = 10.0
"""Time after which a device repeats a request over MQTT, and after which it tries again what was refused for now."""


class UpdateExchange(Protocol):
    """Requests of one device. Methods raise `LinkLost`."""

    async def start(self) -> None:
        """Prepare requests over a new connection."""

    def close(self) -> None:
        """Close connections of its own."""

    async def offered(self, version: str) -> bytes | None:
        """Return the signed manifest of what is offered. `version`: the one that the device runs."""

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        """Return the next bytes of an image; none when they are refused for now."""

    async def report(self, artefact: tuple[str, str], state: str, reason: str) -> None:
        """Report a state, until the gateway has it. `artefact`: name and version."""


class UpdateOverMqtt:
    """Update over the connection of the readings."""

    def __init__(self, device: str, name: str, board: str, link: MqttLink) -> None:
        """`name`: of the artefact that the device takes."""
        self._root = f"$artefacts/{device}"
        self._name = name
        self._board = board
        self._link = link
        self._messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def take(self, topic: str, payload: bytes) -> bool:
        """Take a message of the device, if it is an answer to a request."""
        if not topic.startswith(self._root):
            return False
        self._messages.put_nowait((topic, payload))
        return True

    async def start(self) -> None:
        while not await self._link.subscribe(f"{self._root}/answer/#"):
            await asyncio.sleep(ANSWER_S)  # it has just started, or has no artefacts yet

    def close(self) -> None:
        """Do nothing: the connection is that of the readings."""

    async def offered(self, version: str) -> bytes | None:
        question = json.dumps({"board": self._board, "version": version}).encode()
        found = await self._ask("offer", "offer", question)
        if found is None or (artefact := json.loads(found)["artefact"]) is None or artefact["name"] != self._name:
            return None
        if artefact["manifest"]:
            return base64.b64decode(artefact["manifest"])
        return await self._long_manifest(artefact)

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        return await self._chunk(manifest.digest, start)

    async def report(self, artefact: tuple[str, str], state: str, reason: str) -> None:
        name, version = artefact
        body = {"artefact": name, "version": version, "state": state, "reason": reason}
        await self._link.publish(f"{self._root}/report", json.dumps(body).encode())

    async def _long_manifest(self, artefact: dict[str, Any]) -> bytes | None:
        """Fetch a manifest that does not fit into an offer, in chunks."""
        found = b""
        while len(found) < artefact["manifest_size"]:
            part = await self._chunk(artefact["manifest_sha256"], len(found))
            if not part:
                return None
            found += part
        return found

    async def _chunk(self, digest: str, start: int) -> bytes:
        path = f"chunk/{digest}/{start}"
        found = await self._ask(f"{path}/{CHUNK_BYTES}", path)
        if found is None:
            await asyncio.sleep(ANSWER_S)
        return found or b""

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


class UpdateOverHttp:
    """Update over HTTP with ranges."""

    def __init__(self, name: str, board: str, place: LinkPlace, login: LinkLogin) -> None:
        """`name`: of the artefact that the device takes."""
        self._name = name
        self._board = board
        self._http = HttpLink(place, login)

    async def start(self) -> None:
        """Do nothing: each request has what it needs."""

    def close(self) -> None:
        self._http.close()

    async def offered(self, version: str) -> bytes | None:
        found = await self._ask("GET", "/artefacts")
        if found is None:
            return None
        known = [each for each in json.loads(found)["artefacts"] if each["name"] == self._name]
        known = [each for each in known if self._board in each["boards"] and each["version"] != version]
        if not known:
            return None
        latest = max(known, key=lambda each: int(each["sequence"]))
        return await self._ask("GET", f"/artefacts/{self._name}/{latest['version']}/manifest?board={self._board}")

    async def content(self, manifest: ArtefactManifest, start: int) -> bytes:
        stop = min(start + RANGE_BYTES, manifest.size) - 1
        wanted = {"Range": f"bytes={start}-{stop}"}
        path = f"/artefacts/{manifest.name}/{manifest.version}/image?board={self._board}"
        found = await self._ask("GET", path, fields=wanted)
        if found is None:
            await asyncio.sleep(ANSWER_S)
        return found or b""

    async def report(self, artefact: tuple[str, str], state: str, reason: str) -> None:
        name, version = artefact
        body = json.dumps({"state": state, "reason": reason}).encode()
        while await self._ask("POST", f"/artefacts/{name}/{version}/report", body) is None:
            await asyncio.sleep(ANSWER_S)

    async def _ask(
        self, method: str, path: str, body: bytes = b"", fields: dict[str, str] | None = None
    ) -> bytes | None:
        """Return the content of an answer; None if it is refused."""
        status, content = await self._http.ask(method, path, body, fields or {})
        if status == 401:
            raise LinkLost(DeviceLinkFault.LOGIN_REFUSED, f"HTTP {status}")
        return content if status < 300 else None
