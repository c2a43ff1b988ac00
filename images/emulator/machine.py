"""Run an image in an emulated arm64 machine (QEMU): from U-Boot to a connected device, without a Raspberry Pi.

The image stays as it is: the machine writes to a disk of its own, as large as a card.
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
"""Size of the disk; the data partition grows to its end."""
MEMORY_MIB: Final = 1024
PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "amqp": 5672, "amqps": 5671, "https": 443, "ssh": 22}
"""Ports of the gateway that its firewall admits, by protocol."""


SERVES: Final = "marked slot"
"""Text that the console shows once the gateway serves (`waypost-mark-good.service`)."""
SERVES_S: Final = 1200.0
"""Longest wait for that, on a machine that is busy with other work: ten times what an idle one takes."""
LAST_LINES: Final = 15
"""Lines of the console that an error shows."""
HIGHER: Final = 20_000
"""Offset of a gateway's ports on this machine; such high ports are usually free."""


def check_prerequisites(ports: Mapping[int, int]) -> None:
    """Raise ImageError that names everything missing at once."""
    require("qemu-img", "qemu-system-aarch64", "zstd", files={U_BOOT: "u-boot-qemu"})
    taken = [local for local in ports if not _is_free(local)]
    if taken:
        others = " ".join(
            f"--port {_suggest_port(local)}:{remote}" for local, remote in ports.items() if local in taken
        )
        raise ImageError(
            f"in use on this machine: {', '.join(f'port {local}' for local in taken)}",
            hint=f"does such a machine run already? To use only these ports: {others}",
        )


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _suggest_port(port: int) -> int:
    """Return a port that is likely to be free."""
    return port + 1000 if port < 64_000 else port - 1000


def require_image(image: Path) -> None:
    """Raise ImageError unless the image exists."""
    if not image.is_file():
        raise ImageError(f"{image} does not exist", hint="build one: waypost image build --board qemu", code=USAGE)


def parse_ports(texts: Sequence[str]) -> dict[int, int]:
    """Parse ``HERE:GATEWAY`` pairs: port of this machine to port of the gateway; the defaults if there are none.

    Raises ImageError.
    """
    found = {}
    for text in texts:
        local, _, remote = text.partition(":")
        if not (local.isdecimal() and remote.isdecimal() and 0 < int(local) < 65536 and 0 < int(remote) < 65536):
            raise ImageError(f"--port {text}: expected two ports, for example 21883:1883", code=USAGE)
        if int(local) in found:
            raise ImageError(f"--port {text}: port {local} of this machine is used twice", code=USAGE)
        found[int(local)] = int(remote)
    return found or {HIGHER + port: port for port in PORTS.values()}


def make_disk(image: Path, folder: Path, log: Path, *, kept: Path | None = None) -> Path:
    """Return a writable disk with the content of an image (`.img`, or `.img.zst`). Raises ImageError.

    `kept`: a file that keeps the disk; it is used as it is if it exists.
    """
    if kept is not None and kept.exists():
        return kept
    require("qemu-img", "zstd")
    require_image(image)
    plain = image
    if image.suffix == ".zst":
        plain = folder / image.stem
        if not plain.exists() or plain.stat().st_mtime < image.stat().st_mtime:
            _make("zstd", "--quiet", "--decompress", "--force", "--sparse", image, "-o", plain, log=log)
    partition.find_first_partition(plain)  # U-Boot hangs silently with anything else
    target = kept or folder / "disk.qcow2"
    if kept is not None:  # a complete copy, written whole or not at all
        part = kept.with_name(f"{kept.name}.part")
        _make("qemu-img", "convert", "-f", "raw", "-O", "qcow2", plain, part, log=log)
        _make("qemu-img", "resize", "-q", part, CARD, log=log)
        part.replace(kept)
    else:
        _make("qemu-img", "create", "-q", "-f", "qcow2", "-b", plain.resolve(), "-F", "raw", target, CARD, log=log)
    return target


def _make(*words: str | Path, log: Path) -> None:
    """Run a program that makes the disk. Raises ImageError; the log is deleted with its folder."""
    try:
        run(*words, log=log)
    except ImageError as error:
        hint = "an unpacked image takes half a GB of the folder for temporary files: TMPDIR=DIR names another"
        raise ImageError(error.message, hint=hint) from None


def build_command(drive: Path, ports: Mapping[int, int]) -> Sequence[str]:
    """Return QEMU's command line, with the console on standard input and output. Raises ImageError.

    `ports`: port of this machine's loopback to port of the gateway.
    """
    require("qemu-system-aarch64", files={U_BOOT: "u-boot-qemu"})
    file = str(drive).replace(",", ",,")  # QEMU ends a value at a comma
    forwarded = "".join(f",hostfwd=tcp:127.0.0.1:{local}-:{remote}" for local, remote in ports.items())
    return [
        find("qemu-system-aarch64") or "qemu-system-aarch64",
        # Without ACPI the power button is a node of the device tree, as on a Raspberry Pi 5 (gpio-keys).
        *("-M", "virt,gic-version=3,acpi=off", "-cpu", "cortex-a72", "-accel", "tcg,thread=multi,tb-size=512"),
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
    """Run the machine until it is powered off (on its console: Ctrl-A X); return the exit code."""
    return subprocess.run(words, check=False).returncode  # noqa: S603 - QEMU


def boot_until(words: Sequence[str], until: str, limit_s: float) -> str:
    """Run the machine until its console shows a text, then cut its power; return the console's output.

    Raises ImageError.
    """
    output, deadline = b"", time.monotonic() + limit_s
    with (
        subprocess.Popen(  # noqa: S603 - QEMU
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        try:
            assert process.stdout is not None  # noqa: S101 - for the type
            selector.register(process.stdout, selectors.EVENT_READ)
            while until.encode() not in output:
                left = deadline - time.monotonic()
                more = process.stdout.read(1 << 16) if left > 0 and selector.select(left) else b""
                if not more:
                    over = time.monotonic() >= deadline
                    why = f"did not show {until!r} within {limit_s:.0f} s" if over else "ended"
                    last = "\n".join(output.decode(errors="replace").splitlines()[-LAST_LINES:])
                    raise ImageError(f"the machine {why}; its last lines:\n{last}")
                output += more
        finally:
            process.kill()
    return output.decode(errors="replace")
