"""Periodic work in parts. An exception in one part does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge.broker.model.isolation import report

Part = tuple[str, Callable[[], object]]
"""Name of the part in the log and in the problems, and its function."""


class Housekeeping:
    """Parts of the periodic work of one owner, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Parts that raised in their last run, with the type of the exception."""
        return self._failing

    def run(self) -> None:
        """Run every part. Log an exception when it is new for its part."""
        for name, work in self._parts:
            try:
                work()
            except Exception as error:
                kind = type(error).__name__
                if self._failing.get(name) != kind:
                    self._failing[name] = kind
                    report(name, "the other parts continue, and it runs again next time", error)
            else:
                if self._failing:
                    self._failing.pop(name, None)
