"""Errors next to a commit do not end the thread that commits; after its end commits fail with an error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edge.broker.store import writer
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import run_of, sqlite_rig


def test_exception_in_a_checkpoint_keeps_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = sqlite_rig(tmp_path)
    medium = rig.store.medium
    assert isinstance(medium, SqliteMedium)

    def wrong(_: int) -> None:
        raise TypeError("a mistake")

    monkeypatch.setattr(medium.writer._checkpointer, "committed", wrong)
    log = rig.store.logs.open("a")
    with caplog.at_level(logging.ERROR):
        for turn in range(3):
            rig.store.logs.append(log, run_of(b"x"))
            assert rig.commit().error is None, turn
        assert not medium.problems
        rig.store.close()
    assert len(caplog.records) >= 3
    assert {record.message for record in caplog.records} == {"checkpoint failed: unexpected error"}


def test_commits_fail_after_the_thread_has_ended(tmp_path: Path) -> None:
    """Closing does not wait for the thread for ever."""
    rig = sqlite_rig(tmp_path)
    medium = rig.store.medium
    assert isinstance(medium, SqliteMedium)
    log = rig.store.logs.open("a")
    rig.commit()
    end_thread(medium)
    rig.store.logs.append(log, run_of(b"x"))
    assert "the thread that commits has ended" in str(rig.commit().error)
    rig.store.logs.append(log, run_of(b"y"))
    rig.store.close()
    assert "the thread that commits has ended" in str(rig.commits[-1].error)


def end_thread(medium: SqliteMedium) -> None:
    medium.writer._jobs.put(None)
    medium.writer._writing.join(20)
    assert not medium.writer.alive


def test_any_number_of_rows_is_written_by_few_statements() -> None:
    """SQLite caches each prepared statement: one for every number of rows would be hundreds."""
    texts: dict[str, None] = {}
    for count in range(600):
        rows = [("kind", str(number), b"") for number in range(count)]
        written: list[object] = []
        for text, parameters in writer._inserts(writer._STATE, rows):
            texts[text] = None
            written += parameters
        assert written == [value for row in rows for value in row]
    powers = (writer.PARAMETERS_MAX // len(writer._STATE.columns)).bit_length()
    assert len(texts) <= writer.ROWS_EXACT_MAX + powers - writer.ROWS_EXACT_MAX.bit_length()
