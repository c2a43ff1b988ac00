"""An image in an emulated arm64 machine (QEMU): the way from U-Boot to a served device, without a Raspberry Pi.

The image itself is left as it is: what the machine writes goes to a disk of its own, as large as a card.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from images.card import partition
from images.errors import USAGE, ImageError
from images.programs import find, require, run

U_BOOT: Final = "/usr/lib/u-boot/qemu_arm64/u-boot.bin"
CARD: Final = "4G"
"""Size of the disk: the data partition grows to its end."""
MEMORY_MIB: Final = 1024
PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "amqp": 5672, "amqps": 5671, "https": 443, "ssh": 22}
"""Of the gateway, by what is spoken there: those its firewall lets in."""


SERVES: Final = "marked slot"
"""What its console shows once its gateway serves (`waypost-mark-good.service`)."""
SERVES_S: Final = 1200.0
"""Until then, on a machine that is busy with others: ten times what it takes alone."""
LAST_LINES: Final = 15
"""Of a console, how much an error shows."""
HIGHER: Final = 20_000
"""So much higher a gateway's port is here: nothing else is there, as a rule."""


def ready(ports: Mapping[int, int]) -> None:
    """All that is lacking is said at once, not a program a try. Raises ImageError."""
    require("qemu-img", "qemu-system-aarch64", "zstd", files={U_BOOT: "u-boot-qemu"})
    taken = [here for here in ports if not _free(here)]
    if taken:
        others = " ".join(f"--port {_another(here)}:{there}" for here, there in ports.items() if here in taken)
        raise ImageError(
            f"in use on this machine: {', '.join(f'port {here}' for here in taken)}",
            hint=f"is one of these machines running already? Others, and only these: {others}",
        )


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _another(port: int) -> int:
    """One that is likely to be free."""
    return port + 1000 if port < 64_000 else port - 1000


def require_image(image: Path) -> None:
    """Raises ImageError."""
    if not image.is_file():
        raise ImageError(f"{image} is not there", hint="make one: waypost image build --board qemu", code=USAGE)


def forwarded(texts: Sequence[str]) -> dict[int, int]:
    """Ports of this machine and the gateway's, out of ``HERE:GATEWAY``; of nothing, the usual. Raises ImageError."""
    found = {}
    for text in texts:
        here, _, there = text.partition(":")
        if not (here.isdecimal() and there.isdecimal() and 0 < int(here) < 65536 and 0 < int(there) < 65536):
            raise ImageError(f"--port {text}: expected two ports, for example 21883:1883", code=USAGE)
        if int(here) in found:
            raise ImageError(f"--port {text}: port {here} of this machine leads elsewhere already", code=USAGE)
        found[int(here)] = int(there)
    return found or {HIGHER + port: port for port in PORTS.values()}


def disk(image: Path, folder: Path, log: Path, *, kept: Path | None = None) -> Path:
    """A disk with what is in an image (`.img`, or `.img.zst`), to be written to; `kept`: where it is to last, and is
    taken as it is when it is there. Raises ImageError."""
    if kept is not None and kept.exists():
        return kept
    require("qemu-img", "zstd")
    require_image(image)
    plain = image
    if image.suffix == ".zst":
        plain = folder / image.stem
        if not plain.exists() or plain.stat().st_mtime < image.stat().st_mtime:
            _make("zstd", "--quiet", "--decompress", "--force", "--sparse", image, "-o", plain, log=log)
    partition.of_image(plain)  # of anything else U-Boot says nothing, for ever
    target = kept or folder / "disk.qcow2"
    if kept is not None:  # it holds all of it, and is there whole or not at all
        part = kept.with_name(f"{kept.name}.part")
        _make("qemu-img", "convert", "-f", "raw", "-O", "qcow2", plain, part, log=log)
        _make("qemu-img", "resize", "-q", part, CARD, log=log)
        part.replace(kept)
    else:
        _make("qemu-img", "create", "-q", "-f", "qcow2", "-b", plain.resolve(), "-F", "raw", target, CARD, log=log)
    return target


def _make(*words: str | Path, log: Path) -> None:
    """Raises ImageError; the log goes with the folder it is in."""
    try:
        run(*words, log=log)
    except ImageError as error:
        hint = "an unpacked image takes half a GB of the folder for temporary files: TMPDIR=DIR names another"
        raise ImageError(error.message, hint=hint) from None


def command(drive: Path, ports: Mapping[int, int]) -> Sequence[str]:
    """QEMU's, with its console on standard input and output. `ports`: of this machine's loopback, and the gateway's
    that each leads to. Raises ImageError."""
    require("qemu-system-aarch64", files={U_BOOT: "u-boot-qemu"})
    file = str(drive).replace(",", ",,")  # else its name ends there
    forwarded = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in ports.items())
    return [
        find("qemu-system-aarch64") or "qemu-system-aarch64",
        *("-M", "virt,gic-version=3", "-cpu", "cortex-a72", "-accel", "tcg,thread=multi,tb-size=512"),
        *("-smp", "2", "-m", str(MEMORY_MIB), "-nographic", "-nodefaults"),
        *("-serial", "mon:stdio"),
        *(
            "-drive",
            f"file={file},if=none,id=card,format=qcow2,discard=unmap",
            "-device",
            "virtio-blk-pci,drive=card",
        ),
        *("-netdev", f"user,id=net{forwarded}", "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci", "-bios", U_BOOT),
    ]


def boot(words: Sequence[str]) -> int:
    """Run until it is powered off (on its console: Ctrl-A X); the exit code."""
    return subprocess.run(words, check=False).returncode  # noqa: S603 - QEMU, as `command` has it


def watched(words: Sequence[str], until: str, limit_s: float) -> str:
    """Run until its console has shown a text, then cut its power; what the console has shown. Raises ImageError."""
    said, deadline = b"", time.monotonic() + limit_s
    with (
        subprocess.Popen(  # noqa: S603 - as above
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        try:
            assert process.stdout is not None  # noqa: S101 - for the type
            selector.register(process.stdout, selectors.EVENT_READ)
            while until.encode() not in said:
                left = deadline - time.monotonic()
                more = process.stdout.read(1 << 16) if left > 0 and selector.select(left) else b""
                if not more:
                    over = time.monotonic() >= deadline
                    why = f"did not show {until!r} within {limit_s:.0f} s" if over else "ended"
                    last = "\n".join(said.decode(errors="replace").splitlines()[-LAST_LINES:])
                    raise ImageError(f"the machine {why}; its last lines:\n{last}")
                said += more
        finally:
            process.kill()
    return said.decode(errors="replace")
