"""Power cuts: a sequence of store lives, each recorded, cut at many points, and continued from one of them.

A life is the workload on a disk, killed at a random sync and restarted a few times. In some lives syncs fail, or the
medium is full for a while. The campaign then cuts the trace: first before and after every sync, else anywhere. Each cut
gives a possible state of the disk (`disk`). The store is opened on it, read, checked against the history (`history`)
and used.
"""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from edge.appliance.store.recovery.verification import verify
from edge.broker.store.errors import StoreError
from tests.fault.store.disk import Disk
from tests.fault.store.history import History, Line, Observed
from tests.fault.store.in_memory import ADDRESSES
from tests.fault.store.observe import account, observe, open_store, use
from tests.fault.store.workload import REFUSED
from tests.support.medium import Event, Files, Kind, Medium, fast_folder

COMMITS = 60
"""Limit for each process of a life."""
PROCESSES = 3
_decode = msgspec.json.Decoder(Line).decode


@dataclass
class Findings:
    """Results of the cuts."""

    cuts: int = 0
    lives: int = 0
    hows: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    """Cuts with a commit that was started and not answered."""
    joined: int = 0
    """Number of these in which the commit was complete."""
    refused: int = 0
    """Commits refused because a sync failed or the medium was full."""
    reopened: int = 0
    waited: int = 0
    """Groups that waited for more: they contained nothing urgent."""
    taken: int = 0
    """Messages taken in memory."""
    messages: int = 0
    """Messages read and compared."""
    giving: int = 0
    """Cuts within a commit that adds to the ledger."""
    lost: Counter[str] = field(default_factory=Counter)
    """Messages in the compared ledgers, by reason."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cuts} cuts of {self.lives} lives ({dict(self.hows)}), {self.in_flight} within a commit, of which "
            f"{self.joined} were found complete; {self.refused} commits refused; {self.reopened} openings in the "
            f"lives; {self.waited} groups waited; {self.taken} messages taken in memory; {self.messages} messages "
            f"compared; {self.giving} cuts within a commit that gives up messages, "
            f"{dict(self.lost)} in the ledgers compared; {len(self.problems)} contradictions"
        )


class Campaign:
    """Runs until there are enough cuts; `folder` is scratch space, best in memory."""

    def __init__(self, seed: int, *, cuts_a_life: int, folder: Path) -> None:
        self.seed = seed
        self.findings = Findings()
        self._cuts_a_life = cuts_a_life
        self._folder = folder
        self._dice = random.Random(seed)
        self._files: dict[str, bytes] = {}
        self._folders: set[str] = set()
        self._base: Observed | None = None

    def run(self, cuts: int) -> Findings:
        while self.findings.cuts < cuts and not self.findings.problems:
            self._life()
        return self.findings

    def _life(self) -> None:
        self.findings.lives += 1
        seed = self._dice.randrange(1 << 32)
        root = self._folder / "disk"
        _write(root, self._files, self._folders)
        with Medium(root, folder=self._folder, tracing=True) as medium:
            for process in range(PROCESSES):
                self._process(medium, root, seed + process)
            events = medium.events()
        (self._folder / "medium.trace").unlink()
        shutil.rmtree(root)
        self._cut_up(seed, str(root), events)

    def _process(self, medium: Medium, root: Path, seed: int) -> None:
        dice = random.Random(seed)
        medium.heal()
        trouble = dice.random()
        if trouble < 0.3:
            medium.fail(
                dice.choice((Files.LOG, Files.DATABASE)),
                sync=errno.EIO,
                syncs_before=dice.randrange(30),
                syncs_failing=dice.choice((1, 1, 2, 5)),
            )
        elif trouble < 0.5:
            store = Files.DATABASE | Files.LOG
            medium.limit(dice.randrange(600_000), files=store, refusals=dice.randrange(1, 30))
        medium.die(syncs_before=dice.randrange(4, 2 * COMMITS))
        failures, refused = medium.count("failures"), _refused(root)
        done = work(medium, root, seed, COMMITS)
        troubled = medium.count("failures") > failures
        if done.returncode not in ({0, 137, REFUSED} if troubled else {0, 137}):
            self.findings.problems.append(f"seed {self.seed}, life {self.findings.lives}: {done.stderr}")
        if not troubled and _refused(root) > refused:
            self.findings.problems.append(f"seed {self.seed}, life {self.findings.lives}: refused by a sound medium")

    def _cut_up(self, seed: int, root: str, events: list[Event]) -> None:
        """Play the trace and cut on the way; the next life starts from one of the cuts."""
        dice = random.Random(seed)
        points = _points(events, self._cuts_a_life, dice)
        disk = Disk({f"{root}/{name}": data for name, data in self._files.items()}, {root, *self._absolute(root)}, seed)
        history = History()
        if self._base is not None:
            history.adopt(self._base)
        lines = _Lines()
        going_on = dice.choice(points)
        for index, event in enumerate([*events, None]):
            while points and points[0] == index:
                points.pop(0)
                files, folders, how = disk.cut(dice)
                where = f"seed {self.seed}, life {self.findings.lives}, event {index} of {len(events)}, {how}"
                image = {name.removeprefix(f"{root}/"): data for name, data in files.items() if "history" not in name}
                kept = {name.removeprefix(f"{root}/") for name in folders if name != root}
                observed = self._check(image, kept, history, where, how)
                if index >= going_on and observed is not None and index > 100:
                    going_on = len(events) + 1
                    next_life = (image, kept, observed)
            if event is not None:
                for line in lines.of(event):
                    try:
                        history.follow(line)
                    except AssertionError as error:
                        self.findings.problems.append(f"seed {self.seed}, life {self.findings.lives}, {index}: {error}")
                        return
                    self.findings.reopened += line.what == "opened"
                    self.findings.refused += line.what == "refused"
                    self.findings.waited += line.what == "unsealed"
                    self.findings.taken += sum(len(bodies) for *_, bodies in line.taken)
                if not lines.path_of(event).endswith("/history"):
                    disk.apply(event)
        if going_on > len(events):
            self._files, self._folders, self._base = next_life

    def _absolute(self, root: str) -> set[str]:
        return {f"{root}/{name}" for name in self._folders}

    def _check(
        self, image: dict[str, bytes], folders: set[str], history: History, where: str, how: str
    ) -> Observed | None:
        findings = self.findings
        findings.cuts += 1
        findings.hows[how] += 1
        findings.in_flight += bool(history.uncertain)
        findings.giving += any(
            sealed.group.given or sealed.group.evicted or sealed.group.thinned for sealed in history.uncertain
        )
        place = self._folder / "found"
        _write(place, image, folders)
        if (place / "data" / "store.sqlite").exists() and findings.cuts % 4 == 0:
            # The log's index is not durable, so it may have any content.
            (place / "data" / "store.sqlite-shm").write_bytes(random.Random(where).randbytes(32_768))
        try:
            observed = _look(place / "data", again=findings.cuts % 8 == 0)
        except (StoreError, sqlite3.Error, AssertionError) as error:
            findings.problems.append(f"{where}: {type(error).__name__}: {error}")
            return None
        finally:
            shutil.rmtree(place)
        problems = history.problems(observed)
        findings.problems += [f"{where}: {problem}" for problem in problems]
        findings.messages += sum(map(len, observed.messages.values()))
        for *_, messages, _, reason in observed.ledger:
            findings.lost[reason] += messages
        findings.joined += bool(history.uncertain) and any(
            observed.bounds[log][1] != end
            for log, end in history.committed.ends.items()
            if log in observed.bounds and log not in ADDRESSES  # their ends may be reserved further
        )
        return observed


def work(medium: Medium, root: Path, seed: int, commits: int) -> subprocess.CompletedProcess[str]:
    """Run the workload below `root` until it ends, or dies on a failure of `medium`."""
    command = [sys.executable, "-m", "tests.fault.store.workload", str(root / "data"), str(root / "history")]
    environment = {**medium.environment, "PYTHONHASHSEED": str(seed % (1 << 32))}
    return subprocess.run(
        [*command, str(seed), str(commits)], env=environment, capture_output=True, text=True, check=False
    )


def _refused(root: Path) -> int:
    """Return the number of refused commits so far in a life."""
    history = root / "history"
    return history.read_bytes().count(b'{"what":"refused"') if history.exists() else 0


class _Lines:
    """Parser of the history from the writes to its file in the trace."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def path_of(self, event: Event) -> str:
        if event.kind in {Kind.OPENED, Kind.CREATED}:
            self._paths[event.file] = event.data.decode()
        return self._paths.get(event.file, "") if event.file else ""

    def of(self, event: Event) -> list[Line]:
        if event.kind is Kind.WRITTEN and self.path_of(event).endswith("/history"):
            return [_decode(line) for line in event.data.splitlines()]
        return []


