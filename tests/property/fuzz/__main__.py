"""Fuzzing campaign: run every target under atheris for some CPU time, one at a time, and print a table of the results.

    python -m tests.property.fuzz [TARGET…] [--seconds 600] [--work FOLDER]

Targets take turns of a minute, so that each has its share when the campaign is stopped. The campaign continues where it
stopped. FOLDER keeps the corpus, the findings (`FOLDER/TARGET/finding-…`) and the resources used by each turn. Exits 1
when a target has a finding, 3 without atheris.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from tests.property.fuzz.harness import NO_ATHERIS, PROGRESS, work_folder
from tests.property.fuzz.targets import NAMES

TURN_S: Final = 60.0
"""Length of a turn in CPU seconds."""
LOG_LINES: Final = 30
"""Number of log lines of a run with a finding: they contain the exception and its location."""


class Turn(NamedTuple):
    """Resources used by one process."""

    inputs: int
    cpu_s: float
    peak_mib: float
    grew_mib: float
    """Growth of resident memory after the warm-up."""


class Work:
    """Folder of one target."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._turns_file = folder / "turns.jsonl"
        self._progress = folder / PROGRESS
        self.findings = {path.name for path in folder.glob("finding-*")}

    @property
    def turns(self) -> list[Turn]:
        if not self._turns_file.exists():
            return []
        return [Turn(**json.loads(line)) for line in self._turns_file.read_text().splitlines()]

    @property
    def cpu_s(self) -> float:
        return sum(turn.cpu_s for turn in self.turns)

    def run(self, name: str, seconds: float) -> None:
        """Run one turn. Exits 3 without atheris."""
        self._progress.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.property.fuzz.harness", name]
        command += ["--seconds", str(seconds), "--work", str(self._folder)]
        log = self._folder / "log"
        with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                code = process.wait()
            finally:
                process.kill()
                process.wait()
                self._keep_progress()
        if code == NO_ATHERIS:
            click.echo(log.read_text(), err=True, nl=False)
            sys.exit(NO_ATHERIS)
        found = {path.name for path in self._folder.glob("finding-*")} - self.findings
        if code != 0:
            click.echo(f"{name}: {', '.join(sorted(found)) or 'ended'} (exit code {code})", err=True)
            click.echo("\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]), err=True)
            self.findings |= found or {f"exit code {code}"}

    def _keep_progress(self) -> None:
        if self._progress.exists():
            with self._turns_file.open("a") as turns:
                turns.write(self._progress.read_text() + "\n")
            self._progress.unlink()


def table(rows: Iterable[tuple[str, Sequence[Turn], int]]) -> str:
    """Return a table with a line for each (target, its turns, its findings)."""
    heads = ("inputs", "CPU s", "inputs/s", "peak MiB", "grew MiB", "findings")
    lines = [f"{'target':18}" + "".join(f"{head:>10}" for head in heads)]
    for name, turns, findings in rows:
        inputs, cpu_s = sum(turn.inputs for turn in turns), sum(turn.cpu_s for turn in turns)
        peak, grew = (max((turn[i] for turn in turns), default=0.0) for i in (2, 3))
        rate = inputs / cpu_s if cpu_s else 0.0
        lines.append(f"{name:18}{inputs:10}{cpu_s:10.0f}{rate:10.0f}{peak:10.0f}{grew:10.1f}{findings:10}")
    return "\n".join(lines)


@click.command()
@click.argument("names", nargs=-1, metavar="[TARGET…]")
@click.option("--seconds", type=float, default=600.0, show_default=True, help="CPU time of each target, all turns.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Corpus, findings and what was used.")
@click.option("--list", "listing", is_flag=True, help="Name the targets and stop.")
def campaign(names: tuple[str, ...], seconds: float, work: Path | None, listing: bool) -> None:
    """Fuzz the given targets, or all of them."""
    if listing:
        click.echo("\n".join(NAMES))
        return
    if unknown := [name for name in names if name not in NAMES]:
        raise click.UsageError(f"no target called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    folder = work or work_folder()
    works = {name: Work(folder / name) for name in dict.fromkeys(names or NAMES)}
    signal.signal(signal.SIGTERM, _stop)
    try:
        take_turns(works, seconds)
    finally:
        click.echo(table((name, each.turns, len(each.findings)) for name, each in works.items()))
    sys.exit(1 if any(each.findings for each in works.values()) else 0)


def _stop(number: int, _frame: object) -> None:
    """Let the current turn end and count. `timeout` sends its signal twice."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def take_turns(works: dict[str, Work], seconds: float) -> None:
    """Run turns until each target has used its time.

    A target with a finding waits until the defect is fixed: it would find the same again.
    """
    while due := {name: each for name, each in works.items() if seconds - each.cpu_s > 1 and not each.findings}:
        for name, each in due.items():
            each.run(name, min(TURN_S, seconds - each.cpu_s))
            click.echo(f"{name}: {each.cpu_s:.0f} of {seconds:.0f} CPU seconds", err=True)


if __name__ == "__main__":
    campaign()
