"""Journals are read while they are written."""

from __future__ import annotations

import json
from pathlib import Path

from tests.demo.journals import Journal


def test_reader_follows_a_growing_file_and_waits_for_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "d1.jsonl"
    journal = Journal(path, "d1", "gw1")
    journal.follow()
    assert not journal.sends, "a journal that is not there yet"
    path.write_text('{"device": "d1"}\n{"event": "connected", "at": 5, "detail": ""}\n{"acked": 0, "se')
    journal.follow()
    assert journal.connected
    assert journal.sends == {}
    with path.open("a") as file:
        file.write('nds": 2}\n{"published": 9, "waiting": 4, "resent": 1}\n')
    journal.follow()
    journal.follow()
    assert journal.sends == {0: 2}
    assert journal.resent == 1
    assert journal.waiting == 4
    assert not journal.deliveries().ended


def test_end_reports_the_state_of_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "d1.jsonl"
    end = {"published": 3, "acknowledged": 1, "unacknowledged": 1, "dropped": 1, "resent": 0}
    events = [{"event": "disconnected", "at": 7.5, "detail": "reset"}, {"acked": 0, "sends": 1}, {"end": end}]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    journal = Journal(path, "d1", "gw1")
    journal.follow()
    found = journal.deliveries()
    assert (found.unacknowledged, found.dropped, found.ended) == (1, 1, True)
    assert journal.events == [("disconnected", 7.5, "reset")]
    assert not journal.connected
