"""A gateway that is killed while it fetches an artefact: it continues where it was, and serves nothing unverified."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.limits import MANIFEST_CHECK_S, RANGE_BYTES
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.checkout import ROOT

IMAGE = random.Random(11).randbytes(3 * RANGE_BYTES)

CHILD = """
import os, signal, sys
from pathlib import Path
from edge.appliance.artefacts.index import ArtefactIndex
from edge.appliance.artefacts.limits import MANIFEST_CHECK_S
from edge.appliance.artefacts.storage import ArtefactStorage
from tests.support.artefact_gateway import ArtefactGateway

def killing(function, count, before):
    calls = []
    def call(*arguments):
        calls.append(1)
        if before and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

data, port, name, count, when = sys.argv[1:]
owner = ArtefactIndex if hasattr(ArtefactIndex, name) else ArtefactStorage
setattr(owner, name, killing(getattr(owner, name), int(count), when == "before"))
gateway = ArtefactGateway(Path(data), int(port))

def runs_on(keeper):
    gateway.now += MANIFEST_CHECK_S / 10
    return False

fetched = (Path(data) / "artefacts" / "1.image").exists()
gateway.run(runs_on) if fetched else gateway.fetch()
"""


@pytest.fixture
def hub() -> Iterator[ArtefactHubServer]:
    with ArtefactHubServer() as made:
        made.add(IMAGE)
        yield made


@pytest.fixture
def gateway(tmp_path: Path, hub: ArtefactHubServer) -> ArtefactGateway:
    made = ArtefactGateway(tmp_path / "data", hub.port)
    made.want()
    return made


def kill(gateway: ArtefactGateway, hub: ArtefactHubServer, step: str, count: int = 1, when: str = "before") -> None:
    """Run a gateway that is killed at a step."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(gateway.data), str(hub.port), step, str(count), when],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def files(gateway: ArtefactGateway) -> list[str]:
    return sorted(each.name for each in (gateway.data / "artefacts").iterdir() if not each.name.startswith("index"))


@pytest.mark.parametrize(
    ("step", "count", "when", "left", "asked"),
    [
        ("add", 1, "before", [], 3),
        ("add", 1, "after", [], 3),
        ("append", 1, "before", [], 4),
        ("append", 2, "after", ["1.part"], 3),
        ("complete_file", 1, "before", ["1.part"], 3),
        ("mark_stored", 1, "before", ["1.image"], 3),
        ("mark_stored", 1, "after", ["1.image"], 3),
    ],
)
def test_fetch_continues_after_a_kill(
    gateway: ArtefactGateway, hub: ArtefactHubServer, step: str, count: int, when: str, left: list[str], asked: int
) -> None:
    kill(gateway, hub, step, count, when)
    assert files(gateway) == left
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == asked, "no byte on disk is fetched again"
    assert files(gateway) == ["1.image"]


def test_image_that_is_not_in_the_index_is_verified_again(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    kill(gateway, hub, "mark_stored")
    image = gateway.data / "artefacts" / "1.image"
    image.write_bytes(IMAGE[:-1] + b"x")
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == 6


@pytest.mark.parametrize("kept", [None, 1_000])
def test_image_in_the_index_whose_file_is_gone_is_fetched_again(
    gateway: ArtefactGateway, hub: ArtefactHubServer, kept: int | None
) -> None:
    kill(gateway, hub, "mark_stored", when="after")
    image = gateway.data / "artefacts" / "1.image"
    if kept is None:
        image.unlink()
    else:
        os.truncate(image, kept)
    assert gateway.fetch() == [IMAGE]
    assert len(hub.ranges()) == 6


def test_files_that_the_index_does_not_know_are_deleted(gateway: ArtefactGateway, hub: ArtefactHubServer) -> None:
    gateway.fetch()
    index = gateway.data / "artefacts"
    (index / "7.part").write_bytes(b"left over")
    (index / "8.image").write_bytes(b"left over")
    assert gateway.fetch() == [IMAGE]
    assert files(gateway) == ["1.image"]


@pytest.mark.parametrize(
    ("step", "when"),
    [
        ("add", "before"),
        ("add", "after"),
        ("mark_stored", "before"),
        ("mark_stored", "after"),
        ("mark_missing", "before"),
    ],
)
def test_old_image_is_served_after_a_kill(
    gateway: ArtefactGateway, hub: ArtefactHubServer, step: str, when: str
) -> None:
    """The version is signed again with another image, and the process is killed while that one takes its place."""
    new = IMAGE[::-1]
    gateway.fetch()
    hub.add(new, sequence=13)
    kill(gateway, hub, step, when=when)
    served: list[bytes] = []

    def is_new(keeper: ArtefactKeeper) -> bool:
        gateway.now += MANIFEST_CHECK_S / 10
        served.extend(each.image.read_bytes() for each in keeper.held.values())
        return new in served

    gateway.run(is_new)
    assert set(served) <= {IMAGE, new}
    assert served[0] == IMAGE or step != "add"
    assert files(gateway) == ["2.image"]
