"""Emulated machines for tests: a card's disk, the machine around it, and a shell over SSH."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
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
from images.debian import IMAGES, Mirror
from images.emulator import machine
from images.steps import default_cache
from tests.images.write_log import WriteLog
from tests.support.command import run_waypost
from tests.support.enrolled import EnrolledFleet
from tests.support.processes import free_port, wait_until

MARKS = (
    pytest.mark.images,
    pytest.mark.timeout(18_000),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
    pytest.mark.skipif(shutil.which("qemu-system-aarch64") is None, reason="qemu-system-arm is not installed"),
)
"""Marks of tests that build an image and start it."""
BOOT_S = 3600.0
"""Longest boot: under other load an emulated machine needs many times its usual 100 s; 557 s were seen."""
COMMAND_S = 900.0
DATA = "/var/lib/waypost"
AS_GATEWAY = ("runuser", "-u", "waypost", "--", "waypost")
HOST = "10.0.2.2"
"""Address of this machine in the emulator's network (QEMU, user mode networking)."""


def mirror() -> Mirror:
    """Return the source of the packages of an image; a snapshot counts too."""
    return Mirror(release=IMAGES, expired=True)


def decompressed(image: Path, folder: Path) -> Path:
    """Decompress the card's image from the folder with all files of an image."""
    [compressed] = image.glob("*.img.zst")
    plain = folder / "card.img"
    subprocess.run(["zstd", "-q", "-d", "--sparse", str(compressed), "-o", str(plain)], check=True)
    return plain


def written_by_dd(image: Path, folder: Path) -> Path:
    """Write the image for other programs with the command of the guide, and return the card."""
    [compressed] = image.glob("*.img.xz")
    card = folder / "card.img"
    command = f"xz -dc {shlex.quote(str(compressed))} | dd of={shlex.quote(str(card))} bs=4M conv=sparse,fsync"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, capture_output=True)
    return card


def flashed(image: Path, folder: Path, settings: Sequence[str]) -> Path:
    """Write the image with settings (NAME=VALUE) as `waypost flash` writes a card, and return the card."""
    [compressed] = image.glob("*.img.zst")
    file, card = folder / "settings.yaml", folder / "card.img"
    certificate = default_cache() / "development-key" / "certificate.pem"
    flash = ("flash", str(compressed), str(card), "--config", str(file), "--certificate", str(certificate), "--yes")
    for words in (("image", "configure", str(file), *settings), flash):
        done = run_waypost(*words, timeout_s=COMMAND_S)
        assert done.returncode == 0, done.stdout + done.stderr
    return card


def begin(card: Path, partition: int) -> int:
    """Return the start of a partition of a card's image in bytes (MBR)."""
    with card.open("rb") as image:
        head = image.read(SECTOR)
    (sectors,) = struct.unpack_from("<I", head, 446 + 16 * (partition - 1) + 8)
    return int(sectors) * SECTOR


def write_at(card: Path, place: int, source: Path) -> None:
    """Write a file into a card's image."""
    words = (f"if={source}", f"of={card}", f"seek={place}", "oflag=seek_bytes", "bs=1M", "conv=notrunc")
    subprocess.run(["dd", *words], check=True, capture_output=True)


def free_ports() -> Mapping[str, int]:
    """Return free ports of this machine for the services of a gateway."""
    return {name: free_port() for name in ("mqtt", "mqtts", "ssh")}


