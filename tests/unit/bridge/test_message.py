"""The message model (`bridge.message`)."""

from __future__ import annotations

from bridge.batch import decode, encode
from bridge.engine import Link, Transfers
from bridge.lane import BatchLane
from bridge.message import Run, Stored

SECRET = b"the pressure of vessel 7"


class TestRepresentation:
    def test_run_shows_counts_and_sizes_without_bodies(self) -> None:
        run = Run("plant/7", "press", 1, b"prop", [SECRET, SECRET])

        shown = repr(run)

        assert shown == "<Run of 2 to 'plant/7' from 'press', 70 bytes, flags 0x01>"
        assert "vessel" not in shown
        assert "prop" not in shown

    def test_containers_of_a_run_show_no_bodies(self) -> None:
        stored = Stored(7, 9, Run("plant/7", "press", 1, b"", [SECRET]))

        assert "vessel" not in repr(stored)
        assert "vessel" not in str([stored])
        assert "vessel" not in repr(ValueError("cannot deliver", stored))

    def test_transfers_and_batches_show_no_bodies(self) -> None:
        link = Link(None, None, "sender", is_sender=False, ours=False)
        batch = decode(
            encode([Stored(7, 9, Run("a", "d", 1, b"", [SECRET]))], space="s", epoch="e", lane=BatchLane.LIVE)
        )

        assert "vessel" not in repr(Transfers(link, range(1), [SECRET], settled=False))
        assert "vessel" not in repr(batch)
        assert "vessel" not in repr(batch.stored())
