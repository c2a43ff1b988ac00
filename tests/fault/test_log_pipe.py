"""A full pipe as a gateway's log stops no device and no acknowledgement, and is reported."""

from __future__ import annotations

from pathlib import Path

from edge.broker.mqtt import packets
from tests.fault.hostile.web import gateway_of
from tests.support.configured_gateway import user
from tests.support.hostile import Raw
from tests.support.problems import WAIT_S, find_problem, health
from tests.support.processes import Waypost, wait_until
from tests.support.publisher import Publisher
from tests.support.unread_log import unread_log


def test_unread_log_stops_no_device_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(gateway_of(authentication="{name: none}", extra=user("joe", "view")))
    arguments = ("run", "--data", str(tmp_path / "gw"), "--config", str(tmp_path / "resources.yaml"))
    with unread_log(tmp_path / "gw.log") as log:
        gateway = Waypost(log, *arguments)
        gateway.arguments[1:1] = ["-c", "import logging, sys\n" + NOISY]
        with gateway:
            http = gateway.port("http")
            publisher = Publisher("sender", gateway.port("mqtt"), "jobs", window=5)
            publisher.start()
            wait_until(lambda: find_problem(http, "log") is not None, timeout_s=WAIT_S, what="it is reported")
            assert health(http)[0] == 200, "a warning: it serves"
            before = len(publisher.acked)
            wait_until(
                lambda: len(publisher.acked) > before + 50, timeout_s=WAIT_S, what="messages are acked all the same"
            )
            with Raw(gateway, 4).connect("other") as other:
                other.send(packets.PingReq())
                assert isinstance(other.receive(), packets.PingResp)
            publisher.end()
            assert gateway.stop() == 0, "the end does not wait for a reader either"


NOISY = """
import threading, time
def chatter():
    log = logging.getLogger("chatter")
    while not logging.getLogger().handlers:
        time.sleep(0.05)
    while True:
        for kind in range(100):
            log.error("line %d of much " + "x" * kind, kind)
        time.sleep(0.1)
threading.Thread(target=chatter, daemon=True).start()
sys.argv = ["waypost", *sys.argv[3:]]
from edge.appliance.main import main
main()
"""
