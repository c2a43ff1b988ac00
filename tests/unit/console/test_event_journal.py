"""Events of a gateway over restarts: bounded files, which a power cut may tear."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from edge.appliance.console import event_journal
from edge.appliance.console.event_journal import FILE, FILE_BYTES_MAX, OLD_FILE, WRITE_BYTES_MAX, EventJournal
from edge.output.log_history import LogHistory, event

EVENTS = 20


class Run:
    """One process: its events, and the journal in a folder."""

    def __init__(self, folder: Path, *, at_s: float) -> None:
        self.history = LogHistory(EVENTS, 100_000, clock=lambda: at_s)
        self.journal = EventJournal(self.history, folder)
        self.journal.load()

    def add(self, *texts: str) -> None:
        for text in texts:
            record = logging.LogRecord("edge.test", logging.INFO, "", 0, text, (), None)
            record.__dict__.update(event("change"))
            self.history.add(record, text)

    @property
    def texts(self) -> list[str]:
        return [line.text for line in self.history.after(None, EVENTS).lines]


def test_events_are_continued_by_the_next_process(tmp_path: Path) -> None:
    first = Run(tmp_path, at_s=1.0)
    first.add("a", "b")
    first.journal.write()
    first.journal.write()  # nothing new
    first.add("c")
    first.journal.write()
    second = Run(tmp_path, at_s=2.0)
    second.add("d")
    assert second.texts == ["a", "b", "c", "d"]
    second.journal.write()
    assert Run(tmp_path, at_s=3.0).texts == ["a", "b", "c", "d"]


def test_events_before_loading_follow_those_of_a_clock_that_was_ahead(tmp_path: Path) -> None:
    ahead = Run(tmp_path, at_s=9.0)
    ahead.add("a")
    ahead.journal.write()
    history = LogHistory(EVENTS, 100_000, clock=lambda: 1.0)
    record = logging.LogRecord("edge.test", logging.INFO, "", 0, "b", (), None)
    history.add(record, "b")
    journal = EventJournal(history, tmp_path)
    journal.load()
    journal.write()
    numbers = [line.number for line in history.after(None, EVENTS).lines]
    assert ([line.text for line in history.after(9_001, EVENTS).lines], numbers) == (["b"], [9_001, 9_002])
    assert Run(tmp_path, at_s=2.0).texts == ["a", "b"]


def test_torn_line_costs_only_itself(tmp_path: Path) -> None:
    first = Run(tmp_path, at_s=1.0)
    first.add("a")
    first.journal.write()
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes() + b'[5, 1.0, 20, "edge')
    second = Run(tmp_path, at_s=2.0)
    second.add("b")
    second.journal.write()
    assert Run(tmp_path, at_s=3.0).texts == ["a", "b"]


def test_flood_is_cut_and_files_are_bounded(tmp_path: Path) -> None:
    run = Run(tmp_path, at_s=1.0)
    for _ in range(2 * FILE_BYTES_MAX // WRITE_BYTES_MAX + 3):
        run.add(*(f"{number} {'x' * 500}" for number in range(EVENTS)))
        run.journal.write()
    sizes = [(tmp_path / name).stat().st_size for name in (FILE, OLD_FILE)]
    assert max(sizes) < FILE_BYTES_MAX + WRITE_BYTES_MAX
    assert Run(tmp_path, at_s=2.0).texts[-1].startswith(f"{EVENTS - 1} ")


def test_one_event_that_cannot_be_kept_costs_only_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, at_s=1.0)
    run.add("a", "x" * WRITE_BYTES_MAX, "half a character \udc80", "b")
    run.journal.write()
    assert Run(tmp_path, at_s=2.0).texts == ["a", "b"]


@pytest.mark.anyio
async def test_journal_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, at_s=1.0)
    failures, written = [RuntimeError("no")], threading.Event()

    def write() -> None:
        if failures:
            raise failures.pop()
        written.set()

    monkeypatch.setattr(run.journal, "write", write)
    monkeypatch.setattr(event_journal, "LOOK_S", 0.0)
    monkeypatch.setattr(event_journal, "WRITE_S", 0.0)
    run.add("a")
    task = asyncio.create_task(run.journal.run())
    assert await asyncio.to_thread(written.wait, 10.0)
    task.cancel()
    await asyncio.wait([task])
    assert [record.message for record in caplog.records] == ["cannot save the events"]


def test_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path / "missing", at_s=1.0)
    for text in "ab":
        run.add(text)
        run.journal.write()
    assert (run.texts, len(caplog.records)) == (["a", "b"], 1)
