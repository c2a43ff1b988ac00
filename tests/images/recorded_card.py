"""Card as a block device of this machine, with a log of the writes of the programs that use it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.images.boot_card import MIB, SLOT_MIB, SLOTS_BEGIN
from tests.images.write_log import WriteLog
from tests.support.processes import wait_until

DAEMON: Final = "qemu-storage-daemon"


class RecordedCard:
    """Exports a copy of a card through FUSE, with a loop device for each slot. For a `with` block."""

    def __init__(self, card: Path, folder: Path) -> None:
        folder.mkdir()
        self.log = WriteLog(folder / "writes")
        self.file = folder / "card"
        self.file.touch()
        self.slots: Mapping[str, Path] = {}
        self._drive = folder / "card.qcow2"
        words = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(card.resolve()), "-F", "raw", str(self._drive)]
        subprocess.run(words, check=True)
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        export = f"type=fuse,id=card,node-name=card,mountpoint={self.file},writable=on"
        words = [DAEMON, "--blockdev", self.log.blockdev(self._drive), "--export", export]
        self._daemon = subprocess.Popen(words)
        try:
            wait_until(lambda: self.file.stat().st_size > 0, timeout_s=60, what="the card's device")
            self.slots = {letter: self._attach(begin) for letter, begin in SLOTS_BEGIN.items()}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.slots.values():
            subprocess.run(["losetup", "--detach", str(device)], check=True)
        self.slots = {}
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(60)

    def _attach(self, begin: int) -> Path:
        """Return a loop device of a slot."""
        place = ("--offset", str(begin), "--sizelimit", str(SLOT_MIB * MIB))
        words = ["losetup", "--find", "--show", *place, str(self.file)]
        return Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
