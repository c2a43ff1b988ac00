"""Memory of an idle connection stays bounded.

`./waypost bench idle` measures the figure that counts (8 000 connections); this test checks only the growth per
connection.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.bench.idle import SPARE_FILES, connect, raise_file_limit, subscribe
from tests.support.certificates import Authority
from tests.support.processes import Waypost, edge, resident_mib
from tests.support.programs import openssl

WARM = 200
"""Connections before the first measurement; they load the code that only a connection needs."""
COUNT = 1_500
COUNT_TLS = 300
"""Connections with TLS; a handshake costs both ends milliseconds."""
TLS_RESOURCES = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: gw}},
  spec: {{listeners: {{mqtts: "127.0.0.1:0", tls: {{certificate: {certificate}, key: {key}}}}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: none}}}}}}
"""


REST_MIB_MAX = 50
"""Most memory of a gateway without connections; 46 were measured, with all parts imported at its start."""


def growth_kib(folder: Path, *, keep_alive_s: int, subscribed: bool) -> float:
    """Return the resident memory that a gateway needs for each of `COUNT` connections, in KiB."""
    raise_file_limit(WARM + COUNT + SPARE_FILES)
    with edge(folder, "gateway") as gateway, ExitStack() as stack:
        port = gateway.port("mqtt")
        warm = connect(stack, port, WARM, name="warm", keep_alive_s=keep_alive_s)
        if subscribed:
            subscribe(warm)
        before = resident_mib(gateway.pid)
        devices = connect(stack, port, COUNT, keep_alive_s=keep_alive_s)
        if subscribed:
            subscribe(devices)
        return (resident_mib(gateway.pid) - before) * 1024 / COUNT


def test_memory_of_an_idle_gateway(tmp_path: Path) -> None:
    with edge(tmp_path, "gateway"):
        pass  # the first start compiles bytecode for the next ones
    with edge(tmp_path, "gateway") as gateway:
        assert resident_mib(gateway.pid) < REST_MIB_MAX


def test_memory_of_an_idle_connection(tmp_path: Path) -> None:
    assert growth_kib(tmp_path, keep_alive_s=0, subscribed=False) < 1.7


def test_memory_of_a_device_that_waits_for_commands(tmp_path: Path) -> None:
    assert growth_kib(tmp_path, keep_alive_s=60, subscribed=True) < 3.3


@openssl
def test_memory_of_an_idle_connection_over_tls(tmp_path: Path) -> None:
    raise_file_limit(WARM + COUNT_TLS + SPARE_FILES)
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("localhost")
    config = tmp_path / "gateway.yaml"
    config.write_text(TLS_RESOURCES.format(certificate=issued.certificate, key=issued.key))
    arguments = ("run", "--data", str(tmp_path / "data"), "--config", str(config))
    with Waypost(tmp_path / "gateway.log", *arguments) as gateway, ExitStack() as stack:
        port, context = gateway.port("mqtts"), authority.context()
        connect(stack, port, WARM, name="warm", tls=context)
        before = resident_mib(gateway.pid)
        connect(stack, port, COUNT_TLS, tls=context)
        assert (resident_mib(gateway.pid) - before) * 1024 / COUNT_TLS < 35


def test_memory_of_closed_connections_is_reused(tmp_path: Path) -> None:
    raise_file_limit(COUNT + SPARE_FILES)
    with edge(tmp_path, "gateway") as gateway:
        rounds = []
        for _ in range(4):
            with ExitStack() as stack:
                connect(stack, gateway.port("mqtt"), COUNT)
                rounds.append(resident_mib(gateway.pid))
        # The second round still warms up. Two more add 3 MiB for each KiB that a closed connection leaks.
        assert rounds[-1] - rounds[1] < 1.5, rounds


def test_connections_that_end_give_their_memory_back(tmp_path: Path) -> None:
    """Devices that reconnect for years leave nothing behind, and nothing that waits for the garbage collector."""
    raise_file_limit(COUNT + SPARE_FILES)
    with edge(tmp_path, "gateway") as gateway:
        resident: list[float] = []
        for _ in range(5):
            with ExitStack() as stack:
                subscribe(connect(stack, gateway.port("mqtt"), COUNT))
                resident.append(resident_mib(gateway.pid))
        assert max(resident[1:]) - resident[0] < 2
