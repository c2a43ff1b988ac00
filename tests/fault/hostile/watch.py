"""A client and the memory of a gateway, watched while something happens to it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tests.fault.hostile.figures import Figures
from tests.fault.hostile.neighbour import Neighbour
from tests.support.processes import Waypost, resident_mib, wait_until

IDLE_S: Final = 1.0
SLOWER_MAX: Final = 3
"""How many times its idle p99 the p99 of others may be during an attack."""
GIVEN_BACK_S: Final = 15.0
"""The promise is 10 s; other tests may have both cores."""


class Watch:
    """The largest resident memory of a process meanwhile."""

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
    running: Waypost, attack: str, note: Callable[[Figures], None], *, floor_s: float, grown_mib: float
) -> Iterator[None]:
    """Whatever happens inside: the p99 of another client stays below three times its idle one, or `floor_s` where a
    machine with two busy cores cannot tell; and of the memory it took all but `grown_mib` is given back."""
    with Watch(running) as watch, Neighbour(running.port("mqtt")) as neighbour:
        neighbour.wait(100)
        began = time.monotonic()
        time.sleep(IDLE_S)  # the time that is measured
        attacked = time.monotonic()
        yield
        neighbour.wait(20)
        ended = time.monotonic()
        assert neighbour.alive, "the neighbour is served all the time"
    idle_s, attacked_s = neighbour.p99_s(began, attacked), neighbour.p99_s(attacked, ended)
    wait_until(
        lambda: resident_mib(running.pid) < watch.before_mib + grown_mib,
        timeout_s=GIVEN_BACK_S,
        what=f"memory given back ({watch.before_mib:.0f} MiB before)",
    )
    note(Figures(attack, idle_s, attacked_s, watch.before_mib, watch.most_mib, time.monotonic() - ended))
    assert attacked_s <= max(SLOWER_MAX * idle_s, floor_s), f"p99 {idle_s * 1e3:.1f} ms idle, {attacked_s * 1e3:.1f} ms"
