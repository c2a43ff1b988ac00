"""Work done again and again in parts: each has its turn, whatever another one raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge.broker.model.isolation import report

Part = tuple[str, Callable[[], object]]
"""What it is called in the log and among the problems, and the work."""


class Housekeeping:
    """The parts of one owner, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Parts that raised in their last turn, with the type of what they raised."""
        return self._failing

    def run(self) -> None:
        """Give every part its turn. What one raises is logged when it is new."""
        for name, work in self._parts:
            try:
                work()
            except Exception as error:
                kind = type(error).__name__
                if self._failing.get(name) != kind:
                    self._failing[name] = kind
                    report(name, "the other parts go on, and it has its next turn", error)
            else:
                if self._failing:
                    self._failing.pop(name, None)
