"""One event, one line: the text of each kind."""

from __future__ import annotations

import pytest

from edge.broker.tracing.events import IN, OUT, TraceEvent, folded, line_of, utc
from edge.broker.tracing.limits import TRACE_TEXT_CHARACTERS_MAX

TIME = "2026-11-28T18:00:05.808123Z"
WHO = {"time": TIME, "client": "meter7", "user": "alice", "remote": "127.0.0.1:42562"}
BEGIN = "18:00:05.808Z"

CASES = [
    (
        TraceEvent(kind="connection", name="accepted", text="MQTT", **WHO),  # type: ignore[arg-type]
        "-- meter7@127.0.0.1:42562 accepted: MQTT",
    ),
    (
        TraceEvent(
            kind="packet", direction=IN, name="PUBLISH", id=7, address="plant/7/temp", flags=("q1", "retain"),
            bytes=32, payload_bytes=13, **WHO,  # type: ignore[arg-type]
        ),
        "<- meter7@127.0.0.1:42562 PUBLISH #7 plant/7/temp q1 retain 13 B in 32 B",
    ),
    (
        TraceEvent(
            kind="packet", direction=OUT, name="PUBACK", id=7, address="plant/7/temp", bytes=5, code=0x10,
            reason="No matching subscribers", **WHO,  # type: ignore[arg-type]
        ),
        "-> meter7@127.0.0.1:42562 PUBACK #7 plant/7/temp 5 B, 0x10 No matching subscribers",
    ),
    (
        TraceEvent(
            kind="outcome", name="PUBLISH", id=7, last_id=9, address="jobs", outcome="stored", log="queue jobs",
            epoch="8b518678aaaa", sequence=41, last_sequence=43, payload_bytes=39, offered=2,
            **WHO,  # type: ignore[arg-type]
        ),
        "== meter7@127.0.0.1:42562 PUBLISH #7-9 jobs 39 B: stored as sequence 41-43, log queue jobs, epoch 8b518678, "
        "offered to 2 subscribers",
    ),
    (
        TraceEvent(
            kind="outcome", name="PUBLISH", id=8, address="other", outcome="refused because not authorized", code=0x87,
            reason="Not authorized", text="alice has no right to send to it", **WHO,  # type: ignore[arg-type]
        ),
        "== meter7@127.0.0.1:42562 PUBLISH #8 other: refused because not authorized (0x87 Not authorized), "
        "alice has no right to send to it",
    ),
    (
        TraceEvent(
            kind="packet", direction=OUT, name="disposition", id=0, last_id=4, channel=1, address="jobs",
            flags=("accepted", "settled"), bytes=23, **WHO,  # type: ignore[arg-type]
        ),
        "-> meter7@127.0.0.1:42562 disposition ch=1 #0-4 jobs accepted settled 23 B",
    ),
    (
        TraceEvent(
            kind="request", name="POST /t/other", payload_bytes=13, code=403, reason="Forbidden",
            text="alice must not send to other", **WHO,  # type: ignore[arg-type]
        ),
        "<> meter7@127.0.0.1:42562 POST /t/other 13 B, 403 Forbidden, alice must not send to other",
    ),
    (
        TraceEvent(kind="dropped", name="dropped", count=2400, time=TIME),
        "!! 2,400 events not shown: more than the trace can keep",
    ),
    (
        TraceEvent(kind="packet", direction=IN, name="SUBSCRIBE", address="a\n\x1b[2Jb", time=TIME, remote="[::1]:7"),
        r"<- -@[::1]:7 SUBSCRIBE a\n\x1b[2Jb",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("event", "line"), CASES, ids=[event.name for event, _ in CASES])
def test_event_is_one_line(event: TraceEvent, line: str) -> None:
    assert line_of(event) == f"{BEGIN} {line}"


@pytest.mark.parametrize(("event", "_line"), CASES, ids=[event.name for event, _ in CASES])
def test_terminal_of_80_columns_gets_the_same_words(event: TraceEvent, _line: str) -> None:
    shown = folded(event, 80).split("\n")
    assert all(len(each) <= 80 for each in shown)
    assert " ".join(" ".join(shown).split()) == line_of(event)
    assert all(each.startswith(" " * 17) for each in shown[1:])


def test_long_text_of_a_client_is_cut() -> None:
    event = TraceEvent(kind="packet", direction=IN, name="PUBLISH", address="x" * (TRACE_TEXT_CHARACTERS_MAX + 1))
    assert line_of(event).count("x") == TRACE_TEXT_CHARACTERS_MAX - 1
    assert line_of(event).endswith("x…")


def test_time_is_utc() -> None:
    assert utc(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
