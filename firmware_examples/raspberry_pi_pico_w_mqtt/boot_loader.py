"""Boot loader: it starts the program in the folder `slot0` or `slot1`, and goes back from one that does not confirm.

Copy it to the board twice, as `boot_loader.py` and as `main.py`. The file `boot` has "kept trial starts", such as
"0 - 0", or "0 1 2" in the second start of slot 1.
"""

import os
import sys

try:
    import machine
except ImportError:  # a PC
    machine = None

EXIT_RESTART = 75  # exit code on a PC
STARTS_MAX = 3  # starts of a program on trial
WATCHDOG_MS = 8000

SLOT = None  # slot of the program that runs; None without the boot loader


def read_boot():
    """Return (kept slot, slot on trial or None, starts of it)."""
    try:
        with open("boot") as file:
            kept, trial, starts = file.read().split()
    except OSError:  # the first start ever
        return 0, None, 0
    return int(kept), None if trial == "-" else int(trial), int(starts)


def write_boot(kept, trial=None, starts=0):
    """Write the file; it is in flash when this returns. Raises OSError."""
    write_file("boot", f"{kept} {'-' if trial is None else trial} {starts}\n")


def write_file(name, text):
    """Replace a file: after a power cut it is the old or the new one."""
    with open(name + ".new", "w") as file:
        file.write(text)
        file.flush()
        if hasattr(os, "fsync"):  # a PC; on a board closing writes to flash
            os.fsync(file.fileno())
    os.rename(name + ".new", name)


def restart():
    """Start the board again."""
    if machine:
        machine.reset()
    sys.exit(EXIT_RESTART)


def choose_slot():
    """Return the slot to start now, and whether it is on trial; its start is in flash."""
    kept, trial, starts = read_boot()
    if trial is None:
        return kept, False
    try:
        if starts >= STARTS_MAX:
            print("boot: no confirmation in", STARTS_MAX, "starts, back to slot", kept)
            write_boot(kept)
            return kept, False
        write_boot(kept, trial, starts + 1)
    except OSError as why:  # such as a full flash: the kept program runs
        print("boot: no trial now:", why)
        return kept, False
    return trial, True


def start(arguments):
    """Run the program of a slot; restart the board when one on trial ends."""
    global SLOT
    SLOT, is_trial = choose_slot()
    if is_trial and machine and hasattr(machine, "WDT"):
        machine.WDT(timeout=WATCHDOG_MS)  # a program that never feeds it is reset as well
    sys.path.insert(0, f"slot{SLOT}")
    try:
        import main

        main.main(arguments)
    except BaseException as why:
        if not is_trial or read_boot()[1] is None:
            raise
        print("boot: the program on trial has ended:", repr(why))
    if is_trial and read_boot()[1] is not None:
        restart()


if __name__ == "__main__":
    import boot_loader

    boot_loader.start(sys.argv[1:] if hasattr(sys, "argv") else [])
