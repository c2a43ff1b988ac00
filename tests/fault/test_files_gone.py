"""A gateway stops acknowledging within a second after its store's files are deleted, and reports it.

It ends when another data directory replaces its own: it would serve the users and settings of that one.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.problems import await_problem, health
from tests.support.processes import edge, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0
NOTICED_S = 1.0


def test_deleted_store_files_end_acknowledgements(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        publisher = Publisher("sender", gateway.port("mqtt"), "queue/jobs", window=5)
        publisher.start()
        wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
        assert health(gateway.port("http")) == (200, [])
        for path in (tmp_path / "gw").glob("store.sqlite*"):
            path.unlink()
        deleted_at = time.monotonic()
        await_problem(gateway.port("http"), "store", "store.sqlite")
        assert time.monotonic() - deleted_at < 10 * NOTICED_S  # on a machine with other work
        wait_until(lambda: "store.sqlite" in gateway.log.read_text(), timeout_s=WAIT_S, what="a commit is refused")
        publisher.wait_for_more(20)  # acknowledgements that were under way have been counted
        before = len(publisher.acked)
        publisher.wait_for_more(20)
        assert len(publisher.acked) == before
        publisher.end()


def test_gateway_ends_when_its_data_directory_is_replaced(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        publisher = Publisher("sender", gateway.port("mqtt"), "queue/jobs", window=5)
        publisher.start()
        wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
        own, other = tmp_path / "gw", tmp_path / "other"
        with edge(tmp_path, "other") as another:
            assert another.stop() == 0
        own.rename(tmp_path / "before")
        await_problem(gateway.port("http"), "store", "store.sqlite")
        assert gateway.process is not None
        assert gateway.process.poll() is None, "it may be moved back"
        other.rename(own)
        assert gateway.ends() == 1
        publisher.end()
    assert f"{own} was deleted or moved and created again" in gateway.log.read_text()
    with edge(tmp_path, "gw") as again:
        assert health(again.port("http")) == (200, [])
        assert again.stop() == 0
