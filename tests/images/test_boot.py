"""An image in an emulated machine, from power-on to an acknowledgement over TLS, and after a power cut once more.

The gateway's data directory is made here and put on the data partition: certificates and a device with a password.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images.building import build_image
from images.disk import building as disk
from images.disk import filesystem
from images.emulator import machine
from images.programs import find
from images.steps import Steps, default_cache
from tests.support.certificates import Authority
from tests.support.processes import free_port, wait_until

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
    pytest.mark.skipif(shutil.which("qemu-system-aarch64") is None, reason="qemu-system-arm is not installed"),
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"),
]

BOOT_S = 1200.0
"""A machine emulated beside others takes up to ten times what it takes alone (100 s)."""
SECTOR = 512


@pytest.fixture(scope="module")
def image() -> Path:
    cache = default_cache()
    return build_image(Steps(cache), cache, "qemu", None, (None, None))


def waypost(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "edge.appliance.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


class Card:
    """The image's disk with a gateway's data on it."""

    def __init__(self, folder: Path, image: Path) -> None:
        [compressed] = image.glob("*.img.zst")
        self.authority = Authority(folder / "authority")
        data = folder / "data" / "waypost"
        data.mkdir(parents=True, mode=0o700)
        waypost("edge", "init", "--data", str(data), "--name", "hall")
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
        added = waypost("device", "add", "pump7", "--data", str(data), "--profile", "sensor")
        self.password = added.partition("password: ")[2].split()[0]
        plain = folder / "card.img"
        subprocess.run(["zstd", "-q", "-d", "--sparse", str(compressed), "-o", str(plain)], check=True)
        for name in ("timesync", "rauc", "ssh"):
            (folder / "data" / name).mkdir(mode=0o700)
        filesystem.make(
            folder / "data.ext4", folder / "data", mebibytes=disk.DATA_MIB, label="waypost-data", date=int(time.time()),
            journal=True, log=folder / "log",
        )  # fmt: skip
        layout = subprocess.run(
            [find("sfdisk") or "", "-d", str(plain)], capture_output=True, text=True, check=True
        ).stdout
        start = int(re.findall(r"start= *(\d+)", layout)[3])
        subprocess.run(
            ["dd", f"if={folder / 'data.ext4'}", f"of={plain}", f"seek={start}", f"bs={SECTOR}", "conv=notrunc"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.drive = machine.disk(plain, folder, folder / "log")


class Emulated:
    """The machine with a card in it."""

    def __init__(self, card: Card, console: Path) -> None:
        self.console = console
        self.port = free_port()
        with console.open("w") as said:
            self._process = subprocess.Popen(
                machine.command(card.drive, {self.port: machine.PORTS["mqtts"]}),
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._card = card

    def publish(self, text: str) -> bool:
        """True once it is acknowledged."""
        words = ["-h", "localhost", "-p", str(self.port), "--cafile", self._card.authority.certificate, "-q", "1"]
        user = ["-i", "pump7", "-u", "pump7", "-P", self._card.password, "-t", "plant/pump7/temp", "-m", text]
        done = subprocess.run(["timeout", "60", "mosquitto_pub", *words, *user], capture_output=True, check=False)
        return done.returncode == 0

    def says(self, text: str) -> bool:
        return text in self.console.read_text(errors="replace")

    def cut_off(self) -> None:
        """The power."""
        self._process.kill()
        self._process.wait(60)


@pytest.fixture
def card(tmp_path: Path, image: Path) -> Card:
    return Card(tmp_path, image)


def test_from_power_on_to_the_first_acknowledgement_over_tls(card: Card, tmp_path: Path) -> None:
    for turn in ("first", "second"):
        began = time.monotonic()
        emulated = Emulated(card, tmp_path / f"{turn}.console")
        try:
            wait_until(lambda one=emulated: one.publish("21.5"), timeout_s=BOOT_S, what="an acknowledgement", every_s=2)  # type: ignore[misc]
            print(f"{turn} start: {time.monotonic() - began:.0f} s from power-on to the first acknowledgement")
            wait_until(lambda one=emulated: one.says("good"), timeout_s=BOOT_S, what="the slot to be marked", every_s=2)  # type: ignore[misc]
        finally:
            emulated.cut_off()
        assert emulated.says("waypost: slot A (A 2, B 3 tries left)"), "the tries were given back"