class Emulated:
    """A machine with a card, from power-on to a power cut."""

    def __init__(
        self,
        drive: Path,
        console: Path,
        ports: Mapping[str, int],
        log: WriteLog | None = None,
        *,
        more: Sequence[str] = (),
    ) -> None:
        """`console`: file to which its console is appended. `ports`: see `free_ports`.

        `log`: records writes to the card. `more`: devices of QEMU; sticks are at `usb.0`.
        """
        self.ports = ports
        self._console = console
        self._began = console.stat().st_size if console.exists() else 0
        forwarded = {here: machine.PORTS[name] for name, here in ports.items()}
        words = list(machine.build_command(drive, forwarded))
        if log is not None:
            place = words.index("-drive")
            words[place : place + 2] = ["-blockdev", log.blockdev(drive)]
        # Its control socket has a path, which is limited to about a hundred characters.
        self._own = tempfile.TemporaryDirectory(prefix="waypost-emulated-")
        words += ["-device", "qemu-xhci,id=usb", "-qmp", f"unix:{self._own.name}/qmp,server=on,wait=off", *more]
        with console.open("ab") as said:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

    @property
    def told(self) -> str:
        """Return its console output since power-on."""
        return self._console.read_bytes()[self._began :].decode(errors="replace")

    @property
    def cpu_s(self) -> float:
        """Return its seconds of processor time on this machine."""
        took = psutil.Process(self.pid).cpu_times()
        return float(took.user + took.system)

    def wait_for(self, text: str, *, times: int = 1, timeout_s: float = BOOT_S) -> None:
        """Wait until its console has shown this text the given number of times."""

        def there() -> bool:
            assert self._process.poll() is None, self.told[-2000:]
            return self.told.count(text) >= times

        wait_until(there, timeout_s=timeout_s, what=f"{text!r} on the console", every_s=1)

    @property
    def pid(self) -> int:
        return self._process.pid

    def put_in(self, stick: Path) -> None:
        """Plug in a USB stick with this content."""
        file = {"driver": "file", "filename": str(stick), "read-only": True}
        self.control(
            ("blockdev-add", {"node-name": "stick", "driver": "raw", "read-only": True, "file": file}),
            ("device_add", {"driver": "usb-storage", "drive": "stick", "bus": "usb.0", "id": "stick"}),
        )

    def control(self, *commands: tuple[str, Mapping[str, Any]]) -> None:
        """Run commands of QEMU (QMP)."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(COMMAND_S)
            connection.connect(f"{self._own.name}/qmp")
            answers = connection.makefile()
            assert "QMP" in json.loads(answers.readline())
            for command, arguments in (("qmp_capabilities", {}), *commands):
                connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
                answer = next(each for line in answers if "event" not in (each := json.loads(line)))
                assert "return" in answer, answer

    def press_power_button(self) -> None:
        """Press the power button until the machine has powered itself off.

        QEMU presses for 100 ms, which a busy machine may miss.
        """

        def is_off() -> bool:
            if self._process.poll() is None:
                with contextlib.suppress(OSError, ValueError, StopIteration):  # it has ended by now
                    self.control(("system_powerdown", {}))
            return self._process.poll() is not None

        wait_until(is_off, timeout_s=BOOT_S, what="it powers itself off", every_s=5)
        assert self._process.returncode == 0, self.told[-2000:]

    def cut_off(self) -> None:
        """Cut the power (SIGKILL)."""
        self._process.kill()
        self._process.wait(60)
        self._own.cleanup()


class Shell:
    """Root shell on an emulated machine, by a key in its settings."""

    def __init__(self, folder: Path) -> None:
        self._key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)], check=True)

    @property
    def public(self) -> Path:
        return self._key.with_suffix(".pub")

    def run(self, there: Emulated, *words: str, given: Path | None = None, timeout_s: float = COMMAND_S) -> str:
        """Run a command; return its output. AssertionError when it fails. `given`: its input."""
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
    """Gateway of a flashed card: with the settings of a hub on this machine, and SSH."""

    def __init__(self, folder: Path, image: Path, fleet: EnrolledFleet, settings: Sequence[str] = ()) -> None:
        """`settings`: further ones, as NAME=VALUE."""
        self.name = "hall"
        self.machine: Emulated | None = None
        self.ports = free_ports()
        self._folder = folder
        self.fleet = fleet
        self._shell = Shell(folder)
        (folder / "token").write_text(fleet.fleet("token", "create"))
        hub = (f"hub.url=amqps://{HOST}:{fleet.hub_port}", f"hub.token=@{folder / 'token'}", "hub.forward=plant/#")
        own = (f"name={self.name}", *hub, f"sshKeys=@{self._shell.public}", *settings)
        self.card = flashed(image, folder, own)
        self.drive = machine.make_disk(self.card, folder, folder / "log")

    def start(self, log: WriteLog | None = None, *, more: Sequence[str] = ()) -> Emulated:
        """Switch on the power. `more`: see `Emulated`."""
        self.machine = Emulated(self.drive, self._folder / "console", self.ports, log, more=more)
        return self.machine

    def cut_off(self) -> None:
        if self.machine is not None:
            self.machine.cut_off()

    def shell(self, *words: str, given: Path | None = None, timeout_s: float = COMMAND_S) -> str:
        """Run a command on it; return its output."""
        assert self.machine is not None
        return self._shell.run(self.machine, *words, given=given, timeout_s=timeout_s)

    def wait_for_shell(self) -> None:
        emulated = self.machine
        assert emulated is not None
        wait_until(lambda: self._shell.answers(emulated), timeout_s=BOOT_S, what="SSH", every_s=2)

    def attested(self) -> dict[str, Any]:
        """Return the identity that the hub has received; empty before."""
        return self.fleet.attested(self.name)

    def add_device(self, name: str) -> str:
        """Add a device; return its password."""
        added = self.shell(*AS_GATEWAY, "user", "add", name, "--data", DATA, "--profile", "sensor")
        return added.partition("password: ")[2].split()[0]
