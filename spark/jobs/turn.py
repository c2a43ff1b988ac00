"""One pass at a time over a lake that is a folder.

A job reads how far it is when it begins and commits what comes of the next batch when that is computed. Two passes that
begin at the same place with other numbers of messages before them would both commit their first batch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloud.place.folder import Folder
from cloud.place.place import Somewhere, place_of

LOCK: Final = Path("_logs") / "pass.lock"
"""In the lake. Whoever ends, however, has let go of it; the file stays."""


class PassRunning(RuntimeError):
    """Another process makes a pass over the lake; the message says which."""


@contextmanager
def taken(lake: Somewhere) -> Iterator[None]:
    """While it lasts no other process makes a pass over the lake. Raises `PassRunning`.

    A bucket has no such lock: whoever runs jobs there sees to it that one does.
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
                "Wait until it has ended, or stop it: nothing is lost by that"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
