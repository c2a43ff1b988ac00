"""The files of a store are deleted under a serving gateway: it stops acknowledging within a second, and says so."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import edge, wait_until
from tests.support.publisher import Publisher

WAIT_S = 30.0
NOTICED_S = 1.0


def healthz(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_nothing_is_acknowledged_any_more(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway:
        publisher = Publisher("sender", gateway.port("mqtt"), "queue/jobs", window=5)
        publisher.start()
        wait_until(lambda: len(publisher.acked) > 50, timeout_s=WAIT_S, what="messages are acked")
        assert healthz(gateway.port("http")) == (200, {"ok": True, "problems": []})
        for path in (tmp_path / "gw").glob("store.sqlite*"):
            path.unlink()
        deleted_at = time.monotonic()
        wait_until(lambda: healthz(gateway.port("http"))[0] == 503, timeout_s=WAIT_S, what="it is noticed")
        assert time.monotonic() - deleted_at < 10 * NOTICED_S  # on a machine with other work
        [problem] = healthz(gateway.port("http"))[1]["problems"]
        assert "store.sqlite" in problem["what"]
        wait_until(lambda: "store.sqlite" in gateway.log.read_text(), timeout_s=WAIT_S, what="a commit is refused")
        before = len(publisher.acked)
        sent = publisher.sent
        wait_until(lambda: publisher.sent > sent + 20, timeout_s=WAIT_S, what="it is sent more")
        assert len(publisher.acked) == before
        publisher.end()
