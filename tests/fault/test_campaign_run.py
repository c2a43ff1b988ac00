"""A campaign for 200 devices behind four gateways: real processes, kills of gateways and hub, devices that reset.

Each device ends on the new version or back on its old one, and the hub knows which. Each gateway fetches the image
once.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final

import pytest

from tests.support.artefacts import KEY, sealed
from tests.support.configured_gateway import basic
from tests.support.device_fleet import PASSWORD, DeviceFleet
from tests.support.http_client import ask
from tests.support.operator import HubOperator
from tests.support.processes import Waypost, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

GATEWAYS: Final = ("north", "east", "south", "west")
DEVICES: Final = 200
BAD_SHARE: Final = 0.1
"""Devices that cannot run the new version, and go back."""
RESET_SHARE: Final = 0.05
"""Steps of a device that a reset ends: it forgets what it was doing."""
IMAGE: Final = random.Random(5).randbytes(700_000)
PIECE: Final = 256 << 10
RUN_S: Final = 900.0
THREADS: Final = 8


class SimulatedDevice:
    """Device with two slots: it downloads, verifies, installs, and goes back if the version does not run."""

    def __init__(self, name: str, gateway: Waypost, seed: int) -> None:
        self.name, self.gateway = name, gateway
        self.random = random.Random(seed)
        self.bad = self.random.random() < BAD_SHARE
        self.runs = "1.1.0"
        self.ended = False
        self.resets = 0
        self._content = b""
        self._pending: list[str] = []
        """States to report; on the device's own flash, so they last over a reset."""

    def step(self) -> None:
        """Do the next thing; a gateway that is away is asked again later."""
        if self.random.random() < RESET_SHARE:
            self._content, self.resets = b"", self.resets + 1
            return
        if self._pending:
            if self._report(self._pending[0]):
                self.ended = self._pending.pop(0) in ("healthy", "rolled-back")
            return
        if self.runs == "1.2.0" or self.ended:
            return
        found = self._ask("GET", "/artefacts")
        offered = found is not None and any(each["version"] == "1.2.0" for each in found.get("artefacts", ()))
        if not offered:
            return
        if len(self._content) < len(IMAGE):
            self._download()
            return
        assert hashlib.sha256(self._content).digest() == hashlib.sha256(IMAGE).digest()
        self._pending = ["installed", "rolled-back" if self.bad else "healthy"]
        self.runs = "1.1.0" if self.bad else "1.2.0"

    def _download(self) -> None:
        start = len(self._content)
        if not start and not self._report("downloading"):
            return
        fields = {**basic(self.name, PASSWORD), "Range": f"bytes={start}-{start + PIECE - 1}"}
        try:
            answer = ask(self.gateway, "GET", "/artefacts/blinker/1.2.0/image", headers=fields)
        except (OSError, HTTPException):
            return
        if answer.status == 206:
            self._content += answer.body

    def _report(self, state: str) -> bool:
        body = json.dumps({"state": state, "reason": "no boot" if state == "rolled-back" else ""}).encode()
        return self._ask("POST", "/artefacts/blinker/1.2.0/report", body) is not None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        fields = {**basic(self.name, PASSWORD), "Content-Type": "application/json"}
        try:
            answer = ask(self.gateway, method, path, body, fields)
        except (OSError, HTTPException, ValueError, AssertionError):  # it is being killed, or starts
            return None
        if answer.status not in (200, 202):
            return None
        return answer.document if answer.body else {}


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceFleet]:
    with DeviceFleet(tmp_path_factory.mktemp("run")) as made:
        for name in GATEWAYS:
            made.enrol(name).start()
        spec = {"trustedKeys": [KEY.public.pem], "artefacts": []}
        document = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": spec}
        made.fleet("config", "apply", *GATEWAYS, "-f", made.written("artefacts.yaml", json.dumps(document)))
        for name in GATEWAYS:
            made.wait_for(name, "confirmed", 1)
        yield made


def prepare(fleet: DeviceFleet, hub: HubOperator) -> list[SimulatedDevice]:
    """Store the artefact and register the devices."""
    assert hub.send("POST", "artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}).status == 201
    assert hub.send("POST", "artefacts", sealed(IMAGE), "application/cose").status == 201
    part = hub.send("PUT", "artefacts/blinker/1.2.0/parts/0", IMAGE, "application/octet-stream")
    assert part.status == 200
    assert hub.send("POST", "artefacts/blinker/1.2.0/complete").status == 200
    devices = []
    for number in range(DEVICES):
        name, place = f"d{number:03}", GATEWAYS[number % len(GATEWAYS)]
        fleet.register(name, place)
        devices.append(SimulatedDevice(name, fleet.gateways[place], number))
    return devices


def live(devices: list[SimulatedDevice], ended: threading.Event) -> None:
    """Let devices take their steps until the end."""
    while not ended.is_set():
        for each in devices:
            if not each.ended or each._pending:
                each.step()
        ended.wait(0.2)


def test_each_device_ends_and_is_reported(fleet: DeviceFleet) -> None:
    hub = HubOperator(fleet.hub)
    devices = prepare(fleet, hub)
    began = time.monotonic()
    new = {"artefact": "blinker", "version": "1.2.0", "devices": ["d*"], "waves": "4,25%,100%", "soak_s": 600}
    answer = hub.send("POST", "campaigns", {**new, "failures_max": DEVICES, "away_s": 3_600})
    assert answer.status == 201, answer
    path, ended = f"campaigns/{answer.document['id']}", threading.Event()
    with ThreadPoolExecutor(THREADS) as threads:
        running = [threads.submit(live, devices[start::THREADS], ended) for start in range(THREADS)]
        try:
            chosen = random.Random(11)
            for count in (4, 30, 60, 100, 140):
                wait_until(
                    lambda count=count: sum(each.ended for each in devices) >= count,  # type: ignore[misc]
                    timeout_s=RUN_S, what=f"{count} devices have ended", every_s=0.5,
                )  # fmt: skip
                killed = fleet.gateways[chosen.choice(GATEWAYS)]
                killed.kill()
                fleet.hub.kill()
                killed.start()
                fleet.hub.start()
            wait_until(lambda: hub.get(path)["state"] == "done", timeout_s=RUN_S, what="it is done", every_s=1.0)
        finally:
            ended.set()
        for each in running:
            each.result()
    seconds = time.monotonic() - began
    phases: dict[str, str] = {}
    after = ""
    while True:
        page = hub.get(f"{path}/devices?limit=500&after={after}")
        phases.update((each["device"], each["phase"]) for each in page["devices"])
        if page["next"] is None:
            break
        after = page["next"]
    expected = {each.name: "failed" if each.bad else "done" for each in devices}
    assert phases == expected
    assert {each.name: each.runs for each in devices} == {
        each.name: "1.1.0" if each.bad else "1.2.0" for each in devices
    }
    fetched = Counter[str]()
    for name, gateway in fleet.gateways.items():
        fetched[name] = gateway.log.read_text().count("artefact blinker 1.2.0 is here")
        assert len(list((gateway.data / "artefacts").glob("*.image"))) == 1
    assert max(fetched.values()) <= 1, "a kill may come before the line"
    print(f"{DEVICES} devices in {seconds:.0f} s, {Counter(phases.values())}, {sum(d.resets for d in devices)} resets")
