"""Emulated machines for tests: a card's disk, the machine it is in, and a shell there over SSH."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from images.card.partition import SECTOR
from images.emulator import machine
from tests.images.write_log import WriteLog
from tests.support import forked
from tests.support.enrolled import EnrolledFleet
from tests.support.processes import free_port, wait_until

MARKS = (
    pytest.mark.images,
    pytest.mark.timeout(18_000),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
    pytest.mark.skipif(shutil.which("qemu-system-aarch64") is None, reason="qemu-system-arm is not installed"),
)
"""Of tests that build an image and start it."""
BOOT_S = 3600.0
"""A machine emulated beside other work takes many times what it takes alone (100 s): 557 s were seen."""
COMMAND_S = 900.0
DATA = "/var/lib/waypost"
AS_GATEWAY = ("runuser", "-u", "waypost", "--", "waypost")
HOST = "10.0.2.2"
"""What the emulator's network calls the machine it runs on (QEMU, user mode networking)."""


def decompressed(image: Path, folder: Path) -> Path:
    """The card's image out of the folder with all of an image."""
    [compressed] = image.glob("*.img.zst")
    plain = folder / "card.img"
    subprocess.run(["zstd", "-q", "-d", "--sparse", str(compressed), "-o", str(plain)], check=True)
    return plain


def begin(card: Path, partition: int) -> int:
    """Where a partition of a card's image begins, bytes (MBR)."""
    with card.open("rb") as image:
        head = image.read(SECTOR)
    (sectors,) = struct.unpack_from("<I", head, 446 + 16 * (partition - 1) + 8)
    return int(sectors) * SECTOR


def write_at(card: Path, place: int, source: Path) -> None:
    """Write a file into a card's image."""
    words = (f"if={source}", f"of={card}", f"seek={place}", "oflag=seek_bytes", "bs=1M", "conv=notrunc")
    subprocess.run(["dd", *words], check=True, capture_output=True)


def free_ports() -> Mapping[str, int]:
    """Of this machine, for what is spoken at a gateway's."""
    return {name: free_port() for name in ("mqtt", "mqtts", "ssh")}


