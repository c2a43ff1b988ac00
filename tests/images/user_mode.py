"""Run a Python program in a kernel of its own: User Mode Linux of Debian, which starts in a second as a process.

Its root is this machine's, with the files of this checkout. Unlike the kernel of this machine it has f2fs as a module.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from images import source
from images.programs import find
from tests.images.write_log import WriteLog
from tests.support.processes import wait_until

KERNEL: Final = "linux.uml"
DAEMON: Final = "qemu-storage-daemon"
PROGRAMS: Final = (KERNEL, DAEMON, "qemu-img", "insmod")
MODULES: Final = ("kernel/crypto/crc32_generic.ko", "kernel/fs/f2fs/f2fs.ko", "kernel/drivers/block/virtio_blk.ko")
"""Modules of f2fs and of recorded disks, in the order in which they are loaded."""
MEMORY: Final = "512M"
DISKS_MAX: Final = 16
"""Disks in files of one machine (arch/um/drivers/ubd_kern.c)."""
RECORDED: Final = "/dev/vda"
"""Name of a recorded disk in the machine."""
BLOCK_DEVICE: Final = 2
"""Kind of a virtio device (VIRTIO 1.1, section 5)."""
INIT: Final = """\
#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /run
{insert}
if [ -e /sys/block/vda ]; then echo 'write back' > /sys/block/vda/cache_type; fi
cd {root}
PYTHONPATH={root} PATH={path} {python} -P -m {words} > {folder}/output 2>&1
echo $? > {folder}/code
echo o > /proc/sysrq-trigger
sleep 60
"""
"""Its first process. At the end it switches the machine off without unmounting anything. A disk with a write cache is
flushed when the file system requests it.
"""


class RecordedDisk:
    """Copy of a disk with a log of its writes and flushes, for one machine. For a `with` block."""

    def __init__(self, disk: Path, folder: Path) -> None:
        folder.mkdir()
        self.log = WriteLog(folder / "writes")
        # The path of a socket is limited to about a hundred characters.
        self._own = tempfile.TemporaryDirectory(prefix="waypost-disk-")
        self.socket = Path(self._own.name) / "socket"
        self._drive = folder / "disk.qcow2"
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk.resolve()), "-F", "raw", str(self._drive)]
        subprocess.run(words, check=True)
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        place = f"addr.type=unix,addr.path={self.socket}"
        export = f"type=vhost-user-blk,id=disk,node-name=card,writable=on,{place}"
        self._daemon = subprocess.Popen([DAEMON, "--blockdev", self.log.blockdev(self._drive), "--export", export])
        try:
            wait_until(self.socket.exists, timeout_s=60, what="the disk's socket")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(60)
        self._own.cleanup()


def run_module(
    folder: Path,
    module: str,
    *arguments: str,
    disks: Sequence[Path] = (),
    recorded: RecordedDisk | None = None,
    timeout_s: float = 1200.0,
) -> str:
    """Run a module of this checkout; return its output. Raises AssertionError if it fails.

    `disks`: files that are /dev/ubda and so on; flushes of them are lost. `recorded`: the disk `RECORDED`.
    """
    assert len(disks) <= DISKS_MAX
    folder.mkdir()
    kernel = Path(find(KERNEL) or KERNEL).resolve()
    init = _write_init(folder, kernel, module, arguments)
    words = [str(kernel), f"mem={MEMORY}", f"uml_dir={folder}", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"]
    words += [f"init={init}", "con=null", "con0=null,fd:1"]
    words += [f"ubd{chr(ord('a') + number)}={disk}" for number, disk in enumerate(disks)]
    if recorded is not None:
        words.append(f"virtio_uml.device={recorded.socket}:{BLOCK_DEVICE}")
    with (folder / "console").open("wb") as console:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its programs are processes here
                process.wait(60)
    output = (folder / "output").read_text() if (folder / "output").exists() else ""
    said = (folder / "console").read_text(errors="replace")[-2000:]
    code = (folder / "code").read_text().strip() if (folder / "code").exists() else "no end"
    assert code == "0", f"{code}: {output[-2000:]}\n{said}"
    return output


def _write_init(folder: Path, kernel: Path, module: str, arguments: Sequence[str]) -> Path:
    """Write the machine's first process."""
    [modules] = kernel.parent.parent.glob("lib/uml/modules/*")
    insmod = find("insmod") or "insmod"
    init = folder / "init"
    init.write_text(
        INIT.format(
            insert="\n".join(shlex.join([insmod, str(modules / name)]) for name in MODULES),
            root=shlex.quote(str(source.ROOT)),
            path=shlex.quote(os.environ["PATH"]),
            python=shlex.quote(sys.executable),
            words=shlex.join([module, *arguments]),
            folder=shlex.quote(str(folder)),
        )
    )
    init.chmod(0o755)
    return init
