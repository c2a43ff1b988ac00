"""News in the batches of gateways for several parts of a hub. A batch is acknowledged when all of them have stored
theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bridge.batch import Batch

Hear = Callable[[str, str, Batch, Callable[[bool], None]], bool]
"""Called with tenant, gateway and batch. Return True if it has news; the function is then called with whether those are
stored."""


def hear_all(*parts: Hear) -> Hear:
    """Return what passes each batch to all of these parts."""

    def hear(tenant: str, gateway: str, batch: Batch, kept: Callable[[bool], None]) -> bool:
        together = JoinedAnswer(kept)
        count = sum([part(tenant, gateway, batch, together.kept) for part in parts])
        if count:
            together.expect(count)
        return count > 0

    return hear


class JoinedAnswer:
    """Joins the answers of several parts to one."""

    __slots__ = ("_answer", "_answers", "_expected")

    def __init__(self, answer: Callable[[bool], None]) -> None:
        """`answer` is called with whether all parts have stored their news."""
        self._answer: Final = answer
        self._answers: list[bool] = []
        self._expected: int | None = None

    def kept(self, kept: bool) -> None:
        """Record the answer of one part."""
        self._answers.append(kept)
        self._answer_when_complete()

    def expect(self, count: int) -> None:
        """Set the number of parts that answer."""
        self._expected = count
        self._answer_when_complete()

    def _answer_when_complete(self) -> None:
        if len(self._answers) == self._expected:
            self._answer(all(self._answers))
