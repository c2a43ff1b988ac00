"""A rotation of the passwords of ten thousand devices, two thousand of which are connected: none is disconnected.

The old and the new password are valid together for the overlap; then the old one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import json
import random
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from cloud.hub.peers import DEFAULT_TENANT
from edge.broker.security.hub_device_file import FILE, HubDeviceFile
from simulator.links import DeviceLinkFault, LinkLogin, LinkLost, LinkPlace
from simulator.mqtt_link import MqttLink
from tests.support.bulk_devices import SECRET_ID, hashed_password, register_many
from tests.support.device_fleet import DeviceFleet, stored
from tests.support.processes import Waypost, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

DEVICES: Final = 10_000
CONNECTED: Final = 2_000
CONNECTING: Final = 16
"""Logins at a time."""
INTERVAL_S: Final = 10.0
OVERLAP_S: Final = 120.0
THREADS: Final = 4
OLD, NEW = "the-old-password", "the-new-password"
SAMPLE: Final = 50
ARRIVE_S: Final = 900.0


def name_of(number: int) -> str:
    return f"d{number:05}"


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceFleet]:
    with DeviceFleet(tmp_path_factory.mktemp("rotation")) as made:
        hall = made.enrol("hall")
        made.hub.stop()
        register_many(made.folder / "hub", ((name, "hall") for name in map(name_of, range(DEVICES))), OLD)
        made.hub.start()
        hall.start()
        yield made


class ConnectedDevice:
    """Device that stays connected, and publishes."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.readings = 0
        self._port = port
        self._link: MqttLink | None = None
        self._publishing: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """True if the first connection is still there."""
        return self._link is not None and not self._link.ended.done()

    async def connect(self) -> None:
        self._link = await logged_in(self._port, self.name, OLD)
        self._publishing = asyncio.create_task(self._publish(self._link))

    async def end(self) -> None:
        assert self._publishing is not None
        assert self._link is not None
        self._publishing.cancel()
        await asyncio.gather(self._publishing, return_exceptions=True)
        self._link.cut()

    async def _publish(self, link: MqttLink) -> None:
        with contextlib.suppress(LinkLost):  # the test sees it
            while True:
                await asyncio.sleep(INTERVAL_S * (0.5 + random.random()))
                await link.publish(f"plant/{self.name}/t", b"21.5")
                self.readings += 1


async def logged_in(port: int, name: str, password: str, client: str = "") -> MqttLink:
    """Connect. `client`: its identifier, if it is not the name. Raises LinkLost; a busy gateway is asked again."""
    place, login = LinkPlace("127.0.0.1", port), LinkLogin(client or name, name, password)
    while True:
        try:
            return await MqttLink.open(place, login, lambda *_: None)
        except LinkLost as lost:
            if lost.fault is not DeviceLinkFault.BUSY:
                raise
        await asyncio.sleep(0.5)


async def is_accepted(port: int, name: str, password: str) -> bool:
    """Log in with another client identifier than the device's own; return whether that is accepted."""
    try:
        (await logged_in(port, name, password, f"{name}-again")).cut()
    except LinkLost as lost:
        if lost.fault is not DeviceLinkFault.LOGIN_REFUSED:
            raise
        return False
    return True


class Rotation:
    """Gives all devices the new password, over the API of Hono."""

    def __init__(self, hub: Waypost) -> None:
        self._port = hub.port("https")
        self._tls = ssl.create_default_context(cafile=str(hub.data / "authority" / "ca.pem"))
        self._token = (hub.data / "operator.token").read_text().strip()

    def run(self) -> None:
        """Rotate in several threads, each over one connection."""
        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(self._rotate, (range(first, DEVICES, THREADS) for first in range(THREADS))):
                pass

    def _rotate(self, numbers: range) -> None:
        fields = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection = http.client.HTTPSConnection("localhost", self._port, timeout=60, context=self._tls)
        with contextlib.closing(connection):
            for name in map(name_of, numbers):
                until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=OVERLAP_S)
                old: dict[str, Any] = {"id": SECRET_ID, "not-after": until.isoformat()}
                body = [{"type": "hashed-password", "auth-id": name, "secrets": [old, hashed_password(NEW)]}]
                path = f"/v1/credentials/{DEFAULT_TENANT}/{name}"
                connection.request("PUT", path, json.dumps(body), fields)
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status == 204, (answer.status, content)


def count_stored(hall: Waypost) -> int:
    """Return the number of devices that a gateway has."""
    if not (hall.data / FILE).exists():
        return 0
    with HubDeviceFile.open(hall.data) as file:
        return sum(1 for _ in file.devices())


def count_rotated(hall: Waypost) -> int:
    """Return the number of devices of which a gateway has both passwords."""
    return sum(len(each.logins[0].secrets) == 2 for each in stored(hall).values())


def test_no_device_is_disconnected(fleet: DeviceFleet) -> None:
    hall = fleet.gateways["hall"]
    wait_until(lambda: count_stored(hall) == DEVICES, timeout_s=ARRIVE_S, what="all devices are there", every_s=2.0)
    asyncio.run(rotate(fleet.hub, hall))


async def rotate(hub: Waypost, hall: Waypost) -> None:
    """Rotate the passwords while devices publish."""
    port, names = hall.port("mqtt"), [name_of(number) for number in range(0, DEVICES, DEVICES // CONNECTED)]
    devices = [ConnectedDevice(name, port) for name in names]
    for first in range(0, len(devices), CONNECTING):
        await asyncio.gather(*(each.connect() for each in devices[first : first + CONNECTING]))
    begun = time.monotonic()
    await asyncio.to_thread(Rotation(hub).run)
    rotated_s = time.monotonic() - begun
    await asyncio.to_thread(
        wait_until, lambda: count_rotated(hall) == DEVICES, timeout_s=ARRIVE_S, what="all are rotated", every_s=1.0
    )
    arrived_s = time.monotonic() - begun - rotated_s
    for number in range(DEVICES - SAMPLE, DEVICES):  # the last ones: their overlap lasts
        assert await is_accepted(port, name_of(number), NEW)
        assert await is_accepted(port, name_of(number), OLD)
    print(f"{DEVICES} passwords in {rotated_s:.0f} s, at the gateway {arrived_s:.1f} s later")
    await asyncio.sleep(max(0.0, begun + rotated_s + OVERLAP_S - time.monotonic()))  # the last overlap ends
    readings = sum(each.readings for each in devices)
    for number in range(0, DEVICES, DEVICES // SAMPLE):
        assert not await is_accepted(port, name_of(number), OLD)
    assert all(each.is_connected for each in devices)
    for each in devices:
        assert await is_accepted(port, each.name, NEW)
    assert all(each.is_connected for each in devices)
    assert sum(each.readings for each in devices) > readings, "connected devices publish after the overlap"
    await asyncio.gather(*(each.end() for each in devices))
