"""Hold a hub in its own process at a step of a landing.

The test runs `LandingSteps`, and the hub as `stepping_hub`: its landing sends each step and waits for the answer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Final, Self

from cloud.hub import opening
from edge.appliance.main import main
from tests.support.processes import Waypost

SOCKET: Final = "WAYPOST_TEST_STEPS"
"""Environment variable of the hub: path of the test's socket."""
TOLD_BYTES_MAX: Final = 64
WAIT_S: Final = 30.0


class HeldStep:
    """Landing of one hub that is to stop at a step."""

    def __init__(self, pid: int, step: str) -> None:
        self.pid = pid
        self.step = step
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """Wait until the landing has reached the step."""
        assert self._reached.wait(WAIT_S), f"no landing has reached {self.step}"

    def release(self) -> None:
        """Let the landing continue."""
        self._released.set()

    def hold(self) -> None:
        """Wait for the release, in the thread that serves the hub."""
        self._reached.set()
        self._released.wait()


class LandingSteps:
    """Answers hubs at their steps; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._armed: HeldStep | None = None
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, name="landing steps", daemon=True)

    def __enter__(self) -> Self:
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(WAIT_S)

    def hold(self, hub: Waypost, step: str) -> HeldStep:
        """Hold the next landing of a hub at a step."""
        with self._lock:
            self._armed = HeldStep(hub.pid, step)
            return self._armed

    def _serve(self) -> None:
        while True:
            try:
                told, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(told,), name="landing step", daemon=True).start()

    def _answer(self, told: socket.socket) -> None:
        with told, contextlib.suppress(OSError):  # the hub was killed
            pid, _, step = told.recv(TOLD_BYTES_MAX).decode().partition(" ")
            with self._lock:
                armed = self._armed
                if armed is None or (str(armed.pid), armed.step) != (pid, step):
                    armed = None
                else:
                    self._armed = None
            if armed is not None:
                armed.hold()
            told.send(b"\n")


def tell(step: str) -> None:
    """Tell the test a step, and wait for its answer. For the hub's process."""
    with socket.socket(socket.AF_UNIX) as test, contextlib.suppress(OSError):  # the test has ended
        test.connect(os.environ[SOCKET])
        test.send(f"{os.getpid()} {step}".encode())
        test.recv(1)


def stepping_hub() -> None:
    """Run the command line of the product with a landing that sends its steps."""
    vars(opening)["Landing"] = partial(opening.Landing, failpoint=tell)
    vars(opening)["DeltaLake"] = partial(opening.DeltaLake, failpoint=tell)
    sys.exit(main())


STEPPING_HUB: Final = (sys.executable, "-m", "tests.support.landing_steps")
"""Beginning of its command line."""

if __name__ == "__main__":
    stepping_hub()
