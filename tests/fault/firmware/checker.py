"""Judge what arrived at a gateway from one example: a pure function of the arrivals."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ExampleVerdict:
    """Faults in the arrivals of one device; all empty is right."""

    lost: list[int]
    """Numbers below the last that never arrived."""
    disordered: list[int]
    """Readings that arrived for the first time after a later one."""
    changed: list[int]
    """Numbers that came with two different contents: a number was given twice, or content was damaged."""
    boots: int
    """Runs of the program in which readings were measured."""
    copies: int
    """Repeated arrivals; allowed, as QoS 1 is at least once."""

    @property
    def right(self) -> bool:
        return not (self.lost or self.disordered or self.changed)


def judge_example(arrivals: list[bytes], stored: int) -> ExampleVerdict:
    """Judge the arrivals of a device that has stored this many readings and says that all are acknowledged."""
    first: dict[int, bytes] = {}
    disordered, changed, boots, highest = [], [], set(), -1
    for content in arrivals:
        reading = json.loads(content)
        number = reading["seq"]
        boots.add(reading["boot"])
        if number in first:
            if first[number] != content:
                changed.append(number)
            continue
        if number < highest:
            disordered.append(number)
        highest = max(highest, number)
        first[number] = content
    lost = sorted(set(range(stored)) - set(first))
    return ExampleVerdict(lost, disordered, changed, len(boots), len(arrivals) - len(first))
