"""Lines of the log that a process keeps for its console."""

from __future__ import annotations

import logging
import os

from edge.output.limits import LINES_KEPT_MAX
from edge.output.log_history import LogHistory, event
from edge.output.logs import LogWriter

LINES = 4


def record(text: str = "x") -> logging.LogRecord:
    return logging.LogRecord("edge.test", logging.INFO, "", 0, text, (), None)


def history(*texts: str, lines: int = LINES, characters: int = 1_000) -> LogHistory:
    made = LogHistory(lines, characters, clock=lambda: 5.0)
    for text in texts:
        made.add(record(), text)
    return made


def texts_after(known: LogHistory, number: int | None, limit: int = 10) -> list[str]:
    return [line.text for line in known.after(number, limit).lines]


def test_oldest_lines_give_way() -> None:
    known = history(*"abcdef")
    assert texts_after(known, None) == list("cdef")
    assert [line.number for line in known.after(None, 10).lines] == [5_003, 5_004, 5_005, 5_006]


def test_characters_are_bounded() -> None:
    assert texts_after(history("a" * 60, "b" * 60, "c" * 30, characters=100), None) == ["b" * 60, "c" * 30]


def test_lines_after_a_number_come_in_order_and_in_parts() -> None:
    known = history(*"abcd")
    first = known.after(5_000, 2)
    assert ([line.text for line in first.lines], first.next, first.missed) == (["a", "b"], 5_002, 0)
    second = known.after(first.next, 2)
    assert ([line.text for line in second.lines], second.next) == (["c", "d"], 5_004)
    assert known.after(second.next, 2).lines == []


def test_lines_that_are_gone_are_counted() -> None:
    assert history(*"abcdef").after(5_000, 10).missed == 2


def test_unknown_number_counts_as_none() -> None:
    """The clock was set back before a restart."""
    assert texts_after(history(*"ab"), 9_999_999) == ["a", "b"]


def test_filter_does_not_return_the_same_lines_again() -> None:
    known = history(*"abcd")
    found = known.after(5_000, 10, lambda line: line.text == "b")
    assert ([line.text for line in found.lines], found.next) == (["b"], 5_004)


def test_tail_takes_the_last_lines_that_fit() -> None:
    known = history("aaa", "bbb", "ccc", "ddd")
    tail = known.tail(5_000, 10, characters_max=7)
    assert ([line.text for line in tail.lines], tail.missed, tail.next) == (["ccc", "ddd"], 2, 5_004)
    assert [line.text for line in known.tail(5_000, 1, characters_max=100).lines] == ["ddd"]


def test_writer_keeps_lines_and_events() -> None:
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    log = logging.Logger("test.kept")  # noqa: LOG001 - of this test alone
    log.addHandler(writer)
    log.info("user %s\nforged", "pump7")
    log.info("audit", extra=event("change"))
    writer.close()
    os.close(writing)
    os.close(reading)
    assert [(line.text, line.event) for line in writer.histories.lines.after(None, 10).lines] == [
        ("user pump7\\nforged", ""),
        ("audit", "change"),
    ]
    assert [line.text for line in writer.histories.events.after(None, 10).lines] == ["audit"]


def test_writer_keeps_a_bounded_number_of_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)  # no reader
    writer = LogWriter(writing)
    log = logging.Logger("test.many")  # noqa: LOG001 - of this test alone
    log.addHandler(writer)
    for number in range(LINES_KEPT_MAX + 10):
        log.debug("%d", number)
    writer.close()
    os.close(writing)
    kept = writer.histories.lines.after(None, 2 * LINES_KEPT_MAX).lines
    assert (len(kept), kept[-1].text) == (LINES_KEPT_MAX, str(LINES_KEPT_MAX + 9))
