"""Child processes: ready lines, errors in words, and no process left when the demo ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.demo.errors import DemoError
from tests.demo.processes import Children

READY = "import sys, time; print('warming up'); print('ready mqtt=127.0.0.1:1 http=h:2', flush=True); time.sleep(60)"
GRANDCHILD = (
    "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print('ready pid=%d' % p.pid, flush=True); "
    "time.sleep(60)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def gone(pid: int) -> bool:
    """Return True when the process has ended, or only waits for its parent to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_ready_line_contains_the_endpoints(tmp_path: Path) -> None:
    async def main() -> None:
        async with Children(tmp_path) as children:
            child = await children.start("gw", python(READY))
            assert await child.ready(20) == {"mqtt": "127.0.0.1:1", "http": "h:2"}
            assert child.alive
            await children.end([child])
            assert child.process.returncode == -signal.SIGTERM

    asyncio.run(main())


def test_failed_process_is_named_with_its_last_log_lines(tmp_path: Path) -> None:
    async def main() -> DemoError:
        async with Children(tmp_path) as children:
            child = await children.start("gw", python("import sys; sys.exit('port 1883 is taken')"))
            with pytest.raises(DemoError) as caught:
                await child.ready(20)
            return caught.value

    why = asyncio.run(main())
    assert "gw ended before it was ready" in str(why)
    assert why.detail == "port 1883 is taken"


def test_process_that_is_never_ready_times_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with Children(tmp_path) as children:
            child = await children.start("gw", ["sleep", "60"])
            with pytest.raises(DemoError, match="not ready"):
                await child.ready(0.05)
            with pytest.raises(DemoError, match="did not end"):
                await child.exit_code(0.05)

    asyncio.run(main())


def test_log_is_kept_over_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        async with Children(tmp_path) as children:
            for word in ("first", "second"):
                child = await children.start("gw", python(f"import sys; sys.stderr.write('{word}\\n')"))
                assert await child.exit_code(20) == 0

    asyncio.run(main())
    assert (tmp_path / "gw.log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("how", ["error", "cancelled"])
def test_no_process_is_left(tmp_path: Path, how: str) -> None:
    pids: list[int] = []

    async def play() -> None:
        async with Children(tmp_path) as children:
            child = await children.start("gw", python(GRANDCHILD))
            pids.extend((child.process.pid, int((await child.ready(20))["pid"])))
            assert all(os.getpgid(pid) == child.process.pid for pid in pids)
            if how == "error":
                raise DemoError("something failed")
            await asyncio.sleep(60)

    async def main() -> None:
        async with asyncio.timeout(60):
            task = asyncio.create_task(play())
            while len(pids) < 2:
                await asyncio.sleep(0.01)
            if how == "cancelled":
                task.cancel()
            with pytest.raises((DemoError, asyncio.CancelledError)):
                await task
            while not all(map(gone, pids)):
                await asyncio.sleep(0.01)

    asyncio.run(main())
