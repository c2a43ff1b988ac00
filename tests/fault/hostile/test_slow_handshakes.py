"""Thousands of TLS handshakes that start and never end: other clients complete theirs, and the cost is small."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.broker.mqtt import packets
from tests.bench.idle import SPARE_FILES, raise_file_limit
from tests.fault.hostile.crowd import Crowd
from tests.fault.hostile.figures import Figures
from tests.fault.hostile.limited_gateway import KEPT_MIB, RETURNED_S
from tests.fault.hostile.neighbour import ADDRESS
from tests.fault.hostile.neighbours import FLOOR_S, ROUNDS, Neighbours
from tests.fault.hostile.watch import Watch, await_memory
from tests.fault.hostile.web import gateway_of
from tests.support.certificates import Authority
from tests.support.configured_gateway import gateway_with
from tests.support.processes import Waypost

HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)
MEMORY_MIB = 256
LOGIN_S_MAX = 5.0
"""Login time of a client elsewhere: some 10 ms of handshake, on a machine without other work."""
LOGINS = 5
WAIT_S = 20.0


def half_handshakes(number: int) -> Iterator[bytes]:
    yield HALF_A_HELLO


def login_s(port: int, context: ssl.SSLContext) -> float:
    """Return the login time of a client at another address."""
    begin = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=(ADDRESS, 0)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as client,
    ):
        client.sendall(packets.Connect("elsewhere", 4).encode(4))
        assert client.recv(4) == packets.ConnAck().encode(4)
    return time.monotonic() - begin


@pytest.mark.parametrize("count", [400, pytest.param(3_000, marks=pytest.mark.slow)])
def test_endless_handshakes_do_not_delay_other_logins(
    tmp_path: Path, control: Waypost, count: int, figures: Callable[[Figures], None]
) -> None:
    raise_file_limit(count + SPARE_FILES)
    authority = Authority(tmp_path / "ca")
    server = authority.issue("gw1")
    tls = f', mqtts: "127.0.0.1:0", tls: {{certificate: "{server.certificate}", key: "{server.key}"}}'
    context = authority.context()
    resources = gateway_of(authentication="{name: none}", listeners=tls)
    with gateway_with(tmp_path, resources) as running:
        login_s(running.port("mqtts"), context)
        with Watch(running) as watch, Neighbours(running, control) as neighbours:
            for last in range(1, ROUNDS + 1):
                neighbours.rest()
                attacked = time.monotonic()
                with Crowd(running.port("mqtts")).open(count) as crowd:
                    crowd.send(half_handshakes, seconds=5)
                    slowest_s = max(login_s(running.port("mqtts"), context) for _ in range(LOGINS))
                    felt = neighbours.felt(attacked)
                if felt.bearable(FLOOR_S) and slowest_s < LOGIN_S_MAX:
                    break
                assert last < ROUNDS, f"{felt}, {slowest_s:.2f} s to log in"
        assert watch.most_mib < MEMORY_MIB
        after_s = await_memory(running.pid, watch.before_mib, kept_mib=KEPT_MIB, timeout_s=RETURNED_S)
    figures(Figures(f"{count} handshakes", felt, watch.before_mib, watch.most_mib, after_s))
