"""An image in an emulated machine, from power-on to an acknowledgement over TLS, and again after a power cut.

The card is written as by another program (xz and dd). The test prepares the gateway's data directory on the data
partition: certificates and a device with a password.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images.disk import building as disk
from images.disk import filesystem
from images.emulator import machine
from tests.images.emulated import BOOT_S, MARKS, Emulated, begin, free_ports, write_at, written_by_dd
from tests.support.certificates import Authority
from tests.support.processes import wait_until

pytestmark = [
    *MARKS,
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"),
]


def waypost(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "edge.appliance.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


class Card:
    """The image's disk with a gateway's data."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.authority = Authority(folder / "authority")
        data = folder / "data" / "waypost"
        data.mkdir(parents=True, mode=0o700)
        waypost("init", "--data", str(data), "--name", "hall")
        issued = self.authority.issue("gateway")
        for path in (issued.certificate, issued.key):
            shutil.copy(path, data)
        configuration = waypost("get", "--data", str(data), "-o", "yaml")
        inside = "/var/lib/waypost"
        tls = f"tls: {{certificate: {inside}/gateway.pem, key: {inside}/gateway.key}}"
        changed = configuration.replace("  listeners:\n", f'  listeners:\n    mqtts: "0.0.0.0:8883"\n    {tls}\n')
        assert changed != configuration
        (folder / "changed.yaml").write_text(changed)
        waypost("apply", "--data", str(data), "-f", str(folder / "changed.yaml"))
        added = waypost("user", "add", "pump7", "--data", str(data), "--profile", "sensor")
        self.password = added.partition("password: ")[2].split()[0]
        plain = written_by_dd(image, folder)
        for name in ("timesync", "rauc", "ssh"):
            (folder / "data" / name).mkdir(mode=0o700)
        filesystem.make(
            folder / "data.ext4", folder / "data", mebibytes=disk.DATA_MIB, label="waypost-data", date=int(time.time()),
            journal=True, log=folder / "log",
        )  # fmt: skip
        write_at(plain, begin(plain, 4), folder / "data.ext4")
        self.drive = machine.make_disk(plain, folder, folder / "log")


def publish(emulated: Emulated, card: Card, text: str) -> bool:
    """Publish; return True once it is acknowledged."""
    place = ["-h", "localhost", "-p", str(emulated.ports["mqtts"]), "--cafile", card.authority.certificate, "-q", "1"]
    user = ["-i", "pump7", "-u", "pump7", "-P", card.password, "-t", "plant/pump7/temp", "-m", text]
    done = subprocess.run(["timeout", "60", "mosquitto_pub", *place, *user], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def card(tmp_path: Path, image: Path) -> Card:
    return Card(tmp_path, image)


def test_booted_machine_acknowledges_over_tls_from_power_on(card: Card, tmp_path: Path) -> None:
    for turn in ("first", "second"):
        began = time.monotonic()
        emulated = Emulated(card.drive, tmp_path / f"{turn}.console", free_ports())
        try:
            wait_until(
                lambda one=emulated: publish(one, card, "21.5"),  # type: ignore[misc]
                timeout_s=BOOT_S, what="an acknowledgement", every_s=2,
            )  # fmt: skip
            took = f"{time.monotonic() - began:.0f} s, {emulated.cpu_s:.0f} s of processor"
            print(f"{turn} start: {took} from power-on to the first acknowledgement")
            emulated.wait_for("good")
        finally:
            emulated.cut_off()
        assert "waypost: slot A (A 2, B 3 tries left)" in emulated.told, "the tries were given back"
