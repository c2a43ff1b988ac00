"""The router network at the console of a gateway: the tree of paths, and what its connector has carried."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Browser
from proton import Message

from tests.console.visit import DESKTOP, PHONE, visiting
from tests.support.amqp_client import amqp_client
from tests.support.linked_gateways import LOWER, ROUTER, gateway, upper
from tests.support.processes import Waypost


@pytest.fixture(scope="module")
def lower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    """Yield a gateway behind another one, and a third one, after a message to a consumer at the other one."""
    folder = tmp_path_factory.mktemp("network")
    with (
        upper(folder, ROUTER) as far,
        gateway(folder, "lower", LOWER.format(name="lower", port=far.port("amqp"))) as near,
        gateway(folder, "plant", LOWER.format(name="plant", port=far.port("amqp"))),
        amqp_client(far, user="worker", password="secret") as worker,
        amqp_client(near) as client,
    ):
        receiver = worker.create_receiver("jobs/7", credit=10)
        sender = client.create_sender("jobs/7")
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(sender.send, Message(body="weld"))
            receiver.receive(timeout=20)
            receiver.accept()
            receiver.close()
            sent.result(20)
        worker.create_receiver("jobs/7", credit=10)
        yield near


LOOKS: list[dict[str, Any]] = [
    {"viewport": DESKTOP},
    {"viewport": PHONE},
    {"viewport": DESKTOP, "color_scheme": "dark"},
]


@pytest.mark.parametrize("look", LOOKS, ids=["desktop", "phone", "dark"])
def test_the_network_is_drawn_with_paths_costs_and_traffic(browser: Browser, lower: Waypost, look: Any) -> None:
    with visiting(browser, f"http://127.0.0.1:{lower.port('http')}/", **look) as visit:
        visit.open("#/bridge")
        panel = visit.page.get_by_role("region", name="Router network")
        tree = panel.get_by_role("list", name="Cheapest paths")
        tree.get_by_text("plant").wait_for()
        shown = " ".join(tree.inner_text().split())
        assert shown.startswith("lower this gateway no consumers cost 3 upper consumers of 1 anycast")
        assert shown.endswith("cost 3 plant no consumers")
        assert panel.get_by_role("row").filter(has_text="upper").count() == 1
        connector = visit.page.get_by_role("region", name="up", exact=True)
        connector.get_by_text("upper, cost 3").wait_for()
        assert "1, 0 unanswered" in connector.inner_text()
        assert visit.overflow() == 0
        assert visit.violations() == []
