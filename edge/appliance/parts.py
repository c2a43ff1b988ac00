"""Parts of a gateway that are loaded with the first who needs them, and known to load before anybody does.

An idle gateway's memory counts, so what many never use is imported late. Whether it can be imported is found out at the
start all the same, in a process of its own: a part that is broken is told to who starts the gateway, not to the first
who connects months later.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from edge.broker.listeners.lazy_amqp import AMQP
from edge.broker.router.uplinks import TO_HUB, TO_PEER

COMPRESSION: Final = "edge.broker.store.compression"

LATE: Final = (AMQP, TO_HUB, TO_PEER, COMPRESSION)
"""The modules that import the rest of each."""

WHY_BYTES_MAX: Final = 2_000
"""Of what is wrong with a module; less than a pipe holds (pipe(7)), so that the process that tells it never waits."""


def fault_of(modules: Sequence[str] = LATE) -> str:
    """What is wrong with one of these modules, empty where all can be imported. Blocks for as long as that takes, and
    takes none of the memory. To be called before there are threads (fork(2)). Raises OSError when there can be no other
    process."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if not child:
        _tell(modules, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        why = told.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    return why or ("" if not ended else f"importing {', '.join(modules)} ends the process with {ended}")


def _tell(modules: Sequence[str], writing: int) -> None:
    """The other process."""
    code = 1
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # whatever it is: this process is there to tell it
                os.write(writing, f"{name}: {type(error).__name__}: {error}".encode()[:WHY_BYTES_MAX])
                raise
        code = 0
    except BaseException:  # it never goes on as the gateway would
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)
