"""What an idle gateway does not load, and that it serves others while it does."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

from bridge.engine import State
from tests.bench.idle import connect
from tests.support.amqp_sender import AmqpSender
from tests.support.processes import edge

MESSAGE = b"\x00Su\xa0\x03one"
"""A data section (part 3, section 3.2.6)."""
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
STOPPED_S_MAX = 0.5
"""How long nobody may be served while AMQP is loaded; on a busy machine. Alone it is some milliseconds."""


def has_proton(pid: int) -> bool:
    return "cproton" in Path(f"/proc/{pid}/maps").read_text()


def test_amqp_comes_with_its_first_connection_and_devices_are_served_meanwhile(tmp_path: Path) -> None:
    with edge(tmp_path, "gateway") as gateway, ExitStack() as stack:
        (device,) = connect(stack, gateway.port("mqtt"), 1)
        assert not has_proton(gateway.pid)
        over, waits = threading.Event(), list[float]()

        def ping() -> None:
            while not over.is_set():
                begun = time.monotonic()
                device.sendall(PINGREQ)
                assert device.recv(2) == PINGRESP
                waits.append(time.monotonic() - begun)

        pinging = threading.Thread(target=ping)
        pinging.start()
        try:
            with AmqpSender(gateway.port("amqp"), "first", "queue/late") as sender:
                assert sender.send(MESSAGE).settled() == [State.ACCEPTED]
        finally:
            over.set()
            pinging.join()
        assert has_proton(gateway.pid)
        assert max(waits) < STOPPED_S_MAX, sorted(waits)[-5:]
