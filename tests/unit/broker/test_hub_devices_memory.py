"""Memory of a gateway for as many devices of its hub as it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.device_pages import ARGON2ID, DeviceAccount, DeviceEntry, DevicePage, DeviceSecretHash, digest_of
from edge.broker.security.credentials import new_user, with_secret
from edge.broker.security.hub_device_file import HubDeviceFile
from edge.broker.security.limits import HUB_DEVICES_MAX

PAGE = 1_000
MEMORY_MIB_MAX = 100
LOAD = """
import sys
from pathlib import Path
import psutil
from edge.broker.security.hub_devices import HubDevices
before = psutil.Process().memory_info().rss
devices = HubDevices(Path(sys.argv[1]), [])
print(devices.count, (psutil.Process().memory_info().rss - before) / (1 << 20))
"""
"""Program that loads the devices, and prints their number and the memory that they take in MiB."""


@pytest.mark.parametrize("passwords", [1, 2], ids=["", "during a rotation"])
def test_fifty_thousand_devices_fit_into_100_mib(tmp_path: Path, passwords: int) -> None:
    (made,) = with_secret(new_user("any"), "s3cret", at_s=0.0).secrets
    keys = {"stored_key": made.keys.stored, "server_key": made.keys.server}
    secrets = tuple(
        DeviceSecretHash(id=f"{number:032}", function=ARGON2ID, hashed=made.hashed, **keys)
        for number in range(passwords)
    )
    cursor = ""
    with HubDeviceFile.open(tmp_path) as file:
        for first in range(0, HUB_DEVICES_MAX, PAGE):
            names = [f"pump-{number:08}" for number in range(first, first + PAGE)]
            logins = {
                name: DeviceAccount(auth_id=name, salt=b"s" * 16, iterations=4_096, secrets=secrets) for name in names
            }
            entries = tuple(DeviceEntry(device=name, logins=(logins[name],)) for name in names)
            page = DevicePage(
                tenant="acme", gateway="hall", devices_of="acme", enabled=True, base=digest_of(cursor),
                cursor=str(first + PAGE), entries=entries,
            )  # fmt: skip
            file.apply(page)
            cursor = page.cursor
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=True)
    count, memory_mib = done.stdout.split()
    print(f"{count} devices with {passwords} passwords: {float(memory_mib):.0f} MiB")
    assert int(count) == HUB_DEVICES_MAX
    assert float(memory_mib) <= MEMORY_MIB_MAX
