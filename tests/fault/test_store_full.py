"""A full medium, by a limit on the file's size and by a full file system: no committed message is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import queue, resource, sys
from pathlib import Path
from bridge.message import Run
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import open_store

directory, how = Path(sys.argv[1]), sys.argv[2]
posted = queue.SimpleQueue()
commits = []
store = open_store(directory, post=posted.put, limits=StoreLimits(checkpoint_bytes=400_000))
store.commits.listeners.append(commits.append)
log = store.logs.open("queue jobs")
cursor = store.cursors.open("consumer", log, 0)

def commit(*bodies):
    store.logs.append(log, Run("jobs", "device", 1, b"", list(bodies), 1))
    store.commits.flush()
    while store.commits.committing:
        posted.get(timeout=20)()
    return commits[-1].error

if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
kept = 0
while (error := commit(b"x" * 30_000, b"y")) is None:
    kept += 2
    assert kept < 1000
print(type(error).__name__, error)
for _ in range(20):
    assert commit(b"x" * 30_000) is not None
    assert store.logs.bounds(log) == (0, kept)
store.cursors.acknowledge(cursor, 0, kept - 3)
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    (directory.parent / "ballast").unlink()
assert commit(b"z") is None
assert store.logs.bounds(log)[1] == kept + 1
store.close()
store = open_store(directory, post=posted.put)
answers = []
store.logs.read(log, kept - 2, 1 << 20, answers.append)
while not answers:
    posted.get(timeout=20)()
assert [(s.position, s.sequence, [b[:1] for b in s.run.bodies]) for s in answers[0]] == [
    (kept - 2, kept - 2, [b"x", b"y"]), (kept, kept, [b"z"])]
assert store.cursors.record(cursor).position == kept - 2
store.close()
print("serves again")
"""


def expect(command: list[str], *kinds: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
    refusal, last = ended.stdout.splitlines()
    assert refusal.split()[0] in kinds, refusal
    assert last == "serves again"
    assert ended.stderr.count("messages are refused until commits succeed again") == 1


def test_limit_of_file_size_loses_no_committed_message(tmp_path: Path) -> None:
    expect([sys.executable, "-c", PROGRAM, str(tmp_path / "data"), "limit"], "StoreFull", "StoreError")


def test_full_file_system_loses_no_committed_message(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)]
    if unshare is None or subprocess.run([unshare, "-rm", *mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a file system of its own here")
    script = f'{" ".join(mount)} && head -c 2000000 /dev/zero > {tmp_path}/ballast && exec "$@"'
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), "room"]
    expect([unshare, "-rm", "sh", "-c", script, "sh", *program], "StoreFull")
