"""Lock that admits one pass at a time over a lake in a folder.

A job reads its progress when it begins, and commits the next batch when that is computed. Two passes that begin at the
same progress with different numbers of messages would both commit their first batch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloud.place.folder import Folder
from cloud.place.place import LakeLocation, place_of

LOCK: Final = Path("_logs") / "pass.lock"
"""Lock file in the lake. The end of the process always releases the lock; the file stays."""


class PassRunning(RuntimeError):
    """Another process runs a pass over the lake; the message names it."""


@contextmanager
def hold(lake: LakeLocation) -> Iterator[None]:
    """Hold the lock of a lake while the body runs. Raises `PassRunning`.

    A bucket has no such lock: its operator has to run one pass at a time.
    """
    place = place_of(lake)
    if not isinstance(place, Folder):
        yield
        return
    path = place.path / LOCK
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip()
            raise PassRunning(
                f"another pass over {place.uri} is running (process {who}), and two at once would count rows twice. "
                "Wait until it has ended, or stop it: stopping it loses nothing"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