class Emulated:
    """A machine with a card in it, from power-on to a power cut."""

    def __init__(
        self,
        drive: Path,
        console: Path,
        ports: Mapping[str, int],
        log: WriteLog | None = None,
        *,
        more: Sequence[str] = (),
    ) -> None:
        """`console`: file for what it says, behind what is in it. `ports`: see `free_ports`. `log`: notes what is
        written to the card. `more`: devices of QEMU; sticks are at `usb.0`."""
        self.ports = ports
        self._console = console
        self._began = console.stat().st_size if console.exists() else 0
        forwarded = {here: machine.PORTS[name] for name, here in ports.items()}
        words = list(machine.build_command(drive, forwarded))
        if log is not None:
            place = words.index("-drive")
            words[place : place + 2] = ["-blockdev", log.blockdev(drive)]
        # What it is told while it runs goes through a socket, whose path may have a hundred characters only.
        self._own = tempfile.TemporaryDirectory(prefix="waypost-emulated-")
        words += ["-device", "qemu-xhci,id=usb", "-qmp", f"unix:{self._own.name}/qmp,server=on,wait=off", *more]
        with console.open("ab") as said:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

    @property
    def told(self) -> str:
        """On its console, since power-on."""
        return self._console.read_bytes()[self._began :].decode(errors="replace")

    @property
    def cpu_s(self) -> float:
        """Seconds of processor it has taken here."""
        took = psutil.Process(self.pid).cpu_times()
        return float(took.user + took.system)

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = BOOT_S) -> None:
        """Until its console has shown this so often."""

        def there() -> bool:
            assert self._process.poll() is None, self.told[-2000:]
            return self.told.count(text) >= times

        wait_until(there, timeout_s=timeout_s, what=f"{text!r} on the console", every_s=1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def put_in(self, stick: Path) -> None:
        """A stick at its USB, with this in it."""
        file = {"driver": "file", "filename": str(stick), "read-only": True}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(COMMAND_S)
            connection.connect(f"{self._own.name}/qmp")
            answers = connection.makefile()
            assert "QMP" in json.loads(answers.readline())
            for command, arguments in (
                ("qmp_capabilities", {}),
                ("blockdev-add", {"node-name": "stick", "driver": "raw", "read-only": True, "file": file}),
                ("device_add", {"driver": "usb-storage", "drive": "stick", "bus": "usb.0", "id": "stick"}),
            ):
                connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
                answer = next(each for line in answers if "event" not in (each := json.loads(line)))
                assert "return" in answer, answer

    def cut_off(self) -> None:
        """The power (SIGKILL)."""
        self._process.kill()
        self._process.wait(60)
        self._own.cleanup()


class Shell:
    """Of root on an emulated machine, by a key that its settings let in."""

    def __init__(self, folder: Path) -> None:
        self._key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)], check=True)

    @property
    def public(self) -> Path:
        return self._key.with_suffix(".pub")

    def run(self, there: Emulated, *words: str, given: Path | None = None, timeout_s: float = COMMAND_S) -> str:
        """What a command prints; AssertionError when it fails. `given`: its input."""
        done = self._done(there, words, given, timeout_s)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def answers(self, there: Emulated) -> bool:
        try:
            return self._done(there, ("true",), None, 60.0).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _done(
        self, there: Emulated, words: Sequence[str], given: Path | None, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        told = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes")
        options = [word for each in told for word in ("-o", each)]
        place = ["-i", str(self._key), "-p", str(there.ports["ssh"]), "root@127.0.0.1"]
        with (given or Path("/dev/null")).open("rb") as source:
            return subprocess.run(
                ["ssh", *options, *place, *words],
                stdin=source, capture_output=True, text=True, check=False, timeout=timeout_s,
            )  # fmt: skip


class Gateway:
    """What its card makes of it: the settings of a hub on this machine, and SSH."""

    def __init__(self, folder: Path, image: Path, fleet: EnrolledFleet) -> None:
        self.name = "hall"
        self.machine: Emulated | None = None
        self.ports = free_ports()
        self._folder = folder
        self.fleet = fleet
        self._shell = Shell(folder)
        self.card = decompressed(image, folder)
        (folder / "token").write_text(fleet.fleet("token", "create"))
        hub = (f"hub.url=amqps://{HOST}:{fleet.hub_port}", f"hub.token=@{folder / 'token'}", "hub.forward=plant/#")
        done = forked.waypost(
            "image", "configure", str(self.card), f"name={self.name}", *hub, f"sshKeys=@{self._shell.public}"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.drive = machine.make_disk(self.card, folder, folder / "log")

    def start(self, log: WriteLog | None = None) -> Emulated:
        """The power is back."""
        self.machine = Emulated(self.drive, self._folder / "console", self.ports, log)
        return self.machine

    def cut_off(self) -> None:
        if self.machine is not None:
            self.machine.cut_off()

    def shell(self, *words: str, given: Path | None = None, timeout_s: float = COMMAND_S) -> str:
        """What a command there prints."""
        assert self.machine is not None
        return self._shell.run(self.machine, *words, given=given, timeout_s=timeout_s)

    def wait_for_shell(self) -> None:
        emulated = self.machine
        assert emulated is not None
        wait_until(lambda: self._shell.answers(emulated), timeout_s=BOOT_S, what="SSH", every_s=2)

    def attested(self) -> dict[str, Any]:
        """What the hub has been told it is; empty before."""
        return self.fleet.attested(self.name)

    def add_device(self, name: str) -> str:
        """Its password."""
        added = self.shell(*AS_GATEWAY, "device", "add", name, "--data", DATA, "--profile", "sensor")
        return added.partition("password: ")[2].split()[0]
