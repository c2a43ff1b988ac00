"""Cases of the rule of completeness, with their results."""

from __future__ import annotations

import datetime
from typing import Any

from spark.kernels import judgement

START = datetime.datetime(2026, 3, 14, 9, tzinfo=datetime.UTC)


HOUR = datetime.timedelta(hours=1)


Case = dict[str, Any]
"""`landed`: spans; `ledger`: (first, last, reason); `stated`: (first, last, hours after START of its landing);
`waiting`: backlog of the newest status, landed at `said` hours; None without one.
"""


def case(**said: Any) -> Case:
    return {"landed": [], "ledger": [], "stated": [], "waiting": 0, "said": 100.0, "lanes": False} | said


GOLDEN: dict[str, tuple[Case, list[tuple[int, int, int, int, dict[str, int], int, int]]]] = {
    "all there": (case(landed=[(0, 9)], stated=[(0, 9, 1)]), [(0, 9, 10, 10, {}, 0, 0)]),
    "given up": (
        case(landed=[(0, 2), (5, 9)], ledger=[(3, 4, "expired")], stated=[(0, 9, 1)]),
        [(0, 9, 10, 8, {"expired": 2}, 0, 0)],
    ),
    "stated and still at the gateway": (
        case(landed=[(0, 4)], stated=[(0, 9, 1)], waiting=5),
        [(0, 9, 10, 5, {}, 5, 0)],
    ),
    "stated, and the gateway says that nothing waits": (
        case(landed=[(0, 4)], stated=[(0, 9, 1)]),
        [(0, 9, 10, 5, {}, 0, 5)],
    ),
    "stated after the newest status": (
        case(landed=[(0, 4)], stated=[(0, 9, 1)], said=0.0),
        [(0, 9, 10, 5, {}, 5, 0)],
    ),
    "a hole below what has landed": (
        case(landed=[(0, 4), (6, 9)], stated=[(0, 9, 1)], waiting=5),
        [(0, 9, 10, 9, {}, 0, 1)],
    ),
    "a hole of a gateway that sends its backlog beside": (
        case(landed=[(0, 4), (6, 9)], stated=[(0, 9, 1)], waiting=5, lanes=True),
        [(0, 9, 10, 9, {}, 1, 0)],
    ),
    "an hour that is not over": (
        case(landed=[(0, 14)], stated=[(0, 9, 1)]),
        [(0, 9, 10, 10, {}, 0, 0), (10, 14, 5, 5, {}, 0, 0)],
    ),
    "a hole in an hour that is not over": (
        case(landed=[(0, 9), (12, 14)], stated=[(0, 9, 1)]),
        [(0, 9, 10, 10, {}, 0, 0), (10, 14, 5, 3, {}, 0, 2)],
    ),
    "an address that is not stated": (case(landed=[(5, 6), (9, 9)]), [(5, 9, 5, 3, {}, 2, 0)]),
    "a statement that is there twice": (
        case(landed=[(0, 9)], stated=[(0, 9, 1), (0, 9, 2)]),
        [(0, 9, 10, 10, {}, 0, 0)],
    ),
    "nothing has landed": (case(stated=[(0, 9, 1)], waiting=10), [(0, 9, 10, 0, {}, 10, 0)]),
    "all was given up": (
        case(ledger=[(0, 9, "evicted")], stated=[(0, 9, 1)]),
        [(0, 9, 10, 0, {"evicted": 10}, 0, 0)],
    ),
}


def judge_with_spark(said: Case) -> list[judgement.AccountLine]:
    stated = [
        judgement.HourStatement(START, START + hours * HOUR, first, last, START + hours * HOUR)
        for first, last, hours in said["stated"]
    ]
    at = START + said["said"] * HOUR if said["waiting"] is not None else None
    circumstances = judgement.AccountCondition(said["waiting"], at, said["lanes"])
    return judgement.judge(said["landed"], said["ledger"], stated, circumstances)
