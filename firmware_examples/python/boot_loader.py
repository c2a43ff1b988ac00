"""Boot loader of a computer: it starts the program in one of two slots, and goes back from one that does not confirm.

``python3 boot_loader.py FOLDER``. FOLDER has the programs `slot0` and `slot1`, files of `python3 -m zipapp`, and the
file `boot`: "kept trial starts", such as "0 - 0", or "0 1 2" in the second start of slot 1 (as of `portable_c`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

EXIT_RESTART = 75
"""Exit code of a program that is to be started again at once."""
STARTS_MAX = 3
"""Starts of a program on trial."""
WATCHDOG_S = 120
"""Time after which a program that does not feed its watchdog (SIGALRM) is killed; WAYPOST_WATCHDOG_S sets another."""
PAUSE_S = 1


@dataclass
class BootRecord:
    """Content of the file `boot`."""

    kept: int = 0
    trial: int | None = None
    starts: int = 0

    @classmethod
    def read(cls, folder: str) -> BootRecord:
        """Read the file; the first start ever has none. Raises OSError and ValueError."""
        try:
            with open(os.path.join(folder, "boot")) as file:
                kept, trial, starts = file.read().split()
        except FileNotFoundError:
            return cls()
        return cls(int(kept), None if trial == "-" else int(trial), int(starts))

    def write(self, folder: str) -> None:
        """Write the file; it is on disk on return."""
        trial = "-" if self.trial is None else self.trial
        write_durably(os.path.join(folder, "boot"), f"{self.kept} {trial} {self.starts}\n".encode())


def write_durably(path: str, content: bytes) -> None:
    """Replace a file: after a power cut it is the old or the new one."""
    made = path + ".new"
    with open(made, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(made, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def choose_slot(folder: str) -> tuple[int, bool]:
    """Return the slot to start now, and whether it is on trial; its start is on disk."""
    record = BootRecord.read(folder)
    if record.trial is None:
        return record.kept, False
    if record.starts >= STARTS_MAX:
        print(f"boot: no confirmation in {STARTS_MAX} starts, back to slot {record.kept}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # else the kept program writes it
            BootRecord(record.kept).write(folder)
        return record.kept, False
    record.starts += 1
    try:
        record.write(folder)
    except OSError as error:  # such as a full disk: the kept program runs
        print(f"boot: no trial now: {error}", file=sys.stderr, flush=True)
        return record.kept, False
    return record.trial, True


def main() -> int:
    """Start programs until one is stopped; return its exit code."""
    folder, watchdog_s = sys.argv[1], int(os.environ.get("WAYPOST_WATCHDOG_S", WATCHDOG_S))
    child: subprocess.Popen[bytes] | None = None
    stopped = False

    def stop(number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        slot, is_trial = choose_slot(folder)
        variables = os.environ | {"WAYPOST_SLOTS": folder, "WAYPOST_SLOT": str(slot)}
        command = [sys.executable, os.path.join(folder, f"slot{slot}")]
        # The alarm goes on over exec: a program that never feeds it ends as well.
        child = subprocess.Popen(command, env=variables, preexec_fn=lambda: signal.alarm(watchdog_s))  # noqa: PLW1509, S603
        if stopped:
            child.terminate()
        code = child.wait()
        if stopped or (code >= 0 and code != EXIT_RESTART and (code == 0 or not is_trial)):
            return max(code, 0)
        if code != EXIT_RESTART:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
