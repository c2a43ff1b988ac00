"""Threads that verify passwords, tested in a process of their own: a process cannot raise its priority again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from edge.broker.security.credentials import CredentialSecret
from edge.broker.security.verification_threads import NICE, VerificationThreads

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
def test_gateway_with_lowered_priority_verifies_passwords(further: int) -> None:
    """A thread of higher priority cannot start without root's rights; the gateway still verifies passwords."""
    told = VERIFIED.format(NICE + further)
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{NICE + further}\n", done.stderr


@pytest.mark.anyio
async def test_work_that_waits_too_long_is_done_by_a_thread_of_normal_priority() -> None:
    """A thread of normal priority takes over when the threads of low priority get no time. It finishes their started
    work, and the work behind it."""
    threads = VerificationThreads()
    starved, priorities = threading.Event(), list[int]()
    own = threading.get_native_id()
    loop = asyncio.get_running_loop()
    results = [loop.create_future() for _ in range((os.cpu_count() or 1) + 2)]

    def work() -> CredentialSecret | None:
        if threading.current_thread().name.startswith("verify_"):
            starved.wait(60)
        elif sys.platform == "linux":
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return None

    try:
        for result in results:
            threads(work, result.set_result)
        async with asyncio.timeout(30):
            await asyncio.gather(*results)
        assert set(priorities) <= {os.getpriority(os.PRIO_PROCESS, own)}
    finally:
        starved.set()
        threads.stop()


@pytest.mark.anyio
async def test_work_in_time_is_done_once() -> None:
    threads, ran = VerificationThreads(), list[str]()
    result = asyncio.get_running_loop().create_future()

    def work() -> CredentialSecret | None:
        ran.append(threading.current_thread().name)
        return None

    try:
        threads(work, result.set_result)
        await result
        assert [name.startswith("verify_") for name in ran] == [True]
    finally:
        threads.stop()


@pytest.mark.anyio
async def test_failed_verification_refuses_the_login() -> None:
    threads = VerificationThreads()
    result = asyncio.get_running_loop().create_future()

    def work() -> CredentialSecret | None:
        raise MemoryError

    try:
        threads(work, result.set_result)
        assert await result is None
    finally:
        threads.stop()
