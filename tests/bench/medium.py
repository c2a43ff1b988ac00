"""A private file system on its own block device for one broker, so that all bytes on the medium can be counted.

They include the write-ahead log, its checkpoints and the file system's journal, and exclude other programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.bench.packages import BrokerMissing
from tests.bench.scratch import scratch_folder

SIZE: Final = 4 << 30
"""Bytes of the file behind the device; sparse, so only what is written takes space."""
SECTOR: Final = 512
_WRITTEN_SECTORS: Final = 6
"""Field of ``/sys/block/*/stat`` (Linux Documentation/block/stat.rst)."""


class Medium:
    """Ext4 with Debian's settings on a loop device; ``with`` creates and removes it."""

    def __init__(self) -> None:
        if os.geteuid() != 0 or any(shutil.which(name) is None for name in ("losetup", "mkfs.ext4", "mount")):
            raise BrokerMissing("bytes written are read from a loop device: this needs root, losetup and mkfs.ext4")
        self._folder = scratch_folder()
        self.folder = Path(self._folder.name) / "medium"
        self._device = ""

    def __enter__(self) -> Self:
        image = Path(self._folder.name) / "image"
        with image.open("wb") as file:
            file.truncate(SIZE)
        self.folder.mkdir()
        # Initialise everything now; otherwise the kernel would continue during the measurement.
        _do("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        self._device = _do("losetup", "--find", "--show", str(image))
        try:
            _do("mount", self._device, str(self.folder))
        except BrokerMissing:
            _do("losetup", "--detach", self._device)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _do("umount", str(self.folder))
        _do("losetup", "--detach", self._device)
        self._folder.cleanup()

    def written(self) -> int:
        """Flush memory, then return the bytes written to the device so far."""
        _do("sync", "--file-system", str(self.folder))
        fields = Path(f"/sys/block/{Path(self._device).name}/stat").read_text().split()
        return int(fields[_WRITTEN_SECTORS]) * SECTOR


def _do(*command: str) -> str:
    """Run a command; return its output. Raises BrokerMissing when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerMissing(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()
