"""Threads that verify passwords, in a process of their own: its priority is given away and not got back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge.broker.security.verification_threads import NICE

VERIFIED = """
import asyncio, os, threading
from edge.broker.security.verification_threads import VerificationThreads

async def main():
    verified = asyncio.get_running_loop().create_future()
    threads = VerificationThreads()
    threads(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), verified.set_result)
    print(await verified)
    threads.stop()

os.nice({} - os.nice(0))
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="on Linux alone each thread has a priority")
@pytest.mark.parametrize("further", [0, 5], ids=["as far back as they go", "further back"])
def test_a_gateway_that_stands_back_itself_verifies_passwords(further: int) -> None:
    """Without the rights of root a thread that is to come forward does not start, and nobody would be let in."""
    told = VERIFIED.format(NICE + further)
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{NICE + further}\n", done.stderr
