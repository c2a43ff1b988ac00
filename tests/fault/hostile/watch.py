"""Watch a client and the memory of a gateway during an attack."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.fault.hostile.figures import Figures
from tests.fault.hostile.neighbours import Neighbours
from tests.support.processes import Waypost, resident_mib, wait_until

RETURNED_S: Final = 15.0
"""Time until memory is returned. The guarantee is 10 s; other tests may use both cores."""


def await_memory(pid: int, before_mib: float, *, kept_mib: float, timeout_s: float = RETURNED_S) -> float:
    """Wait until a process has returned all memory but `kept_mib`; return the seconds."""
    began = time.monotonic()
    wait_until(
        lambda: resident_mib(pid) < before_mib + kept_mib,
        timeout_s=timeout_s,
        what=f"the memory is returned ({before_mib:.0f} MiB before)",
    )
    return time.monotonic() - began


class Watch:
    """Largest resident memory of a process within the context."""

    def __init__(self, running: Waypost) -> None:
        self.before_mib = self.most_mib = resident_mib(running.pid)
        self._pid = running.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            with contextlib.suppress(OSError, ProcessLookupError):
                self.most_mib = max(self.most_mib, resident_mib(self._pid))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def watched(
    running: Waypost,
    control: Waypost,
    attack: str,
    note: Callable[[Figures], None],
    *,
    floor_s: float,
    grown_mib: float,
) -> Iterator[None]:
    """Check that others can bear the attack inside (`Felt.bearable`), and that the gateway returns the memory.

    It may keep `grown_mib`.
    """
    with Watch(running) as watch, Neighbours(running, control) as neighbours:
        neighbours.rest()
        attacked = time.monotonic()
        yield
        felt = neighbours.felt(attacked)
    returned_s = await_memory(running.pid, watch.before_mib, kept_mib=grown_mib)
    note(Figures(attack, felt, watch.before_mib, watch.most_mib, returned_s))
    assert felt.bearable(floor_s), str(felt)
