"""Progress of a gateway towards its wanted system, from the records of its machine's services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bridge.desired import SystemPhase
from bridge.resources.parse import parse
from edge.appliance.update.following import SLOTS, SystemFollower
from edge.appliance.update.record import Update, UpdateRecord
from edge.appliance.update.wanted import ROOT, DownloadProgress, MachineSystems, WantedFiles, WantedSystem, report
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from tests.support.processes import wait_until

OLD, NEW = "a" * 64, "b" * 64
WANTED = WantedSystem(version="2", build=NEW, url="https://localhost/2.raucb", sha256="c" * 64, size=1_000)
LAST = Update(slot="B", version="2", build=NEW, before="1", state="installing")
HERE = DownloadProgress(sha256=WANTED.sha256, bytes=1_000)
SYSTEM = f"""
apiVersion: waypost/v1
kind: System
metadata: {{name: gateway}}
spec: {{version: "2", build: {NEW}, url: "https://localhost/2.raucb", sha256: {"c" * 64}, size: 1000}}
"""
GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall}
spec: {limits: {freeFloorBytes: 1000000}}
"""


def last(state: str, why: str = "", *, ran: bool = False, build: str = NEW) -> Update:
    return msgspec.structs.replace(LAST, state=state, why=why, ran=ran, build=build)


@pytest.mark.parametrize(
    ("machine", "fetched", "phase", "why", "percent"),
    [
        (MachineSystems("", None), DownloadProgress(), "waiting", "the running system is being identified", 0),
        (MachineSystems(OLD, None), DownloadProgress(), "waiting", "", 0),
        (MachineSystems(OLD, None), DownloadProgress(sha256="other", bytes=900), "waiting", "", 0),
        (
            MachineSystems(OLD, None),
            DownloadProgress(sha256=WANTED.sha256, bytes=459, trouble="404"),
            "fetching",
            "404",
            40,
        ),
        (MachineSystems(OLD, None), DownloadProgress(sha256=WANTED.sha256, refused="another"), "refused", "another", 0),
        (MachineSystems(OLD, None), HERE, "installing", "", 100),
        (MachineSystems(OLD, last("kept", build="older")), HERE, "installing", "", 100),
        (MachineSystems(OLD, last("cut off", "no power")), HERE, "installing", "no power", 100),
        (MachineSystems(OLD, last("installing")), HERE, "installing", "", 0),
        (MachineSystems(OLD, last("trial")), HERE, "trying", "", 0),
        (MachineSystems(NEW, last("trial")), HERE, "trying", "", 0),
        (MachineSystems("", last("trial")), HERE, "trying", "", 0),
        (MachineSystems(NEW, last("kept")), HERE, "kept", "", 0),
        (MachineSystems(NEW, None), DownloadProgress(), "kept", "", 0),
        (MachineSystems(OLD, last("given up", "ill", ran=True)), HERE, "rolled-back", "ill", 0),
        (MachineSystems(OLD, last("given up", "forged")), HERE, "refused", "forged", 0),
        (MachineSystems(OLD, last("given up", "ill", ran=True, build="older")), DownloadProgress(), "waiting", "", 0),
    ],
)
def test_progress_is_reported(
    machine: MachineSystems, fetched: DownloadProgress, phase: str, why: str, percent: int
) -> None:
    told = report(WANTED, machine, fetched)
    assert (told.phase.value, told.why, told.percent, told.version) == (phase, why, percent, "2")


def test_report_of_a_machine_is_read(tmp_path: Path) -> None:
    assert MachineSystems.of(tmp_path) == MachineSystems("", None)
    (tmp_path / ROOT).parent.mkdir(parents=True)
    (tmp_path / ROOT).write_text(f"{OLD}\n")
    UpdateRecord(tmp_path).write(last("kept"))
    assert MachineSystems.of(tmp_path) == MachineSystems(OLD, last("kept"))


class Followed:
    """The data directory of a gateway on a machine with slots."""

    def __init__(self, folder: Path) -> None:
        self.data, self.root = folder / "data", folder / "root"
        (self.root / SLOTS).parent.mkdir(parents=True)
        (self.root / SLOTS).touch()
        (self.root / ROOT).parent.mkdir(parents=True)
        self.runs(OLD)
        self.repository = Repository(self.data)
        self.files = WantedFiles(self.data)
        self.follower = SystemFollower(self.data, self.root)
        self.changed: Callable[[], None] = lambda: None

    def runs(self, build: str) -> None:
        (self.root / ROOT).write_text(build)

    def apply(self, text: str) -> None:
        self.repository.apply(parse(KINDS, text, "test"))

    def phase(self) -> SystemPhase | None:
        told = self.follower.report()
        return None if told is None else told.phase

    def watched(self, done: object) -> None:
        """Run the follower until `done` is true."""
        assert callable(done)

        async def watch() -> None:
            task = asyncio.create_task(self.follower.watch(self.changed))
            await asyncio.to_thread(wait_until, done, timeout_s=60, what="it is followed")
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        asyncio.run(watch())


def test_wanted_system_is_passed_on_until_it_runs(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    told: list[SystemPhase | None] = []
    followed.changed = lambda: told.append(followed.phase())
    assert followed.phase() is None
    followed.apply(GATEWAY)
    followed.apply(SYSTEM)
    followed.watched(lambda: followed.files.wanted() is not None)
    wanted = followed.files.wanted()
    assert wanted is not None
    assert (wanted.gateway, wanted.keep_free, wanted.build) == ("hall", 1_000_000, NEW)
    followed.files.part(wanted).write_bytes(b"part")
    followed.runs(NEW)
    followed.watched(lambda: not list(followed.files.folder.iterdir()))
    assert told == [SystemPhase.WAITING, SystemPhase.KEPT]


def test_machine_without_slots_refuses(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    system = parse(KINDS, SYSTEM, "test")
    assert followed.follower.fault(system) is None
    (followed.root / SLOTS).unlink()
    assert "not from a card" in str(followed.follower.fault(system))
    assert followed.follower.fault(parse(KINDS, GATEWAY, "test")) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a.example/x", "expected https://host/path"),
        ("https:///x", "expected https://host/path"),
        ("https://a.example:0/x", "expected https://host/path"),
        ("https://[/x", "expected https://host/path"),
        ("https://ann:secret@a.example/x", "remove the user name and the password"),
    ],
)
def test_machine_that_cannot_fetch_refuses(url: str, words: str) -> None:
    [fault] = KINDS.validate(parse(KINDS, SYSTEM.replace("https://localhost/2.raucb", url), "test"))
    assert words in str(fault)
