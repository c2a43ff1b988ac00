"""Parts of the housekeeping: an exception of one is logged and does not stop the others."""

from __future__ import annotations

import pytest

from edge.broker.model.housekeeping import Housekeeping


def test_part_that_raises_does_not_starve_others(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[str] = []
    broken = True

    def raises() -> None:
        turns.append("first")
        if broken:
            raise KeyError("vessel")

    housekeeping = Housekeeping((("first", raises), ("second", lambda: turns.append("second"))))
    for _ in range(3):
        housekeeping.run()
    assert turns == ["first", "second"] * 3
    assert housekeeping.failing == {"first": "KeyError"}
    assert len(caplog.records) == 1, "it is news once"
    assert "vessel" not in caplog.text
    broken = False
    housekeeping.run()
    assert not housekeeping.failing