def _look(directory: Path, *, again: bool) -> Observed:
    """Open the store as found, read and use it. With `again`, open it once more, and run SQLite's check and ours."""
    rig = open_store(directory)
    try:
        assert account(rig), "nothing can be committed"
        observed = observe(rig)
        use(rig, observed)
    finally:
        rig.store.close()
    if again:
        rig = open_store(directory)
        after = observe(rig)
        rig.store.close()
        for log, messages in observed.messages.items():
            kept = after.messages[log]
            assert log == "probe" or kept == messages[len(messages) - len(kept) :], f"{log}: changed by being used"
        connection = sqlite3.connect(directory / "store.sqlite")
        verdict = connection.execute("PRAGMA integrity_check").fetchall()
        connection.close()
        assert verdict == [("ok",)], verdict
        report = verify(directory / "store.sqlite")
        assert not report.findings, report.findings
    return observed


def _points(events: list[Event], count: int, dice: random.Random) -> list[int]:
    """Return ascending cut points.

    They are around every sync, as long as these make up at most two thirds of `count`, and else anywhere.
    """
    syncs = [index + after for index, event in enumerate(events) if event.kind is Kind.SYNCED for after in (0, 1)]
    chosen = dice.sample(syncs, min(len(syncs), 2 * count // 3))
    return sorted([*chosen, *(dice.randrange(len(events) + 1) for _ in range(count - len(chosen)))])


def _write(place: Path, files: dict[str, bytes], folders: set[str]) -> None:
    place.mkdir()
    for name in sorted(folders):
        (place / name).mkdir()
    for name, data in files.items():
        (place / name).write_bytes(data)


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cuts-", dir=fast_folder())
