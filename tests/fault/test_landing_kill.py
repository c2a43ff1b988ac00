"""SIGKILL of a landing process at random moments: acknowledged messages are in the lake, and none is duplicated.

With a registry on PostgreSQL, kills come at each step of a landing.

This module is also the program that is killed; workload, killing and checking are its three parts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.registry.location import parse
from cloud.hub.registry.registry import Registry
from cloud.lake.commits import FAILPOINTS
from cloud.lake.delta import DeltaLake
from cloud.lake.landing import Landing
from cloud.lake.rows import ReceivedBatch
from tests.support.lake import read_columns
from tests.support.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
KILLS = 6
BATCHES = 400
ALIVE_S_MAX = 0.4
"""Longest time from the first sign of life to the kill: a few landings."""


# --- the process that dies --------------------------------------------------------------------------------------------


def batch(seed: int, number: int) -> ReceivedBatch:
    """Return batch `number` of a workload: a piece of one of six (gateway, address), which overlaps the one before."""
    chance = random.Random(seed * 1_000_003 + number)
    gateway, address, place = f"gw{number % 3}", f"a{number % 2}", number // 6
    first, count = max(0, place * 20 - chance.randrange(15)), 20 + chance.randrange(20)
    bodies = [f"{gateway}/{address}/{sequence}".encode() for sequence in range(first, first + count)]
    run = Run(address, "device", 1, b"", bodies, 1_795_250_665_237_000_000)
    return ReceivedBatch("default", gateway, decode(encode([Stored(-1, first, run)], space="s", epoch="e" * 32)))


def land(directory: Path, seed: int, start: int, url: str, die_at: str) -> None:
    """Land from batch `start` on, a few at a time; after each landing print the acknowledged number and the step.

    `die_at` is a step; the process kills itself there in its second landing.
    """
    chance = random.Random(seed + start)
    registry = Registry(parse(url), "a" * 32)
    done: Counter[str] = Counter()

    def step(name: str) -> None:
        print("step", name, flush=True)
        done[name] += 1
        if name == die_at and done[name] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    landing = Landing(DeltaLake(directory / "lake", failpoint=step), registry.commits, failpoint=step)
    print("up", flush=True)
    number = start
    while number < BATCHES:
        group = [batch(seed, at) for at in range(number, min(BATCHES, number + 1 + chance.randrange(6)))]
        landing.land(group, time.time_ns() // 1_000)
        number += len(group)
        print("acknowledged", number, flush=True)
    registry.close()


# --- the killer
# --------------------------------------------------------------------------------------------------------


def life(
    directory: Path, seed: int, start: int, alive_s: float | None, url: str = "", die_at: str = ""
) -> tuple[int, str]:
    """Run the process and kill it `alive_s` after it is up (None: not at all).

    Return the acknowledged number, and its last step.
    """
    url = url or f"sqlite:///{directory / 'registry.db'}"
    command = [
        sys.executable,
        "-m",
        "tests.fault.test_landing_kill",
        str(directory),
        str(seed),
        str(start),
        url,
        die_at,
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    far, last = start, "start"
    killer: threading.Timer | None = None
    for line in process.stdout:
        if not line.endswith("\n"):
            break  # the kill cut it off
        word, *rest = line.split()
        if word == "up" and alive_s is not None:
            killer = threading.Timer(alive_s, process.send_signal, (signal.SIGKILL,))
            killer.start()
        elif word == "acknowledged":
            far, last = int(rest[0]), word
        elif word == "step":
            last = rest[0]
    process.stdout.close()
    code = process.wait(timeout=20)
    if killer is not None:
        killer.cancel()
    assert code in (0, -signal.SIGKILL), f"it failed by itself: {code}"
    return far, last


# --- the checker
# -------------------------------------------------------------------------------------------------------


def names(batches: list[ReceivedBatch]) -> set[tuple[str, bytes]]:
    return {(received.gateway, body) for received in batches for body in received.batch.bodies}


def rows(directory: Path) -> Counter[tuple[str, bytes]]:
    return Counter(read_columns(directory / "lake", "telemetry", "gateway", "body"))


def test_landing_killed_at_any_moment_lands_each_message_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print("seed", seed)
    workload = [batch(seed, number) for number in range(BATCHES)]
    far = 0
    for kill in range(KILLS):
        alive_s = chance.uniform(0, ALIVE_S_MAX)
        # a gateway that lost its connection repeats from before the last acknowledgement it received
        reached, last = life(tmp_path, seed, max(0, far - chance.randrange(12)), alive_s)
        far = max(far, reached)
        found = rows(tmp_path)
        print(f"kill {kill}: after {alive_s * 1000:.0f} ms, last seen {last}, {far} batches, {len(found)} rows")
        assert set(found.values()) <= {1}, "a message is there twice"
        assert names(workload[:far]) <= set(found), "an acknowledged message is missing"
        assert set(found) <= names(workload)
        assert last in ("start", "acknowledged", *FAILPOINTS)
    far, _ = life(tmp_path, seed, max(0, far - 12), None)
    assert far == BATCHES
    assert rows(tmp_path) == Counter(names(workload))


def test_landing_killed_at_each_step_lands_each_message_once_with_postgresql(
    tmp_path: Path, postgres: Postgres
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    url = postgres.url(postgres.schema())
    workload = [batch(seed, number) for number in range(BATCHES)]
    far = 0
    for step in FAILPOINTS:
        reached, last = life(tmp_path, seed, max(0, far - 5), None, url, step)
        assert last == step
        far = max(far, reached)
        found = rows(tmp_path)
        assert set(found.values()) == {1}, "a message is there twice"
        assert names(workload[:far]) <= set(found), "an acknowledged message is missing"
    far, _ = life(tmp_path, seed, BATCHES - 20, None, url)
    assert far == BATCHES
    assert set(rows(tmp_path).values()) == {1}
    assert names(workload[BATCHES - 20 :]) <= set(rows(tmp_path))


if __name__ == "__main__":
    land(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
