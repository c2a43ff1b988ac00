"""A killed and repeated pass over a lake in a bucket gives the result of a pass over a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.place.place import LakeLocation, place_of
from spark import schemas
from tests.spark import lakes
from tests.support.processes import wait_until
from tests.support.s3 import BUCKET, ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN_S = 1200
"""Longest run; a first pass of every job takes 60 s of processor time."""
ROOT = Path(__file__).parents[2]
PLAN = lakes.Plan(gateways=2, seconds=20, outages={"gw1": (5.0, 10.0)})


def command(verb: str, lake: str) -> list[str]:
    return [sys.executable, "-m", "spark.cli", verb, "--lake", lake]


def run(verb: str, lake: str) -> None:
    done = subprocess.run(command(verb, lake), cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def versions(lake: LakeLocation, name: str) -> int:
    place = place_of(lake).at(name)
    return int(place.delta().version()) if place.is_table() else 0


def rows(lake: LakeLocation) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of each derived table in a fixed order."""
    for name in sorted(set(place_of(lake).tables()) & set(schemas.DERIVED)):
        found = place_of(lake).at(name).delta().to_pyarrow_table().to_pylist()
        yield name, sorted(str(sorted(row.items())) for row in found)


@pytest.mark.timeout(3 * RUN_S)
def test_killed_and_run_again(store: ObjectStore, tmp_path: Path) -> None:
    bucket, folder = f"s3://{BUCKET}/lake", str(tmp_path / "lake")
    for place in (bucket, folder):
        lakes.fleet(place, PLAN)
    killed = subprocess.Popen(command("run", bucket), cwd=ROOT, start_new_session=True)
    wait_until(lambda: versions(bucket, "readings") > 0, timeout_s=RUN_S, what="readings are committed", every_s=0.2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    run("run", folder)
    assert dict(rows(bucket)) != dict(rows(folder))
    run("run", bucket)
    assert dict(rows(bucket)) == dict(rows(folder))
    run("verify", bucket)
    run("maintain", bucket)
    assert dict(rows(bucket)) == dict(rows(folder))
